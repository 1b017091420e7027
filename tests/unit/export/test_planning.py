"""What is asked of an export is refused in a sentence before anything is read, and parts join."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from stretto.control import ModuleDescription
from stretto.errors import StrettoError, UsageError
from stretto.export.job import Done
from stretto.export.manifest import Manifest, TaskRead, decode, encode
from stretto.export.planning import (
    Request,
    check_format,
    check_present,
    is_nothing_new,
    kind_of,
    manifest_of,
    order_of,
    planned,
    starts_of,
    without_files,
)
from stretto.export.report import read_report
from stretto.pstate.types import describe
from stretto.specs.modules import DepotSpec, PStateSpec

SHOP = ModuleDescription(
    tasks=2,
    depots=(DepotSpec(name="orders"),),
    pstates=(PStateSpec(name="totals", type=describe(dict[str, int])),),
)


def request(object_: str = "orders", **more: Any) -> Request:
    return Request(module="Shop", object=object_, format=more.pop("format", "json"), **more)


def written(tree: Path, ends: dict[int, int], starts: dict[int, int] | None = None, **more: Any) -> Manifest:
    tree.mkdir(exist_ok=True)
    reads = tuple(
        TaskRead(task=task, apply_offset=9, start=(starts or {}).get(task, 0), end=end)
        for task, end in ends.items()
    )
    rows = sum(each.end - each.start for each in reads if each.end is not None and each.start is not None)
    origin, at = more.pop("origin", ""), more.pop("at", None)
    plan = planned(request(**more), "depot")
    return manifest_of(plan, Done(rows, {"type": "struct"}, ()), reads, tree, origin=origin, at=at)


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        (request("order"), "no PState and no depot order; did you mean orders"),
        (request("totals", since="last"), "is a PState, which changes everywhere"),
        (request("totals", schema="x INT"), "has types of its own"),
        (request("orders", nested="map"), "is a depot; --nested is for PStates"),
    ],
)
def test_what_an_object_has_not_is_refused(asked: Request, why: str) -> None:
    with pytest.raises(UsageError, match=why):
        kind_of(asked, SHOP)


def test_formats_have_names() -> None:
    with pytest.raises(UsageError, match="did you mean parquet"):
        check_format("parket")


@pytest.mark.parametrize(
    ("since", "why"),
    [
        ("yesterday", "'last', or offsets by task"),
        ("0:1,0:2", "names a task twice"),
        ("7:1", "names task 7, and there are tasks 0 to 1"),
        ("2:1", "names task 2, and there are tasks 0 to 1"),
    ],
)
def test_since_is_a_place(since: str, why: str) -> None:
    with pytest.raises(UsageError, match=why):
        starts_of(request(since=since), None, 2)


def test_a_part_begins_where_the_one_before_it_ended(tmp_path: Path) -> None:
    first = written(tmp_path, {0: 10, 1: 4})
    asked = request(since="last")
    assert starts_of(asked, None, 2) == {}
    assert check_present(asked, first) is first
    starts = starts_of(asked, first, 2)
    assert starts == {0: 10, 1: 4}
    order = order_of(
        asked,
        "depot",
        reach={"bootstrap": "x:1"},
        starts=starts,
        report=tmp_path / "r",
        into=tmp_path,
        master="local",
        settings={},
    )
    assert order.options == {
        "bootstrap": "x:1",
        "module": "Shop",
        "depot": "orders",
        "start": '{"0":10,"1":4}',
        "report": str(tmp_path / "r"),
    }
    whole = first.continued(written(tmp_path, {0: 12, 1: 4}, starts))
    assert (whole.rows, [part.rows for part in whole.parts], whole.ends) == (16, [14, 2], {0: 12, 1: 4})
    assert decode(encode(whole), "here") == whole


def test_offsets_that_would_lose_or_repeat_records_are_refused(tmp_path: Path) -> None:
    first = written(tmp_path, {0: 10, 1: 4})
    assert starts_of(request(since="0:10,1:4"), first, 2) == {0: 10, 1: 4}
    for since in ("0:9,1:4", "0:11,1:4", "0:10"):
        with pytest.raises(UsageError, match="say --since last"):
            starts_of(request(since=since), first, 2)


def test_parts_of_one_export_are_made_alike(tmp_path: Path) -> None:
    first = written(tmp_path, {0: 10}, where="a > 1")
    for more in ({}, {"where": "a > 2"}, {"where": "a > 1", "format": "csv"}):
        with pytest.raises(UsageError, match="the export that is there was made with"):
            check_present(request(since="last", **more), first)
    check_present(request(since="last", where="a > 1"), first)


def test_a_part_of_a_namesake_does_not_join_although_its_depot_is_longer(tmp_path: Path) -> None:
    first = written(tmp_path, {0: 10}, origin="first")
    asked = request(since="last")
    for since in ("last", "0:10"):
        with pytest.raises(UsageError, match="of a module Shop that was destroyed, and the one of that name"):
            check_present(request(since=since), first, "second")
    with pytest.raises(UsageError, match="of a module Shop that was destroyed"):
        first.continued(written(tmp_path, {0: 12}, {0: 10}, origin="second"))
    with pytest.raises(UsageError, match=r"of a depot .* of Shop that was deleted, and the one of that name"):
        check_present(asked, first, "first.2")
    assert check_present(asked, first, "first") is first
    # One that was written before origins were goes on, and has one from then on.
    old = written(tmp_path, {0: 10})
    assert check_present(asked, old, "first") is old
    assert old.continued(written(tmp_path, {0: 12}, {0: 10}, origin="first")).origin == "first"


def test_parts_of_a_snapshot_and_of_its_module_join_and_each_says_what_it_is_of(tmp_path: Path) -> None:
    first = written(tmp_path, {0: 10}, origin="one", at="monday")
    assert check_present(request(since="last"), first, "one") is first
    whole = first.continued(written(tmp_path, {0: 12}, {0: 10}, origin="one"))
    assert [part.at for part in whole.parts] == ["monday", None]
    whole = whole.continued(written(tmp_path, {0: 13}, {0: 12}, origin="one", at="tuesday"))
    assert [part.at for part in whole.parts] == ["monday", None, "tuesday"]
    unknown = written(tmp_path, {0: 10}, at="monday")
    with pytest.raises(
        UsageError, match="ends with snapshot monday, and whether the live state has the same"
    ):
        check_present(request(since="last"), unknown, "one")
    with pytest.raises(
        UsageError, match="ends with the live state, and whether snapshot monday has the same"
    ):
        check_present(request(since="last", at="monday"), written(tmp_path, {0: 10}), "")


def test_a_part_with_other_columns_does_not_join(tmp_path: Path) -> None:
    first = written(tmp_path, {0: 10})
    fields = [{"name": "page", "type": "string"}]
    other = msgspec.structs.replace(written(tmp_path, {0: 12}, {0: 10}), schema={"fields": fields})
    with pytest.raises(UsageError, match="this part would have page string; give the same --schema"):
        first.continued(other)


def test_an_export_of_something_else_is_replaced_only_when_told_to(tmp_path: Path) -> None:
    first = written(tmp_path, {0: 10})
    assert check_present(request(), first) is None
    with pytest.raises(UsageError, match="add --overwrite"):
        check_present(request("totals"), first)
    assert check_present(request("totals", overwrite=True), first) is None


def test_what_was_written_must_be_what_was_read(tmp_path: Path) -> None:
    plan = planned(request(), "depot")
    reads = (TaskRead(task=0, apply_offset=9, start=0, end=10),)
    with pytest.raises(StrettoError, match="9 rows were written of 10 records"):
        manifest_of(plan, Done(9, {}, ()), reads, tmp_path)
    with pytest.raises(StrettoError, match="a folder that all of them share"):
        manifest_of(plan, Done(10, {}, ()), reads, tmp_path / "elsewhere")


def test_a_task_without_new_records_ends_where_it_began(tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    groups = [{"group": "Shop/1/0", "tasks": [0, 1], "offset": 77, "epoch": 3, "worker": "w"}]
    told = {"module": "Shop", "origin": "one", "groups": groups, "records": {1: [4, 9]}}
    report.write_bytes(msgspec.json.encode(told))
    assert read_report(report, {0: 10, 1: 4}) == (
        "one",
        (
            TaskRead(task=0, group="Shop/1/0", epoch=3, apply_offset=77, start=10, end=10),
            TaskRead(task=1, group="Shop/1/0", epoch=3, apply_offset=77, start=4, end=9),
        ),
    )
    assert [each.end for each in read_report(report, {})[1]] == [0, 9]
    report.write_bytes(msgspec.json.encode({"groups": groups, "records": None}))
    assert [each.end for each in read_report(report, None)[1]] == [None, None]
    with pytest.raises(StrettoError, match="did not tell what it has read"):
        read_report(tmp_path / "nothing", {})


def test_a_part_without_news_is_recognized_and_one_without_rows_has_no_files(tmp_path: Path) -> None:
    nothing = written(tmp_path / "a", {0: 4, 1: 2}, {0: 4, 1: 2})
    assert is_nothing_new(nothing)
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "part-0.json").write_text("")
    (tmp_path / "b" / "_SUCCESS").write_text("")
    passed = written(tmp_path / "b", {0: 9, 1: 2}, {0: 4, 1: 2})
    assert not is_nothing_new(passed)
    assert passed.parts[0].sizes == {"part-0.json": 0}
    bare = without_files(passed, tmp_path / "b")
    assert (bare.files, bare.parts[0].sizes, bare.ends) == (set(), {}, {0: 9, 1: 2})
    assert list((tmp_path / "b").iterdir()) == []
