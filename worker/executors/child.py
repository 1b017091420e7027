"""The process of an executor.

    python -P -m stretto.worker.executors.child DESCRIPTOR

It imports the module it is told to, and answers one request after the other. It has no thread of its own and
handles no signal: a person's function may do to this process whatever it likes, and what it may not do is
prevented from outside. It reads LMDB and writes nothing; whatever a run changes goes to the worker as bytes.
"""

from __future__ import annotations

import ctypes
import importlib
import os
import signal
import socket
import sys
import time
from traceback import StackSummary, TracebackException
from typing import TYPE_CHECKING

import lmdb
import msgspec

from stretto.errors import StrettoError, UsageError
from stretto.module.module import Module, declarations
from stretto.module.runner import TaskRunner
from stretto.module.work import Answer, Calls, Failure, Outcome, Records, RowsFailed, StepCall
from stretto.pstate.changes import PART_BYTES_MAX, TooMuch, pack_part
from stretto.state import depot as depots
from stretto.vocabulary.records import DepotOffset
from stretto.vocabulary.types import Buffer, TaskId
from stretto.worker.executors import protocol
from stretto.worker.executors.lanes import Lanes, TaskFile
from stretto.worker.executors.rounds import Rounds

if TYPE_CHECKING:
    from collections.abc import Callable

RECEIVE_BYTES = 1 << 20
BEGINNING_BYTES = 1_000
"""How many bytes of a record that fails are shown to a person."""
RESULT_BYTES_MAX = 8 * 1024 * 1024
"""The size limit of what a query returns, on one task or combined."""
_PR_SET_PDEATHSIG = 1

_encode_calls = msgspec.msgpack.Encoder().encode
_decode_calls = msgspec.msgpack.Decoder(list[StepCall]).decode


def main(descriptor: int) -> None:
    """Answer the worker's requests on this descriptor until it is closed, then exit."""
    _die_with_the_worker()
    sys.argv = ["executor"]
    sys.dont_write_bytecode = True
    parser = protocol.Parser()
    with socket.socket(fileno=descriptor) as channel:
        channel.setblocking(True)
        executor = Executor(channel.sendall)
        while data := channel.recv(RECEIVE_BYTES):
            for header, *bodies in parser.feed(data):
                answer = executor.asked(protocol.decode_to_child(header), bodies)
                if answer is not None:
                    channel.sendall(answer)
    # Threads and exit handlers of the module have no say in when this ends.
    os._exit(0)


def _die_with_the_worker() -> None:
    """Have the kernel kill this process with its worker. A worker that is killed or crashes closes no socket
    that a busy function would notice."""
    parent = os.getppid()
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(0)


class Executor:
    """Carries out requests with the module's code."""

    def __init__(self, say: Callable[[bytes], None]) -> None:
        self._module: type[Module] | None = None
        self._tasks = 0
        self._runners: dict[TaskId, TaskRunner] = {}
        self._lanes = Lanes(())
        self._rounds = Rounds(say)

    def asked(self, message: protocol.ToChild, bodies: list[bytes]) -> bytes | None:
        """Carry out a request, and return its framed answer; None if it has none."""
        match message:
            case protocol.Load():
                return protocol.framed(self._load(message))
            case protocol.Forget(task=task, topology=topology):
                self._lanes.forget(task, topology)
                self._rounds.forget(task, topology)
                return None
            case _:
                try:
                    return self._do(message, bodies)
                except TooMuch as error:
                    return protocol.framed(protocol.Failed(message.number, str(error), is_too_much=True))
                except (StrettoError, RowsFailed, lmdb.Error, OSError) as error:
                    return protocol.framed(protocol.Failed(message.number, str(error)))

    # The module.

    def _load(self, message: protocol.Load) -> protocol.Loaded | protocol.NotLoaded:
        sys.path.insert(0, message.folder)
        path, _, name = message.entry.partition(":")
        try:
            module: type[Module] = getattr(importlib.import_module(path), name)
        except BaseException as error:  # noqa: BLE001 - whatever code does when it is imported
            told = TracebackException.from_exception(error)
            own = [frame for frame in told.stack if frame.filename.startswith(f"{message.folder}/")]
            told.stack = StackSummary.from_list(own)
            what = f"{message.entry} cannot be imported: {type(error).__name__}: {error}"
            return protocol.NotLoaded(what, "".join(told.format()))
        self._module = module
        self._tasks = message.tasks
        self._lanes = Lanes(declarations(module).pstates)
        return protocol.Loaded()

    def _runner(self, task: TaskId) -> TaskRunner:
        runner = self._runners.get(task)
        if runner is None:
            assert self._module is not None, "asked to run before it was loaded"  # noqa: S101
            runner = self._runners[task] = TaskRunner(self._module, task, self._tasks)
        return runner

    # Runs.

    def _do(self, message: protocol.Request, bodies: list[bytes]) -> bytes:
        match message:
            case protocol.RunRound(lane=lane):
                return self._rounds.run(message, bodies, self._runner(lane.task), self._lanes)
            case protocol.Collect():
                return self._rounds.collect(message, self._lanes)
            case protocol.Run() | protocol.RunCalls():
                return self._run(message, bodies)
            case protocol.RunQuery() | protocol.CombineQuery():
                return self._query(message, bodies)

    def _run(self, message: protocol.Run | protocol.RunCalls, bodies: list[bytes]) -> bytes:
        lane = message.lane
        began, delayed_before_us = time.monotonic_ns(), _delayed_us()
        runner = self._runner(lane.task)
        start, records, left = DepotOffset(0), list[Buffer](), 0
        positions = self._lanes.positions(lane)
        needed = (depots.PREFIX + message.depot,) if isinstance(message, protocol.Run) else ()
        with self._lanes.batch(lane, message.file, message.applied, *needed) as (file, txn, rows):
            if isinstance(message, protocol.RunCalls):
                calls = _decode_calls(bodies[0])
                outcome = runner.run(Calls(lane.topology, calls), rows)
                left = len(calls) - outcome.done
            else:
                offset = positions.get(message.depot) if message.offset is None else message.offset
                if not message.is_aside:
                    positions[message.depot] = None
                if offset is None:
                    return protocol.framed(protocol.Ran(message.number, 0, 0), (b"",))
                start, records = _records(file, txn, message, DepotOffset(offset))
                if message.is_aside and start != offset:
                    # It was trimmed, and those that are there have had their turn.
                    records = []
                work = Records(lane.topology, message.depot, start, records)
                outcome = runner.run(work, rows, stop_at_failure=message.stop_at_failure, skip=message.skip)
        changes, hops = pack_part(outcome.changes), _packed_hops(outcome)
        if len(changes.body) + sum(map(len, hops)) > PART_BYTES_MAX:
            raise TooMuch(f"what a batch changes and sends is beyond the limit of {PART_BYTES_MAX} bytes")
        self._lanes.ran(lane, message.batch, outcome.changes)
        if isinstance(message, protocol.Run) and not message.is_aside and outcome.done == len(records):
            positions[message.depot] = start + len(records)
        answer = protocol.Ran(
            message.number,
            start,
            start + outcome.done,
            left,
            changes.pstates,
            tuple(outcome.hops),
            tuple(outcome.results),
            tuple(_note(failure, records) for failure in outcome.failures),
            (time.monotonic_ns() - began) // 1_000,
            max(0, _delayed_us() - delayed_before_us),
            outcome.times,
        )
        return protocol.framed(answer, (changes.body, *hops))

    def _query(self, message: protocol.RunQuery | protocol.CombineQuery, bodies: list[bytes]) -> bytes:
        began = time.monotonic_ns()
        answer = self._answer(message, *bodies)
        failure, result = answer.failure, answer.result
        if failure is None and len(result) > RESULT_BYTES_MAX:
            failure = Failure(
                0, f"it returned {len(result)} bytes, beyond the limit of {RESULT_BYTES_MAX}; return less"
            )
        elapsed_us = (time.monotonic_ns() - began) // 1_000
        if failure is not None:
            note = protocol.FailureNote(0, failure.error, failure.traceback)
            return protocol.framed(protocol.QueryRan(message.number, note, elapsed_us))
        return protocol.framed(protocol.QueryRan(message.number, None, elapsed_us), (result,))

    def _answer(
        self, message: protocol.RunQuery | protocol.CombineQuery, given: bytes, *parts: bytes
    ) -> Answer:
        runner = self._runner(message.task if isinstance(message, protocol.RunQuery) else TaskId(0))
        try:
            args = runner.arguments(message.query, given)
        except UsageError as error:
            return Answer(failure=Failure(0, str(error)))
        if isinstance(message, protocol.CombineQuery):
            return runner.combine(message.query, args, parts)
        with self._lanes.view(message.task, message.epoch, message.file) as rows:
            return runner.query(message.query, args, rows)


def _delayed_us() -> int:
    """How long this process was ready to run, and did not; 0 where the system does not say."""
    try:
        with open("/proc/self/schedstat", "rb") as file:
            return int(file.read().split()[1]) // 1_000
    except (OSError, ValueError, IndexError):
        return 0


def _packed_hops(outcome: Outcome) -> list[bytes]:
    return [_encode_calls(calls) for calls in outcome.hops.values()]


def _note(failure: Failure, records: list[Buffer]) -> protocol.FailureNote:
    beginning = bytes(records[failure.index][:BEGINNING_BYTES]) if records else b""
    return protocol.FailureNote(failure.index, failure.error, failure.traceback, beginning)


def _records(
    file: TaskFile, txn: lmdb.Transaction[bytes], run: protocol.Run, offset: DepotOffset
) -> tuple[DepotOffset, list[Buffer]]:
    """Read the records of a run, and where they begin: beyond the offset asked for if the depot no longer has
    that."""
    database = file.database(depots.PREFIX + run.depot)
    if database is None:
        return offset, []
    return depots.records_from(
        txn,  # type: ignore[arg-type] # bytes are buffers too
        database,
        offset,
        max_bytes=run.bytes_max,
        max_records=run.records_max,
    )


if __name__ == "__main__":
    main(int(sys.argv[1]))
