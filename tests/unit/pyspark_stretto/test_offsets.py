"""Where micro-batches begin and end."""

from __future__ import annotations

from typing import Literal

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows
from pyspark.sql.types import BooleanType, NullType, StringType, StructField, StructType

from pyspark_stretto import streaming
from pyspark_stretto.columns.schema import DEPOT_SCHEMA
from pyspark_stretto.options import Options
from pyspark_stretto.streaming import (
    DepotStream,
    RecordRange,
    admitted,
    beginning,
    check_origin,
    check_reachable,
    offsets_of,
    told,
)
from stretto.control import ModuleDescription
from stretto.errors import StrettoError, UsageError
from stretto.specs.modules import DepotSpec
from stretto.state.depot import DepotBatch

OPTIONS = Options(module="Counts", depot="events")
BOUNDS = {0: (0, 10), 1: (5, 20)}


def test_without_a_limit_a_batch_goes_to_the_ends() -> None:
    assert admitted({0: 1, 1: 5}, {0: 10, 1: 5}, None) == {0: 10, 1: 5}


@pytest.mark.parametrize("most", [1, 2, 3, 10, 99, 101])
def test_a_batch_has_as_many_records_as_are_admitted_and_there(most: int) -> None:
    at = {0: 7, 1: 0, 2: 50}
    end = admitted(at, {0: 7, 1: 90, 2: 60}, most)
    assert sum(end.values()) - sum(at.values()) == min(most, 100)
    assert end[0] == 7
    assert end[1] <= 90
    assert end[2] <= 60


def test_tasks_share_a_batch_by_what_waits_on_them_and_none_starves() -> None:
    assert admitted({0: 0, 1: 0}, {0: 900, 1: 100}, 100) == {0: 90, 1: 10}
    at = {0: 0, 1: 0}
    for _ in range(30):
        at = admitted(at, {0: at[0] + 1_000_000, 1: 3}, 10)
    assert at[1] >= 0
    assert admitted({0: 0, 1: 0}, {0: 3, 1: 3}, 1) in ({0: 1, 1: 0}, {0: 0, 1: 1})


def test_ends_that_lie_behind_move_nothing_back() -> None:
    assert admitted({0: 8}, {0: 5}, None) == {0: 8}


def test_a_query_begins_where_the_depot_does_or_where_it_is_told() -> None:
    assert beginning(OPTIONS, BOUNDS) == {0: 0, 1: 5}
    assert beginning(Options(start=7), BOUNDS) == {0: 7, 1: 7}
    assert beginning(Options(start={1: 20}), BOUNDS) == {0: 0, 1: 20}
    with pytest.raises(UsageError, match="option start is 11 on task 0, where depot None has 0 to 10"):
        beginning(Options(start=11), BOUNDS)
    with pytest.raises(UsageError, match="names task 2, and Counts has tasks 0 to 1"):
        beginning(Options(module="Counts", start={2: 0}), BOUNDS)


def test_a_checkpoint_of_records_that_are_not_there_is_told() -> None:
    check_reachable(OPTIONS, {0: 10, 1: 5}, BOUNDS)
    with pytest.raises(StrettoError, match="records 4 to 5 of task 1 were removed by the retention"):
        check_reachable(OPTIONS, {0: 10, 1: 4}, BOUNDS)
    with pytest.raises(
        UsageError, match="the checkpoint is at offset 11 of task 0, where depot events ends at 10"
    ):
        check_reachable(OPTIONS, {0: 11, 1: 5}, BOUNDS)
    with pytest.raises(UsageError, match="begin with a new checkpoint"):
        check_reachable(OPTIONS, {0: 10}, BOUNDS)


def test_a_checkpoint_of_a_namesake_is_told_although_its_depot_is_longer() -> None:
    at = told({1: 5, 0: 10}, "one")
    assert list(at) == ["origin", "0", "1"]
    assert offsets_of(at) == {0: 10, 1: 5}
    check_origin(OPTIONS, at, "one")
    check_origin(OPTIONS, told({0: 10}), "one")
    check_origin(OPTIONS, at, "")
    with pytest.raises(UsageError, match=r"of a module Counts that was destroyed, .* begin with a new"):
        check_origin(OPTIONS, at, "two")


def test_a_checkpoint_of_a_depot_that_was_deleted_is_told_although_its_module_is_the_same() -> None:
    before = told({0: 10}, "one")
    after = told({0: 10}, "one.3")
    check_origin(OPTIONS, after, "one.3")
    for at, origin in ((before, "one.3"), (after, "one"), (after, "one.7")):
        with pytest.raises(UsageError, match=r"of a depot events of Counts that was deleted, .* begin with"):
            check_origin(OPTIONS, at, origin)


class Module:
    """A client, its only reader, and a description, of a module that can be launched anew."""

    def __init__(self) -> None:
        self.origin = "one"
        self.depots = (DepotSpec(name="events"),)
        self.bounds = {0: (0, 10), 1: (0, 4)}

    def describe(self, _module: str) -> ModuleDescription:
        return ModuleDescription(tasks=2, depots=self.depots, origin=self.origin)

    def reader(self, _module: str, _depot: str, *, max_staleness: float | None) -> Module:
        assert max_staleness is None, "leaders tell where a depot ends"
        return self

    def all_bounds(self) -> dict[int, tuple[int, int]]:
        return self.bounds


@pytest.mark.parametrize(
    ("schema", "why"),
    [
        (
            StructType([StructField("_task", BooleanType())]),
            "column _task of depot events is int, not boolean",
        ),
        (
            StructType([StructField("offset", StringType())]),
            "column offset of depot events is bigint, not str",
        ),
        (
            StructType([StructField("timestamp", BooleanType())]),
            "column timestamp of depot events is timestamp",
        ),
        (StructType([StructField("n", NullType())]), "which JSON has nothing for"),
    ],
)
def test_a_schema_that_does_not_fit_is_told_before_a_query_begins(
    schema: StructType, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streaming, "client_of", lambda _: Module())
    with pytest.raises(UsageError, match=why):
        DepotStream(OPTIONS, schema)


@pytest.mark.parametrize("source", ["follower", "leader"])
def test_followers_serve_the_records_of_a_stream_unless_leaders_are_asked_for(
    source: Literal["follower", "leader"], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[float | None] = []

    class Serving(Module):
        def reader(self, _module: str, _depot: str, *, max_staleness: float | None) -> Serving:
            asked.append(max_staleness)
            return self

        def batches(self, _task: int, _start: int, _end: int) -> list[DepotBatch]:
            return []

    monkeypatch.setattr(streaming, "client_of", lambda _: Serving())
    stream = DepotStream(Options(module="Counts", depot="events", source=source), DEPOT_SCHEMA)
    assert list(stream.read(RecordRange(0, 0, 3))) == []
    assert asked == [None if source == "leader" else 10.0]


@pytest.mark.parametrize("limit", [ReadAllAvailable(), ReadMaxRows(6)])
def test_a_query_that_is_to_read_what_is_there_ends_though_more_comes(
    limit: ReadLimit, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = Module()
    monkeypatch.setattr(streaming, "client_of", lambda _: module)
    stream = DepotStream(OPTIONS, DEPOT_SCHEMA)
    at = stream.initialOffset()
    stream.prepareForTriggerAvailableNow()
    read = 0
    for number in range(1, 9):
        module.bounds = {0: (0, 10 + 5 * number), 1: (0, 4 + 5 * number)}
        following = stream.latestOffset(at, limit)
        read += sum(each.end - each.start for each in stream.partitions(at, following))
        at = following
    assert (at, read) == ({"origin": "one", "0": 10, "1": 4}, 14)
    assert stream.reportLatestOffset() == {"0": 50, "1": 44}, "how far it is behind"


def test_a_query_goes_on_in_the_module_that_it_began_with_and_in_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    module = Module()
    monkeypatch.setattr(streaming, "client_of", lambda _: module)
    stream = DepotStream(OPTIONS, DEPOT_SCHEMA)
    start = stream.initialOffset()
    assert start == {"origin": "one", "0": 0, "1": 0}
    end = stream.latestOffset(start, ReadAllAvailable())
    assert end == {"origin": "one", "0": 10, "1": 4}
    assert len(stream.partitions(start, end)) == 2
    assert stream.latestOffset(end, ReadAllAvailable()) == end
    old: streaming.Offsets = {"0": 10, "1": 4}
    assert stream.latestOffset(old, ReadAllAvailable()) is old, "nothing came, and there is nothing to do"
    module.bounds = {0: (0, 20), 1: (0, 20)}
    assert stream.latestOffset(old, ReadAllAvailable()) == {"origin": "one", "0": 20, "1": 20}
    module.depots = (DepotSpec(name="events", since=2),)
    with pytest.raises(UsageError, match="that was deleted"):
        stream.latestOffset(end, ReadAllAvailable())
    module.origin = "two"
    with pytest.raises(UsageError, match="that was destroyed"):
        stream.latestOffset(end, ReadAllAvailable())
    with pytest.raises(UsageError, match="that was destroyed"):
        stream.partitions(start, end)
