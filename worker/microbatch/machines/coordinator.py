"""The side of task 0: which microbatch is under way, and what has to happen next.

It acts on the record as it is applied, never on what it believes it wrote: after each entry, whatever came of
it, the record is read again. So an entry whose outcome is not known does no harm. What it knows besides, it
knows of the version that it primed itself; a version that another one primed is not continued.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import msgspec

from stretto.state import microbatch_entries
from stretto.state.microbatch_entries import Batch, LeftOut, Source, Span, Version
from stretto.vocabulary.backoff import Backoff
from stretto.vocabulary.types import TaskId
from stretto.worker.microbatch.machines import effects, events, messages
from stretto.worker.microbatch.machines.effects import Effect
from stretto.worker.microbatch.machines.events import Event
from stretto.worker.microbatch.machines.guards import GUARDS, Guards
from stretto.worker.microbatch.machines.messages import Speaker
from stretto.worker.microbatch.machines.settings import Settings

ATTEMPTS_COUNTED = 3
"""How many failed versions in a row the back-off counts, if the module's code is not at fault: it ends there,
at eight times what it began with."""
TRACEBACKS_MAX = 100
"""How many records that one microbatch leaves out are reported with a traceback; the others with the error
alone."""


class Phase(enum.StrEnum):
    """The phase that a coordinator is in."""

    LOADING = "loading"
    IDLE = "idle"
    PRIMING = "priming"
    RUNNING = "running"
    STAGING = "staging"
    COMMITTING = "committing"
    ROLLING = "rolling"
    WAITING = "waiting"
    """A version came to nothing; the next one begins in a while."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """The progress of a topology, for people."""

    version: Version | None
    phase: Phase
    lag: int | None
    """How many records no committed microbatch has; None if it is not known yet."""
    why: str
    """Why the latest failed version came to nothing."""


class Coordinator:
    """The coordinator of one topology, in one epoch of task 0's leader."""

    def __init__(
        self,
        topology: str,
        depots: tuple[str, ...],
        tasks: int,
        settings: Settings,
        guards: Guards = GUARDS,
    ) -> None:
        self.topology = topology
        self.phase = Phase.LOADING
        self.round = 0
        self._depots = depots
        self._tasks = [TaskId(task) for task in range(tasks)]
        self._settings = settings
        self._guards = guards
        self._out: list[Effect] = []
        self._now = 0
        #: The record as it was last read.
        self._batch: Batch | None = None
        #: The version that is to be primed, until the record shows it.
        self._next: Batch | None = None
        #: The version that was primed here, whether that was applied or not.
        self._mine: Version | None = None
        self._begun = False
        self._staged = False
        #: The latest id that took effect on all its tasks.
        self._rolled_id: int | None = None
        #: The token of the one Load or Append whose answer counts.
        self._token = 0
        #: The message that each task has not answered yet.
        self._awaited: dict[TaskId, messages.ToParticipant] = {}
        #: When each of these tasks last sent something, or was asked first.
        self._heard: dict[TaskId, int] = {}
        #: The participant that runs the version, by task.
        self._speakers: dict[TaskId, Speaker] = {}
        #: Calls that the running round made, by the task that they are for.
        self._calls: dict[TaskId, list[messages.Expected]] = {}
        #: Reports of the running round that the version comes to nothing.
        self._broken: list[messages.Broken] = []
        #: First and end offset of the depots, by task and depot.
        self._bounds: dict[TaskId, dict[str, tuple[int, int]]] = {}
        self._rolled_max = 0
        self._poll = 0
        #: The offsets below which appenders wait for records, by task and depot, as reported.
        self._wanted: dict[TaskId, dict[str, int]] = {}
        self._primed_at: int | None = None
        self._input_since: int | None = None
        #: How many versions in a row came to nothing; and how many entries in a row were not applied.
        self._attempts = 0
        self._refusals = 0
        #: How many records of a depot partition are tried next, if more were too large a while ago.
        self._records_max: int | None = None
        self._why = ""
        self._resend_at: int | None = None
        self._later: tuple[int, Callable[[], None]] | None = None

    # The door.

    def step(self, event: Event, now: int) -> list[Effect]:
        """Take an event, and return what is to be done."""
        self._now = now
        self._out = []
        match event:
            case events.Started():
                self._load()
            case events.Loaded(token=token, batch=batch) if token == self._token:
                self._loaded(batch)
            case events.Appended(token=token, applied=applied, why=why) if token == self._token:
                self._appended(applied=applied, why=why)
            case events.Received(message=message):
                self._received(message)
            case events.Tick():
                self._tick()
            case events.SettingsChanged(settings=settings):
                self._settings = settings
                if self.phase is Phase.IDLE:
                    self._look_for_input()
            case _:
                pass
        return self._out

    def next_deadline(self) -> int | None:
        """Return when a Tick is due, or None."""
        later = None if self._later is None else self._later[0]
        return min((at for at in (self._resend_at, later) if at is not None), default=None)

    @property
    def progress(self) -> Progress:
        version = None if self._batch is None else self._batch.version
        return Progress(version=version, phase=self.phase, lag=self._lag(), why=self._why)

    @property
    def ends(self) -> dict[str, dict[TaskId, int]]:
        """The ends of the depots, by depot and task, as far as is known."""
        return {
            depot: {task: bounds[depot][1] for task, bounds in self._bounds.items() if depot in bounds}
            for depot in self._depots
        }

    def _lag(self) -> int | None:
        if len(self._bounds) < len(self._tasks):
            return None
        batch = self._batch
        if batch is None:
            done: dict[str, dict[TaskId, int]] = {}
        else:
            done = batch.progress_after() if batch.committed else batch.progress
        return sum(
            max(0, end - max(start, done.get(depot, {}).get(task, 0)))
            for task, bounds in self._bounds.items()
            for depot, (start, end) in bounds.items()
        )

    # What is applied.

    def _load(self) -> None:
        self._token += 1
        self._out.append(effects.Load(token=self._token))

    def _append(self, entry: microbatch_entries.Entry) -> None:
        self._token += 1
        self._out.append(effects.Append(token=self._token, entry=entry))

    def _appended(self, *, applied: bool, why: str) -> None:
        if applied:
            self._refusals = 0
            self._load()
        else:
            self._note("microbatch_entry_not_applied", why=why)
            self._wait(self._refusals, self._load)
            self._refusals += 1

    def _loaded(self, batch: Batch | None) -> None:
        self._batch = batch
        if batch is None:
            self._idle()
        elif batch.committed:
            self._next = None
            if self._rolled_id == batch.version.id:
                self._idle()
            else:
                self._roll(batch)
        elif self._next is not None and self._next.version > batch.version:
            self._prime(self._next)
        elif self._guards.begins_anew(batch.version == self._mine):
            self._prime(_again(batch))
        elif self._staged:
            self._commit()
        elif not self._begun:
            self._begin(batch)

    # Idle: waiting for input.

    def _idle(self) -> None:
        self.phase = Phase.IDLE
        self._next = None
        self._later = None
        self._input_since = None
        self._poll += 1
        self._awaited = {task: self._poll_of(task) for task in self._tasks}
        self._ask_all()
        self._look_for_input()

    def _poll_of(self, task: TaskId) -> messages.Poll:
        done = {} if self._batch is None else self._batch.progress_after()
        everywhere = self._rolled_id or 0
        known = self._bounds.get(task)
        if known is None:
            return messages.Poll(self._poll, {}, everywhere)
        beyond = {
            depot: max(done.get(depot, {}).get(task, 0), known.get(depot, (0, 0))[1])
            for depot in self._depots
        }
        return messages.Poll(self._poll, beyond, everywhere)

    def _input(self, message: messages.Input) -> None:
        self._learn(message.task, message.bounds)
        self._rolled_max = max(self._rolled_max, message.rolled)
        wanted = self._wanted.setdefault(message.task, {})
        for depot, end in message.awaited.items():
            wanted[depot] = max(end, wanted.get(depot, 0))
        if self.phase is Phase.IDLE and message.number == self._poll:
            self._ask(message.task, self._poll_of(message.task))
            if self._later is None or message.awaited:
                self._look_for_input()

    def _learn(self, task: TaskId, bounds: dict[str, tuple[int, int]]) -> None:
        """Take the bounds of a task's depots. Depots only grow: what says otherwise is old."""
        known = self._bounds.setdefault(task, {})
        for depot, (start, end) in bounds.items():
            before = known.get(depot, (0, 0))
            known[depot] = (max(start, before[0]), max(end, before[1]))

    def _look_for_input(self) -> None:
        if self._settings.paused or not self._spans():
            return
        since = self._now if self._input_since is None else self._input_since
        self._input_since = since
        due = since + self._settings.gather_ms
        # Under load a microbatch takes longer than the interval, which then means nothing. Without, there is
        # no reason to let somebody wait.
        if self._primed_at is not None and not self._is_wanted():
            due = max(due, self._primed_at + self._settings.interval_ms)
        if self._later is None or due < self._later[0]:
            self._later = (due, self._prime_next)

    def _is_wanted(self) -> bool:
        """Whether an appender waits for records that no microbatch has."""
        done = {} if self._batch is None else self._batch.progress_after()
        return any(
            end > done.get(depot, {}).get(task, 0)
            for task, ends in self._wanted.items()
            for depot, end in ends.items()
        )

    def _spans(self) -> tuple[Span, ...]:
        done = {} if self._batch is None else self._batch.progress_after()
        most = min(self._settings.max_records, self._records_max or self._settings.max_records)
        found = []
        for task in self._tasks:
            for depot in self._depots:
                first, end = self._bounds.get(task, {}).get(depot, (0, 0))
                start = max(first, done.get(depot, {}).get(task, 0))
                if start < end:
                    found.append(Span(depot, task, start, min(end, start + most)))
        return tuple(found)

    def _prime_next(self) -> None:
        spans = self._spans()
        if self._settings.paused or not spans:
            self._input_since = None
            return
        latest = 0 if self._batch is None else self._batch.version.id
        progress = {} if self._batch is None else self._batch.progress_after()
        # After an unclean election the record may be older than what took effect.
        version = Version(max(latest, self._rolled_max) + 1, 0)
        self._primed_at = self._now
        self._prime(Batch(version, progress, spans))

    def _prime(self, batch: Batch) -> None:
        self.phase = Phase.PRIMING
        self._awaited = {}
        self._resend_at = self._later = None
        self._next = batch
        self._mine = batch.version
        self._begun = self._staged = False
        self._append(microbatch_entries.Prime(self.topology, batch))

    # A version: rounds, staging, commit.

    def _begin(self, batch: Batch) -> None:
        self.phase = Phase.RUNNING
        self.round = 0
        self._next = None
        self._mine = batch.version
        self._begun = True
        self._speakers = {}
        self._broken = []
        self._calls = {}
        tasks = sorted({span.task for span in batch.spans})
        self._awaited = {
            task: messages.Begin(
                batch.version,
                _spans_of(batch, task),
                tuple(_bare(each) for each in _left_out_of(batch, task)),
                batch.careful,
            )
            for task in tasks
        }
        self._ask_all()

    def _received(self, message: messages.AnyMessage) -> None:
        match message:
            case messages.Input():
                self._input(message)
            case messages.Rolled():
                self._rolled(message)
            case messages.Ran() | messages.Broken() | messages.Working() | messages.Staged():
                if self._mine == message.version and self._begun and message.task in self._awaited:
                    self._heard[message.task] = self._now
                    self._answered(message)
            case _:
                pass

    def _answered(self, message: messages.Ran | messages.Broken | messages.Working | messages.Staged) -> None:
        match message:
            case messages.Ran() if self.phase is Phase.RUNNING and message.round == self.round:
                self._ran(message)
            case messages.Staged() if self.phase is Phase.STAGING:
                if self._is_same_speaker(message):
                    del self._awaited[message.task]
                    self._look_whether_staged()
            case messages.Broken() if self.phase is Phase.STAGING:
                self._abandon(message.why, task=message.task, smaller=message.too_large)
            case messages.Broken() if self.phase is Phase.RUNNING and message.round == self.round:
                # What others have to say may be the reason: who shares an executor with a function that
                # hangs knows only that it is gone.
                self._broken.append(message)
                del self._awaited[message.task]
                self._look_whether_run()
            case _:
                pass

    def _ran(self, message: messages.Ran) -> None:
        if not self._is_same_speaker(message):
            return
        self._speakers[message.task] = message.speaker
        for target, count in message.sent:
            expected = messages.Expected(message.task, message.speaker, count)
            self._calls.setdefault(target, []).append(expected)
        del self._awaited[message.task]
        self._look_whether_run()

    def _is_same_speaker(self, message: messages.Ran | messages.Staged) -> bool:
        if self._guards.same_speaker(self._speakers.get(message.task), message.speaker):
            return True
        self._abandon("another leader took over", task=message.task)
        return False

    def _look_whether_run(self) -> None:
        if self._awaited:
            return
        if self._broken:
            self._end_broken()
        elif self._calls:
            self._next_round()
        else:
            self._stage()

    def _end_broken(self) -> None:
        failures = [failure for each in self._broken for failure in each.failures]
        # A function that takes many records at once is not asked which of them made a call: what failed
        # elsewhere is known for sure only if they are run one by one.
        is_sure = self.round == 0 or (self._batch is not None and self._batch.careful)
        told = max(self._broken, key=lambda each: (bool(each.failures), each.hung))
        self._abandon(
            told.why,
            task=told.task,
            failures=failures if is_sure else (),
            smaller=any(each.too_large for each in self._broken),
            careful=bool(failures) or any(each.hung for each in self._broken),
        )

    def _next_round(self) -> None:
        batch = self._batch
        assert batch is not None  # noqa: S101 - for the type checker
        self.round += 1
        self._awaited = {
            task: messages.Go(
                batch.version, self.round, tuple(sorted(expected, key=_by_sender)), batch.careful
            )
            for task, expected in sorted(self._calls.items())
        }
        self._calls = {}
        self._ask_all()

    def _stage(self) -> None:
        batch = self._batch
        assert batch is not None  # noqa: S101 - for the type checker
        self.phase = Phase.STAGING
        self._awaited = {
            task: messages.Stage(batch.version, _spans_of(batch, task), _left_out_of(batch, task))
            for task in sorted(self._speakers)
        }
        self._ask_all()
        self._look_whether_staged()

    def _look_whether_staged(self) -> None:
        if self._guards.all_staged(self._awaited):
            self._staged = True
            self._commit()

    def _commit(self) -> None:
        batch = self._batch
        assert batch is not None  # noqa: S101 - for the type checker
        self.phase = Phase.COMMITTING
        self._awaited = {}
        self._resend_at = None
        tasks = tuple(sorted(self._speakers))
        self._append(microbatch_entries.Commit(self.topology, batch.version, tasks))
        if self._guards.is_committed(None, batch.version):
            self._batch = msgspec.structs.replace(batch, tasks=tasks)
            self._roll(self._batch)

    # A version that comes to nothing.

    def _abandon(
        self,
        why: str,
        *,
        task: TaskId | None = None,
        failures: Iterable[messages.Failure] = (),
        smaller: bool = False,
        careful: bool = False,
    ) -> None:
        batch = self._batch
        assert batch is not None  # noqa: S101 - for the type checker
        self._why = why if task is None else f"task {task}: {why}"
        alone = _only_record(batch) if smaller else None
        if alone is not None:
            failures = (messages.Failure(alone, why, ""),)
        next_ = _again(
            _with_failures(batch, failures, self._settings.retries),
            smaller=smaller,
            careful=batch.careful or careful,
        )
        self._next = next_
        newly = next_.left_out[len(batch.left_out) :]
        self._note("microbatch_retried", version=str(next_.version), why=self._why, left_out=len(newly))
        self.phase = Phase.WAITING
        self._begun = False
        self._awaited = {}
        self._resend_at = None
        if smaller:
            self._records_max = max(span.end - span.start for span in next_.spans)
        if newly or next_.spans != batch.spans:
            # It is another input, so there is nothing to wait for.
            self._prime(next_)
        else:
            # Code that fails does so again; leaders that move, or stall, have soon done with it.
            is_code = bool(failures) or careful
            attempts = self._attempts if is_code else min(self._attempts, ATTEMPTS_COUNTED)
            self._wait(attempts, lambda: self._prime(next_))
            self._attempts += 1

    # A committed batch takes effect.

    def _roll(self, batch: Batch) -> None:
        self.phase = Phase.ROLLING
        self._later = None
        self._attempts = 0
        self._awaited = {
            task: messages.Roll(batch.version, _spans_of(batch, task)) for task in batch.tasks or ()
        }
        self._ask_all()
        self._look_whether_rolled()

    def _rolled(self, message: messages.Rolled) -> None:
        self._learn(message.task, message.bounds)
        self._rolled_max = max(self._rolled_max, message.id)
        batch = self._batch
        if self.phase is Phase.ROLLING and batch is not None and message.id >= batch.version.id:
            self._awaited.pop(message.task, None)
            self._look_whether_rolled()

    def _look_whether_rolled(self) -> None:
        batch = self._batch
        if batch is not None and self._guards.all_rolled(self._awaited):
            self._rolled_id = batch.version.id
            self._why = ""
            if self._records_max is not None:
                is_small = self._records_max < self._settings.max_records
                self._records_max = 2 * self._records_max if is_small else None
            self._idle()

    # Asking, waiting.

    def _ask_all(self) -> None:
        for task in list(self._awaited):
            self._ask(task, self._awaited[task])

    def _ask(self, task: TaskId, message: messages.ToParticipant) -> None:
        self._awaited[task] = message
        self._heard[task] = self._now
        self._out.append(effects.Send(task=task, message=message))
        # One that answers again and again does not put off what another one has not heard.
        due = self._now + self._resend_ms()
        self._resend_at = due if self._resend_at is None else min(self._resend_at, due)

    def _resend_ms(self) -> int:
        # A poll is answered after a while in any case.
        return self._settings.retry_ms + (self._settings.poll_ms if self.phase is Phase.IDLE else 0)

    def _wait(self, attempts: int, then: Callable[[], None]) -> None:
        settings = self._settings
        backoff = Backoff(first_ms=settings.retry_ms // 5, most_ms=settings.backoff_max_ms)
        self._later = (self._now + backoff.after(attempts), then)

    def _tick(self) -> None:
        if self._resend_at is not None and self._now >= self._resend_at:
            self._resend()
        if self._later is not None and self._now >= self._later[0]:
            then = self._later[1]
            self._later = None
            then()

    def _resend(self) -> None:
        self._resend_at = self._now + self._resend_ms() if self._awaited else None
        if self.phase in (Phase.RUNNING, Phase.STAGING):
            silent = [
                task for task in self._awaited if self._now - self._heard[task] > self._settings.patience_ms
            ]
            if silent:
                self._abandon(f"no answer for {self._settings.patience_ms} ms", task=silent[0])
                return
        for task, message in self._awaited.items():
            if self.phase is not Phase.IDLE or self._now - self._heard[task] >= self._resend_ms():
                self._out.append(effects.Send(task=task, message=message))

    def _note(self, event: str, **fields: Any) -> None:
        self._out.append(effects.Note(event=event, fields={"topology": self.topology, **fields}))


def _again(batch: Batch, *, smaller: bool = False, careful: bool | None = None) -> Batch:
    """Return the same input as the next version, or about half of it."""
    version = Version(batch.version.id, batch.version.version + 1)
    spans, left_out = batch.spans, batch.left_out
    if smaller:
        spans = _half(spans)
        left_out = tuple(each for each in left_out if any(_in(span, each.source) for span in spans))
    return msgspec.structs.replace(
        batch,
        version=version,
        spans=spans,
        left_out=left_out,
        careful=batch.careful if careful is None else careful,
    )


def _half(spans: tuple[Span, ...]) -> tuple[Span, ...]:
    """Return the first half of each span; or of all spans, if each has one record."""
    if all(span.end - span.start == 1 for span in spans):
        return spans[: max(1, len(spans) // 2)]
    return tuple(
        Span(span.depot, span.task, span.start, span.start + max(1, (span.end - span.start) // 2))
        for span in spans
    )


def _only_record(batch: Batch) -> Source | None:
    first = batch.spans[0]
    is_alone = len(batch.spans) == 1 and first.end - first.start == 1
    return Source(first.depot, first.task, first.start) if is_alone else None


def _with_failures(batch: Batch, failures: Iterable[messages.Failure], retries: int) -> Batch:
    """Return the batch with its failed records counted, and without those that failed too often."""
    times = dict(batch.failed)
    left_out = {each.source: each for each in batch.left_out}
    for failure in failures:
        if failure.source not in left_out:
            # A record may have failed on several tasks at once.
            times[failure.source] = dict(batch.failed).get(failure.source, 0) + 1
            if times[failure.source] > retries:
                del times[failure.source]
                traceback = failure.traceback if len(left_out) < TRACEBACKS_MAX else ""
                left_out[failure.source] = LeftOut(failure.source, retries + 1, failure.error, traceback)
    return msgspec.structs.replace(
        batch, failed=tuple(sorted(times.items())), left_out=tuple(left_out.values())
    )


def _in(span: Span, source: Source) -> bool:
    return (span.depot, span.task) == source[:2] and span.start <= source.offset < span.end


def _spans_of(batch: Batch, task: TaskId) -> tuple[Span, ...]:
    return tuple(span for span in batch.spans if span.task == task)


def _left_out_of(batch: Batch, task: TaskId) -> tuple[LeftOut, ...]:
    return tuple(each for each in batch.left_out if each.source.task == task)


def _bare(left_out: LeftOut) -> LeftOut:
    return msgspec.structs.replace(left_out, error="", traceback="")


def _by_sender(expected: messages.Expected) -> tuple[TaskId, Speaker]:
    return expected.sender, expected.speaker
