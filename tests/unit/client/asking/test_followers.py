"""Which follower is asked next, and what a reader has seen."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from stretto.client.asking.followers import AVOID_LAGGING_MS, AVOID_MS, Followers, Seen
from stretto.errors import UsageError
from stretto.network.routing import ClusterView
from stretto.replog.core.effects import Refusal
from stretto.vocabulary.groups import GroupKey
from stretto.vocabulary.types import Epoch, Offset, TaskId, WorkerId
from stretto.wire import messages as wire

GROUP = GroupKey("m", 1, 0)
LEADER, FIRST, SECOND, UNKNOWN = (WorkerId(f"w{number}") for number in range(4))


def network(*, now: int = 1_000) -> Any:
    members = (LEADER, FIRST, SECOND, UNKNOWN)
    view = ClusterView()
    addresses = {each: f"at {each}" for each in members[:3]}
    group = wire.GroupView(GROUP, (TaskId(0),), members, Epoch(1), LEADER, members, 1)
    view.take(wire.Metadata(0, addresses, (group,)))
    return SimpleNamespace(view=view, loop=SimpleNamespace(now=now))


def test_what_was_seen_never_goes_back_and_is_passed_on_as_text() -> None:
    seen = Seen()
    assert seen.of(GROUP) == (0, 0)
    seen.saw(GROUP, Epoch(2), Offset(9))
    seen.saw(GROUP, Epoch(1), Offset(10))
    seen.saw(GroupKey("a/b", 3, 4), Epoch(5), Offset(6))
    assert seen.of(GROUP) == (2, 10)
    assert str(seen) == "a/b/3/4:5.6 m/1/0:2.10"
    assert Seen(str(seen)).of(GROUP) == (2, 10)
    assert str(Seen(str(seen))) == str(seen)
    with pytest.raises(UsageError, match="'m/1' is no part of a token"):
        Seen("m/1/0:2.10 m/1")


@pytest.mark.parametrize("seconds", [0, -1, 3_600.1])
def test_an_age_that_makes_no_sense_is_refused(seconds: float) -> None:
    with pytest.raises(UsageError, match="max_staleness is in seconds"):
        Followers(network(), seconds, Seen())


def test_a_read_carries_the_age_and_what_was_seen() -> None:
    seen = Seen("m/1/0:2.10")
    assert Followers(network(), 3_600, seen).stale(GROUP) == wire.Stale(3_600_000, Offset(10), Epoch(2))
    assert Followers(network(), 0.0001, seen).stale(GROUP).max_staleness_ms == 1


def test_followers_take_turns_and_the_leader_is_none_of_them() -> None:
    followers = Followers(network(), 1.0, Seen())
    assert [followers.pick(GROUP) for _ in range(3)] == ["at w1", "at w2", "at w1"]
    assert followers.pick(GroupKey("m", 1, 7)) is None


@pytest.mark.parametrize(
    ("answer", "patience_ms"),
    [
        (None, AVOID_MS),
        (wire.Unknown(1), AVOID_MS),
        (wire.Refused(1, Refusal.NOT_LEADER, None, Epoch(0)), AVOID_MS),
        (wire.Refused(1, Refusal.TOO_STALE, None, Epoch(0)), AVOID_LAGGING_MS),
    ],
)
def test_who_did_not_answer_is_left_alone_for_a_while(answer: wire.ToClient | None, patience_ms: int) -> None:
    known = network()
    followers = Followers(known, 1.0, Seen())
    followers.avoid("at w1", answer)
    known.loop.now += patience_ms - 1
    assert {followers.pick(GROUP) for _ in range(4)} == {"at w2"}
    followers.avoid("at w2", None)
    assert followers.pick(GROUP) is None
    known.loop.now += 1
    assert followers.pick(GROUP) == "at w1"
