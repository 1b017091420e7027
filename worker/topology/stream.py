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
from stretto.worker.executors.pool import Why
from stretto.worker.executors.protocol import FailureNote
from stretto.worker.topology import work
from stretto.worker.topology.batches import (
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
from stretto.worker.topology.failed import Failed, backoff_ms
from stretto.worker.topology.guards import GUARDS, Guards
from stretto.worker.topology.inbox import Arrived, Inbox, bounded
from stretto.worker.topology.outbox import Outbox
from stretto.worker.topology.work import (
    Effect,
    Entry,
    Event,
    OfCalls,
    OfRecords,
    OfRetry,
    Origin,
    Parked,
    RecordKey,
    Settings,
    Stored,
)

RUNNING_MAX = 2
"""One runs, and the next is there when it ends."""
UNAPPLIED_MAX = 8
UNFINISHED_MAX = 32
"""Batches of records that wait for their hops. Those of calls are not counted: others wait for them."""
RECORDS_FIRST = 64
"""Of the first batch; then as many as run in reasonable time."""
QUICK_US = 200_000
SLOW_US = 500_000
"""Of work. On a busy machine a run takes longer, and smaller ones would only add to what there is to do."""
PATIENT = 4
"""A run that takes this part of the time after which it is killed is too long all the same."""
PAUSE_MS = 20
PAUSE = Backoff(first_ms=2 * PAUSE_MS, most_ms=2_000, at_once=1)
RETRIES_MAX = 10_000
"""Records that wait to be tried again; those beyond it are parked at once."""
CRASHES_MAX = 2
"""A process may be killed by others: a record is blamed only when it happens again."""


class Stream:
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
        #: Sent to the executor, in order; all of this attempt.
        self._running: deque[Batch] = deque()
        #: Appended, and not both applied and answered for.
        self._unfinished: dict[int, Batch] = {}
        #: Of these, the records of each depot, in order: they are processed one by one.
        self._in_order: dict[str, deque[Batch]] = {depot: deque() for depot in depots}
        self._ends = {depot: stored.ends.get(depot, 0) for depot in depots}
        #: Where the next run begins, as of the last entry.
        self._positions = {depot: stored.progress.get(depot, 0) for depot in depots}
        #: What the log says of it.
        self._progress = dict(self._positions)
        #: What is told of it.
        self.processed = dict(self._positions)
        self._calls: deque[Calls] = deque()
        self._outbox = Outbox(stored.outbox, stored.latest_hop)
        self._inbox = Inbox(stored.inbox, stored.failed, guards)
        #: Which batch made each hop that is not answered.
        self._makers: dict[int, Batch] = {}
        self._failed = Failed(stored)
        #: To be in the next entry.
        self._owed = Entry()
        #: By depot: a record that others wait for, how often it failed, and until when.
        self._blocked: dict[str, tuple[int, int, int]] = {}
        #: By depot: up to where records run one by one, to find out which of them fails elsewhere.
        self._careful: dict[str, int] = {}
        #: Records per run, and the record that killed the executor when it ran alone, and how often.
        self._size = min(RECORDS_FIRST, settings.records_max)
        self._crashed: tuple[RecordKey, int] | None = None
        #: The attempt is over, and the next begins then.
        self._resumes_at: int | None = None
        self._pause = PAUSE
        self._turn = 0
        self._restore(stored)

    def _restore(self, stored: Stored) -> None:
        """Hops that nobody who led before knew to be answered go out again."""
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
        for depot in self.depots:
            of_depot = [batch for batch in made.values() if _is_of(batch, depot)]
            self._in_order[depot].extend(sorted(of_depot, key=start_of))
            self.processed[depot] = self._reached(depot)

    def _remade(self, origin: Origin) -> Work:
        match origin:
            case OfRecords(depot=depot, start=start, end=end) if start < self._progress.get(depot, 0):
                end = min(end, self._progress[depot])
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

    # The door.

    def step(self, event: Event, now: int) -> list[Effect]:
        self._now = now
        match event:
            case work.Grown(depot=depot, end=end):
                self._ends[depot] = max(self._ends[depot], end)
            case work.Called():
                self._called(event)
            case work.Ran():
                self._ran(event)
            case work.NotRun():
                self._not_run(event)
            case work.Accepted(batch=number):
                self._accepted(number)
            case work.Refused(batch=number):
                self._refused(number)
            case work.Applied(batch=number):
                self._applied(number)
            case work.HopAnswered(number=number, failures=failures):
                self._hop_answered(number, failures)
            case work.Settle():
                self._settle(event)
            case work.Retimed(settings=settings):
                self._settings = settings
                self._size = min(self._size, settings.records_max)
            case work.Tick():
                pass
            case _:
                assert_never(event)
        if not self._appending:
            self._pump()
        effects, self._effects = self._effects, []
        return effects

    @property
    def next_deadline(self) -> int | None:
        deadlines = [until for _, _, until in self._blocked.values()]
        others = (self._failed.next_due, self._resumes_at)
        deadlines += [each for each in others if each is not None]
        return min((each for each in deadlines if each > self._now), default=None)

    @property
    def lag(self) -> int:
        """Records that are applied and not known to be processed."""
        return sum(self._ends[depot] - self.processed[depot] for depot in self.depots)

    @property
    def is_quiet(self) -> bool:
        """Nothing has begun that is not done, hops included, and known to be applied."""
        return not (self._running or self._unfinished or self._calls or self._owed or self._outbox)

    @property
    def waiting(self) -> int:
        """Records that failed, and are tried again."""
        return len(self._failed.retries)

    @property
    def parked(self) -> int:
        """Records that are not tried again, until a person decides."""
        return len(self._failed.parked)

    # What runs next.

    @property
    def _unapplied(self) -> int:
        return sum(not batch.is_applied for batch in self._unfinished.values())

    @property
    def _appending(self) -> bool:
        """An Append is not answered yet: it is the first thing to be stepped."""
        return any(isinstance(effect, work.Append) for effect in self._effects)

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

    def _called(self, called: work.Called) -> None:
        key, inbox = called.key, self._inbox
        self._owed.forgotten += inbox.forget(key[0], called.settled, called.epoch)
        if not inbox.may_ask(key, called.epoch):
            self._effects.append(work.Decline(called.ticket))
        elif inbox.has_run(key):
            arrived = inbox.open.get(key)
            if arrived is not None:
                arrived.ask(called.ticket)
            else:
                self._effects.append(work.Answer(called.ticket, inbox.failures_of(key)))
        elif not inbox.may_take(key, called.after):
            self._effects.append(work.Decline(called.ticket))
        else:
            arrived, done = inbox.take(key, called.ticket)
            arrived.parts += 1
            self._calls.append(Calls(arrived, without_first(called.calls, done), done))

    def _run_calls(self) -> bool:
        if not self._calls:
            return False
        calls = self._calls.popleft()
        batch = self._begin(calls)
        run = work.RunCalls(
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
        unfinished = sum(map(len, self._in_order.values()))
        if self._settings.is_paused or unfinished + len(self._running) >= UNFINISHED_MAX:
            return False
        for turn in range(len(self.depots)):
            depot = self.depots[(self._turn + turn) % len(self.depots)]
            before = [each.of for each in self._running if isinstance(each.of, Records)]
            sizes = [records.size for records in before if records.depot == depot]
            left = self._ends[depot] - self._positions[depot] - sum(sizes)
            if left <= 0 or self._is_blocked(depot):
                continue
            self._turn += turn + 1
            # Where those that run will end is known to the executor alone.
            offset = None if sizes else self._positions[depot]
            is_careful = self._positions[depot] + sum(sizes) < self._careful.get(depot, 0)
            size = 1 if is_careful else self._size
            self._run(Records(depot, size), depot, offset, size)
            return True
        return False

    def _run(self, of: Work, depot: str, offset: int | None, size: int, *, is_aside: bool = False) -> None:
        batch = self._begin(of)
        self._effects.append(
            work.RunRecords(
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

    def _is_blocked(self, depot: str) -> bool:
        blocked = self._blocked.get(depot)
        return blocked is not None and self._now < blocked[2]

    # What was run.

    def _ran(self, ran: work.Ran) -> None:
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
                self._adapt(ran, records.size)
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

    def _adapt(self, ran: work.Ran, size: int) -> None:
        worked_us = ran.elapsed_us - ran.delayed_us
        patience_us = self._settings.timeout_ms * 1_000 // PATIENT
        if worked_us > SLOW_US or ran.elapsed_us > patience_us:
            self._size = max(1, min(self._size, size) // 2)
        elif worked_us < QUICK_US and ran.elapsed_us < patience_us // 2 and ran.end - ran.start >= size:
            self._size = min(max(self._size, size * 2), self._settings.records_max)

    def _not_run(self, lost: work.NotRun) -> None:
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

    def _suspect(self, batch: Batch, lost: work.NotRun) -> work.Ran | None:
        """Whom to blame: the record or call, if it was alone. Else whatever was there is run one by one."""
        match batch.of:
            case Records(depot=depot, size=1):
                offset = self._positions[depot]
                end = offset + (self._settings.retry != "all-after")
                return self._blame(batch, (depot, offset), lost, start=offset, end=end)
            case Records():
                self._size = 1
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
        self, batch: Batch, key: RecordKey, lost: work.NotRun, *, start: int, end: int
    ) -> work.Ran | None:
        before = self._crashed[1] if self._crashed is not None and self._crashed[0] == key else 0
        self._crashed = (key, before + 1)
        if lost.why is Why.CRASH and before + 1 < CRASHES_MAX:
            return None
        return _blamed(batch, lost, start, end)

    def _end_attempt(self, lost: list[Batch]) -> None:
        """These ran, and have no effect; others may have seen them."""
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
        """With all else that is to be in the log."""
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
        entry.progress = {depot: end for depot, end in entry.progress.items() if end != self._progress[depot]}
        self._unfinished[batch.number] = batch
        if changes.pstates or entry:
            self._effects.append(work.Append(batch.number, changes, entry))
        else:
            batch.is_applied = True
            self._accepted(batch.number)

    def _note_run(self, entry: Entry, calls: Calls, count: int) -> None:
        """In the entry of what they did: who sends them again is answered, and they are not run."""
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
        self._progress |= entry.progress
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
            self._positions[batch.of.depot] = batch.of.end
            self._in_order[batch.of.depot].append(batch)
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
        """Whether it, and what waits for it, is finished."""
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
        self._effects += [work.Answer(ticket, failures) for ticket in arrived.waiting]

    def _reached(self, depot: str) -> int:
        """Below this, all that records led to is done."""
        in_order = self._in_order[depot]
        return start_of(in_order[0]) if in_order else self._positions[depot]

    def _finish_records(self, depot: str) -> None:
        in_order = self._in_order[depot]
        while in_order and in_order[0].is_applied and not in_order[0].hops:
            done = in_order.popleft()
            del self._unfinished[done.number]
            end = self.processed[depot] = self._reached(depot)
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
        """Whether the others of its depot wait for it. If not, it is parked."""
        depot, offset = key
        blocked = self._blocked.pop(depot, None)
        attempts = 1 + (blocked[1] if blocked is not None and blocked[0] == offset else 0)
        if attempts > self._settings.retries:
            self._park(entry, key, attempts, note)
            return False
        self._note("record_failed", depot=depot, offset=offset, attempts=attempts, error=note.error)
        self._blocked[depot] = (offset, attempts, self._now + backoff_ms(attempts))
        return True

    def _retried(self, batch: Batch, retry: Retry, ran: work.Ran) -> None:
        """What its hops come to is found out by whoever leads then, from the outbox."""
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
        """It leaves the outbox in the entry that says how it failed, or in the next one."""
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
                self._careful[records.depot] = records.end
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
        """It and all after it are run again, though they have run."""
        records.end = offset
        in_order = self._in_order[records.depot]
        while in_order and in_order[-1] is not batch:
            later = in_order.pop()
            later.of = Bare()
            self._look_at(later)
        self._positions[records.depot] = self._owed.progress[records.depot] = offset
        # What runs now goes on from elsewhere. It has had no effect yet.
        self._end_attempt(list(self._running))

    def _settle(self, asked: work.Settle) -> None:
        count = 0
        for key in asked.keys:
            if key in self._failed.parked and key not in self._owed.unparked:
                count += 1
                if asked.again:
                    self._failed.retry(self._owed, key, 0)
                else:
                    self._owed.unparked.append(key)
        settled = work.Settled(asked.ticket, count)
        (self._owed.settled if count else self._effects).append(settled)

    def _note(self, event: str, **fields: object) -> None:
        self._effects.append(work.Note(event, fields))


def _processed(records: Records, end: int) -> work.Processed:
    """What came of those below ``end``; what is behind it is run again."""
    start, results = records.start, records.results
    if results is not None:
        results = tuple((start + index, result) for index, result in results if start + index < end)
    notes = [note for note in records.failures if start + note.index < end]
    failures = tuple((start + note.index, note.error) for note in notes)
    return work.Processed(records.depot, start, end, results, failures)


def _is_of(batch: Batch, depot: str) -> bool:
    return isinstance(batch.of, Records) and batch.of.depot == depot


def _blamed(batch: Batch, lost: work.NotRun, start: int, end: int) -> work.Ran:
    """As if it had run, and failed."""
    note = FailureNote(0, lost.sentence)
    return work.Ran(batch=batch.number, start=start, end=end, failures=(note,), elapsed_us=QUICK_US)
