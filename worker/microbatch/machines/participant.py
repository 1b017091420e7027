"""The side of each task: runs what a version asks of it, replicates what that changed, lets it take effect.

What it remembers of a version is the run itself: which rounds were run, what they sent, and calls that wait
for their round. It is lost with the leader, and the coordinator hears of that, because another leader is
another speaker. Whatever is asked again is answered again, and never run again.

An appender that waits is told what the run returned that took effect, once that shows on all tasks: a Poll
says which microbatches do. For the leader after this one, what appenders wait for is staged with the changes.
If nobody waited, and another leader ran the records, what they returned is not known, and that is told.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from stretto.state import microbatch_entries
from stretto.state.microbatch_entries import LeftOut, Returned, Span, Version
from stretto.vocabulary.types import TaskId
from stretto.worker.microbatch.machines import effects, events, messages
from stretto.worker.microbatch.machines.effects import Effect
from stretto.worker.microbatch.machines.events import Event
from stretto.worker.microbatch.machines.guards import GUARDS, Guards
from stretto.worker.microbatch.machines.messages import Speaker
from stretto.worker.microbatch.machines.settings import Settings

COORDINATOR = TaskId(0)
ROUNDS_MAX = 1_000
"""How many rounds a version may have; beyond it, the calls of a topology are taken to hop for ever."""
RETURNED_BYTES_MAX = 1024 * 1024
"""The size limit of what is staged of the functions' results, beside the changes; more of it is lost with the
leader."""
CALLS_BYTES_MAX = 192 * 1024 * 1024
"""The size limit of the calls of all senders in a round: they are given to the executor at once."""


@dataclass(slots=True)
class _Run:
    version: Version
    #: Calls that wait for their round, by their sender: their number and their bytes.
    held: dict[int, dict[tuple[TaskId, Speaker], tuple[int, bytes]]] = field(default_factory=dict)
    executing: int | None = None
    #: How many rounds were run.
    rounds: int = 0
    #: The answer to each round that was reported.
    answers: dict[int, messages.Ran | messages.Broken] = field(default_factory=dict)
    #: The round that was run last, and calls that it sent; it is not reported before all of these are held
    #: there.
    ran: messages.Ran | None = None
    unheld: dict[TaskId, tuple[messages.Calls, bytes]] = field(default_factory=dict)
    results: tuple[microbatch_entries.Result, ...] = ()
    #: Whether a Stage was received and is not answered.
    staging: bool = False
    staged: bool = False
    spans: tuple[Span, ...] = ()
    left_out: tuple[LeftOut, ...] = ()

    def returned(self) -> Returned:
        """Return what the run's functions returned, and how records failed."""
        failures = tuple((each.source, each.error) for each in self.left_out)
        return Returned(self.version, self.spans, self.results, failures)


@dataclass(slots=True)
class _Untold:
    """A microbatch that took effect here, until it has on all tasks."""

    id: int
    spans: tuple[Span, ...]
    #: What its functions returned; None if that is not known.
    returned: Returned | None


class Participant:
    """The participant of one topology on one task, in one epoch of its leader."""

    def __init__(
        self, topology: str, task: TaskId, speaker: Speaker, settings: Settings, guards: Guards = GUARDS
    ) -> None:
        self.topology = topology
        self.task = task
        self.speaker = speaker
        self._settings = settings
        self._guards = guards
        self._out: list[Effect] = []
        self._now = 0
        self._run: _Run | None = None
        #: The latest id that took effect here, as it was last read; it only grows.
        self._rolled = 0
        self._rolling: Version | None = None
        #: The input of the task in the version that is being rolled.
        self._rolling_spans: tuple[Span, ...] = ()
        #: The version that was last reported to be lost here.
        self._missed: Version | None = None
        #: The token of the Load that says whether the version has taken effect.
        self._rolled_token: int | None = None
        self._bounds: Mapping[str, tuple[int, int]] = {}
        self._poll: tuple[messages.Poll, int] | None = None
        self._token = 0
        #: The version that an answer with this token is about.
        self._pending: dict[int, Version] = {}
        self._resend_at: int | None = None
        #: The offset below which all records are processed on all tasks, as reported to appenders, by depot.
        self.processed: dict[str, int] = {}
        self._untold: deque[_Untold] = deque()
        #: The staged part of what functions returned, as it was last read.
        self._returned: Returned | None = None
        #: The latest id that is known to have taken effect on all tasks.
        self._everywhere = 0
        #: The offset below which an appender waits for all records, by depot.
        self._awaited: dict[str, int] = {}
        #: Whether the coordinator does not know yet that somebody waits.
        self._is_news = False
        #: The number of the latest Poll, and whether an Input was sent after it without being asked for.
        self._poll_number = 0
        self._was_unasked = False

    # The door.

    def step(self, event: Event, now: int) -> list[Effect]:
        """Take an event, and return what is to be done."""
        self._now = now
        self._out = []
        match event:
            case events.Started():
                self._load(with_progress=True)
            case events.Loaded(token=token, rolled=rolled, returned=returned, progress=progress):
                self._returned = returned
                if progress is not None:
                    self._inherited(rolled, progress)
                self._loaded(token, rolled)
            case events.Received(message=message, body=body):
                self._received(message, body)
            case events.Executed():
                self._executed(event)
            case events.ExecutionFailed():
                self._execution_failed(event)
            case events.Collected():
                self._collected(event)
            case events.Appended(token=token, applied=applied, why=why):
                self._appended(token, applied=applied, why=why)
            case events.Grown(bounds=bounds):
                self._bounds = bounds
                self._answer_poll()
                self._tell_news()
            case events.Awaited(depot=depot, end=end):
                self._wait(depot, end)
            case events.SettingsChanged(settings=settings):
                self._settings = settings
            case events.Tick():
                self._tick()
        return self._out

    def next_deadline(self) -> int | None:
        """Return when a Tick is due, or None."""
        poll_at = None if self._poll is None else self._poll[1]
        return min((at for at in (self._resend_at, poll_at) if at is not None), default=None)

    def _received(self, message: messages.AnyMessage, body: bytes) -> None:
        match message:
            case messages.Begin():
                self._begin(message)
            case messages.Calls():
                self._hold(message, body)
            case messages.CallsHeld():
                self._held(message)
            case messages.Go():
                self._go(message)
            case messages.Stage():
                self._stage(message)
            case messages.Roll(version=version, spans=spans):
                self._roll(version, spans)
            case messages.Poll():
                self._polled(message)
            case _:
                pass

    def _answer(self, message: messages.ToCoordinator) -> None:
        self._out.append(effects.Send(task=COORDINATOR, message=message))

    def _run_of(self, version: Version) -> _Run | None:
        """Return the run of this version, which a higher one replaces; None if it is over."""
        run = self._run
        if version.id <= self._rolled or (run is not None and version < run.version):
            return None
        if run is None or version > run.version:
            self._forget()
            run = self._run = _Run(version)
        return run

    def _forget(self) -> None:
        if self._run is not None:
            self._out.append(effects.Discard(version=self._run.version))
            self._run = None
            self._resend_at = None

    # Rounds.

    def _begin(self, message: messages.Begin) -> None:
        run = self._run_of(message.version)
        if run is not None and not self._is_known(run, 0):
            self._execute(run, 0, careful=message.careful, spans=message.spans, left_out=message.left_out)

    def _go(self, message: messages.Go) -> None:
        run = self._run_of(message.version)
        if run is None:
            return
        if self._is_known(run, message.round):
            return
        held = run.held.get(message.round, {})
        expected = {(each.sender, each.speaker): each.count for each in message.expected}
        if not self._guards.holds_all(expected, {sender: count for sender, (count, _) in held.items()}):
            self._break(run, message.round, "calls were lost with their leader")
        elif message.round > ROUNDS_MAX:
            self._break(run, message.round, f"calls hop for more than {ROUNDS_MAX} rounds; end them")
        else:
            senders = self._guards.calls_to_run(expected, held)
            calls = tuple(held[each][1] for each in senders if each in held)
            if (size := sum(map(len, calls))) > CALLS_BYTES_MAX:
                why = f"its calls have {size} bytes, beyond the limit of {CALLS_BYTES_MAX}"
                self._break(run, message.round, why, too_large=True)
                return
            self._execute(run, message.round, careful=message.careful, calls=calls)

    def _is_known(self, run: _Run, round_: int) -> bool:
        """Whether the round was run, or is being run; then that is reported."""
        if run.executing == round_ or (run.ran is not None and run.ran.round == round_ and run.unheld):
            self._answer(messages.Working(run.version, self.task))
            return True
        answer = run.answers.get(round_)
        if answer is None or self._guards.runs_again(True):
            return False
        self._answer(answer)
        return True

    def _execute(
        self,
        run: _Run,
        round_: int,
        *,
        careful: bool,
        spans: tuple[Span, ...] = (),
        left_out: tuple[LeftOut, ...] = (),
        calls: tuple[bytes, ...] = (),
    ) -> None:
        run.executing = round_
        self._out.append(
            effects.Execute(
                version=run.version,
                round=round_,
                after=run.rounds,
                careful=careful,
                spans=spans,
                left_out=left_out,
                calls=calls,
            )
        )

    def _executed(self, event: events.Executed) -> None:
        run = self._run
        if run is None or run.version != event.version or run.executing != event.round:
            return
        run.executing = None
        run.rounds += 1
        run.held.pop(event.round, None)
        run.results += event.results
        if event.failures:
            self._tell(
                run,
                messages.Broken(
                    run.version,
                    event.round,
                    self.task,
                    event.failures[0].error,
                    event.failures,
                ),
            )
            return
        run.unheld = {
            task: (messages.Calls(run.version, event.round + 1, self.task, self.speaker, count), body)
            for task, (count, body) in sorted(event.calls.items())
        }
        sent = tuple((task, calls.count) for task, (calls, _) in run.unheld.items())
        run.ran = messages.Ran(run.version, event.round, self.task, self.speaker, sent)
        self._send_calls(run)
        self._look_whether_held(run)

    def _tell(self, run: _Run, answer: messages.Ran | messages.Broken) -> None:
        run.answers[answer.round] = answer
        self._answer(answer)

    def _break(self, run: _Run, round_: int, why: str, *, too_large: bool = False) -> None:
        self._answer(messages.Broken(run.version, round_, self.task, why, too_large=too_large))

    def _execution_failed(self, event: events.ExecutionFailed) -> None:
        run = self._run
        if run is not None and run.version == event.version:
            round_ = run.rounds if run.executing is None else run.executing
            run.executing = None
            run.staging = False
            answer = messages.Broken(
                run.version, round_, self.task, event.why, too_large=event.too_large, hung=event.hung
            )
            self._tell(run, answer)

    # Calls between tasks.

    def _send_calls(self, run: _Run) -> None:
        for task, (message, body) in run.unheld.items():
            self._out.append(effects.Send(task=task, message=message, body=body))
        self._resend_at = self._now + self._settings.retry_ms if run.unheld else None

    def _hold(self, message: messages.Calls, body: bytes) -> None:
        run = self._run_of(message.version)
        if run is not None:
            held = run.held.setdefault(message.round, {})
            held[message.sender, message.speaker] = (message.count, body)
            answer = messages.CallsHeld(message.version, message.round, self.task)
            self._out.append(effects.Send(task=message.sender, message=answer))

    def _held(self, message: messages.CallsHeld) -> None:
        run = self._run
        if run is None or run.ran is None or message.version != run.version:
            return
        if message.round == run.ran.round + 1 and run.unheld.pop(message.task, None) is not None:
            self._look_whether_held(run)

    def _look_whether_held(self, run: _Run) -> None:
        if run.ran is not None and not run.unheld:
            self._resend_at = None
            self._tell(run, run.ran)

    # Staging.

    def _stage(self, message: messages.Stage) -> None:
        run = self._run_of(message.version)
        if run is None:
            return
        if run.staged:
            self._answer(messages.Staged(run.version, self.task, self.speaker))
        elif run.staging:
            self._answer(messages.Working(run.version, self.task))
        else:
            run.staging = True
            run.spans, run.left_out = message.spans, message.left_out
            self._out.append(
                effects.Collect(
                    version=run.version, after=run.rounds, spans=message.spans, left_out=message.left_out
                )
            )

    def _collected(self, event: events.Collected) -> None:
        run = self._run
        if run is not None and run.version == event.version and run.staging:
            stage = microbatch_entries.Stage(
                self.topology, event.version, event.changes, self._handed_on(run)
            )
            self._append(stage, event.version)
            if self._guards.is_staged(False):
                self._answer(messages.Staged(run.version, self.task, self.speaker))

    def _append(self, entry: microbatch_entries.Stage | microbatch_entries.Roll, version: Version) -> None:
        self._token += 1
        self._pending[self._token] = version
        self._out.append(effects.Append(token=self._token, entry=entry))

    def _appended(self, token: int, *, applied: bool, why: str) -> None:
        version = self._pending.pop(token, None)
        if version is None:
            return
        if self._rolling == version:
            self._roll_appended(applied=applied)
            return
        run = self._run
        if run is not None and run.version == version:
            run.staging = False
            run.staged = applied
            if applied:
                self._answer(messages.Staged(version, self.task, self.speaker))
            else:
                self._break(run, run.rounds, f"its changes were not replicated: {why}")

    # Taking effect.

    def _roll(self, version: Version, spans: tuple[Span, ...]) -> None:
        if version.id <= self._rolled:
            self._tell_rolled()
        elif self._rolling is None:
            self._rolling, self._rolling_spans = version, spans
            self._append(microbatch_entries.Roll(self.topology, version), version)

    def _roll_appended(self, *, applied: bool) -> None:
        if applied:
            self._load()
            self._rolled_token = self._token
        else:
            self._rolling = self._missed = None

    def _load(self, *, with_progress: bool = False) -> None:
        self._token += 1
        self._out.append(effects.Load(token=self._token, with_progress=with_progress))

    def _loaded(self, token: int, rolled: int) -> None:
        self._rolled = max(self._rolled, rolled)
        rolling = self._rolling
        if rolling is None or token != self._rolled_token:
            return
        if rolling.id > self._rolled and rolling != self._missed:
            self._miss(rolling)
            return
        self._rolling = self._missed = None
        if rolling.id > self._rolled:
            return
        self._took_effect(rolling)
        if self._run is not None and self._run.version.id <= self._rolled:
            self._forget()
        self._tell_rolled()

    def _miss(self, version: Version) -> None:
        """Report that what was staged here for a committed version is lost. It was applied here before it was
        committed, and what is applied stays; unless an unclean election chose a replica that did not have it.
        Nobody else has it either, and others wait for this task."""
        self._note("microbatch_has_nothing_staged", version=str(version), rolled=self._rolled)
        self._missed = version
        self._token += 1
        self._pending[self._token] = version
        self._out.append(effects.Miss(token=self._token, version=version, spans=self._rolling_spans))

    def _tell_rolled(self) -> None:
        self._answer(messages.Rolled(self.task, self._rolled, dict(self._bounds)))

    # Appenders that wait.

    def _inherited(self, rolled: int, progress: Mapping[str, int]) -> None:
        """Take what took effect here before this participant began."""
        returned = self._returned
        if returned is not None and not self._guards.returned_then(returned.version.id, rolled):
            returned = None
        known = () if returned is None else returned.spans
        ends = {**progress, **{span.depot: span.start for span in known}}
        spans = tuple(Span(depot, self.task, 0, end) for depot, end in ends.items())
        self._untold.append(_Untold(rolled, spans, None))
        self._untold.append(_Untold(rolled, known, returned))
        self._tell_processed()

    def _took_effect(self, version: Version) -> None:
        run, returned = self._run, self._returned
        if run is not None and run.version == version and self._guards.results_count(run.staged):
            returned = run.returned()
        elif returned is not None and returned.version != version:
            returned = None
        self._untold.append(_Untold(version.id, self._rolling_spans, returned))
        self._tell_processed()

    def _handed_on(self, run: _Run) -> bytes:
        """Return what the run returned, for the next leader; nothing if nobody waits for it, or if it is
        much."""
        if not any(self._awaited.get(span.depot, 0) > span.start for span in run.spans):
            return b""
        returned = microbatch_entries.encode(run.returned())
        return returned if len(returned) <= RETURNED_BYTES_MAX else b""

    def _tell_processed(self) -> None:
        untold = self._untold
        while untold and self._guards.is_everywhere(untold[0].id, self._everywhere):
            for effect in _processed(untold.popleft()):
                self._out.append(effect)
                depot, end = effect.depot, effect.end
                self.processed[depot] = max(end, self.processed.get(depot, 0))
                if self._awaited.get(depot, 0) <= end:
                    self._awaited.pop(depot, None)

    def _wait(self, depot: str, end: int) -> None:
        if end > self.processed.get(depot, 0):
            self._awaited[depot] = max(end, self._awaited.get(depot, 0))
            self._is_news = True
            self._answer_poll()
            self._tell_news()

    def _has_news(self) -> bool:
        """Whether the coordinator is to hear that somebody waits. Not before the records are known to be
        there, which it hears with it."""
        bounds = self._bounds
        return self._is_news and all(
            bounds.get(depot, (0, 0))[1] >= end for depot, end in self._awaited.items()
        )

    def _tell_news(self) -> None:
        """Send an Input that nobody asked for: while a microbatch is under way there is no Poll. Once is
        enough, since the next Poll comes after it."""
        if self._poll_number and not self._was_unasked and self._has_news():
            self._was_unasked = True
            self._tell_input(self._poll_number)

    # Input, time.

    def _polled(self, poll: messages.Poll) -> None:
        self._poll = (poll, self._now + self._settings.poll_ms)
        self._poll_number = poll.number
        self._was_unasked = False
        if poll.everywhere > self._everywhere:
            self._everywhere = poll.everywhere
            self._tell_processed()
        self._answer_poll()

    def _answer_poll(self) -> None:
        if self._poll is None:
            return
        poll, until = self._poll
        beyond = not poll.beyond or any(
            end > poll.beyond.get(depot, 0) for depot, (_, end) in self._bounds.items()
        )
        if beyond or self._now >= until or self._has_news():
            self._poll = None
            self._tell_input(poll.number)

    def _tell_input(self, number: int) -> None:
        self._is_news = False
        bounds, awaited = dict(self._bounds), dict(self._awaited)
        self._answer(messages.Input(number, self.task, self._rolled, bounds, awaited))

    def _tick(self) -> None:
        if self._run is not None and self._resend_at is not None and self._now >= self._resend_at:
            self._send_calls(self._run)
        self._answer_poll()

    def _note(self, event: str, **fields: Any) -> None:
        self._out.append(
            effects.Note(event=event, fields={"topology": self.topology, "task": self.task, **fields})
        )


def _processed(untold: _Untold) -> list[effects.Processed]:
    """Return what is processed, by depot, in the order of the spans."""
    returned = untold.returned
    if returned is None:
        return [
            effects.Processed(depot=span.depot, start=span.start, end=span.end, results=None)
            for span in untold.spans
        ]
    return [
        effects.Processed(
            depot=span.depot,
            start=span.start,
            end=span.end,
            results=tuple((each.offset, each.json) for each in returned.results if each.depot == span.depot),
            failures=tuple((at.offset, error) for at, error in returned.failures if at.depot == span.depot),
        )
        for span in untold.spans
    ]
