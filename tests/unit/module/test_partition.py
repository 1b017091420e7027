"""Which task a record goes to: the same one everywhere and for ever, and each its share."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta, timezone
from typing import Any, ClassVar

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stretto.errors import DeclarationError, UsageError
from stretto.module.module import Depot, Module
from stretto.module.partition import GLOBAL, RANDOM, Partitioner, hash_by, owner_of, owners_of, task_of
from stretto.specs.modules import DepotSpec

numbers = st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False, allow_infinity=False)
scalars = st.none() | st.booleans() | numbers | st.text()
keys = scalars | st.lists(scalars, max_size=4)
tasks = st.sampled_from([1, 2, 8, 64, 1024])


@settings(deadline=None)
@given(keys, tasks)
def test_a_task_is_one_of_the_modules(key: object, count: int) -> None:
    assert 0 <= task_of(key, count) < count


@settings(deadline=None)
@given(keys, tasks)
def test_a_key_has_the_same_task_after_a_trip_through_json(key: object, count: int) -> None:
    assert task_of(msgspec.json.decode(msgspec.json.encode(key)), count) == task_of(key, count)


@settings(deadline=None)
@given(st.integers(-(2**53), 2**53), tasks)
def test_numbers_that_are_equal_have_the_same_task(number: int, count: int) -> None:
    assert task_of(number, count) == task_of(float(number), count)
    assert task_of((number, "a"), count) == task_of([float(number), "a"], count)


def test_tasks_of_a_release_are_those_of_every_other() -> None:
    """What was appended lies where it was put: a change of these numbers would lose it to its readers."""
    known = {
        "": 104,
        "user-1": 615,
        "user-2": 225,
        0: 165,
        300: 1023,
        -1: 316,
        1.5: 402,
        None: 799,
        True: 949,
        ("de", 7): 654,
    }
    assert {key: task_of(key, 1024) for key in known} == known


def test_a_pstate_lies_on_the_task_that_a_record_with_its_key_goes_to() -> None:
    for key in ("user-1", 0, 300, -1, 1.5, None, True, ("de", 7)):
        assert owner_of(key, 1024) == task_of(key, 1024)


def test_keys_that_json_cannot_say_have_a_task_too() -> None:
    noon = datetime(2026, 7, 1, 12, tzinfo=UTC)
    known = {b"": 159, b"\xff\x00": 125, date(2026, 7, 1): 81, noon: 835, ("de", noon): 237}
    assert {key: owner_of(key, 1024) for key in known} == known
    assert owner_of(noon.astimezone(timezone(timedelta(hours=2))), 1024) == owner_of(noon, 1024)
    with pytest.raises(UsageError, match="is no key"):
        owner_of(noon.replace(tzinfo=None), 1024)


def test_another_process_with_another_hash_seed_agrees() -> None:
    program = (
        "from stretto.module.partition import task_of; print([task_of(f'user-{n}', 64) for n in range(100)])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONHASHSEED": "7"},
    )
    assert done.stdout.strip() == str([task_of(f"user-{n}", 64) for n in range(100)])


@pytest.mark.parametrize(
    "of_number",
    [lambda n: f"user{n}", lambda n: f"{n:08}", lambda n: n, lambda n: n * 8, lambda n: n << 20],
    ids=["text", "padded", "numbers", "multiples of 8", "high bits"],
)
def test_keys_of_any_pattern_are_spread_evenly(of_number: object) -> None:
    """Chi-square per degree of freedom is about 1 for a fair choice; a bare CRC reaches 38 here."""
    assert callable(of_number)
    for count in (8, 64, 256):
        counts = [0] * count
        for number in range(10_000):
            counts[task_of(of_number(number), count)] += 1
        fair = 10_000 / count
        assert sum((found - fair) ** 2 / fair for found in counts) / (count - 1) < 2


def test_a_value_is_a_record_as_json_and_its_field_chooses() -> None:
    partitioner = Partitioner(DepotSpec(name="sentences", partition_by="user"), 8)
    record, task = partitioner.place({"user": "ada", "text": "so lange"})
    assert msgspec.json.decode(record) == {"user": "ada", "text": "so lange"}
    assert task == task_of("ada", 8)


def test_without_a_field_the_producer_chooses() -> None:
    assert Partitioner(DepotSpec(name="pings"), 8).place("ping") == (b'"ping"', None)


@pytest.mark.parametrize("value", [{"text": "x"}, "user", ["user"], 7, None])
def test_a_value_without_the_field_is_refused(value: object) -> None:
    partitioner = Partitioner(DepotSpec(name="sentences", partition_by="user"), 8)
    with pytest.raises(UsageError, match="depot sentences is partitioned by 'user', a field that"):
        partitioner.place(value)


@pytest.mark.parametrize(
    "key", [{}, {"a": 1}, float("nan"), float("inf"), 2**64, "\ud800", b"bytes", object()]
)
def test_what_has_no_one_meaning_is_no_key(key: object) -> None:
    with pytest.raises(UsageError, match="is no key"):
        task_of(key, 8)


@pytest.mark.parametrize("value", [object(), {(1, 2): 3}, {"user": "\ud800"}])
def test_what_json_cannot_say_is_no_record(value: object) -> None:
    with pytest.raises(UsageError, match="cannot be a record"):
        Partitioner(DepotSpec(name="pings"), 8).place(value)


def test_a_long_value_is_cut_short_in_the_sentence() -> None:
    with pytest.raises(UsageError) as refused:
        Partitioner(DepotSpec(name="sentences", partition_by="user"), 8).place({"text": "x" * 10_000})
    assert len(str(refused.value)) < 200


def by_length(record: str, tasks: int) -> int:
    return len(record) % tasks


class Depots(Module):
    several = Depot(partition_by=hash_by("land", "city"))
    one = Depot(partition_by=GLOBAL)
    any = Depot(partition_by=RANDOM)
    chosen = Depot(partition_by=by_length)


def test_several_fields_choose_as_a_tuple_of_them_does() -> None:
    record = {"city": "Bonn", "land": "de", "size": 3}
    assert Partitioner(Depots.several, 64).place(record).task == owner_of(("de", "Bonn"), 64)
    with pytest.raises(UsageError, match=r"partitioned by 'city', a field that .* does not have"):
        Partitioner(Depots.several, 64).place({"land": "de"})


def test_a_global_depot_has_all_on_one_task() -> None:
    assert {Partitioner(Depots.one, 64).place(n).task for n in range(50)} == {0}


def test_who_appends_chooses_among_all_tasks_of_a_random_depot() -> None:
    assert Partitioner(Depots.any, 64).place(7) == (b"7", None)
    assert Depots.any.spec == DepotSpec(name="any")


def test_a_function_chooses_and_only_who_has_the_module_has_it() -> None:
    assert Partitioner(Depots.chosen, 4).place("abcde").task == 1
    with pytest.raises(
        UsageError, match=r"with the module's class: client.depot\(TheModule.chosen\).append\(value\)"
    ):
        Partitioner(Depots.chosen.spec, 4).place("abcde")


@pytest.mark.parametrize("wrong", [4, -1, "1", None, True, 1.0])
def test_a_function_that_chooses_no_task_is_told(wrong: Any) -> None:
    class Wrong(Module):
        depot = Depot(partition_by=lambda record, tasks: wrong)

    with pytest.raises(
        UsageError, match=r"the function that partitions depot depot gave .* the tasks are 0 to 3"
    ):
        Partitioner(Wrong.depot, 4).place("x")


def test_objects_have_fields_too() -> None:
    @dataclass
    class Person:
        user: str

    partitioner = Partitioner(DepotSpec(name="people", partition_by="user"), 8)
    assert partitioner.place(Person("ann")) == partitioner.place({"user": "ann"})


def test_a_variable_of_a_class_is_no_field_of_its_records() -> None:
    @dataclass
    class Person:
        name: str
        user: ClassVar[str] = "everybody"

    with pytest.raises(UsageError, match="partitioned by 'user', a field that"):
        Partitioner(DepotSpec(name="people", partition_by="user"), 8).place(Person("ann"))


@pytest.mark.parametrize("wrong", [hash_by(), hash_by(""), lambda record: 0, 7, "", ["user"]])
def test_what_partitions_nothing_is_refused(wrong: Any) -> None:
    with pytest.raises(DeclarationError, match=r"Wrong.depot: partition_by names a field .* it is "):
        type("Wrong", (Module,), {"depot": Depot(partition_by=wrong)})


@given(st.lists(st.text() | st.integers(-(2**63), 2**63 - 1) | st.binary() | st.booleans() | st.none()))
def test_many_keys_have_the_owners_that_each_has(keys: list[Any]) -> None:
    def owners(of: Any) -> list[int] | str:
        try:
            return list(of())
        except UsageError as error:
            return str(error)

    assert owners(lambda: owners_of(keys, 7)) == owners(lambda: [owner_of(key, 7) for key in keys])
