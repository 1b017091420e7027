"""Replicas are compared at one marker: what each answers, and what is said of those that do not."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from stretto import control
from stretto.client.operating import verify as verifying
from stretto.client.operating.verify import Verdict, all_equal, verify
from stretto.replog.core.producers import NO_PRODUCER
from stretto.replog.frame import Kind
from stretto.vocabulary.types import Offset, TaskId, WorkerId
from stretto.wire import messages as wire
from tests.unit.client.answering import (
    FOLLOWER,
    GROUPS,
    LEADER,
    MODULE,
    SECONDS,
    Answer,
    Answering,
    answered_by,
    views,
)

END = Offset(41)
Digests = Callable[[control.Digests], control.DigestView | None]


def same(call: control.Digests) -> control.DigestView:
    tasks = (TaskId(2 * call.group.group), TaskId(2 * call.group.group + 1))
    return control.DigestView(offset=END, digests={task: f"of {task}" for task in tasks})


def replica(digests: Digests = same, *, marked: list[bytes] | None = None) -> Answering:
    """Takes markers, which end at 41, and tells its digests."""

    def answer(message: wire.ToWorker, bodies: list[bytes]) -> Answer:
        if isinstance(message, wire.AppendBatch):
            assert (message.kind, message.producer, message.count) == (Kind.MARKER, NO_PRODUCER, 1)
            if marked is not None:
                marked.append(bodies[0])
            return wire.Appended(message.request, Offset(END - 1))
        assert isinstance(message, wire.Ask)
        call = control.decode_call(message.call)
        assert isinstance(call, control.Digests)
        return wire.Answer(message.request, control.encode(digests(call)))

    return answer


def verdicts(
    leader: Answering, follower: Answering, *, timeout: float = SECONDS
) -> tuple[list[Verdict], list[Verdict]]:
    told: list[Verdict] = []
    with answered_by((LEADER, leader), (FOLLOWER, follower)) as (network, [first, _]):
        found = verify(network, first.metadata, MODULE, timeout=timeout, progress=told.append)
    return found, told


def test_replicas_that_hold_the_same_are_equal() -> None:
    marked: list[bytes] = []
    asked: list[str] = []

    def digests(call: control.Digests) -> control.DigestView:
        asked.append(call.marker)
        return same(call)

    found, told = verdicts(replica(digests, marked=marked), replica(digests))
    assert [verdict.group for verdict in found] == list(GROUPS)
    assert sorted(told, key=lambda each: each.group) == found
    assert all_equal(found)
    assert found[1].offset == END
    assert found[1].digests == {
        TaskId(task): {LEADER: f"of {task}", FOLLOWER: f"of {task}"} for task in (2, 3)
    }
    assert len(set(marked)) == 2
    assert {each.encode() for each in asked} == set(marked)


def test_a_task_that_differs_is_named() -> None:
    def other(call: control.Digests) -> control.DigestView:
        told = same(call)
        return control.DigestView(offset=told.offset, digests=told.digests | {TaskId(3): "else"})

    found, _ = verdicts(replica(), replica(other))
    assert [(verdict.different, verdict.is_equal) for verdict in found] == [((), True), ((3,), False)]
    assert not all_equal(found)


def test_a_replica_is_asked_until_it_has_come_to_the_marker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verifying, "POLL_SECONDS", 0.001)
    looks: dict[object, int] = {}

    def late(call: control.Digests) -> control.DigestView | None:
        looks[call.group] = looks.get(call.group, 0) + 1
        if looks[call.group] == 1:
            return None
        # That of a marker whose answer was lost.
        return control.DigestView(offset=Offset(40), digests={}) if looks[call.group] == 2 else same(call)

    found, _ = verdicts(replica(), replica(late))
    assert all_equal(found)
    assert set(looks.values()) == {3}


def test_a_replica_that_does_not_come_to_it_in_time_is_missing() -> None:
    found, _ = verdicts(replica(), replica(lambda _: None), timeout=0.3)
    assert {(verdict.missing, verdict.is_equal) for verdict in found} == {((FOLLOWER,), False)}
    assert found[0].digests == {TaskId(task): {LEADER: f"of {task}"} for task in (0, 1)}


def test_a_group_without_a_marker_says_why() -> None:
    def refuses(message: wire.ToWorker, _: list[bytes]) -> Answer:
        assert isinstance(message, wire.AppendBatch)
        if message.group == GROUPS[0]:
            return wire.Failed(message.request, "the disk is full")
        return wire.Appended(message.request, None)

    found, _ = verdicts(refuses, refuses)
    assert [verdict.why for verdict in found] == ["the disk is full", "an unexpected answer came: Appended"]
    assert {(verdict.offset, verdict.missing) for verdict in found} == {(None, (LEADER, FOLLOWER))}
    assert not all_equal(found)


def test_a_group_is_equal_only_if_all_replicas_were_compared() -> None:
    group = views()[0].key
    digests = {TaskId(0): {LEADER: "a", FOLLOWER: "a"}}
    whole = Verdict(group=group, offset=END, digests=digests, missing=())
    assert whole.is_equal
    assert not Verdict(group=group, offset=None, digests=digests, missing=()).is_equal
    assert not Verdict(group=group, offset=END, digests=digests, missing=(WorkerId("w2"),)).is_equal
