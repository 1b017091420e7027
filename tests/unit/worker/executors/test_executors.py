from __future__ import annotations

import os
import select
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from structlog.testing import capture_logs

from stretto.module.work import StepCall
from stretto.pstate.ordered import decode
from stretto.pstate.tree import compile_type
from stretto.pstate.types import describe
from stretto.replog.frame import Kind
from stretto.state.removal import Trim, encode
from stretto.vocabulary.clock import boot_time_ms
from stretto.vocabulary.records import DepotOffset
from stretto.vocabulary.types import Epoch
from stretto.worker.executors import protocol
from stretto.worker.executors.replies import Lost, Reply, Why
from tests.unit.worker.executors.hosts import GROUP, TASK, Host, changes_of

COUNTING = """
    import os, sys, time
    from stretto import Depot, Module, PState, query, step, stream

    class Example(Module):
        events = Depot()
        counts = PState(dict[str, int])
        data = PState(dict[int, bytes])

        @query
        def ask(self, how: str) -> str:
            while how == "hang":
                pass
            return how

        @stream(events)
        def take(self, word):
            if word == "hang":
                while True:
                    pass
            if word == "crash":
                os._exit(3)
            if word == "exit":
                sys.exit("enough")
            if word == "raise":
                raise ValueError("no such word")
            if word == "print":
                print("hello from", word)
                print("and this", file=sys.stderr)
            if word == "keep":
                return self.keep.at(0)(0, 1)
            if word == "hop":
                return self.count.at(word)(word)
            return self.counts.increment(word)

        @step
        def count(self, word: str) -> None:
            self.counts.increment(word)

        @step
        def keep(self, key: int, size: int) -> None:
            self.data.set(key, value=bytes(size))
"""


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Host]:
    """Processes are slow to start: what is killed is started again, and the next test finds it."""
    host = Host(tmp_path_factory.mktemp("host"))
    host.start(COUNTING)
    yield host
    host.close()


@pytest.fixture
def host(started: Host) -> Host:
    started.renew()
    return started


def counts(ran: protocol.Ran, body: bytes) -> dict[str, int]:
    annotation = dict[str, int]
    root: Any = compile_type(describe(annotation), annotation)

    changes = changes_of(ran, body).get("counts")
    return {} if changes is None else {decode(key): root.child.decode(value) for key, value in changes.puts}


def test_records_are_read_by_the_executor_itself_and_changes_come_back(host: Host) -> None:
    host.append("a", "b", "a")
    ran, (changes,) = host.ran(host.run())
    assert (ran.start, ran.end) == (0, 3)
    assert counts(ran, changes) == {"a": 2, "b": 1}
    assert ran.results == ((0, b"1"), (1, b"1"), (2, b"2"))


def test_a_batch_sees_those_before_it_applied_or_not(host: Host) -> None:
    host.append("a", "a", "b", "a")
    first, (changes,) = host.ran(host.run(1, records_max=2))
    second, (later,) = host.ran(host.run(2, None, applied=1, records_max=1))
    assert (second.start, second.end, counts(second, later)) == (2, 3, {"b": 1})
    host.apply(first, changes)
    third, (last,) = host.ran(host.run(3, None, applied=2))
    assert counts(third, last) == {"a": 3}


def test_another_attempt_does_not_see_what_the_one_before_it_did(host: Host) -> None:
    host.append("a")
    host.ran(host.run(1))
    ran, (changes,) = host.ran(host.run(2, 0, lane=host.lane(attempt=2), applied=1))
    assert counts(ran, changes) == {"a": 1}


def test_what_fails_has_no_effect_and_the_rest_goes_on(host: Host) -> None:
    host.append("a", "raise", "exit", "a")
    ran, (changes,) = host.ran(host.run())
    assert counts(ran, changes) == {"a": 2}
    assert [(note.index, note.error) for note in ran.failures] == [
        (1, "ValueError: no such word"),
        (2, "SystemExit: enough"),
    ]
    assert "raise ValueError" in ran.failures[0].traceback
    assert ran.failures[0].beginning == b'"raise"'


def test_a_run_that_stops_at_a_failure_is_not_gone_on_with(host: Host) -> None:
    host.append("a", "raise", "b")
    ran, _ = host.ran(host.run(1, stop_at_failure=True))
    assert (ran.start, ran.end, ran.failures[0].index) == (0, 1, 1)
    nothing, _ = host.ran(host.run(2, None, stop_at_failure=True))
    assert nothing.start == nothing.end
    again, (changes,) = host.ran(host.run(3, 2, applied=1, stop_at_failure=True))
    assert (again.start, again.end, counts(again, changes)) == (2, 3, {"b": 1})


def test_a_record_run_aside_does_not_move_the_others(host: Host) -> None:
    host.append("a", "b", "c")
    host.ran(host.run(1, records_max=2))
    aside, _ = host.ran(host.run(2, 0, applied=1, records_max=1, is_aside=True))
    assert (aside.start, aside.end) == (0, 1)
    after, _ = host.ran(host.run(3, None, applied=1))
    assert (after.start, after.end) == (2, 3)


def test_nothing_is_run_in_the_place_of_a_record_that_was_trimmed(host: Host) -> None:
    host.append("a")
    host.append("b")
    host.state.apply([host.log.add(Kind.TRIM, payload=encode(Trim("events", DepotOffset(1))))])
    ran, _ = host.ran(host.run(1, 0, records_max=1, is_aside=True))
    assert (ran.start, ran.end, ran.pstates) == (1, 1, 0)
    ran, _ = host.ran(host.run(2, 1, records_max=1, is_aside=True))
    assert (ran.start, ran.end, ran.pstates) == (1, 2, 1)


def test_calls_run_as_a_batch_of_their_lane(host: Host) -> None:
    host.append("a")
    host.ran(host.run(1))
    calls = msgspec.msgpack.encode([("count", msgspec.msgpack.encode(("a",)), 0)])
    request = protocol.RunCalls(0, host.lane(), str(host.state.folder(TASK)), 2, 1)
    ran, (changes,) = host.ran(request, calls)
    assert counts(ran, changes) == {"a": 2}


def test_calls_whose_outcome_is_too_large_are_run_in_part_and_the_rest_is_told(host: Host) -> None:
    calls = [StepCall("keep", msgspec.msgpack.encode((index, 32_700)), index) for index in range(1_000)]
    request = protocol.RunCalls(0, host.lane(), str(host.state.folder(TASK)), 1, 1)
    ran, bodies = host.ran(request, calls=msgspec.msgpack.encode(calls))
    assert (ran.end, ran.left, ran.failures) == (250, 750, ())
    assert len(changes_of(ran, bodies[0])["data"].puts) == 250


def replies(host: Host, *requests: protocol.Request) -> list[Reply]:
    return [reply for reply, _ in host.ask(*requests)]


def test_a_function_that_never_ends_is_killed_and_who_waited_behind_it_is_told(host: Host) -> None:
    host.options["executor.timeout.millis"] = 500
    host.append("hang", "a")
    first, second = replies(host, host.run(1, records_max=1), host.run(2, 1, applied=1))
    assert isinstance(first, Lost)
    assert first == Lost(Why.TIME_OUT, "ran longer than 0.5 s, and was killed", ran_ms=500)
    assert isinstance(second, Lost)
    assert second.why is Why.BYSTANDER
    ran, (changes,) = host.ran(host.run(3, 1, lane=host.lane(attempt=2)))
    assert counts(ran, changes) == {"a": 1}


def test_a_function_that_ends_its_process_costs_nothing_else(host: Host) -> None:
    host.append("crash", "a")
    (lost,) = replies(host, host.run(records_max=1))
    assert lost == Lost(Why.CRASH, "ended the process that ran it (exit code 3)")
    ran, _ = host.ran(host.run(2, 1, lane=host.lane(attempt=2)))
    assert (ran.start, ran.end) == (1, 2)


def test_a_killed_reader_leaves_no_slot_behind(host: Host) -> None:
    host.options["executor.timeout.millis"] = 300
    host.append("hang")
    replies(host, host.run())
    assert host.cleared == [1]


def test_what_a_module_prints_is_in_the_log_with_the_executors_name(host: Host) -> None:
    host.append("print")
    with capture_logs() as lines:
        host.ran(host.run())
        host.until(lambda: sum(line["event"] == "executor_said" for line in lines) == 2)
    said = [(line["text"], line["executor"]) for line in lines if line["event"] == "executor_said"]
    assert sorted(said) == [("and this", "w0/0"), ("hello from print", "w0/0")]


def test_a_map_that_the_worker_grew_is_taken_up(host: Host) -> None:
    host.append("a")
    first, (changes,) = host.ran(host.run(1))
    host.apply(first, changes)
    for number in range(40):
        host.append(*[f"{number}-" + "x" * 100_000])
    grown, _ = host.ran(host.run(2, 41, applied=2))
    assert (grown.start, grown.end) == (41, 41)
    host.append("a")
    ran, (last,) = host.ran(host.run(3, 41, applied=3))
    assert counts(ran, last) == {"a": 2}


def test_a_module_that_cannot_be_imported_is_told_and_tried_again(tmp_path: Path) -> None:
    host = Host(tmp_path)
    try:
        host.start("import there_is_no_such_library")
        (lost,) = replies(host, host.run())
        assert isinstance(lost, Lost)
        assert lost.why is Why.NOT_LOADED
        assert "there_is_no_such_library" in lost.sentence
        assert host.executors.problems == [lost.sentence]
        (tmp_path / "code" / "example.py").write_text(
            "from stretto import Depot, Module, stream\n"
            "class Example(Module):\n"
            "    events = Depot()\n"
            "    @stream(events)\n"
            "    def take(self, word):\n"
            "        return word\n"
        )
        host.until(lambda: not host.executors.problems)
        host.append("a")
        ran, _ = host.ran(host.run())
        assert ran.results == ((0, b'"a"'),)
    finally:
        host.close()


WORKER = """
import sys
from pathlib import Path
from tests.unit.worker.executors.hosts import GROUP, Host

host = Host(Path(sys.argv[1]))
host.start(sys.argv[2])
host.append("a", "hang")
host.ran(host.run(records_max=1))
host.executors.run(GROUP, host.run(2, 1), lambda *_: None)
print(host.executors._slots[0]._process.pid, flush=True)
host.loop.run()
"""


def test_an_executor_dies_with_its_worker_whatever_it_is_doing(tmp_path: Path) -> None:
    command = [sys.executable, "-c", WORKER, str(tmp_path), COUNTING]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as worker:
        assert worker.stdout is not None
        lines = iter(worker.stdout)
        pidfd = os.pidfd_open(int(next(line for line in lines if line.strip().isdigit())))
        worker.kill()
    assert select.select([pidfd], [], [], 60.0)[0] == [pidfd]
    os.close(pidfd)


def test_requests_larger_than_a_socket_holds_arrive(host: Host) -> None:
    words = ["w" * 400 + str(number) for number in range(3_000)]
    calls = msgspec.msgpack.encode([("count", msgspec.msgpack.encode((word,)), 0) for word in words])
    request = protocol.RunCalls(0, host.lane(), str(host.state.folder(TASK)), 1, 1)
    ran, _ = host.ran(request, calls)
    assert (ran.end, ran.failures) == (3_000, ())


def asking(host: Host) -> protocol.RunQuery:
    return protocol.RunQuery(0, "ask", TASK, Epoch(host.epoch), str(host.state.folder(TASK)))


def given(how: str) -> bytes:
    return msgspec.msgpack.encode(((how,), {}))


def test_a_query_that_hangs_takes_no_stream_with_it(host: Host) -> None:
    host.append("a", "b")
    heard: list[tuple[str, Reply]] = []
    host.loop.now = boot_time_ms()
    # Executors are loaded: each answers once before the other is asked to hang.
    host.ran(host.run())
    with capture_logs() as lines:
        host.executors.run(
            GROUP,
            asking(host),
            lambda reply, _: heard.append(("query", reply)),
            bodies=(given("hang"),),
            timeout_ms=1_000,
        )
        ran, _ = host.ran(host.run(2, 0, lane=host.lane(attempt=2)))
        assert ran.end == 2
        host.until(lambda: bool(heard))
    [(_, lost)] = heard
    assert isinstance(lost, Lost)
    assert lost.why is Why.TIME_OUT
    assert [line["executor"] for line in lines if line["event"] == "executor_killed"] == ["w0/q0"]
    [(answer, [body])] = host.ask(asking(host), calls=given("again"))
    assert isinstance(answer, protocol.QueryRan)
    assert msgspec.msgpack.decode(body) == "again"


def test_a_query_that_nobody_waits_for_is_killed_before_its_time(host: Host) -> None:
    host.ask(asking(host), calls=given("warm"))
    heard: list[Reply] = []
    number = host.executors.run(
        GROUP, asking(host), lambda reply, _: heard.append(reply), bodies=(given("hang"),), timeout_ms=600_000
    )
    host.executors.cancel(number)
    host.until(lambda: bool(heard))
    assert isinstance(heard[0], Lost)
    [(answer, _)] = host.ask(asking(host), calls=given("next"))
    assert isinstance(answer, protocol.QueryRan)


def test_a_query_that_ends_soon_is_not_killed_because_nobody_waits_for_it(host: Host) -> None:
    host.ask(asking(host), calls=given("warm"))
    heard: list[Reply] = []
    with capture_logs() as lines:
        number = host.executors.run(
            GROUP, asking(host), lambda reply, _: heard.append(reply), bodies=(given("quick"),)
        )
        host.until(lambda: bool(heard))
        host.executors.cancel(number)
        host.ask(asking(host), calls=given("next"))
    assert isinstance(heard[0], protocol.QueryRan)
    assert "executor_killed" not in [line["event"] for line in lines]
