"""What clients ask of PStates: whole answers, bounded ones, and questions that can never be answered."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from stretto.pstate.changes import Changes
from stretto.pstate.ordered import KEY_BYTES_MAX, encode
from stretto.state.applied import AppliedState
from stretto.vocabulary.groups import GroupKey
from stretto.vocabulary.types import Offset, TaskId
from stretto.wire import messages as wire
from stretto.worker.reads import row_queries
from stretto.worker.reads.row_queries import answer, look_up, wrong, wrong_age
from tests.support.entries import Log, open_state

KEY = GroupKey("counts", 1, 0)
END = b"\xff"


def key(*parts: str) -> bytes:
    return b"".join(map(encode, parts))


@pytest.fixture
def state(tmp_path: Path) -> Iterator[AppliedState]:
    """Two tasks with rows of two levels: a/1, a/2, b/1 and so on."""
    log = Log()
    for task in (0, 1):
        rows = tuple(
            (key(outer, inner), b"%d-%s%s" % (task, outer.encode(), inner.encode()))
            for outer in "abc"
            for inner in "12"
        )
        log.state(Changes(puts=rows), task=task)
    state = open_state(tmp_path / "state", map_bytes=1 << 22)
    state.apply(log.frames)
    yield state
    state.close()


def scan(
    start: bytes = b"", end: bytes = END, rows_max: int = 100, *, backwards: bool = False
) -> wire.ScanRows:
    return wire.ScanRows(7, KEY, TaskId(0), "counts", start, end, rows_max, backwards)


def keys(start: bytes, end: bytes, depth: int, *, keys_max: int = 100, tell: bool = True) -> wire.ScanKeys:
    return wire.ScanKeys(7, KEY, TaskId(0), "counts", start, end, depth, keys_max, tell)


def rows(tasks: tuple[int, ...], *wanted: bytes) -> wire.ReadRows:
    return wire.ReadRows(7, KEY, "counts", tuple(map(TaskId, tasks)), wanted)


def test_a_scan_goes_on_where_the_page_before_it_ended(state: AppliedState) -> None:
    found: list[bytes] = []
    start: bytes | None = key("a", "2")
    pages = 0
    while start is not None:
        page, applied = answer(state, scan(start, key("c", "2"), 2))
        assert applied == state.applied == Offset(2)
        assert page.count == len(page.keys) == len(page.values) <= 2
        found += page.values
        start = page.next
        pages += 1
    assert found == [b"0-a2", b"0-b1", b"0-b2", b"0-c1"]
    assert pages == 2


def test_an_answer_holds_one_row_at_least_and_no_more_bytes_than_the_bound(
    state: AppliedState, monkeypatch: pytest.MonkeyPatch
) -> None:
    page, _ = answer(state, scan(rows_max=0))
    assert page.values == (b"0-a1",)
    assert page.next == key("a", "2")
    size = len(key("a", "1")) + len(b"0-a1")
    for bound, expected in ((1, 1), (2 * size, 2), (2 * size + 1, 3)):
        monkeypatch.setattr(row_queries, "ANSWER_BYTES_MAX", bound)
        assert answer(state, scan())[0].count == expected
    monkeypatch.setattr(row_queries, "ANSWER_BYTES_MAX", 1 << 20)
    monkeypatch.setattr(row_queries, "SCAN_ROWS_MAX", 4)
    assert answer(state, scan())[0].count == 4


def test_backwards_only_the_last_row_is_told(state: AppliedState) -> None:
    page, _ = answer(state, scan(end=key("c"), backwards=True))
    assert (page.keys, page.values, page.count, page.next) == ((key("b", "2"),), (b"0-b2",), 1, None)
    page, _ = answer(state, scan(end=key("a"), backwards=True))
    assert (page.keys, page.values, page.count, page.next) == ((), (), 0, None)


def test_keys_of_a_level_are_told_once_or_only_counted(
    state: AppliedState, monkeypatch: pytest.MonkeyPatch
) -> None:
    page, _ = answer(state, keys(b"", END, 0))
    assert (page.keys, page.count, page.next) == ((key("a"), key("b"), key("c")), 3, None)
    page, _ = answer(state, keys(b"", END, 0, tell=False))
    assert (page.keys, page.count, page.next) == ((), 3, None)
    page, _ = answer(state, keys(b"", END, 0, keys_max=2))
    assert (page.keys, page.count, page.next) == ((key("a"), key("b")), 2, key("c"))
    page, _ = answer(state, keys(b"", END, 0, keys_max=0))
    assert page.count == 1
    monkeypatch.setattr(row_queries, "COUNT_KEYS_MAX", 2)
    assert answer(state, keys(b"", END, 0))[0].count == 2
    monkeypatch.setattr(row_queries, "ANSWER_BYTES_MAX", len(key("a")))
    assert answer(state, keys(b"", END, 0))[0].count == 1
    assert answer(state, keys(b"", END, 0, tell=False))[0].count == 2, "what is not told takes no room"


def test_points_are_looked_up_on_their_tasks_in_the_order_asked(state: AppliedState) -> None:
    wanted = (key("a", "1"), key("b", "1"), key("b", "1"), key("x"), key("c", "2"))
    found, applied = look_up(state, rows((0, 0, 1, 1, 0), *wanted))
    assert found == (b"0-a1", b"0-b1", b"1-b1", None, b"0-c2")
    assert applied == 2


def test_points_are_answered_as_far_as_they_fit(state: AppliedState, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = (key("a", "1"), key("a", "2"), key("b", "1"))
    for bound, expected in ((4, 1), (5, 2), (8, 2), (9, 3)):
        monkeypatch.setattr(row_queries, "ANSWER_BYTES_MAX", bound)
        found, _ = look_up(state, rows((0, 1, 0), *wanted))
        assert len(found) == expected


@pytest.mark.parametrize(
    ("query", "why"),
    [
        (scan(), None),
        (scan(b"x" * KEY_BYTES_MAX), None),
        (scan(b"x" * (KEY_BYTES_MAX + 1)), "a key is empty or longer"),
        (scan(end=b""), "a key is empty or longer"),
        (rows((0,), b"x" * KEY_BYTES_MAX), None),
        (rows((0,), b"x" * (KEY_BYTES_MAX + 1)), "a key is empty or longer"),
        (rows((0, 0), b"x", b""), "a key is empty or longer"),
        (rows((0, 0), b"x"), "1 keys cannot lie on 2 tasks"),
        (rows((), *()), None),
        (rows((0,) * 10_000, *[b"x"] * 10_000), None),
        (rows((0,) * 10_001, *[b"x"] * 10_001), "10001 keys are beyond the limit of 10000"),
        (keys(key("a"), key("a") + END, len(key("a"))), None),
        (keys(key("a"), key("b") + END, len(key("a"))), "no path ends"),
        (keys(key("a"), key("a") + END, len(key("a")) - 1), "no path ends"),
        (keys(key("a"), key("a") + END, len(key("a")) + 1), "no path ends"),
    ],
)
def test_a_question_that_can_never_be_answered_is_refused(query: row_queries.Query, why: str | None) -> None:
    told = wrong(query, "M", ["counts"])
    assert told is None if why is None else why in str(told)


def test_a_pstate_that_is_not_declared_and_an_age_that_cannot_be_are_refused() -> None:
    assert wrong(scan(), "M", ["count"]) == "module M has no PState counts; did you mean count?"
    for age in (1, 3_600_000):
        assert wrong_age(wire.Stale(age)) is None
    for age in (0, -1, 3_600_001):
        assert f"an answer cannot be {age} ms old" in str(wrong_age(wire.Stale(age)))
    old = wire.ReadRows(7, KEY, "counts", (TaskId(0),), (b"x",), wire.Stale(0))
    assert "an answer cannot be 0 ms old" in str(wrong(old, "M", ["counts"]))
    assert wrong_age(None) is None
