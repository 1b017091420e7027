"""How a worker pins a group: by the rules for reads, and between two batches that are applied.

The core is asked as for any read: a leader answers under its lease, a member of the ISR if what it has is not
too old. To look at the state is, here, to have the scan process begin a transaction on every task while
nothing is applied; so all of them show the same offset. Applying waits for that a few milliseconds, and never
longer than :data:`HOLD_SECONDS`: a process that does not answer by then costs the pin.

What has to wait does so on a thread of its own, which exists once somebody has asked for a pin.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, TypeVar

import structlog

from stretto import control
from stretto.errors import RetriableError, StrettoError
from stretto.network.endpoint import advertised
from stretto.replog.core import effects
from stretto.vocabulary.types import Millis, Offset
from stretto.wire.scans import PinnedGroup
from stretto.worker.scans import protocol
from stretto.worker.scans.process import Gone, ScanProcess

if TYPE_CHECKING:
    from stretto.network.keys import ClusterKey
    from stretto.network.loop import Loop
    from stretto.vocabulary.groups import GroupKey
    from stretto.vocabulary.types import WorkerId
    from stretto.worker.reads.reads import Reads
    from stretto.worker.replica.group import Group

HOLD_SECONDS = 2.0
ASK_SECONDS = 5.0

log = structlog.get_logger()

T = TypeVar("T")
Then: TypeAlias = Callable[["PinnedGroup | StrettoError"], None]


class Config(Protocol):
    """What scans need of a worker's configuration."""

    @property
    def module(self) -> str: ...

    @property
    def worker(self) -> WorkerId: ...

    @property
    def key(self) -> ClusterKey | None: ...

    @property
    def advertise(self) -> str | None: ...


class Clients(Protocol):
    """The worker's clients, of which scans need the reads alone."""

    @property
    def reads(self) -> Reads: ...


class Host(Protocol):
    """The worker, as its scans see it."""

    @property
    def config(self) -> Config: ...

    @property
    def worker(self) -> WorkerId: ...

    @property
    def address(self) -> str: ...

    @property
    def description(self) -> control.ModuleDescription: ...

    @property
    def loop(self) -> Loop: ...

    @property
    def groups(self) -> Mapping[GroupKey, Group]: ...

    @property
    def clients(self) -> Clients: ...

    def option(self, name: str) -> Any: ...

    def clear_readers(self) -> None:
        """Free what a process that died in the middle of a read still occupies in the state's files."""
        ...


class Scans:
    """The pins of a worker, kept by its scan process. The loop owns it, except where it says otherwise."""

    def __init__(self, worker: Host) -> None:
        self._worker = worker
        self._pool: ThreadPoolExecutor | None = None
        #: The scan process, if it runs; set by the pinning thread alone.
        self._process: ScanProcess | None = None
        self._is_closing = False

    def pin(self, call: control.PinGroup, then: Then) -> None:
        """Pin a group; ``then`` gets the pin, or why there is none."""
        _Pinning(self, self._worker, call, then).begin()

    def views(self, then: Callable[[tuple[control.PinView, ...] | StrettoError], None]) -> None:
        """Describe the pins of this worker to people."""
        worker = self._worker.worker

        def work() -> tuple[control.PinView, ...]:
            kept = self._process.list(ASK_SECONDS) if self._process is not None else ()
            return tuple(
                control.PinView(
                    pin=each.pin,
                    group=each.group,
                    worker=worker,
                    offset=Offset(each.offset),
                    holder=each.holder,
                    age_ms=each.age_ms,
                    idle_ms=each.idle_ms,
                    sent_bytes=each.sent_bytes,
                )
                for each in kept
            )

        if self._pool is None:
            then(())
        else:
            self.run(work, then)

    def forget(self, group: GroupKey, why: str) -> None:
        """End the pins of a group whose replica here is another one, or none, from now on."""
        if self._pool is not None:
            self.run(
                lambda: self._tell(lambda process: process.forget(str(group), why, ASK_SECONDS)), _ignore
            )

    def close(self) -> None:
        """Kill the scan process and end the pinning thread: no pin outlives the worker."""
        self._is_closing = True
        if self._pool is None:
            return
        process = self._process
        if process is not None:
            # Whoever waits for its answer waits no longer.
            process.kill()
        self._pool.shutdown()
        if self._process is not None:
            self._worker.loop.unregister(self._process.pidfd)
            self._process.end()

    def run(self, work: Callable[[], T], then: Callable[[T | StrettoError], None]) -> None:
        """Run ``work`` on the pinning thread, then ``then`` on the loop."""
        if self._pool is None:
            self._pool = ThreadPoolExecutor(1, "pin")
        loop = self._worker.loop

        def told(result: T | Exception) -> None:
            if isinstance(result, Exception) and not isinstance(result, StrettoError):
                log.error("pinning_failed", exc_info=result)
                result = StrettoError(f"pinning failed: {result}")
            then(result)

        if not self._is_closing:
            self._pool.submit(loop.hand_back, work, told)

    # On the pinning thread.

    def prepared(self, group: str, folder: str, tasks: tuple[int, ...]) -> ScanProcess:
        """Return a scan process that has the files of a group open. Raises StrettoError."""
        process = self._process or self._start()
        try:
            process.prepare(group, folder, tasks, ASK_SECONDS)
        except Gone:
            # It had nothing to do and went, just now.
            self._process = None
            process = self._start()
            process.prepare(group, folder, tasks, ASK_SECONDS)
        return process

    def give_back(self, pin: str, why: str) -> None:
        """End a pin that was never handed out."""
        self._tell(lambda process: process.close(pin, why, ASK_SECONDS))

    def _tell(self, tell: Callable[[ScanProcess], None]) -> None:
        if self._process is not None:
            tell(self._process)

    def _start(self) -> ScanProcess:
        if self._is_closing:
            raise RetriableError("the worker is stopping; ask another one")
        began = time.monotonic()
        worker = self._worker
        host = worker.address.rpartition(":")[0]
        idle_ms = int(worker.option("pin.idle.timeout.millis"))
        process = ScanProcess(worker.worker, host, worker.config.key, idle_ms)
        self._process = process
        after_ms = int((time.monotonic() - began) * 1_000)
        log.info(
            "scan_process_started",
            worker=worker.worker,
            pid=process.pid,
            address=process.address,
            after_ms=after_ms,
        )
        worker.loop.call_soon(self._watch, process)
        return process

    def _reap(self, process: ScanProcess) -> int:
        if self._process is process:
            self._process = None
        return process.end()

    # Its end.

    def _watch(self, process: ScanProcess) -> None:
        if not self._is_closing:
            self._worker.loop.register(process.pidfd, lambda: self._exited(process))

    def _exited(self, process: ScanProcess) -> bool:
        self._worker.loop.unregister(process.pidfd)
        self.run(lambda: self._reap(process), self._reaped)
        return False

    def _reaped(self, status: int | StrettoError) -> None:
        if status == 0:
            log.info("scan_process_ended", worker=self._worker.worker, why="there was no pin for a while")
        else:
            log.warning("scan_process_died", worker=self._worker.worker, status=status)
            self._worker.clear_readers()


class _Pinning:
    """A pin that is being made."""

    def __init__(self, scans: Scans, worker: Host, call: control.PinGroup, then: Then) -> None:
        self._scans = scans
        self._worker = worker
        self._call = call
        self._then = then
        self._pin = secrets.token_hex(8)
        #: What the scan process shows under the pin, or why it shows nothing.
        self._found: Offset | StrettoError = RetriableError("nothing was looked at")
        self._process: ScanProcess | None = None

    def begin(self) -> None:
        """Open the group's files in the scan process, then pin them by the rules for reads."""
        group = self._group()
        if group is None:
            return
        folder, tasks = _files(group)
        self._scans.run(lambda: self._scans.prepared(str(group.key), folder, tasks), self._prepared)

    def _group(self) -> Group | None:
        key = self._call.group
        group = self._worker.groups.get(key)
        if group is None:
            self._then(RetriableError(f"worker {self._worker.worker} holds no replica of group {key}"))
        return group

    def _prepared(self, process: ScanProcess | StrettoError) -> None:
        if isinstance(process, StrettoError):
            self._then(process)
            return
        self._process = process
        group = self._group()
        if group is not None:
            stale_ms = self._call.max_staleness_ms
            self._worker.clients.reads.elsewhere(
                group,
                lambda done: self._look(group, process, done),
                lambda result: self._replied(group, result),
                max_staleness_ms=None if stale_ms is None else Millis(stale_ms),
            )

    def _look(self, group: Group, process: ScanProcess, done: Callable[[], None]) -> None:
        state = group.state
        folder, tasks = _files(group)
        max_age_ms = int(self._worker.option("pin.max.age.millis"))
        idle_ms = self._idle_ms()
        hold_ms = min(self._call.hold_ms, max_age_ms)

        def work() -> Offset:
            with state.held(HOLD_SECONDS) as offset:
                message = protocol.Open(
                    0,
                    self._pin,
                    str(group.key),
                    folder,
                    tasks,
                    offset,
                    self._call.holder,
                    idle_ms,
                    max_age_ms,
                    hold_ms,
                )
                process.open(message, HOLD_SECONDS)
            return offset

        def looked(found: Offset | StrettoError) -> None:
            self._found = found
            done()

        self._scans.run(work, looked)

    def _replied(self, group: Group, result: effects.Result) -> None:
        found, process = self._found, self._process
        if isinstance(result, effects.ReadServed) and not isinstance(found, StrettoError) and process:
            self._then(self._pinned(group, process, found, result))
            return
        # It may have been opened although nobody heard of it.
        self._scans.run(lambda: self._scans.give_back(self._pin, "it was never handed out"), _ignore)
        if isinstance(found, StrettoError) and isinstance(result, effects.ReadServed):
            self._then(found)
        else:
            why = result.reason.value if isinstance(result, effects.Refused) else "it cannot tell"
            self._then(
                RetriableError(f"worker {self._worker.worker} does not serve group {group.key} now ({why})")
            )

    def _pinned(
        self, group: Group, process: ScanProcess, offset: Offset, served: effects.ReadServed
    ) -> PinnedGroup:
        config = self._worker.config
        host = config.advertise.rpartition(":")[0] or config.advertise if config.advertise else None
        return PinnedGroup(
            pin=self._pin,
            module=config.module,
            group=str(group.key),
            worker=config.worker,
            address=advertised(process.address, host),
            offset=offset,
            epoch=served.epoch,
            version=self._worker.description.version,
            tasks=group.plan.tasks,
            by_leader=group.leader is not None,
            idle_ms=max(self._idle_ms(), self._call.hold_ms),
            max_age_ms=int(self._worker.option("pin.max.age.millis")),
        )

    def _idle_ms(self) -> int:
        """How long the pin lasts when nobody reads it: as options say, or less if that was asked for."""
        allowed = int(self._worker.option("pin.idle.timeout.millis"))
        return allowed if self._call.idle_ms is None else max(1, min(allowed, self._call.idle_ms))


def _files(group: Group) -> tuple[str, tuple[int, ...]]:
    tasks = group.plan.tasks
    return str(group.state.folder(tasks[0]).parent), tuple(tasks)


def _ignore(_: object) -> None:
    pass
