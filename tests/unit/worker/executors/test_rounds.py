"""Rounds of microbatches in a real executor."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from stretto.pstate.changes import Packed, joined, parse
from stretto.pstate.ordered import decode
from stretto.vocabulary.types import TaskId
from stretto.worker.executors import protocol
from stretto.worker.executors.protocol import SourcedCall
from stretto.worker.executors.replies import Lost, Why
from tests.unit.worker.executors.hosts import GROUP, TASK, Host

MODULE = """
    import os, time
    from stretto import Depot, Module, PState, microbatch, step

    class Example(Module):
        events = Depot()
        counts = PState(dict[str, int])

        @microbatch(events)
        def take(self, word):
            if word == "hang":
                while True:
                    pass
            if word == "crash":
                os._exit(3)
            if word == "raise":
                raise ValueError("no such word")
            if word == "slow":
                time.sleep(0.3)
                return
            if word == "hop":
                self.count.on(1 - self.task)(word)
            if word == "large":
                self.keep.on(1 - self.task)(b"x" * 40_000)
                return
            if word == "much":
                return "x" * 1_000_000
            return self.counts.increment(word)

        @step
        def count(self, word: str) -> None:
            if word == "raise":
                raise ValueError("not here either")
            self.counts.increment(word)

        @step
        def keep(self, data: bytes) -> None:
            self.counts.increment("a")
            self.keep.on(1 - self.task)(data)
"""
#: Words that are task 0's of two.
A, B, HOP = "a", "d", "hop"


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Host]:
    host = Host(tmp_path_factory.mktemp("host"))
    host.start(MODULE, tasks=2)
    yield host
    host.close()


@pytest.fixture
def host(started: Host) -> Host:
    started.renew()
    return started


def a_round(host: Host, end: int = 0, *, after: int = 0, **others: Any) -> protocol.RunRound:
    given: dict[str, Any] = {"version": (1, 0), "left_out": (), "careful": False} | others
    spans = (("events", 0, end),) if end else ()
    return protocol.RunRound(
        number=0, lane=host.lane(), file=str(host.state.folder(TASK)), after=after, spans=spans, **given
    )


def ran(
    host: Host, request: protocol.RunRound, calls: list[SourcedCall] | None = None
) -> tuple[protocol.RoundRan, dict[int, list[SourcedCall]]]:
    body = None if calls is None else msgspec.msgpack.encode(calls)
    ((reply, bodies),) = host.ask(request, calls=body)
    assert isinstance(reply, protocol.RoundRan), reply
    decoded = [msgspec.msgpack.decode(each, type=list[SourcedCall]) for each in bodies]
    return reply, {task: each for (task, _), each in zip(reply.calls, decoded, strict=True)}


def collected(host: Host, after: int, **others: Any) -> tuple[protocol.Collected, dict[str, int]]:
    given: dict[str, Any] = {"version": (1, 0), "left_out": ()} | others
    request = protocol.Collect(
        number=0, lane=host.lane(), file=str(host.state.folder(TASK)), after=after, **given
    )
    ((reply, bodies),) = host.ask(request, calls=None)
    assert isinstance(reply, protocol.Collected), reply
    changes = parse(joined(Packed(reply.pstates, bodies[0]))).get("counts")
    puts = () if changes is None else changes.puts
    return reply, {decode(key): msgspec.msgpack.decode(value) for key, value in puts}


def call(word: str, offset: int = 7, task: int = 1) -> SourcedCall:
    return SourcedCall("count", msgspec.msgpack.encode((word,)), "events", TaskId(task), offset)


def test_what_rounds_change_is_kept_and_collected_at_once(host: Host) -> None:
    host.append(A, B, A)
    reply, calls = ran(host, a_round(host, 3))
    assert (reply.failures, calls) == ((), {})
    ran(host, a_round(host, after=1), [call(A), call(B)])
    assert collected(host, 2)[1] == {A: 3, B: 2}


def test_a_span_ends_where_it_ends(host: Host) -> None:
    host.append(A, A)
    host.append(A, A, A)
    ran(host, a_round(host, 3))
    assert collected(host, 1)[1] == {A: 3}


def test_calls_carry_the_record_that_they_come_from(host: Host) -> None:
    host.append(A, HOP, HOP)
    reply, calls = ran(host, a_round(host, 3))
    assert reply.calls == ((1, 2),)
    assert [(each.step, each.depot, each.task, each.offset) for each in calls[1]] == [
        ("count", "events", 0, 1),
        ("count", "events", 0, 2),
    ]


def test_whatever_fails_is_a_record_that_fails(host: Host) -> None:
    host.append(A, "raise")
    reply, _ = ran(host, a_round(host, 2))
    (failure,) = reply.failures
    assert (failure.depot, failure.task, failure.offset) == ("events", 0, 1)
    assert failure.error == "ValueError: no such word"
    assert "raise ValueError" in failure.traceback
    reply, _ = ran(host, a_round(host, after=1), [call(A), call("raise", 9)])
    (failure,) = reply.failures
    assert (failure.task, failure.offset, failure.error) == (1, 9, "ValueError: not here either")


def test_records_that_are_left_out_are_not_run_and_their_beginning_is_told(host: Host) -> None:
    host.append(A, "raise", A)
    reply, _ = ran(host, a_round(host, 3, left_out=(("events", 1),)))
    assert reply.failures == ()
    told, counts = collected(host, 1, left_out=(("events", 1),))
    assert counts == {A: 2}
    assert told.beginnings == (b'"raise"',)


@pytest.mark.parametrize("careful", [False, True])
def test_what_records_return_is_told_by_their_offsets_and_calls_return_nothing(
    host: Host, careful: bool
) -> None:
    host.append(A, "raise", "slow", A)
    reply, _ = ran(host, a_round(host, 4, left_out=(("events", 1),), careful=careful))
    assert reply.results == (("events", 0, b"1"), ("events", 3, b"2"))
    reply, _ = ran(host, a_round(host, after=1), [call(A)])
    assert reply.results == ()


def test_a_round_that_returns_more_than_is_kept_says_so(host: Host) -> None:
    host.append(*["much"] * 70)
    ((reply, _),) = host.ask(a_round(host, 70), calls=None)
    assert isinstance(reply, protocol.Failed)
    assert (reply.is_too_much, "return less" in reply.why) == (True, True)


LARGE = 1_000
"""As many as one portion has; what they lead to, 40 MB, is more than one run may do."""


def test_records_whose_outcome_is_too_large_are_all_run_in_parts(host: Host) -> None:
    host.append(*["large"] * LARGE)
    reply, calls = ran(host, a_round(host, LARGE, left_out=(("events", 2), ("events", 900))))
    assert reply.failures == ()
    assert [each.offset for each in calls[1]] == [each for each in range(LARGE) if each not in (2, 900)]


def test_calls_whose_outcome_is_too_large_are_all_run_in_parts(host: Host) -> None:
    host.append(B)
    ran(host, a_round(host, 1))
    args = msgspec.msgpack.encode((b"x" * 40_000,))
    given = [SourcedCall("keep", args, "events", TaskId(1), offset) for offset in range(LARGE)]
    _, calls = ran(host, a_round(host, after=1), given)
    assert [each.offset for each in calls[1]] == list(range(LARGE))
    assert collected(host, 2)[1] == {A: LARGE, B: 1}


def test_a_round_that_leads_to_more_than_travels_at_once_says_so(host: Host) -> None:
    for _ in range(2):
        host.append(*["large"] * LARGE)
    ((reply, _),) = host.ask(a_round(host, 2 * LARGE), calls=None)
    assert isinstance(reply, protocol.Failed)
    assert reply.is_too_much


def test_another_version_begins_with_nothing(host: Host) -> None:
    host.append(A)
    ran(host, a_round(host, 1))
    ran(host, a_round(host, 1, version=(1, 1)))
    assert collected(host, 1, version=(1, 1))[1] == {A: 1}


@pytest.mark.parametrize("others", [{"version": (1, 1)}, {"after": 2}])
def test_what_is_not_here_is_not_taken_for_nothing(host: Host, others: dict[str, Any]) -> None:
    host.append(A)
    ran(host, a_round(host, 1))
    ((reply, _),) = host.ask(a_round(host, **{"after": 1, **others}), calls=msgspec.msgpack.encode([call(A)]))
    assert isinstance(reply, protocol.Failed)
    assert "was lost with their executor" in reply.why


def test_with_care_the_record_that_hangs_or_crashes_is_known(host: Host) -> None:
    host.options["executor.timeout.millis"] = 400
    host.append(A, A, "hang", "crash")
    ((reply, _),) = host.ask(a_round(host, 4, careful=True), calls=None)
    assert isinstance(reply, Lost)
    assert (reply.why, reply.done) == (Why.TIME_OUT, 2)
    host.options.clear()
    ((reply, _),) = host.ask(a_round(host, 4, careful=True, left_out=(("events", 2),)), calls=None)
    assert isinstance(reply, Lost)
    assert (reply.why, reply.done) == (Why.CRASH, 3)


def test_the_time_of_a_function_begins_anew_with_each_portion(host: Host) -> None:
    host.options["executor.timeout.millis"] = 800
    host.append(*["slow"] * 5)
    reply, _ = ran(host, a_round(host, 5, careful=True))
    assert reply.elapsed_us > 1_500_000


def test_a_version_is_forgotten_when_the_worker_says_so(host: Host) -> None:
    host.append(A)
    ran(host, a_round(host, 1))
    host.executors.forget(GROUP, TASK, "take")
    ((reply, _),) = host.ask(a_round(host, after=1), calls=msgspec.msgpack.encode([call(A)]))
    assert isinstance(reply, protocol.Failed)
