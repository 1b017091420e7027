"""What a module may declare, and what its author reads when it may not."""

from __future__ import annotations

import inspect
import subprocess
import sys
from typing import Any

import pytest

import stretto
from stretto.errors import DeclarationError, UsageError
from stretto.module.module import OBJECTS_MAX, Depot, Module, PState, check_module_name, declarations


def line_of(text: str) -> int:
    """The line of this file that holds ``text`` for the first time."""
    source = inspect.getsource(sys.modules[__name__]).splitlines()
    return next(number for number, line in enumerate(source, 1) if text in line)


def test_declarations_are_gathered_in_their_order() -> None:
    class WordCount(stretto.Module):
        sentences = stretto.Depot(partition_by="user")
        heartbeats = stretto.Depot()

    declared = declarations(WordCount)
    assert declared.name == "WordCount"
    assert [(name, depot.partition_by) for name, depot in declared.depots.items()] == [
        ("sentences", "user"),
        ("heartbeats", None),
    ]


def test_a_class_statement_can_name_its_module() -> None:
    class WordCount(Module, name="word-count.v2"):
        pass

    assert declarations(WordCount).name == "word-count.v2"


def test_bases_declare_for_a_module_and_a_module_can_take_back() -> None:
    class Audited:
        audit = Depot()

    class Base(Module):
        events = Depot()
        debug = Depot()

    class Shop(Audited, Base):
        events = Depot(partition_by="order")
        debug = None  # type: ignore[assignment]

    assert {name: depot.partition_by for name, depot in declarations(Shop).depots.items()} == {
        "events": "order",
        "audit": None,
    }
    assert list(declarations(Base).depots) == ["events", "debug"]


def test_an_error_names_class_attribute_and_line() -> None:
    with pytest.raises(DeclarationError) as refused:

        class Wrong(Module):
            fine = Depot()
            orders = Depot(  # type: ignore[call-overload]
                partition_by=7
            )

    place = f"{__file__}:{line_of('orders = Depot(')}: "
    assert str(refused.value).startswith(place)
    assert "Wrong.orders: partition_by names a field" in str(refused.value)
    assert str(refused.value).endswith("it is 7")


def test_a_field_without_a_name_is_refused() -> None:
    with pytest.raises(DeclarationError, match="partition_by names a field"):

        class Wrong(Module):
            orders = Depot(partition_by="")


def test_the_class_in_place_of_a_depot_is_refused() -> None:
    with pytest.raises(DeclarationError, match=r"Wrong\.orders: Depot is the class; declare with Depot\("):

        class Wrong(Module):
            orders = Depot


def test_one_depot_under_two_names_is_refused() -> None:
    with pytest.raises(DeclarationError, match=r"Wrong\.again: this is the same Depot as 'orders'"):

        class Wrong(Module):
            orders = Depot()
            again = orders


@pytest.mark.parametrize("attribute", ["_orders", "ordérs", "a" * 101, "zookeeper", "with space", "a/b"])
def test_names_that_neither_znode_nor_database_can_have_are_refused(attribute: str) -> None:
    with pytest.raises(DeclarationError, match=r"Wrong\."):
        type("Wrong", (Module,), {attribute: Depot()})


def test_as_many_depots_as_a_task_can_keep() -> None:
    depots = {f"depot{number}": Depot() for number in range(OBJECTS_MAX)}
    largest = type("Largest", (Module,), dict(depots))
    assert len(declarations(largest).depots) == OBJECTS_MAX
    depots = {f"depot{number}": Depot() for number in range(OBJECTS_MAX)}
    with pytest.raises(DeclarationError, match="1001 depots and PStates are beyond the limit of 1000"):
        type("Larger", (Module,), {**depots, "more": PState(set[int])})


def test_pstates_are_declared_by_their_types() -> None:
    class WordCount(stretto.Module):
        sentences = stretto.Depot(partition_by="user")
        counts = stretto.PState(dict[str, int])
        seen = stretto.PState(dict[str, set[int]])

    declared = declarations(WordCount)
    assert list(declared.depots) == ["sentences"]
    assert {name: str(pstate.type) for name, pstate in declared.pstates.items()} == {
        "counts": "dict[str, int]",
        "seen": "dict[str, set[int]]",
    }


@pytest.mark.parametrize(
    ("annotation", "sentence"),
    [
        (int, "a PState is a dict or a set, whose keys choose the tasks, not int"),
        (list[int], "a PState is a dict or a set, whose keys choose the tasks, not list"),
        (dict, "Any is no type of keys; use str"),
        (dict[list[int], int], r"list\[int\] is no type of keys; use str"),
        (dict[str, dict[object, int]], "object cannot be stored"),
        (dict[int | bool, int], "keys that are equal and not the same"),
        (dict[str, complex], "complex cannot be stored; use a dataclass"),
        ({"word": int}, "cannot be stored: Type"),
    ],
)
def test_what_no_pstate_can_be_is_refused_with_its_line(annotation: Any, sentence: str) -> None:
    with pytest.raises(DeclarationError, match=sentence) as refused:

        class Wrong(Module):
            counts = PState(annotation)

    place = f"{__file__}:{line_of('counts = PState(annotation)')}: Wrong.counts: "
    assert str(refused.value).startswith(place)


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "zookeeper", "-x", "1st", "é", "a" * 101, 7])
def test_names_that_a_module_cannot_have(name: str) -> None:
    with pytest.raises(UsageError, match="a module cannot be called"):
        check_module_name(name)
    with pytest.raises(DeclarationError, match="Wrong: a module cannot be called"):

        class Wrong(Module, name=name):
            pass


def test_importing_stretto_does_not_import_the_client_or_the_modules() -> None:
    program = (
        "import stretto, sys; print(sorted({'stretto.module.module', 'stretto.client'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


class Shop(Module):
    orders = Depot(partition_by="customer")
    totals = PState(dict[str, int])


def test_what_another_module_declares_is_refused() -> None:
    """It used to be a PState of this module's own, with nothing in it, for ever."""
    with pytest.raises(DeclarationError) as refused:

        class Report(Module):
            totals = Shop.totals

    line = line_of("class Report(Module)")
    assert str(refused.value) == (
        f"{__file__}:{line}: Report.totals: this is PState totals of Shop, whose data stays there; here it "
        "would be another one, with nothing in it: declare a PState(...) of this module's own, or use that "
        "of Shop from outside, with a client"
    )
    with pytest.raises(
        DeclarationError, match=r"Other.orders: this is Depot orders of Shop, whose data stays"
    ):
        type("Other", (Module,), {"orders": Shop.orders})
    with pytest.raises(DeclarationError, match=r"Sub.again: this is the same Depot as 'orders'"):
        type("Sub", (Shop,), {"again": Shop.orders})

    class Branch(Shop):
        pass

    with pytest.raises(DeclarationError, match=r"Sub.again: this is Depot orders of Branch"):
        type("Sub", (Branch,), {"again": Branch.orders})


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ("customer", r"'customer' is no type of its records; say partition_by='customer'"),
        (object(), "cannot be decoded"),
    ],
)
def test_what_is_no_type_of_records_is_refused(wrong: Any, sentence: str) -> None:
    with pytest.raises(DeclarationError, match=f"Wrong.depot: .*{sentence}"):
        type("Wrong", (Module,), {"depot": Depot(wrong)})
