"""One transfer to a follower, as a machine: events in, effects out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, assert_never

from stretto.catchup.machines import blocks
from stretto.catchup.machines.fetch.effects import (
    Assemble,
    AwaitRoom,
    Compare,
    Effect,
    Fail,
    MakeRoom,
    Note,
    Prepare,
    Send,
    Store,
    StoreAhead,
    StoreEntries,
)
from stretto.catchup.machines.fetch.events import (
    Begin,
    Compared,
    EntriesStored,
    Event,
    Heard,
    OutOfRoom,
    Prepared,
    RoomMade,
    Stored,
    Tick,
    Working,
)
from stretto.catchup.machines.fetch.pace import Pace
from stretto.catchup.machines.fetch.tasks import (
    Phase,
    TaskFetch,
    Terms,
    asks_for,
    blocks_below,
    has_more,
    total,
)
from stretto.replog.core.guards import GUARDS, Guards
from stretto.replog.storage import EpochStart
from stretto.vocabulary.invariants import present
from stretto.vocabulary.types import Millis, Offset, TaskId
from stretto.wire import catchup
from stretto.wire.catchup import Run

WINDOW = 6
"""Most questions for blocks that may be asked and not yet written."""
TASKS_AT_ONCE = 4
REFUSALS_MAX = 3
"""Refusals after which a transfer that the leader has never answered fails."""
DAMAGE_MAX = 100
"""Damaged blocks in one round after which its image is no longer trusted."""

REFUSALS = {
    catchup.Reason.UNKNOWN: "the leader no longer knows this transfer",
    catchup.Reason.PIN_RELEASED: "the leader kept its log as long as it may and had to let go of it; raise "
    "replication.far.horizon.max.pinned.entries if this happens again",
    catchup.Reason.FORMAT: "the leader sends images in another format; run the same release on all workers",
    catchup.Reason.FAILED: "the leader could not read its own state",
}


@dataclass(slots=True)
class _Asked:
    task: TaskId
    runs: tuple[Run, ...]
    first_at: Millis
    at: Millis
    #: Whether it is to be asked again.
    lost: bool = False
    #: Whether it is of an image that was still being made.
    ahead: bool = False
    #: Whether the answer came and is being written.
    storing: bool = False

    @property
    def is_under_way(self) -> bool:
        return not self.lost and not self.storing


class Fetch:
    """One transfer to a follower; :meth:`step` is the only entry point."""

    def __init__(self, terms: Terms, guards: Guards = GUARDS) -> None:
        self.terms = terms
        self._guards = guards
        self.round = 1
        self.tasks = {task: TaskFetch(task) for task in terms.tasks}
        #: End of what the leader had applied, as it last reported it.
        self.leader_applied = Offset(0)
        #: How far the latest complete round was behind the leader when it ended.
        self._lag: int | None = None
        self.damaged_blocks = 0
        self._was_answered = False
        self._refusals = 0
        self.failed: str | None = None
        self._pace = Pace(terms.retry_ms, terms.silence_max_ms, WINDOW)
        self._asks: dict[int, _Asked] = {}
        self._ask_count = 0
        #: Next of the entries between the images to ask for, and when that was asked, first and last.
        self._entries_at: Offset | None = None
        self._entries_first_asked_at = Millis(0)
        self._entries_asked_at = Millis(0)
        self._storing_entries = False
        self._history: tuple[EpochStart, ...] = ()
        self._assembled = False
        self._now = Millis(0)
        self._out: list[Effect] = []

    # The door.

    def step(self, event: Event, now: Millis) -> list[Effect]:
        """Take in one event; return what to do, in order."""
        self._now = now
        out: list[Effect] = []
        self._out = out
        if self.failed is None and not self._assembled:
            self._dispatch(event)
        return out

    def next_deadline(self) -> Millis | None:
        """When to step a Tick at the latest."""
        if self.failed is not None or self._assembled:
            return None
        deadlines = [
            each.asked_at + self.terms.retry_ms
            for each in self.tasks.values()
            if each.phase in (Phase.ASKING, Phase.AHEAD)
        ]
        deadlines += [self._pace.lost_at(asked_at) for asked_at in self._asked_at()]
        return Millis(min(deadlines)) if deadlines else None

    def _asked_at(self) -> list[Millis]:
        """When the questions under way whose answers are large were asked."""
        times = [asked.at for asked in self._asks.values() if asked.is_under_way]
        times += [each.asked_at for each in self.tasks.values() if each.phase is Phase.LISTING]
        if self._awaits_entries:
            times.append(self._entries_asked_at)
        return times

    @property
    def _awaits_entries(self) -> bool:
        return self._entries_at is not None and not self._storing_entries

    def _dispatch(self, event: Event) -> None:
        match event:
            case Begin():
                self._begin_round()
            case Heard(message=message, body=body):
                self._heard(message, body)
            case Prepared(task=task, is_empty=is_empty):
                fetching = self.tasks[task]
                if fetching.phase is Phase.PREPARING:
                    fetching.is_empty = is_empty
                    self._ask_image(fetching)
            case RoomMade(task=task):
                self.tasks[task].has_room = True
                self._ask_blocks()
            case OutOfRoom(why=why):
                self._send(catchup.NoRoom(self.terms.epoch, self.terms.incarnation, self.terms.attempt))
                self.failed = why
                self._out.append(AwaitRoom(why=why))
            case Compared(task=task, round=number, missing=missing):
                fetching = self.tasks[task]
                if fetching.phase is Phase.COMPARING and fetching.round == number:
                    self._compared(fetching, missing)
            case Stored(ask=ask, damaged=damaged):
                self._stored(ask, damaged)
            case EntriesStored(end=end):
                self._storing_entries = False
                self._begin_entries(end)
            case Working():
                self._send(catchup.Working(self.terms.epoch, self.terms.incarnation, self.terms.attempt))
            case Tick():
                self._repeat_unanswered()
            case _:
                assert_never(event)

    # Rounds.

    def _begin_round(self) -> None:
        self._note("round_begins", round=self.round, tasks=len(self.tasks))
        for fetching in self.tasks.values():
            fetching.phase = Phase.WAITING
            fetching.round = self.round
            fetching.damaged = 0
        self._begin_tasks()

    def _begin_tasks(self) -> None:
        busy = sum(each.phase not in (Phase.WAITING, Phase.COMPLETE) for each in self.tasks.values())
        waiting = [each for each in self.tasks.values() if each.phase is Phase.WAITING]
        for fetching in waiting[: max(0, TASKS_AT_ONCE - busy)]:
            if fetching.round == 1:
                fetching.phase = Phase.PREPARING
                self._out.append(Prepare(task=fetching.task))
            else:
                self._ask_image(fetching)

    def _complete(self, fetching: TaskFetch) -> None:
        image = present(fetching.image, "image")
        fetching.phase = Phase.COMPLETE
        fetching.offset = image.offset
        if all(each.phase is Phase.COMPLETE for each in self.tasks.values()):
            self._end_round()
        else:
            self._begin_tasks()

    def _end_round(self) -> None:
        lowest, highest = self.span()
        lag = self.leader_applied - lowest
        self._note("round_ends", round=self.round, lowest=lowest, highest=highest, lag=lag)
        is_near = lag <= self.terms.near_lag
        comes_nearer = self._lag is None or 2 * lag <= self._lag
        self._lag = lag
        if self.round < self.terms.min_rounds or (comes_nearer and not is_near):
            self.round += 1
            self._begin_round()
        else:
            self._begin_entries(self._guards.first_entry(lowest, highest))

    def span(self) -> tuple[Offset, Offset]:
        """Lowest and highest offset of the latest complete images."""
        offsets = [each.offset for each in self.tasks.values() if each.offset is not None]
        return min(offsets), max(offsets)

    # Questions.

    def _ask_image(self, fetching: TaskFetch) -> None:
        if fetching.phase is not Phase.AHEAD:
            fetching.phase = Phase.ASKING
        fetching.asked_at = self._now
        terms = self.terms
        self._send(
            catchup.AskImage(
                terms.epoch,
                terms.incarnation,
                terms.attempt,
                task=fetching.task,
                round=fetching.round,
                base=fetching.listed_round,
            )
        )

    def _ask_hashes(self, fetching: TaskFetch) -> None:
        fetching.asked_at = self._now
        terms = self.terms
        self._send(
            catchup.AskHashes(
                terms.epoch,
                terms.incarnation,
                terms.attempt,
                task=fetching.task,
                round=fetching.round,
                position=fetching.list_position,
            )
        )

    def _ask_blocks(self) -> None:
        """Fill the window with questions for blocks: lost ones first, then a little of each task in turn."""
        while sum(asked.is_under_way for asked in self._asks.values()) < self._pace.window:
            lost = next((ask for ask, asked in self._asks.items() if asked.lost), None)
            if lost is not None:
                self._send_ask(lost)
                continue
            if len(self._asks) >= WINDOW:
                return
            ready = [each for each in self.tasks.values() if has_more(each)]
            if not ready:
                return
            under_way = [asked.task for asked in self._asks.values()]
            fetching = min(ready, key=lambda each: under_way.count(each.task))
            ahead = fetching.phase is Phase.AHEAD
            runs = self._next_ahead(fetching) if ahead else self._next_missing(fetching)
            self._ask_count += 1
            self._asks[self._ask_count] = _Asked(fetching.task, runs, self._now, self._now, ahead=ahead)
            self._send_ask(self._ask_count)

    def _next_missing(self, fetching: TaskFetch) -> tuple[Run, ...]:
        image = present(fetching.image, "image")
        return blocks.take_runs(fetching.missing, max(1, blocks.PART_BYTES // image.block_bytes))

    def _next_ahead(self, fetching: TaskFetch) -> tuple[Run, ...]:
        growing = present(fetching.growing, "growing image")
        first = fetching.ahead
        count = min(growing.blocks - first, max(1, blocks.PART_BYTES // growing.block_bytes))
        fetching.ahead += count
        return ((first, count),)

    def _send_ask(self, ask: int) -> None:
        asked, terms = self._asks[ask], self.terms
        asked.at, asked.lost = self._now, False
        self._send(
            catchup.AskBlocks(
                terms.epoch,
                terms.incarnation,
                terms.attempt,
                ask=ask,
                task=asked.task,
                round=self.tasks[asked.task].round,
                runs=asked.runs,
            )
        )

    def _begin_entries(self, start: Offset) -> None:
        self._entries_at = start
        self._entries_first_asked_at = self._now
        self._ask_entries()

    def _ask_entries(self) -> None:
        lowest, highest = self.span()
        start = present(self._entries_at, "start of the entries")
        terms = self.terms
        if self._history and start >= highest:
            self._assembled = True
            self._out.append(Assemble(start=lowest, end=highest, history=self._history))
            self._send(catchup.Finished(terms.epoch, terms.incarnation, terms.attempt))
            return
        self._entries_asked_at = self._now
        self._send(
            catchup.AskEntries(terms.epoch, terms.incarnation, terms.attempt, start=start, end=highest)
        )

    def _repeat_unanswered(self) -> None:
        """Ask again for what was not answered.

        An answer about an image is small and may be late, and it says how far the leader is; so that is asked
        all the time. Whatever else is under way is lost if there was a silence.
        """
        for fetching in self.tasks.values():
            is_asking = fetching.phase in (Phase.ASKING, Phase.AHEAD)
            if is_asking and fetching.asked_at + self.terms.retry_ms <= self._now:
                self._ask_image(fetching)
        under_way = self._asked_at()
        if under_way and self._pace.lost_at(min(under_way)) <= self._now:
            self._pace.was_silent()
            self._ask_again(lambda _: True)

    def _ask_again(self, is_lost: Callable[[Millis], bool]) -> None:
        for fetching in self.tasks.values():
            if fetching.phase is Phase.LISTING and is_lost(fetching.asked_at):
                self._ask_hashes(fetching)
        for asked in self._asks.values():
            asked.lost = asked.lost or (asked.is_under_way and is_lost(asked.at))
        self._ask_blocks()
        if self._awaits_entries and is_lost(self._entries_asked_at):
            self._ask_entries()

    def _answered(self, first_asked_at: Millis) -> None:
        self._pace.answered(first_asked_at, self._now)
        self._ask_again(self._pace.is_overtaken)

    # Answers.

    def belongs(self, message: catchup.Message) -> bool:
        """Whether the message is of this transfer."""
        terms = self.terms
        return (message.epoch, message.incarnation, message.attempt) == (
            terms.epoch,
            terms.incarnation,
            terms.attempt,
        )

    def _heard(self, message: catchup.Answer, body: Any) -> None:
        if not self.belongs(message):
            return
        match message:
            case catchup.Image(task=task, round=number):
                self._saw(message.applied)
                fetching = self.tasks.get(task)
                if fetching is not None and asks_for(fetching, number):
                    self._listed(fetching, message)
            case catchup.Growing(task=task, round=number):
                self._saw(message.applied)
                fetching = self.tasks.get(task)
                if fetching is not None and asks_for(fetching, number):
                    self._heard_growing(fetching, message)
            case catchup.Hashes(task=task, round=number, position=position):
                self._pace.heard(self._now)
                self._saw(message.applied)
                fetching = self.tasks.get(task)
                if fetching is not None and fetching.phase is Phase.LISTING and fetching.round == number:
                    self._heard_hashes(fetching, position, body)
            case catchup.Blocks(ask=ask):
                self._pace.heard(self._now)
                self._saw(message.applied)
                self._heard_blocks(ask, body)
            case catchup.Entries(start=start):
                self._pace.heard(self._now)
                self._heard_entries(message, start, body)
            case catchup.Waiting(applied=applied):
                self._saw(applied)
            case catchup.Refused(reason=reason, why=why):
                self._refused(reason, why)
            case _:
                assert_never(message)

    def _refused(self, reason: catchup.Reason, why: str) -> None:
        # The first question may overtake the message that begins the transfer; the next one will not.
        self._refusals += 1
        unknown_yet = reason is catchup.Reason.UNKNOWN and not self._was_answered
        if not unknown_yet or self._refusals >= REFUSALS_MAX:
            self._fail(why or REFUSALS[reason])

    def _saw(self, applied: Offset) -> None:
        self._was_answered = True
        self.leader_applied = max(self.leader_applied, applied)

    def _heard_growing(self, fetching: TaskFetch, growing: catchup.Growing) -> None:
        if not fetching.is_empty or fetching.round > 1:
            return
        if fetching.phase is Phase.ASKING:
            fetching.phase = Phase.AHEAD
            fetching.missing_bytes = growing.size_bytes
            self._out.append(MakeRoom(task=fetching.task, size_bytes=growing.size_bytes))
        if fetching.growing is None or growing.blocks > fetching.growing.blocks:
            fetching.growing = growing
            self._ask_blocks()

    def _listed(self, fetching: TaskFetch, image: catchup.Image) -> None:
        fetching.image = image
        fetching.parts = []
        fetching.list_position = 0
        fetching.phase = Phase.LISTING
        self._heard_hashes(fetching, 0, b"")

    def _heard_hashes(self, fetching: TaskFetch, position: int, body: Any) -> None:
        image = present(fetching.image, "image")
        if position != fetching.list_position:
            return
        if len(body):
            self._answered(fetching.first_asked_at)
            fetching.parts.append(body)
            fetching.list_position += len(body)
        if fetching.list_position < image.list_bytes:
            fetching.first_asked_at = self._now
            self._ask_hashes(fetching)
        else:
            fetching.phase = Phase.COMPARING
            self._compare(fetching)

    def _compare(self, fetching: TaskFetch) -> None:
        """Compare the list with what is staged, once what was asked for ahead is written."""
        if not any(asked.task == fetching.task for asked in self._asks.values()):
            parts, fetching.parts = tuple(fetching.parts), []
            self._out.append(Compare(image=present(fetching.image, "image"), parts=parts))

    def _compared(self, fetching: TaskFetch, missing: list[Run] | None) -> None:
        image = present(fetching.image, "image")
        if missing is None:
            self._fail(f"the list of hashes of task {fetching.task} came damaged")
            return
        fetching.listed_round = fetching.round
        fetching.phase = Phase.FETCHING
        fetching.missing_bytes = total(missing, image)
        self._count_damage(fetching, blocks_below(missing, fetching.ahead))
        fetching.ahead = 0
        fetching.missing = missing[::-1]
        self._note(
            "task_round_begins",
            task=fetching.task,
            round=fetching.round,
            offset=image.offset,
            size_bytes=image.size_bytes,
            missing_bytes=fetching.missing_bytes,
        )
        self._go_on(fetching)

    def _go_on(self, fetching: TaskFetch) -> None:
        if fetching.missing_bytes == 0:
            self._note("task_round_ends", task=fetching.task, round=fetching.round)
            self._complete(fetching)
        self._ask_blocks()

    def _heard_blocks(self, ask: int, body: Any) -> None:
        asked = self._asks.get(ask)
        if asked is None or asked.storing:
            return
        asked.storing, asked.lost = True, False
        fetching = self.tasks[asked.task]
        if asked.ahead:
            block_bytes = present(fetching.growing, "growing image").block_bytes
            store = StoreAhead(ask=ask, task=asked.task, block_bytes=block_bytes, runs=asked.runs, body=body)
            self._out.append(store)
        else:
            image = present(fetching.image, "image")
            self._out.append(Store(ask=ask, image=image, runs=asked.runs, body=body))
        self._answered(asked.first_at)

    def _stored(self, ask: int, damaged: tuple[Run, ...]) -> None:
        asked = self._asks.pop(ask, None)
        if asked is None:
            return
        fetching = self.tasks[asked.task]
        if asked.ahead:
            self._stored_ahead(fetching, asked.runs)
            return
        image = present(fetching.image, "image")
        written = total(asked.runs, image) - total(damaged, image)
        fetching.missing_bytes -= written
        fetching.fetched_bytes += written
        if damaged:
            self._count_damage(fetching, sum(count for _, count in damaged))
            if fetching.damaged > DAMAGE_MAX:
                self._fail(f"{fetching.damaged} blocks of task {fetching.task} came damaged in one round")
                return
            fetching.missing.extend(damaged)
        self._go_on(fetching)

    def _stored_ahead(self, fetching: TaskFetch, runs: tuple[Run, ...]) -> None:
        growing = present(fetching.growing, "growing image")
        written = sum(count for _, count in runs) * growing.block_bytes
        fetching.missing_bytes = max(0, fetching.missing_bytes - written)
        fetching.fetched_bytes += written
        if fetching.phase is Phase.COMPARING:
            self._compare(fetching)
        self._ask_blocks()

    def _count_damage(self, fetching: TaskFetch, count: int) -> None:
        if count:
            fetching.damaged += count
            self.damaged_blocks += count
            self._note("damaged_blocks", task=fetching.task, round=fetching.round, blocks=count)

    def _heard_entries(self, message: catchup.Entries, start: Offset, body: Any) -> None:
        if start != self._entries_at or self._storing_entries:
            return
        self._answered(self._entries_first_asked_at)
        self._history = message.history
        if message.next == start:
            if start == self.span()[1]:
                self._ask_entries()
            return
        self._storing_entries = True
        self._out.append(StoreEntries(start=start, end=message.next, body=body))

    def _fail(self, why: str) -> None:
        self.failed = why
        self._out.append(Fail(why=why))

    def _send(self, message: catchup.Ask) -> None:
        self._out.append(Send(message=message))

    def _note(self, event: str, **fields: Any) -> None:
        self._out.append(Note(event=event, fields=fields))
