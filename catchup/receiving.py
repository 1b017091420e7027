"""The states that a worker receives as a follower: the driver of :mod:`stretto.catchup.machines.fetch`.

What comes is hashed and written on threads, and what became of it comes back to the loop as an event of the
transfer; an answer to a transfer that is over finds nobody. A state that is whole is installed in place of
the replica's own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar, assert_never

import structlog

from stretto import control
from stretto.catchup.hosts import Host, HostedReplica, Installation
from stretto.catchup.install import Install
from stretto.catchup.machines import blocks, fetch
from stretto.catchup.staging import Abandoned, Staging
from stretto.catchup.threads import CatchupThreads
from stretto.errors import StrettoError, sentence_of
from stretto.replog.core import effects, events
from stretto.replog.core.replica import RoleName
from stretto.replog.storage import EpochStart
from stretto.state.environment import NoSpace
from stretto.vocabulary.backoff import Backoff
from stretto.vocabulary.groups import GroupKey
from stretto.vocabulary.types import Epoch, Millis, Offset, TaskId, WorkerId
from stretto.wire import catchup
from stretto.wire import messages as wire

log = structlog.get_logger()

AGAIN = Backoff(first_ms=1_000, most_ms=30_000)
"""Back-off from a failed transfer to the next one, and from one look at a full disk to the next."""
RATE_MS = 1_000

T = TypeVar("T")


@dataclass
class Rate:
    """Rate, in bytes per second, at which a total grows."""

    at: Millis
    total_bytes: int = 0
    bytes_per_second: int = 0

    def measure(self, total_bytes: int, now: Millis) -> None:
        """Take in the total now; at most once a second."""
        if now - self.at >= RATE_MS:
            self.bytes_per_second = self._since(total_bytes, now)
            self.at, self.total_bytes = now, total_bytes

    def now(self, total_bytes: int, now: Millis) -> int:
        """The rate last measured; if that is a while ago, that since then, as little or nothing has come."""
        return self.bytes_per_second if now - self.at < 2 * RATE_MS else self._since(total_bytes, now)

    def _since(self, total_bytes: int, now: Millis) -> int:
        return (total_bytes - self.total_bytes) * 1000 // (now - self.at)


@dataclass(eq=False)
class Receiving:
    """One transfer to a replica of this worker."""

    group: HostedReplica
    leader: WorkerId
    epoch: Epoch
    attempt: int
    fetch: fetch.Fetch
    staging: Staging
    begun_at: Millis
    #: What the transfer waits for, in a sentence.
    waits: str = ""
    looks: int = 0
    #: Number of threads that are at work for it.
    working: int = 0
    told_at: Millis = Millis(0)
    deadline: Millis | None = None
    end: Offset | None = None
    history: tuple[EpochStart, ...] = ()
    received_bytes: int = 0
    rate: Rate = field(init=False)
    task_rates: dict[TaskId, Rate] = field(init=False)

    def __post_init__(self) -> None:
        self.rate = Rate(self.begun_at)
        self.task_rates = {task: Rate(self.begun_at) for task in self.fetch.tasks}

    def measure(self, now: Millis) -> None:
        self.rate.measure(self.received_bytes, now)
        for task, rate in self.task_rates.items():
            rate.measure(self.fetch.tasks[task].fetched_bytes, now)


class StateReceiving:
    """All transfers to the replicas of a worker. Only the loop calls its methods."""

    def __init__(self, host: Host, threads: CatchupThreads) -> None:
        self._host = host
        self._threads = threads
        self._loop = host.loop
        self._receiving: dict[GroupKey, Receiving] = {}
        #: The latest staging of each group, whose files the next one takes over.
        self._stagings: dict[GroupKey, Staging] = {}
        #: Groups for which nothing is staged.
        self._tidy: set[GroupKey] = set()
        #: For each group, the transfers that failed since the last one that did not.
        self._failures: dict[GroupKey, int] = {}

    def close(self) -> None:
        """Close what is staged, once no thread works for it any more."""
        for staging in self._stagings.values():
            staging.close()

    def on_group_closed(self, key: GroupKey) -> None:
        """End the transfer to a replica that stopped or is here no more.

        What is staged stays, in case it comes back.
        """
        self._receiving.pop(key, None)
        self._tidy.discard(key)
        staging = self._stagings.get(key)
        if staging is not None:
            self._threads.run(staging.close, lambda result: self._on_staging_closed(key, staging, result))

    def on_replica_changed(self, group: HostedReplica) -> None:
        """Discard what was staged for a replica that is in sync now, be it by an earlier process."""
        key = group.key
        if key in self._tidy or group.replica.role_name not in (RoleName.FOLLOWER, RoleName.LEADER):
            return
        self._tidy.add(key)
        self._receiving.pop(key, None)
        staging = self._stagings.get(key)
        if staging is None:
            folder = self._host.replicas.path(group.plan)
            staging = self._stagings[key] = Staging(folder, group.plan.tasks, None)
        self._threads.run(staging.discard, lambda result: self._on_staging_closed(key, staging, result))

    def _on_staging_closed(self, key: GroupKey, staging: Staging, result: Exception | None) -> None:
        """Forget a staging that is closed, unless another transfer has taken its place."""
        if self._stagings.get(key) is staging:
            del self._stagings[key]
        if isinstance(result, OSError):
            log.warning("staged_state_not_removed", group=str(key), why=str(result))
        elif result is not None:
            raise result

    def on_answer(
        self, group: HostedReplica, leader: WorkerId, message: catchup.Answer, body: memoryview
    ) -> None:
        """Take in a leader's answer, unless its transfer is over."""
        receiving = self._receiving.get(group.key)
        if receiving is not None and leader == receiving.leader and receiving.fetch.belongs(message):
            self._take_answer(receiving, message, body)

    def fetch_state(self, group: HostedReplica, effect: effects.FetchState) -> None:
        """Begin a transfer. It takes the place of an older one, and goes on with its files."""
        replica, option = group.replica, self._host.option
        terms = fetch.Terms(
            epoch=effect.epoch,
            incarnation=replica.registered_as,
            attempt=effect.attempt,
            tasks=group.plan.tasks,
            min_rounds=int(option("replication.far.horizon.min.transfer.rounds")),
            near_lag=replica.settings.max_near_lag,
            retry_ms=replica.settings.retry_ms,
            silence_max_ms=Millis(replica.settings.state_timeout_ms // 4),
        )
        staging = Staging(
            self._host.replicas.path(group.plan),
            group.plan.tasks,
            self._stagings.get(group.key),
            seed=blocks.seed_of(terms.incarnation),
        )
        self._stagings[group.key] = staging
        self._tidy.discard(group.key)
        now = Millis(self._loop.now)
        receiving = Receiving(
            group, effect.leader, effect.epoch, effect.attempt, fetch.Fetch(terms), staging, now
        )
        self._receiving[group.key] = receiving
        log.info(
            "far_horizon_begins",
            group=str(group.key),
            leader=effect.leader,
            epoch=effect.epoch,
            attempt=effect.attempt,
        )
        self._step(receiving, fetch.Begin())
        self._keep_alive_later(receiving)

    def _take_answer(self, receiving: Receiving, message: catchup.Answer, body: memoryview) -> None:
        now = Millis(self._loop.now)
        receiving.received_bytes += len(body)
        receiving.measure(now)
        is_late = now - receiving.told_at >= _alive_ms(receiving)
        if is_late and not isinstance(message, catchup.Refused):
            self._tell_progress(receiving)
        self._step(receiving, fetch.Heard(message=message, body=body))

    def _tell_progress(self, receiving: Receiving) -> None:
        receiving.told_at = Millis(self._loop.now)
        progressed = events.TransferProgressed(epoch=receiving.epoch, attempt=receiving.attempt)
        receiving.group.step(progressed)

    def _keep_alive_later(self, receiving: Receiving) -> None:
        self._loop.call_after(_alive_ms(receiving), self._keep_alive, receiving)

    def _keep_alive(self, receiving: Receiving) -> None:
        """Report progress of a transfer while threads work for it.

        Nobody hears of it while its files are hashed or its state is put together. That may take longer than
        the core and the leader wait for a sign of life.
        """
        if self._is_current(receiving):
            if receiving.working:
                self._tell_progress(receiving)
                self._step(receiving, fetch.Working())
            self._keep_alive_later(receiving)

    def _is_current(self, receiving: Receiving) -> bool:
        group = receiving.group
        awaited = not group.closed and group.replica.awaited_state == (receiving.epoch, receiving.attempt)
        return awaited and self._receiving.get(group.key) is receiving

    def _step(self, receiving: Receiving, event: fetch.Event) -> None:
        if not self._is_current(receiving):
            return
        for effect in receiving.fetch.step(event, Millis(self._loop.now)):
            self._carry_out(receiving, effect)
        deadline = receiving.fetch.next_deadline()
        if deadline is not None and (receiving.deadline is None or deadline < receiving.deadline):
            receiving.deadline = deadline
            self._loop.call_at(deadline, self._tick, receiving, deadline)

    def _tick(self, receiving: Receiving, deadline: Millis) -> None:
        if receiving.deadline == deadline:
            receiving.deadline = None
            self._step(receiving, fetch.Tick())

    def _carry_out(self, receiving: Receiving, effect: fetch.Effect) -> None:
        staging = receiving.staging
        match effect:
            case fetch.Send(message=message):
                self._host.transport.send(receiving.leader, wire.Catchup(receiving.group.key, message))
            case fetch.Prepare(task=task):
                self._work(
                    receiving,
                    lambda: staging.prepare(task),
                    lambda is_empty: fetch.Prepared(task=task, is_empty=is_empty),
                )
            case fetch.MakeRoom(task=task, size_bytes=size_bytes):
                self._work(
                    receiving,
                    lambda: staging.make_room({task: size_bytes}),
                    lambda _: fetch.RoomMade(task=task),
                )
            case fetch.StoreAhead(ask=ask, task=task, block_bytes=block_bytes, runs=runs, body=body):
                self._work(
                    receiving,
                    lambda: staging.store_ahead(task, block_bytes, runs, body),
                    lambda _: fetch.Stored(ask=ask),
                )
            case fetch.Compare(image=image, parts=parts):
                self._work(
                    receiving,
                    lambda: staging.compare(image, parts),
                    lambda missing: fetch.Compared(task=image.task, round=image.round, missing=missing),
                )
            case fetch.Store(ask=ask, image=image, runs=runs, body=body):
                self._work(
                    receiving,
                    lambda: staging.store(image, runs, body),
                    lambda damaged: fetch.Stored(ask=ask, damaged=damaged),
                )
            case fetch.StoreEntries(start=start, end=end, body=body):
                self._work(
                    receiving,
                    lambda: staging.store_entries(start, body),
                    lambda _: fetch.EntriesStored(end=end),
                )
            case fetch.Assemble(end=end, history=history):
                receiving.end, receiving.history = end, history
                self._assemble(receiving, end)
            case fetch.Fail(why=why):
                self._fail(receiving, why)
            case fetch.AwaitRoom(why=why):
                self._wait_for_room(receiving, why)
            case fetch.Note(event=event, fields=fields):
                if event == "damaged_blocks":
                    receiving.group.meter.counted(event, fields["blocks"])
                log.info(event, group=str(receiving.group.key), leader=receiving.leader, **fields)
            case _:
                assert_never(effect)

    def _work(
        self, receiving: Receiving, work: Callable[[], T], event_of: Callable[[T], fetch.Event]
    ) -> None:
        def then(result: T | Exception) -> None:
            if isinstance(result, Exception):
                self._on_work_failed(receiving, result)
            else:
                self._step(receiving, event_of(result))

        self._run(receiving, work, then)

    def _run(
        self, receiving: Receiving, work: Callable[[], T], then: Callable[[T | Exception], None]
    ) -> None:
        """Do work on a thread; meanwhile the transfer is kept alive."""

        def done(result: T | Exception) -> None:
            receiving.working -= 1
            then(result)

        receiving.working += 1
        self._threads.run(work, done)

    def _on_work_failed(self, receiving: Receiving, error: Exception) -> None:
        if not isinstance(error, OSError | StrettoError):
            raise error
        if isinstance(error, NoSpace):
            self._no_room(receiving, error)
        elif not isinstance(error, Abandoned):
            self._fail(receiving, sentence_of(error))

    def _no_room(self, receiving: Receiving, error: NoSpace) -> None:
        """End the transfer for lack of room; the leader need not keep anything for it meanwhile."""
        if self._is_current(receiving) and receiving.fetch.failed is None:
            key = receiving.group.key
            # If it comes to this again and again, in spite of the room that was found.
            receiving.looks = self._failures.get(key, 0)
            self._failures[key] = receiving.looks + 1
            log.error("no_room_for_state", group=str(receiving.group.key), why=str(error))
            self._step(receiving, fetch.OutOfRoom(why=str(error)))

    def _look_for_room(self, receiving: Receiving) -> None:
        if receiving.end is not None:
            self._assemble(receiving, receiving.end)
            return

        def then(result: Exception | None) -> None:
            if not self._is_current(receiving):
                return
            if isinstance(result, NoSpace):
                self._wait_for_room(receiving, str(result))
            elif isinstance(result, Exception):
                self._on_work_failed(receiving, result)
            else:
                log.info("room_for_state", group=str(receiving.group.key))
                self._give_up(receiving)

        sizes = {
            each.task: each.size_bytes
            for each in receiving.fetch.tasks.values()
            if each.size_bytes is not None
        }
        self._threads.run(lambda: receiving.staging.make_room(sizes), then)

    def _wait_for_room(self, receiving: Receiving, why: str) -> None:
        """Look for room again later.

        The core is told that the transfer goes on: it must not ask for a state that has no place to go.
        """
        group = receiving.group
        receiving.waits = why
        wait_ms = min(AGAIN.after(receiving.looks), group.replica.settings.state_timeout_ms // 2)
        receiving.looks += 1
        self._tell_progress(receiving)
        self._loop.call_after(wait_ms, self._look_for_room, receiving)

    def _fail(self, receiving: Receiving, why: str) -> None:
        if not self._is_current(receiving):
            return
        key = receiving.group.key
        log.warning("far_horizon_fails", group=str(key), leader=receiving.leader, why=why)
        receiving.waits = f"it begins again: {why}"
        receiving.fetch.failed = receiving.fetch.failed or why
        receiving.group.meter.counted("failed_transfers")
        failures = self._failures.get(key, 0)
        self._failures[key] = failures + 1
        self._loop.call_after(AGAIN.after(failures), self._give_up, receiving)

    def _give_up(self, receiving: Receiving) -> None:
        if self._is_current(receiving):
            del self._receiving[receiving.group.key]
            receiving.group.step(events.TransferFailed())

    def _assemble(self, receiving: Receiving, end: Offset) -> None:
        if self._is_current(receiving):
            verify = bool(self._host.option("replication.catchup.verify.structure"))
            self._run(
                receiving,
                lambda: receiving.staging.assemble(end, verify_structure=verify),
                lambda result: self._on_assembled(receiving, result),
            )

    def _on_assembled(self, receiving: Receiving, result: Exception | None) -> None:
        if isinstance(result, NoSpace):
            # All of it is here, and the leader has let go of its images: this is tried again as it is.
            if self._is_current(receiving):
                log.error("no_room_for_state", group=str(receiving.group.key), why=str(result))
                self._wait_for_room(receiving, str(result))
        elif isinstance(result, Exception):
            self._on_work_failed(receiving, result)
        elif self._is_current(receiving) and receiving.end is not None:
            receiving.waits = ""
            log.info("state_arrived", group=str(receiving.group.key), end=receiving.end)
            receiving.group.step(
                events.StateArrived(epoch=receiving.epoch, attempt=receiving.attempt, end=receiving.end)
            )

    # Installing.

    def install(self, group: HostedReplica, end: Offset) -> None:
        """Replace a replica's state by the one that arrived.

        The group waits: nothing of it is applied or written until it hears how this ended.
        """
        receiving = self._receiving.get(group.key)
        if receiving is None or receiving.end != end:
            group.install_failed()
            return
        installation = self._host.replicas.installation(group.key)
        install = Install(
            storage_id=group.replica.storage,
            end=end,
            before=receiving.history[-1] if receiving.history else None,
        )

        def work() -> None:
            receiving.staging.close()
            installation.carry_out(install)

        def then(result: Exception | None) -> None:
            self._on_installed(receiving, installation, result)

        self._host.applier.after_applied(lambda: self._threads.run(work, then))

    def _on_installed(
        self, receiving: Receiving, installation: Installation, result: Exception | None
    ) -> None:
        group = receiving.group
        self._receiving.pop(group.key, None)
        self._failures.pop(group.key, None)
        if self._stagings.get(group.key) is receiving.staging:
            del self._stagings[group.key]
        if isinstance(result, OSError | StrettoError):
            installation.fail(sentence_of(result))
            return
        if result is not None:
            raise result
        log.info(
            "far_horizon_ends",
            group=str(group.key),
            end=receiving.end,
            rounds=receiving.fetch.round,
            received_bytes=receiving.received_bytes,
            damaged_blocks=receiving.fetch.damaged_blocks,
            took_ms=self._loop.now - receiving.begun_at,
        )
        group.meter.counted("received_states")
        installation.finish(receiving.history)

    # For people.

    def view(self, key: GroupKey) -> control.CatchupView | None:
        """How far the transfer to a replica is; None if there is none."""
        receiving = self._receiving.get(key)
        if receiving is None or not self._is_current(receiving):
            return None
        fetching, now = receiving.fetch, Millis(self._loop.now)
        return control.CatchupView(
            leader=receiving.leader,
            round=fetching.round,
            min_rounds=fetching.terms.min_rounds,
            leader_applied=fetching.leader_applied,
            received_bytes=receiving.received_bytes,
            bytes_per_second=0 if receiving.waits else receiving.rate.now(receiving.received_bytes, now),
            damaged_blocks=fetching.damaged_blocks,
            since_ms=self._loop.now - receiving.begun_at,
            waits=receiving.waits,
            tasks=tuple(
                control.TaskCatchup(
                    task=each.task,
                    phase=each.phase,
                    round=each.round,
                    offset=each.offset,
                    size_bytes=each.size_bytes,
                    left_bytes=each.missing_bytes,
                    bytes_per_second=0
                    if receiving.waits
                    else receiving.task_rates[each.task].now(each.fetched_bytes, now),
                )
                for each in fetching.tasks.values()
            ),
        )


def _alive_ms(receiving: Receiving) -> int:
    return receiving.group.replica.settings.state_timeout_ms // 8
