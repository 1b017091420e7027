"""A world around one stream: an executor, a log that is applied late, leaders that change, hops and callers.

Everything is drawn from one seed. The module is a counter: what runs adds the number of records (or calls) to
what it sees, and notes which they were. If an update is lost, the counter and the notes differ. Another task
calls this one, and takes its hops; it never dies, so it tells what was run how often.
"""

from __future__ import annotations

import random
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import msgspec

from stretto.pstate.changes import Packed
from stretto.vocabulary.types import Epoch, TaskId
from stretto.worker.executors.protocol import FailureNote
from stretto.worker.executors.replies import Why
from stretto.worker.topology.machine import effects, events
from stretto.worker.topology.machine.effects import Parked
from stretto.worker.topology.machine.settings import Settings
from stretto.worker.topology.machine.stored import OfRecords, OfRetry, Stored
from stretto.worker.topology.machine.stream import Stream

DEPOT = "events"
CALLER = TaskId(9)
STEPS_MAX = 200_000

_encode = msgspec.msgpack.encode
_decode = msgspec.msgpack.decode


@dataclass(kw_only=True)
class Faults:
    crash: float = 0.0
    refuse: float = 0.0
    epoch: float = 0.0
    cannot: float = 0.0
    hop: float = 0.0
    hop_fails: float = 0.0
    calls: float = 0.0
    by_hand: float = 0.0
    """A person wants what is parked tried again."""
    trim: float = 0.0
    """Whatever may be trimmed is."""
    too_large: float = 0.0
    """Not all calls of a run fit an entry."""
    raising: frozenset[int] = frozenset()
    """Records that always fail."""
    flaky: frozenset[int] = frozenset()
    """Records that fail the first time."""
    hanging: frozenset[int] = frozenset()
    failing_elsewhere: frozenset[int] = frozenset()
    """Records that hop to where they always fail."""


@dataclass
class State:
    """What is applied on the task."""

    counter: int = 0
    done: Counter[int] = field(default_factory=Counter)
    """Records, and as negative numbers calls."""
    stored: Stored = field(default_factory=Stored)
    failed: dict[int, Parked] = field(default_factory=dict)
    latest_call: int = 0

    def apply(self, append: effects.Append) -> None:
        if append.changes.pstates:
            counter, done = _decode(append.changes.body)
            self.counter = counter
            self.done.update(done)
            for call in [-each for each in done if each < 0]:
                assert call >= self.latest_call, "calls were run in another order than they were made"
                self.latest_call = call
        entry = append.entry
        retries = self.stored.retries | {
            key: failures for key, failures in entry.retries.items() if failures is not None
        }
        for key, failures in entry.retries.items():
            if failures is None:
                retries.pop(key, None)
            if key in entry.unparked:
                self.failed.pop(key[1], None)
        anew = [each.key for each in entry.parked]
        parked = [key for key in self.stored.parked if key not in (*entry.unparked, *anew)] + anew
        self.failed |= {each.key[1]: each for each in entry.parked}
        self.stored = replace(
            self.stored,
            progress=self.stored.progress | entry.progress,
            retries=retries,
            parked=tuple(parked),
            outbox={
                number: row
                for number, row in (self.stored.outbox | entry.made).items()
                if number not in entry.cleared
            },
            latest_hop=max([self.stored.latest_hop, *entry.made]),
            inbox=self.stored.inbox | entry.run,
            failed={
                key: notes
                for key, notes in (self.stored.failed | entry.failed).items()
                if key not in entry.forgotten
            },
        )


@dataclass
class _Lane:
    attempt: int
    layers: dict[int, int] = field(default_factory=dict)
    """The counter after each batch that may not be applied."""
    kept: int | None = None
    """The counter as it was written last, if it is remembered."""
    position: int | None = None


class World:
    def __init__(
        self,
        seed: int,
        records: int,
        faults: Faults,
        settings: Settings,
        make: Callable[..., Stream] = Stream,
    ) -> None:
        self.chance = random.Random(seed)
        self.faults = faults
        self.settings = settings
        self._make = make
        self.now = 0
        self.records = records
        self.appended = 0
        self.state = State()
        self.log: deque[effects.Append] = deque()
        """In the log and not applied."""
        self.requests: deque[effects.RunRecords | effects.RunCalls] = deque()
        self.lane = _Lane(0)
        self.hops: list[effects.Hop] = []
        """On their way."""
        self.there: dict[int, tuple[FailureNote, ...]] = {}
        """Hops that have run where they were sent to, and how they failed."""
        self.sent: set[int] = set()
        """The numbers of all hops that were ever sent."""
        self.done_there: Counter[int] = Counter()
        """What hopped."""
        self.failed_once: set[int] = set()
        self.calls_made = 0
        self.calls: dict[int, int] = {}
        """Hops to here that are not answered, by number: how many calls."""
        self.tickets: dict[int, int] = {}
        """The number of the hop of each."""
        self.tickets_given = 0
        self.processed = 0
        self.epochs = 0
        self.story: list[object] = []
        self.ran: dict[int, tuple[list[int], bool]] = {}
        """What each batch ran, and whether it hopped."""
        self.complete: set[int] = set()
        """Records that ran, and whose hops succeeded."""
        self.start = 0
        """Of the depot: what is below was trimmed."""
        self.stream = self._new_stream()

    def _new_stream(self) -> Stream:
        self.epochs += 1
        self.requests.clear()
        self.hops.clear()
        self.ran.clear()
        self.lane = _Lane(0)
        self.tickets.clear()
        stream = self._make((DEPOT,), self.settings, replace(self.state.stored, ends={DEPOT: self.appended}))
        self.processed = stream.processed[DEPOT]
        return stream

    # The loop of its worker.

    def step(self, event: events.Event) -> None:
        self.story.append(event)
        for effect in self.stream.step(event, self.now):
            self.story.append(effect)
            match effect:
                case effects.RunRecords() | effects.RunCalls():
                    self.requests.append(effect)
                case effects.Append():
                    if self._happens(self.faults.refuse):
                        self.step(events.Refused(effect.batch))
                    else:
                        self.log.append(effect)
                        self.step(events.Accepted(effect.batch))
                case effects.Hop():
                    self.hops.append(effect)
                    self.sent.add(effect.number)
                case effects.Answer(ticket=ticket):
                    assert ticket in self.tickets, "a call is answered twice"
                    number = self.tickets.pop(ticket)
                    count = self.calls.pop(number, None)
                    assert count in (None, self.state.done[-number]), "answered before all of it was applied"
                case effects.Decline(ticket=ticket):
                    del self.tickets[ticket]
                case effects.Processed(start=start, end=end):
                    assert start <= self.processed < end, "the progress has a gap"
                    self.processed = end
                    self._check_processed(start, end)
                case effects.Note() | effects.Settled():
                    pass

    def _check_processed(self, start: int, end: int) -> None:
        pending = {offset for _, offset in self.state.stored.retries}
        pending |= {offset for each in self.log for _, offset in each.entry.retries}
        pending |= {each.key[1] for entry in self.log for each in entry.entry.parked}
        for offset in range(start, end):
            is_done = self.state.done[offset] or offset in self.state.failed or offset in pending
            assert is_done, f"record {offset} is told to be processed and is not"

    def _happens(self, probability: float) -> bool:
        return self.chance.random() < probability

    # What else happens.

    def run(self) -> None:
        """Until everything is appended, processed and applied, and nothing goes wrong any more."""
        for _ in range(STEPS_MAX):
            if self._is_done():
                return
            self.now += self.chance.randint(0, 20)
            self.chance.choice(self._choices())()
            self.check()
        raise AssertionError(f"it never ends: {self.story[-40:]}")

    def _choices(self) -> list[Callable[[], None]]:
        choices: list[Callable[[], None]] = [self._tick]
        if self.appended < self.records:
            choices.append(self._grow)
        if self.requests:
            choices += [self._answer] * 3
        if self.log:
            choices += [self._apply] * 3
        if self.hops:
            choices += [self._answer_hop] * 2
        if self._happens(self.faults.calls) and self.appended < self.records:
            choices.append(self._call)
        if self.calls.keys() - self.tickets.values() or (self.calls and self._happens(self.faults.calls)):
            choices.append(self._call_again)
        if self.requests and self._happens(self.faults.crash):
            choices.append(self._crash)
        if self.state.stored.parked and self._happens(self.faults.by_hand):
            choices.append(self._try_by_hand)
        if self._happens(self.faults.trim):
            choices.append(self._trim)
        if self._happens(self.faults.epoch):
            choices.append(self._change_leader)
        return choices

    def _is_done(self) -> bool:
        if self.appended < self.records or self.requests or self.log or self.hops or self.calls:
            return False
        if self.state.stored.outbox or not self.stream.is_quiet:
            return False
        is_read = self.state.stored.progress.get(DEPOT, 0) == self.records
        return is_read and not self.state.stored.retries and self.processed == self.records

    def _tick(self) -> None:
        deadline = self.stream.next_deadline()
        if not self.requests and not self.log and not self.hops and deadline is not None:
            self.now = max(self.now, deadline)
        if deadline is not None and deadline <= self.now:
            self.step(events.Tick())

    def _grow(self) -> None:
        self.appended = min(self.records, self.appended + self.chance.randint(1, 20))
        self.step(events.Grown(DEPOT, self.appended))

    def _call(self) -> None:
        self.calls_made += 1
        self.calls[self.calls_made] = self.chance.randint(1, 5)
        if self.chance.random() < 0.8:
            self._ask(self.calls_made)

    def _call_again(self) -> None:
        """In any order: what is not to be taken yet is declined."""
        self._ask(self.chance.choice(list(self.calls)))

    def _ask(self, number: int) -> None:
        self.tickets_given += 1
        self.tickets[self.tickets_given] = number
        calls = _encode([["step", b"", -number]] * self.calls[number])
        settled = min(self.calls)
        self.step(events.Called(self.tickets_given, (CALLER, number), Epoch(1), number - 1, settled, calls))

    def _try_by_hand(self) -> None:
        self.step(events.Settle((self.chance.choice(self.state.stored.parked),), again=True))

    def _trim(self) -> None:
        """As retention does: parked records are not waited for, those that are tried again are."""
        kept = [offset for _, offset in self.state.stored.retries]
        for row in self.state.stored.outbox.values():
            if isinstance(row.origin, OfRecords):
                kept.append(row.origin.start)
            elif isinstance(row.origin, OfRetry):
                kept.append(row.origin.offset)
        self.start = min([self.state.stored.progress.get(DEPOT, 0), *kept])

    def _take_effect(self, append: effects.Append) -> None:
        self.state.apply(append)
        done, hopped = self.ran.get(append.batch, ((), False))
        if not hopped:
            self.complete.update(done)

    def _apply(self) -> None:
        append = self.log.popleft()
        self._take_effect(append)
        self.step(events.Applied(append.batch))

    def _change_leader(self) -> None:
        """The next one has a beginning of what was not applied."""
        for _ in range(self.chance.randint(0, len(self.log))):
            self._take_effect(self.log.popleft())
        self.log.clear()
        self.stream = self._new_stream()
        self.step(events.Tick())

    def _answer_hop(self) -> None:
        at = self.chance.randrange(len(self.hops)) if self.chance.random() < 0.2 else 0
        hop = self.hops.pop(at)
        if hop.number not in self.there:
            if any(number not in self.there for number in self.sent if number < hop.number):
                # Its turn has not come.
                self.hops.insert(0, hop)
                self.hops.sort(key=lambda each: each.number)
                return
            assert not self.there or hop.number > max(self.there), "a hop came behind one that was made later"
            self._run_hop(hop)
        if self.chance.random() < 0.1:
            # The answer is lost, and it is sent again.
            self.hops.append(hop)
            return
        self.step(events.HopAnswered(hop.number, self.there[hop.number]))

    def _run_hop(self, hop: effects.Hop) -> None:
        first, done = _decode(hop.calls)
        failing = [offset for offset in done if offset in self.faults.failing_elsewhere]
        if not failing and self._happens(self.faults.hop_fails):
            failing = done[:1]
        self.done_there.update(offset for offset in done if offset not in failing)
        # Who takes many at once does not tell which of them hopped.
        blamed = done[:1] if failing and self.settings.takes_many else failing
        if not (failing and self.settings.takes_many):
            self.complete.update(offset for offset in done if offset not in failing)
        self.there[hop.number] = tuple(
            FailureNote(max(0, offset - first), "it failed there") for offset in blamed
        )

    # The executor.

    def _crash(self) -> None:
        suspect, *others = list(self.requests)
        self.requests.clear()
        self.lane = _Lane(0)
        self.step(events.NotRun(suspect.batch, Why.CRASH, "it crashed"))
        for each in others:
            self.step(events.NotRun(each.batch, Why.BYSTANDER, "another one crashed"))

    def _answer(self) -> None:
        request = self.requests.popleft()
        if request.attempt != self.lane.attempt:
            self.lane = _Lane(request.attempt)
        if self._happens(self.faults.cannot):
            if isinstance(request, effects.RunRecords) and not request.is_aside:
                self.lane.position = None
            self.step(events.NotRun(request.batch, None, "it cannot"))
            return
        if isinstance(request, effects.RunCalls):
            calls = _decode(request.calls)
            end = len(calls)
            if self._happens(self.faults.too_large):
                end = self.chance.randint(1, end)
            self._ran(request, 0, end, [call[2] for call in calls[:end]], [], left=len(calls) - end)
        else:
            self._run_records(request)

    def _run_records(self, request: effects.RunRecords) -> None:
        start = self.lane.position if request.offset is None else request.offset
        if not request.is_aside:
            self.lane.position = None
        if start is None:
            self.step(events.Ran(batch=request.batch, start=0, end=0))
            return
        if start < self.start and request.is_aside:
            self.step(events.Ran(batch=request.batch, start=self.start, end=self.start))
            return
        assert start >= self.start, "a record was trimmed before its time"
        # Fewer than there are, now and then, as if they were large.
        few = self.chance.randint(1, request.records_max)
        end = min(start + few, self.appended)
        offsets = list(range(start, end))
        if any(offset in self.faults.hanging for offset in offsets):
            others = list(self.requests)
            self.requests.clear()
            self.lane = _Lane(0)
            self.step(events.NotRun(request.batch, Why.TIME_OUT, "it took too long"))
            for each in others:
                self.step(events.NotRun(each.batch, Why.BYSTANDER, "another one took too long"))
            return
        failing = [offset for offset in offsets if self._fails(offset)]
        if failing and request.stop_at_failure:
            end = failing[0]
            offsets = [offset for offset in offsets if offset < end]
            failing = failing[:1]
        elif not request.is_aside:
            self.lane.position = end
        good = [offset for offset in offsets if offset not in failing]
        self._ran(request, start, end, good, failing)

    def _fails(self, offset: int) -> bool:
        if offset in self.faults.flaky and offset not in self.failed_once:
            self.failed_once.add(offset)
            return True
        return offset in self.faults.raising

    def _ran(
        self,
        request: effects.RunRecords | effects.RunCalls,
        start: int,
        end: int,
        good: list[int],
        failing: list[int],
        *,
        left: int = 0,
    ) -> None:
        layers = {batch: counter for batch, counter in self.lane.layers.items() if batch >= request.applied}
        seen = layers[max(layers)] if layers else self.state.counter
        if self.lane.kept is not None and self.chance.random() < 0.8:
            seen = self.lane.kept
        self.lane.kept = seen + len(good)
        layers[request.batch] = seen + len(good)
        self.lane.layers = layers
        hops = bool(good) and (
            self._happens(self.faults.hop) or not self.faults.failing_elsewhere.isdisjoint(good)
        )
        self.ran[request.batch] = (good, hops)
        body = _encode([seen + len(good), good])
        self.step(
            events.Ran(
                batch=request.batch,
                start=start,
                end=end,
                left=left,
                changes=Packed(1, body) if good else Packed(0, b""),
                hops=((TaskId(1), _encode([start, good])),) if hops else (),
                failures=tuple(FailureNote(offset - start, "it failed") for offset in failing),
                elapsed_us=self.chance.choice((1_000, 100_000, 1_000_000)),
            )
        )

    # What must hold.

    def check(self) -> None:
        assert self.state.counter == self.state.done.total(), "an update was lost"
        both = self.state.stored.retries.keys() & set(self.state.stored.parked)
        assert not both, f"parked, and tried again all the same: {both}"
        on_its_way = {offset for row in self.state.stored.outbox.values() for offset in _decode(row.calls)[1]}
        for offset in range(self.state.stored.progress.get(DEPOT, 0)):
            is_kept = (DEPOT, offset) in self.state.stored.retries or offset in self.state.failed
            assert offset in self.complete | on_its_way or is_kept, f"record {offset} was skipped"
