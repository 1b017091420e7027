"""A stream topology on one task while its worker leads there: what to run, to append and to send next.

A pure state machine, ``step(event, now) -> effects``, that lives for one epoch. All that the topology does on
the task goes through it, in batches with ascending numbers: records of depots, records that are tried again,
steps that others hopped to. The life of a batch:

1. It *runs* in the executor, a few at a time. The executor lets each see those before it, applied or not.
2. When the executor has answered, its changes are *appended*, at once and in the order of the runs: so what a
   batch saw lies before it in the log. In the same entry are the progress of its depot, or that the hop has
   run, and what it calls on other tasks: all of it happens exactly once, whoever leads when.
3. Once that is applied, the calls are *sent*, and answered when they are applied there, hops of their own
   included. Nothing else waits for that, or two tasks that call each other would wait for ever. Who leads
   next finds unanswered hops in the outbox and sends them again; who has run them finds them in its inbox.
4. It is *processed* when it is applied and its hops are answered.

A batch that has no effect although others may have seen it ends the *attempt*: the executor died with what it
had, or an entry was refused. Then everything that is appended is waited for, whatever else was running is
forgotten, and work goes on from where the last entry in the log says. Nothing is lost, because what is not
in the log was never counted as done; and nothing is lost of updates, because what runs next sees all that is.

A record that fails has no effect of its own. It is tried again by the policy of its topology, and parked at
last, in the state where people find it. Steps that fail elsewhere make the record fail that called them: it
is run again whole, and whatever else it did is done once more.
"""

from __future__ import annotations

from collections import deque
from typing import assert_never

from stretto.pstate.changes import NO_CHANGES, Packed
from stretto.vocabulary.backoff import Backoff
from stretto.vocabulary.invariants import check
from stretto.worker.executors.protocol import FailureNote
from stretto.worker.executors.replies import Why
from stretto.worker.topology.machine import effects, events
from stretto.worker.topology.machine.batches import (
    Bare,
    Batch,
    Calls,
    Records,
    Retry,
    Work,
    cut_off,
    in_hop,
    notes_of_all,
    one_by_one,
    start_of,
    without_first,
)
from stretto.worker.topology.machine.cursor import Blocked, Cursor
from stretto.worker.topology.machine.effects import Effect, Entry, Parked
from stretto.worker.topology.machine.events import Event
from stretto.worker.topology.machine.failed import Failed, backoff_ms
from stretto.worker.topology.machine.guards import GUARDS, Guards
from stretto.worker.topology.machine.inbox import Arrived, Inbox, bounded
from stretto.worker.topology.machine.outbox import Outbox
from stretto.worker.topology.machine.pace import QUICK_US, Pace
from stretto.worker.topology.machine.settings import Settings
from stretto.worker.topology.machine.stored import OfCalls, OfRecords, OfRetry, Origin, RecordKey, Stored

RUNNING_MAX = 2
"""How many batches the executor has at once: one runs, and the next is there when it ends."""
UNAPPLIED_MAX = 8
UNFINISHED_MAX = 32
"""How many batches of records may wait for their hops. Those of calls are not counted: others wait for
them."""
PAUSE_MS = 20
PAUSE = Backoff(first_ms=2 * PAUSE_MS, most_ms=2_000, at_once=1)
RETRIES_MAX = 10_000
"""How many records may wait to be tried again; those beyond it are parked at once."""
CRASHES_MAX = 2
"""How many crashes a record is blamed after: a process may be killed by others, so one is not enough."""


class Stream:
    """The machine of one stream topology on one task, in one epoch of its leader."""

    def __init__(
        self, depots: tuple[str, ...], settings: Settings, stored: Stored, guards: Guards = GUARDS
    ) -> None:
        self.depots = depots
        self._settings = settings
        self._guards = guards
        self.attempt = 1
        self._now = 0
        self._effects: list[Effect] = []
        self._numbers = 0
        #: Batches that were sent to the executor, in order; all of this attempt.
        self._running: deque[Batch] = deque()
        #: Batches that are appended, and not both applied and answered for.
        self._unfinished: dict[int, Batch] = {}
        self._cursors = {
            depot: Cursor(stored.ends.get(depot, 0), stored.progress.get(depot, 0)) for depot in depots
        }
        self._calls: deque[Calls] = deque()
        self._outbox = Outbox(stored.outbox, stored.latest_hop)
        self._inbox = Inbox(stored.inbox, stored.failed, guards)
        #: The batch that made each hop that is not answered.
        self._makers: dict[int, Batch] = {}
        self._failed = Failed(stored)
        #: What has to be in the next entry.
        self._owed = Entry()
        self._pace = Pace(settings)
        #: The record that killed the executor when it ran alone, and how often.
        self._crashed: tuple[RecordKey, int] | None = None
        #: When the next attempt begins, after one that is over.
        self._resumes_at: int | None = None
        self._pause = PAUSE
        self._turn = 0
        self._restore(stored)

    def _restore(self, stored: Stored) -> None:
        """Send the hops again that no earlier leader knew to be answered."""
        made: dict[Origin, Batch] = {}
        for number, row in sorted(stored.outbox.items()):
            batch = made.get(row.origin)
            if batch is None:
                batch = made[row.origin] = self._begin(self._remade(row.origin))
                batch.is_applied = True
                self._unfinished[batch.number] = batch
            batch.hops += 1
            self._makers[number] = batch
            self._effects.append(self._outbox.hop(number))
        for depot, cursor in self._cursors.items():
            of_depot = [batch for batch in made.values() if _is_of(batch, depot)]
            cursor.in_order.extend(sorted(of_depot, key=start_of))
            cursor.processed = cursor.reached

    def _remade(self, origin: Origin) -> Work:
        match origin:
            case OfRecords(depot=depot, start=start, end=end) if start < self._logged(depot):
                end = min(end, self._logged(depot))
                return Records(depot, end - start, start, end, results=None)
            case OfRetry(depot=depot, offset=offset, failures=failures):
                return Retry((depot, offset), failures)
            case OfCalls(source=source, number=number, first=first):
                arrived = self._inbox.reopen((source, number))
                arrived.parts += 1
                return Calls(arrived, b"", first)
            case OfRecords():
                # They are run again, or of a depot that the topology does not read any more.
                return Bare()
            case _:
                assert_never(origin)

    def _logged(self, depot: str) -> int:
        """The progress that the log has; 0 for a depot that the topology does not read any more."""
        return self._cursors[depot].logged if depot in self._cursors else 0

    # The door.

    def step(self, event: Event, now: int) -> list[Effect]:
        """Take an event, and return what is to be done."""
        self._now = now
        match event:
            case events.Grown(depot=depot, end=end):
                self._cursors[depot].grown(end)
            case events.Called():
                self._called(event)
            case events.Ran():
                self._ran(event)
            case events.NotRun():
                self._not_run(event)
            case events.Accepted(batch=number):
                self._accepted(number)
            case events.Refused(batch=number):
                self._refused(number)
            case events.Applied(batch=number):
                self._applied(number)
            case events.HopAnswered(number=number, failures=failures):
                self._hop_answered(number, failures)
            case events.Settle():
                self._settle(event)
            case events.SettingsChanged(settings=settings):
                self._settings = settings
                self._pace.settings_changed(settings)
            case events.Tick():
                pass
            case _:
                assert_never(event)
        if not self._appending:
            self._pump()
        wanted, self._effects = self._effects, []
        return wanted

    def next_deadline(self) -> int | None:
        """Return when a Tick is due, or None."""
        blocked = [cursor.blocked for cursor in self._cursors.values()]
        deadlines = [each.until for each in blocked if each is not None]
        others = (self._failed.next_due, self._resumes_at)
        deadlines += [each for each in others if each is not None]
        return min((each for each in deadlines if each > self._now), default=None)

    @property
    def processed(self) -> dict[str, int]:
        """The offset below which records are processed, with all that they led to, by depot."""
        return {depot: cursor.processed for depot, cursor in self._cursors.items()}

    @property
    def lag(self) -> int:
        """How many records are applied and not known to be processed."""
        return sum(cursor.lag for cursor in self._cursors.values())

    @property
    def is_quiet(self) -> bool:
        """Whether nothing has begun that is not done, hops included, and known to be applied."""
        return not (self._running or self._unfinished or self._calls or self._owed or self._outbox)

    @property
    def waiting(self) -> int:
        """How many records failed and are tried again."""
        return len(self._failed.retries)

    @property
    def parked(self) -> int:
        """How many records are not tried again, until a person decides."""
        return len(self._failed.parked)

    # What runs next.

    @property
    def _unapplied(self) -> int:
        return sum(not batch.is_applied for batch in self._unfinished.values())

    @property
    def _appending(self) -> bool:
        """Whether an Append is not answered yet: its answer is the first thing to be stepped."""
        return any(isinstance(effect, effects.Append) for effect in self._effects)

    def _pump(self) -> None:
        if self._resumes_at is not None:
            if self._unapplied or self._now < self._resumes_at:
                return
            self._resumes_at = None
        while len(self._running) < RUNNING_MAX and self._unapplied + len(self._running) < UNAPPLIED_MAX:
            if not (self._run_calls() or self._run_retry() or self._run_records()):
                break
        if not self._running and not self._appending:
            self._append_what_is_owed()

    def _begin(self, of: Work) -> Batch:
        self._numbers += 1
        return Batch(self._numbers, of)

    @property
    def _applied_below(self) -> int:
        waiting = [number for number, batch in self._unfinished.items() if not batch.is_applied]
        return min([*waiting, *(batch.number for batch in self._running)], default=self._numbers)

    def _called(self, called: events.Called) -> None:
        key, inbox = called.key, self._inbox
        self._owed.forgotten += inbox.forget(key[0], called.settled, called.epoch)
        if not inbox.may_ask(key, called.epoch):
            self._effects.append(effects.Decline(called.ticket))
        elif inbox.has_run(key):
            arrived = inbox.open.get(key)
            if arrived is not None:
                arrived.ask(called.ticket)
            else:
                self._effects.append(effects.Answer(called.ticket, inbox.failures_of(key)))
        elif not inbox.may_take(key, called.after):
            self._effects.append(effects.Decline(called.ticket))
        else:
            arrived, done = inbox.take(key, called.ticket)
            arrived.parts += 1
            self._calls.append(Calls(arrived, without_first(called.calls, done), done))

    def _run_calls(self) -> bool:
        if not self._calls:
            return False
        calls = self._calls.popleft()
        batch = self._begin(calls)
        run = effects.RunCalls(
            batch=batch.number, attempt=self.attempt, applied=self._applied_below, calls=calls.calls
        )
        self._running.append(batch)
        self._effects.append(run)
        return True

    def _run_retry(self) -> bool:
        if self._settings.is_paused or any(isinstance(batch.of, Retry) for batch in self._running):
            return False
        key = self._failed.take_due(self._now)
        if key is None:
            return False
        self._run(Retry(key, self._failed.retries[key]), *key, 1, is_aside=True)
        return True

    def _run_records(self) -> bool:
        unfinished = sum(len(cursor.in_order) for cursor in self._cursors.values())
        if self._settings.is_paused or unfinished + len(self._running) >= UNFINISHED_MAX:
            return False
        for turn in range(len(self.depots)):
            depot = self.depots[(self._turn + turn) % len(self.depots)]
            cursor = self._cursors[depot]
            before = [each.of for each in self._running if isinstance(each.of, Records)]
            sizes = [records.size for records in before if records.depot == depot]
            # As if those that run would all end where they may.
            start = cursor.position + sum(sizes)
            if start >= cursor.end or cursor.is_blocked(self._now):
                continue
            self._turn += turn + 1
            # Where those that run will end is known to the executor alone.
            offset = None if sizes else cursor.position
            size = 1 if start < cursor.careful_below else self._pace.size
            self._run(Records(depot, size), depot, offset, size)
            return True
        return False

    def _run(self, of: Work, depot: str, offset: int | None, size: int, *, is_aside: bool = False) -> None:
        batch = self._begin(of)
        self._effects.append(
            effects.RunRecords(
                batch=batch.number,
                attempt=self.attempt,
                applied=self._applied_below,
                depot=depot,
                offset=offset,
                records_max=size,
                bytes_max=self._settings.bytes_max,
                stop_at_failure=self._settings.retry == "all-after" and not is_aside,
                is_aside=is_aside,
            )
        )
        self._running.append(batch)

    # What was run.

    def _ran(self, ran: events.Ran) -> None:
        if not self._running or self._running[0].number != ran.batch:
            return
        batch = self._running.popleft()
        self._pause = PAUSE
        batch.ran = ran
        batch.hops = len(ran.hops)
        match batch.of:
            case Records() as records:
                if ran.start == ran.end and not ran.failures:
                    return
                self._pace.ran(ran, records.size)
                records.start, records.end, records.results = ran.start, ran.end, ran.results
                self._judge_records(batch, records, ran.failures)
            case Retry() as retry:
                self._retried(batch, retry, ran)
            case Calls() as calls:
                calls.failures = in_hop(calls, ran.failures)
                if ran.left:
                    if self._running:
                        # It was sent after them.
                        self._end_attempt(list(self._running))
                    self._calls.appendleft(cut_off(calls, ran.left))
                self._note_run(batch.entry, calls, ran.end)
            case Bare():
                check(False, "rows of the engine were run", batch=batch.number)
            case _:
                assert_never(batch.of)
        self._append(batch, ran.changes)

    def _not_run(self, lost: events.NotRun) -> None:
        if not any(batch.number == lost.batch for batch in self._running):
            return
        suspect = self._running[0]
        again = list(self._running)
        if lost.is_too_much or lost.why in (Why.TIME_OUT, Why.CRASH):
            failed = self._suspect(suspect, lost)
            if failed is not None:
                # It ran alone: it is as if it had run, and failed.
                self._end_attempt(again[1:])
                self._running.appendleft(suspect)
                self._ran(failed)
                return
            if isinstance(suspect.of, Calls):
                again = again[1:]
                self._end_attempt(again)
                self._calls.extendleft(reversed(one_by_one(suspect.of)))
                return
        else:
            self._note("stream_waits", why=lost.sentence)
        self._end_attempt(again)

    def _suspect(self, batch: Batch, lost: events.NotRun) -> events.Ran | None:
        """Blame the record or call that was lost, if it was alone. Else whatever was there is run one by
        one."""
        match batch.of:
            case Records(depot=depot, size=1):
                offset = self._cursors[depot].position
                end = offset + (self._settings.retry != "all-after")
                return self._blame(batch, (depot, offset), lost, start=offset, end=end)
            case Records():
                self._pace.one_by_one()
            case Retry(key=key):
                return self._blame(batch, key, lost, start=key[1], end=key[1] + 1)
            case Calls(is_alone=True) as calls:
                calls.crashes += 1
                if lost.why is Why.CRASH and calls.crashes < CRASHES_MAX:
                    return None
                return _blamed(batch, lost, 0, 1)
            case _:
                pass
        return None

    def _blame(
        self, batch: Batch, key: RecordKey, lost: events.NotRun, *, start: int, end: int
    ) -> events.Ran | None:
        before = self._crashed[1] if self._crashed is not None and self._crashed[0] == key else 0
        self._crashed = (key, before + 1)
        if lost.why is Why.CRASH and before + 1 < CRASHES_MAX:
            return None
        return _blamed(batch, lost, start, end)

    def _end_attempt(self, lost: list[Batch]) -> None:
        """End the attempt: these batches ran, and have no effect, though others may have seen them."""
        self.attempt += 1
        self._running.clear()
        for batch in reversed(lost):
            if isinstance(batch.of, Calls):
                self._calls.appendleft(batch.of)
            elif isinstance(batch.of, Retry):
                self._failed.put_back(batch.of.key, self._now)
        self._resumes_at = self._now + self._pause.delay_ms
        self._pause = self._pause.next()

    # Entries.

    def _append(self, batch: Batch, changes: Packed) -> None:
        """Append a batch, with all else that is to be in the log."""
        entry, owed = batch.entry, self._owed
        entry.retries = owed.retries | entry.retries
        entry.parked = owed.parked + entry.parked
        entry.unparked = owed.unparked + entry.unparked
        entry.settled = owed.settled + entry.settled
        entry.failed = owed.failed | entry.failed
        entry.cleared, entry.forgotten = owed.cleared, owed.forgotten
        for key in entry.forgotten:
            entry.failed.pop(key, None)
        for source, _ in entry.forgotten:
            if source not in entry.run:
                entry.run[source] = self._inbox.with_settled(source)
        entry.progress = dict(owed.progress)
        if batch.ran is not None and batch.ran.hops:
            entry.made = self._outbox.made(batch.origin, batch.ran.hops)
        if isinstance(batch.of, Records) and (self._guards.passes_records() or not batch.hops):
            entry.progress[batch.of.depot] = batch.of.end
        entry.progress = {depot: end for depot, end in entry.progress.items() if end != self._logged(depot)}
        self._unfinished[batch.number] = batch
        if changes.pstates or entry:
            self._effects.append(effects.Append(batch.number, changes, entry))
        else:
            batch.is_applied = True
            self._accepted(batch.number)

    def _note_run(self, entry: Entry, calls: Calls, count: int) -> None:
        """Note in the entry of what calls did that they have run: a sender that sends them again is answered,
        and they are not run."""
        key = calls.of.key
        if self._guards.notes_run():
            entry.run[key[0]] = self._inbox.ran(key, None if calls.is_last else calls.first + count)
        if calls.failures and self._guards.remembers_failure():
            entry.failed[key] = bounded([*calls.of.failures, *calls.failures], len(self._owed.failed))

    def _append_what_is_owed(self) -> None:
        if self._owed:
            self._append(self._begin(Bare()), NO_CHANGES)

    def _accepted(self, number: int) -> None:
        batch = self._unfinished[number]
        entry = batch.entry
        self._owed = Entry()
        for depot, end in entry.progress.items():
            self._cursors[depot].logged = end
        self._failed.accepted(entry, self._now)
        self._inbox.accepted(entry)
        self._outbox.accepted(entry.made)
        self._makers |= dict.fromkeys(entry.made, batch)
        for parked in entry.parked:
            self._note(
                "record_parked",
                depot=parked.key[0],
                offset=parked.key[1],
                attempts=parked.attempts,
                error=parked.note.error,
            )
        if isinstance(batch.of, Records):
            self._cursors[batch.of.depot].accepted(batch, batch.of.end)
        elif isinstance(batch.of, Calls):
            batch.of.of.failures += batch.of.failures
        if not batch.is_applied and self._guards.may_send(False):
            self._send_hops(batch)
        self._look_at(batch)

    def _send_hops(self, batch: Batch) -> None:
        made = [number for number in batch.entry.made if number in self._makers]
        self._effects += [self._outbox.hop(number) for number in made]
        if self._guards.may_clear(False):
            self._owed.cleared += made

    def _refused(self, number: int) -> None:
        batch = self._unfinished.pop(number)
        self._end_attempt([batch, *self._running])
        self._resumes_at = max(self._resumes_at or 0, self._now + PAUSE_MS)

    def _applied(self, number: int) -> None:
        batch = self._unfinished.get(number)
        if batch is not None:
            batch.is_applied = True
            self._outbox.cleared(batch.entry.cleared)
            self._send_hops(batch)
            self._effects += batch.entry.settled
            self._look_at(batch)

    def _look_at(self, batch: Batch) -> None:
        """Finish a batch, and what waits for it, if all of it is done."""
        match batch.of:
            case Calls(of=arrived):
                if self._guards.may_answer(batch.is_applied, batch.hops):
                    del self._unfinished[batch.number]
                    arrived.parts -= 1
                    if arrived.parts == 0 and arrived.is_whole:
                        self._answer(arrived)
            case Records(depot=depot):
                self._finish_records(depot)
            case _ if batch.is_applied and not batch.hops:
                del self._unfinished[batch.number]

    def _answer(self, arrived: Arrived) -> None:
        del self._inbox.open[arrived.key]
        failures = tuple(arrived.failures)
        self._effects += [effects.Answer(ticket, failures) for ticket in arrived.waiting]

    def _finish_records(self, depot: str) -> None:
        cursor = self._cursors[depot]
        while (done := cursor.next_done()) is not None:
            del self._unfinished[done.number]
            end = cursor.processed = cursor.reached
            if isinstance(done.of, Records) and done.of.start < end:
                self._effects.append(_processed(done.of, end))

    # Failures.

    def _judge_records(self, batch: Batch, records: Records, notes: tuple[FailureNote, ...]) -> None:
        for note in notes:
            key = (records.depot, records.start + note.index)
            records.failures.append(note)
            if self._settings.retry != "all-after":
                self._judge(batch.entry, key, 0, note)
            elif self._blocks(batch.entry, key, note):
                # The batch ends before it, and is tried again there.
                records.end = key[1]
            else:
                records.end = key[1] + 1

    def _blocks(self, entry: Entry, key: RecordKey, note: FailureNote) -> bool:
        """Let the others of its depot wait for a record that failed, or park it; True if they wait."""
        depot, offset = key
        cursor = self._cursors[depot]
        attempts = 1 + cursor.failures_of(offset)
        cursor.blocked = None
        if attempts > self._settings.retries:
            self._park(entry, key, attempts, note)
            return False
        self._note("record_failed", depot=depot, offset=offset, attempts=attempts, error=note.error)
        cursor.blocked = Blocked(offset, attempts, self._now + backoff_ms(attempts))
        return True

    def _retried(self, batch: Batch, retry: Retry, ran: events.Ran) -> None:
        """Judge a record that was tried again. What its hops come to is found out by the leader of that time,
        from the outbox."""
        if (ran.start, ran.end) != (retry.key[1], retry.key[1] + 1):
            self._failed.park_trimmed(batch.entry, retry.key, retry.failures, self._settings.parked_max)
        elif ran.failures:
            self._judge(batch.entry, retry.key, retry.failures, ran.failures[0])
        else:
            batch.entry.retries[retry.key] = None

    def _judge(self, entry: Entry, key: RecordKey, failures: int, note: FailureNote) -> None:
        is_over = self._settings.retry == "none" or failures >= self._settings.retries
        if is_over or len(self._failed.retries) + len(entry.retries) >= RETRIES_MAX:
            self._park(entry, key, failures + 1, note)
        else:
            self._failed.retry(entry, key, failures + 1)

    def _park(self, entry: Entry, key: RecordKey, attempts: int, note: FailureNote) -> None:
        self._failed.park(entry, Parked(key, attempts, note), self._settings.parked_max)

    def _hop_answered(self, number: int, notes: tuple[FailureNote, ...]) -> None:
        """Take the answer to a hop. It leaves the outbox in the entry that says how it failed, or in the next
        one."""
        batch = self._makers.pop(number, None)
        if batch is None:
            return
        if self._guards.may_clear(True):
            self._owed.cleared.append(number)
        if self._guards.is_settled(False):
            self._outbox.cleared([number])
        batch.hops -= 1
        match batch.of:
            case Records() as records if notes:
                self._hop_of_records_failed(batch, records, notes)
            case Retry() as retry if notes and retry.note is None:
                retry.note = notes[0]
                self._judge(self._owed, retry.key, retry.failures, retry.note)
            case Calls(of=arrived) as calls if notes:
                arrived.failures += in_hop(calls, notes)
                self._owed.failed[arrived.key] = bounded(arrived.failures, len(self._owed.failed))
                self._inbox.remember(self._owed.failed)
            case _:
                pass
        if batch.number in self._unfinished:
            self._look_at(batch)

    def _hop_of_records_failed(self, batch: Batch, records: Records, notes: tuple[FailureNote, ...]) -> None:
        count = records.end - records.start
        if self._settings.takes_many and count > 1:
            if self._settings.retry == "all-after":
                self._cursors[records.depot].careful_below = records.end
                self._go_back_to(batch, records, records.start)
                return
            notes = notes_of_all(notes[0], count)
        known = {note.index for note in records.failures}
        for note in sorted(notes, key=lambda note: note.index):
            key = (records.depot, records.start + note.index)
            if note.index in known or key[1] >= records.end:
                continue
            known.add(note.index)
            records.failures.append(note)
            if self._settings.retry != "all-after":
                self._judge(self._owed, key, 0, note)
            elif self._blocks(self._owed, key, note):
                self._go_back_to(batch, records, key[1])
                return

    def _go_back_to(self, batch: Batch, records: Records, offset: int) -> None:
        """Go back to a record: it and all after it are run again, though they have run."""
        records.end = offset
        cursor = self._cursors[records.depot]
        for later in cursor.behind(batch):
            later.of = Bare()
            self._look_at(later)
        cursor.position = self._owed.progress[records.depot] = offset
        # What runs now goes on from elsewhere. It has had no effect yet.
        self._end_attempt(list(self._running))

    def _settle(self, asked: events.Settle) -> None:
        count = 0
        for key in asked.keys:
            if key in self._failed.parked and key not in self._owed.unparked:
                count += 1
                if asked.again:
                    self._failed.retry(self._owed, key, 0)
                else:
                    self._owed.unparked.append(key)
        settled = effects.Settled(asked.ticket, count)
        (self._owed.settled if count else self._effects).append(settled)

    def _note(self, event: str, **fields: object) -> None:
        self._effects.append(effects.Note(event, fields))


def _processed(records: Records, end: int) -> effects.Processed:
    """Return what came of the records below ``end``; what is behind it is run again."""
    start, results = records.start, records.results
    if results is not None:
        results = tuple((start + index, result) for index, result in results if start + index < end)
    notes = [note for note in records.failures if start + note.index < end]
    failures = tuple((start + note.index, note.error) for note in notes)
    return effects.Processed(records.depot, start, end, results, failures)


def _is_of(batch: Batch, depot: str) -> bool:
    return isinstance(batch.of, Records) and batch.of.depot == depot


def _blamed(batch: Batch, lost: events.NotRun, start: int, end: int) -> events.Ran:
    """Return the lost batch as if it had run, and failed."""
    note = FailureNote(0, lost.sentence)
    return events.Ran(batch=batch.number, start=start, end=end, failures=(note,), elapsed_us=QUICK_US)
