"""The history of measures: tiers, restarts and bounds."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from stretto.errors import StrettoError
from stretto.telemetry.windows import StoryLine
from stretto.ui.telemetry import store as stores
from stretto.ui.telemetry.store import TIERS, Store, tier_for
from stretto.vocabulary.groups import GroupKey
from tests.unit.ui.windows import group, kind, window

FINE, MINUTES, TENS = (tier.step_ms for tier in TIERS)
DAY_MS = 24 * 3_600_000


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "telemetry.sqlite")


def test_windows_merge_into_the_coarser_tiers_as_they_come(store: Store) -> None:
    for number in range(12):
        store.add([window(number * FINE, group(kinds={"depot": kind(10, 0.01)}, events={"shrinks": 1}))])
    assert len(store.between(0, DAY_MS, FINE)) == 12
    minutes = store.between(0, DAY_MS, MINUTES)
    assert [each.start_ms for each in minutes] == [0, MINUTES]
    for each in minutes:
        [merged] = each.groups
        assert merged.kinds["depot"].entries == 60
        assert merged.kinds["depot"].replicate is not None
        assert merged.kinds["depot"].replicate.count == 6
        assert merged.events == {"shrinks": 6}
        assert merged.replog.size.count == 6
    [tens] = store.between(0, DAY_MS, TENS)
    assert tens.groups[0].kinds["depot"].entries == 120
    assert [each.covered_ms for each in (*minutes, tens)] == [MINUTES, MINUTES, 2 * MINUTES]


def test_a_window_that_comes_twice_counts_once(store: Store) -> None:
    same = window(0, group(kinds={"depot": kind(10)}))
    store.add([same, same])
    store.add([same])
    [merged] = store.between(0, DAY_MS, MINUTES)
    assert merged.groups[0].kinds["depot"].entries == 10


def test_a_damaged_window_is_left_out_and_replaced(store: Store, tmp_path: Path) -> None:
    store.add([window(0, worker="a"), window(0, worker="b")])
    with sqlite3.connect(tmp_path / "telemetry.sqlite") as database:
        database.execute("UPDATE windows SET data = x'00ff' WHERE worker = 'a'")
    assert [each.worker for each in store.between(0, DAY_MS, MINUTES)] == ["b"]
    store.add([window(FINE, worker="a")])
    assert [each.worker for each in store.between(0, DAY_MS, MINUTES)] == ["a", "b"]


def test_workers_are_kept_apart(store: Store) -> None:
    store.add([window(0, worker="a"), window(0, worker="b"), window(FINE, worker="b")])
    assert (store.latest("a"), store.latest("b"), store.latest("c")) == (0, FINE, None)
    assert [each.worker for each in store.between(0, DAY_MS, MINUTES)] == ["a", "b"]


def test_groups_that_come_and_go_are_merged_by_name(store: Store) -> None:
    store.add([window(0, group(0)), window(FINE, group(1))])
    [merged] = store.between(0, DAY_MS, MINUTES)
    assert [each.group.group for each in merged.groups] == [0, 1]


def line(at_ms: int, event: str = "leads") -> StoryLine:
    return StoryLine(at_ms=at_ms, event=event, fields={"epoch": at_ms})


def test_the_story_of_a_group_is_kept_once_and_by_time(store: Store, tmp_path: Path) -> None:
    told = [
        window(0, group(0, story=(line(2), line(5))), group(1, story=(line(3),)), worker="a"),
        window(0, group(0, story=(line(4),)), worker="b"),
    ]
    store.add(told)
    store.add(told)
    store.close()
    found = Store(tmp_path / "telemetry.sqlite").story(GroupKey("M", 1, 0))
    assert found == [("a", line(2)), ("b", line(4)), ("a", line(5))]
    [merged, _] = Store(tmp_path / "telemetry.sqlite").between(0, DAY_MS, MINUTES)
    assert merged.groups[0].story == ()


def test_of_a_story_the_newest_lines_stay(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stores, "STORY_LINES_MAX", 10)
    now_ms = 40 * DAY_MS
    for number in range(2):
        old, new = [line(at) for at in range(3)], [line(now_ms - 20 + at) for at in range(20)]
        store.add([window(now_ms, group(number, story=(*old, *new)), worker=f"w{number}")])
    store.expire(now_ms)
    for number in range(2):
        found = store.story(GroupKey("M", 1, number))
        assert [each.at_ms for _, each in found] == [now_ms - 10 + at for at in range(10)]


def test_history_survives_a_restart(store: Store, tmp_path: Path) -> None:
    store.add([window(0)])
    store.close()
    again = Store(tmp_path / "telemetry.sqlite")
    assert again.between(0, DAY_MS, FINE) == [window(0)]


def test_each_tier_forgets_after_its_own_time(store: Store) -> None:
    store.add([window(0), window(TIERS[0].kept_ms)])
    store.expire(TIERS[0].kept_ms + FINE)
    assert [each.start_ms for each in store.between(0, DAY_MS, FINE)] == [TIERS[0].kept_ms]
    assert len(store.between(0, DAY_MS, MINUTES)) == 2
    store.expire(TIERS[2].kept_ms + TENS + 1)
    assert [each.start_ms for each in store.between(0, DAY_MS, TENS)] == [TIERS[0].kept_ms]


def test_the_file_stays_within_its_bound_and_keeps_the_newest(tmp_path: Path) -> None:
    store = Store(tmp_path / "telemetry.sqlite", bytes_max=400_000)
    last = 0
    for last in range(0, TIERS[0].kept_ms, FINE):
        # Numbers that differ, so that they do not compress away.
        groups = [group(each, busy_ms=(last * 31 + each * 7919) % 10007 / 7) for each in range(8)]
        store.add([window(last, *groups)])
    store.expire(last)
    store.close()
    assert (tmp_path / "telemetry.sqlite").stat().st_size <= 400_000
    kept = Store(tmp_path / "telemetry.sqlite").between(0, DAY_MS, FINE)
    assert kept[-1].start_ms == last
    assert len(kept) > 10


def test_a_file_of_another_version_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "telemetry.sqlite"
    with sqlite3.connect(path) as database:
        database.execute("PRAGMA user_version=99")
    database.close()
    with pytest.raises(StrettoError, match=r"another version \(99\); move it away"):
        Store(path)


def test_a_file_that_is_no_database_is_told(tmp_path: Path) -> None:
    path = tmp_path / "telemetry.sqlite"
    path.write_bytes(b"something else entirely, and long enough" * 100)
    with pytest.raises(StrettoError, match="cannot be used"):
        Store(path)


@pytest.mark.parametrize(
    ("minutes", "step_ms"),
    [(10, FINE), (60, FINE), (360, MINUTES), (1_440, TENS), (7 * 1_440, TENS)],
)
def test_a_time_is_shown_at_the_finest_step_that_fits(minutes: int, step_ms: int) -> None:
    assert tier_for(minutes * 60_000).step_ms == step_ms
