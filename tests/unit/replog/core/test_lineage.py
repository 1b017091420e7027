from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stretto.replog.core.lineage import History, divergence, epoch_end, extended, truncated
from stretto.replog.storage import EpochStart
from stretto.vocabulary.invariants import InvariantViolation
from stretto.vocabulary.types import Epoch, Offset
from tests.support.core_group import history

OLD = history((1, 0), (2, 10), (5, 20))


def part(mine: History, my_end: int, theirs: History, their_end: int) -> Offset | None:
    return divergence(mine, Offset(my_end), theirs, Offset(their_end))


# One log.


def test_another_entry_of_the_same_epoch_changes_nothing() -> None:
    assert extended(OLD, Epoch(5), Offset(21)) == OLD


def test_the_first_entry_of_an_epoch_begins_it() -> None:
    assert extended((), Epoch(3), Offset(0)) == history((3, 0))
    assert extended(OLD, Epoch(6), Offset(25)) == (*OLD, EpochStart(Epoch(6), Offset(25)))


def test_epochs_of_a_log_never_go_back() -> None:
    with pytest.raises(InvariantViolation, match="epochs of a log go back"):
        extended(OLD, Epoch(4), Offset(25))


@pytest.mark.parametrize(("end", "left"), [(0, 0), (1, 1), (10, 1), (11, 2), (20, 2), (21, 3), (100, 3)])
def test_an_epoch_that_keeps_no_entry_disappears(end: int, left: int) -> None:
    assert truncated(OLD, Offset(end)) == OLD[:left]


@pytest.mark.parametrize(
    ("epoch", "end"), [(0, None), (1, 10), (2, 20), (3, None), (4, None), (5, 30), (6, None)]
)
def test_an_epoch_ends_where_the_next_begins(epoch: int, end: int | None) -> None:
    assert epoch_end(OLD, Offset(30), Epoch(epoch)) == end


def test_an_empty_log_has_no_epochs() -> None:
    assert epoch_end((), Offset(0), Epoch(1)) is None
    assert truncated((), Offset(0)) == ()


# Two logs.


def test_equal_logs_part_at_their_end() -> None:
    assert part(OLD, 30, OLD, 30) == 30


def test_a_log_that_is_behind_parts_at_its_own_end() -> None:
    assert part(OLD, 25, OLD, 30) == 25
    assert part(OLD[:2], 15, OLD, 30) == 15


def test_a_log_that_is_ahead_parts_where_the_other_ends() -> None:
    assert part(OLD, 30, OLD, 25) == 25
    assert part(OLD, 30, OLD[:2], 15) == 15


def test_empty_logs_part_at_zero() -> None:
    assert part((), 0, (), 0) == 0
    assert part((), 0, OLD, 30) == 0
    assert part(OLD, 30, (), 0) == 0


def test_the_search_goes_back_over_epochs_that_only_one_of_them_has() -> None:
    """KIP-279: the other has neither my epoch 4 nor my epoch 3."""
    mine = history((1, 0), (3, 12), (4, 14))
    theirs = history((1, 0), (5, 10))
    assert part(mine, 16, theirs, 20) == 10
    assert part(theirs, 20, mine, 16) == 10


def test_logs_without_a_common_epoch_part_where_mine_begins() -> None:
    assert part(history((1, 0)), 10, history((2, 0)), 10) == 0


def test_a_pruned_log_that_forgot_my_last_epoch_does_not_know() -> None:
    assert part(history((1, 0)), 8, history((4, 40)), 60) is None


def test_a_pruned_log_that_still_knows_my_last_epoch_knows() -> None:
    """The first epoch of a pruned history began below the start of the log, and is remembered."""
    assert part(history((1, 0), (4, 40)), 45, history((4, 40)), 60) == 45
    assert part(history((4, 40)), 60, history((1, 0), (4, 40)), 45) == 45


def test_a_pruned_log_never_parts_from_a_shorter_one_beyond_its_end() -> None:
    """After an unclean election the leader may be a replica that was empty."""
    parting = part(history((5, 40)), 50, history((9, 0)), 1)
    assert parting is None or parting <= 1


# Two logs of one group.

Log = tuple[int, ...]
"""The epoch of each entry; entries of one epoch at one offset are equal, because one leader made them."""


def history_of(log: Log, start: int = 0) -> History:
    """As a log keeps it: the epoch that runs at ``start``, and each that begins later."""
    starts: dict[int, int] = {}
    for offset, epoch in enumerate(log):
        starts.setdefault(epoch, offset)
    first = log[start - 1] if start > 0 else 0
    return history(*((epoch, at) for epoch, at in starts.items() if epoch >= first))


def common_prefix(one: Log, other: Log) -> int:
    for offset, (mine, theirs) in enumerate(zip(one, other, strict=False)):
        if mine != theirs:
            return offset
    return min(len(one), len(other))


@st.composite
def logs_of_a_group(draw: st.DrawFn) -> list[Log]:
    """A random history of leaders: each appends, and others copy some of its log, cutting theirs first."""
    logs: list[Log] = [()] * draw(st.integers(2, 4))
    for epoch in range(1, draw(st.integers(1, 8)) + 1):
        leader = draw(st.integers(0, len(logs) - 1))
        logs[leader] += (epoch,) * draw(st.integers(1, 3))
        for follower in range(len(logs)):
            if follower != leader and draw(st.booleans()):
                shared = common_prefix(logs[follower], logs[leader])
                logs[follower] = logs[leader][: draw(st.integers(shared, len(logs[leader])))]
    return logs


@settings(max_examples=400, derandomize=True, database=None, deadline=None)
@given(logs_of_a_group())
def test_logs_of_a_group_part_at_the_end_of_their_common_prefix(logs: list[Log]) -> None:
    for mine in logs:
        for theirs in logs:
            expected = common_prefix(mine, theirs)
            assert part(history_of(mine), len(mine), history_of(theirs), len(theirs)) == expected


@settings(max_examples=400, derandomize=True, database=None, deadline=None)
@given(logs_of_a_group(), st.data())
def test_pruned_logs_part_at_the_end_of_their_common_prefix_or_do_not_know(
    logs: list[Log], data: st.DataObject
) -> None:
    """Logs are cut only below what was visible, which all that matter have in common."""
    for mine in logs:
        for theirs in logs:
            expected = common_prefix(mine, theirs)
            my_start = data.draw(st.integers(0, expected))
            their_start = data.draw(st.integers(0, len(theirs)))
            parting = part(
                history_of(mine, my_start), len(mine), history_of(theirs, their_start), len(theirs)
            )
            if expected >= their_start:
                assert parting == expected
            else:
                assert parting is None or parting == expected or parting < their_start
