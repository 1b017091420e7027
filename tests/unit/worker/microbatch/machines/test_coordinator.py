"""The coordinator, event by event. What faults do to it is the simulation's: tests/sim/test_microbatch.py."""

from __future__ import annotations

from dataclasses import replace
from typing import TypeVar

import pytest

from stretto.state import microbatch_entries
from stretto.state.microbatch_entries import Batch, Source, Span, Version
from stretto.vocabulary.types import Millis, TaskId
from stretto.worker.microbatch.machines import effects, events, messages
from stretto.worker.microbatch.machines.coordinator import Coordinator, Phase
from stretto.worker.microbatch.machines.messages import Speaker
from stretto.worker.microbatch.machines.settings import Settings

T0, T1 = TaskId(0), TaskId(1)
SETTINGS = Settings(max_records=10, interval_ms=Millis(0), gather_ms=Millis(5), retries=1)
FIRST = Version(1, 0)

E = TypeVar("E")


class Scene:
    """A coordinator whose entries are applied, and what it wants of others."""

    def __init__(self, batch: Batch | None = None, settings: Settings = SETTINGS) -> None:
        self.coordinator = Coordinator("book", ("orders",), 2, settings)
        self.now = 1_000
        self.batch = batch
        self.refuses = False
        self.sent: list[tuple[TaskId, messages.AnyMessage]] = []
        self.entries: list[microbatch_entries.Entry] = []
        self.notes: list[effects.Note] = []
        self.step(events.Started())

    def step(self, event: events.Event) -> None:
        for effect in self.coordinator.step(event, self.now):
            match effect:
                case effects.Send(task=task, message=message):
                    self.sent.append((task, message))
                case effects.Load(token=token):
                    self.step(events.Loaded(token=token, batch=self.batch))
                case effects.Append(token=token, entry=entry):
                    self._append(token, entry)
                case effects.Note():
                    self.notes.append(effect)
                case _:
                    raise AssertionError(effect)

    def _append(self, token: int, entry: microbatch_entries.Entry) -> None:
        if self.refuses:
            self.step(events.Appended(token=token, applied=False, why="stalled"))
            return
        self.entries.append(entry)
        if isinstance(entry, microbatch_entries.Prime):
            self.batch = entry.batch
        elif isinstance(entry, microbatch_entries.Commit) and self.batch is not None:
            self.batch = Batch(self.batch.version, self.batch.progress, self.batch.spans, tasks=entry.tasks)
        self.step(events.Appended(token=token, applied=True))

    def receive(self, message: messages.AnyMessage) -> None:
        self.step(events.Received(message=message))

    def later(self, ms: int) -> None:
        until = self.now + ms
        while (deadline := self.coordinator.next_deadline()) is not None and deadline <= until:
            self.now = max(self.now, deadline)
            self.step(events.Tick())
        self.now = until

    def told(self, kind: type[E]) -> list[tuple[TaskId, E]]:
        """Messages of a kind since this was last asked; all others are dropped."""
        found: list[tuple[TaskId, E]] = [
            (task, message) for task, message in self.sent if isinstance(message, kind)
        ]
        self.sent.clear()
        return found

    def input(self, *ends: int) -> None:
        """Both tasks say how far their depots reach, and the coordinator has primed."""
        number = self.told(messages.Poll)[-1][1].number
        for task, end in enumerate(ends):
            self.receive(messages.Input(number, TaskId(task), 0, {"orders": (0, end)}))
        self.later(10)

    @property
    def phase(self) -> str:
        return str(self.coordinator.phase)

    def run(self, version: Version = FIRST, tasks: tuple[TaskId, ...] = (T0, T1)) -> None:
        for task in tasks:
            self.receive(messages.Ran(version, 0, task, Speaker(7), ()))

    def stage(self, version: Version = FIRST, tasks: tuple[TaskId, ...] = (T0, T1)) -> None:
        for task in tasks:
            self.receive(messages.Staged(version, task, Speaker(7)))

    def roll(self, id_: int = 1, tasks: tuple[TaskId, ...] = (T0, T1)) -> None:
        for task in tasks:
            self.receive(messages.Rolled(task, id_, {"orders": (0, 3)}))


def failure(offset: int, task: TaskId = T0) -> messages.Failure:
    return messages.Failure(Source("orders", task, offset), "ValueError: no", "line 1")


def test_without_input_nothing_is_primed_and_all_tasks_are_asked_again_and_again() -> None:
    scene = Scene()
    assert [task for task, _ in scene.told(messages.Poll)] == [T0, T1]
    scene.later(2_000)
    assert {task for task, _ in scene.told(messages.Poll)} == {T0, T1}
    assert (scene.entries, scene.coordinator.phase) == ([], Phase.IDLE)


def test_a_task_that_lost_its_poll_is_asked_again_although_others_answer_all_the_time() -> None:
    """It was not: every answer put off the asking again of all, and input there waited for that elsewhere."""
    scene = Scene()
    number = scene.told(messages.Poll)[-1][1].number
    asked: list[TaskId] = []
    for _ in range(5):
        scene.later(900)
        scene.receive(messages.Input(number, T0, 0, {"orders": (0, 0)}))
        asked += [task for task, _ in scene.told(messages.Poll)]
    assert asked.count(T1) >= 2
    assert asked.count(T0) == 5  # those of its own answers


def test_the_input_of_all_tasks_that_comes_together_is_one_microbatch() -> None:
    scene = Scene()
    scene.input(3, 25)
    (prime,) = scene.entries
    assert isinstance(prime, microbatch_entries.Prime)
    assert prime.batch.version == FIRST
    assert prime.batch.spans == (Span("orders", T0, 0, 3), Span("orders", T1, 0, 10))
    assert [(task, begin.spans) for task, begin in scene.told(messages.Begin)] == [
        (T0, (Span("orders", T0, 0, 3),)),
        (T1, (Span("orders", T1, 0, 10),)),
    ]


def test_an_answer_that_comes_late_takes_no_input_away() -> None:
    scene = Scene()
    number = scene.told(messages.Poll)[-1][1].number
    scene.receive(messages.Input(number, T0, 0, {"orders": (0, 3)}))
    scene.receive(messages.Input(number - 1, T0, 0, {"orders": (0, 0)}))
    scene.receive(messages.Rolled(T0, 0, {"orders": (0, 0)}))
    scene.later(10)
    (prime,) = scene.entries
    assert isinstance(prime, microbatch_entries.Prime)
    assert prime.batch.spans == (Span("orders", T0, 0, 3),)


def test_a_microbatch_is_run_staged_committed_and_rolled_and_the_next_goes_on_behind_it() -> None:
    scene = Scene()
    scene.input(3, 25)
    scene.run()
    assert [task for task, _ in scene.told(messages.Stage)] == [T0, T1]
    scene.stage(tasks=(T0,))
    assert len(scene.entries) == 1
    scene.stage(tasks=(T1,))
    assert scene.entries[1] == microbatch_entries.Commit("book", FIRST, (T0, T1))
    assert [task for task, _ in scene.told(messages.Roll)] == [T0, T1]
    scene.roll(tasks=(T0,))
    scene.later(400)
    assert scene.phase == Phase.ROLLING
    scene.roll(tasks=(T1,))
    scene.receive(messages.Input(2, T1, 1, {"orders": (0, 25)}))
    scene.later(10)
    prime = scene.entries[2]
    assert isinstance(prime, microbatch_entries.Prime)
    assert prime.batch.version == Version(2, 0)
    assert prime.batch.spans == (Span("orders", T1, 10, 20),)


def test_rounds_go_on_until_no_calls_are_left_and_whoever_ran_stages() -> None:
    scene = Scene()
    scene.input(3, 0)
    scene.receive(messages.Ran(FIRST, 0, T0, Speaker(7), ((T1, 2),)))
    ((task, go),) = scene.told(messages.Go)
    assert (task, go.round, go.expected) == (T1, 1, (messages.Expected(T0, Speaker(7), 2),))
    scene.receive(messages.Ran(FIRST, 1, T1, Speaker(9), ()))
    assert [task for task, _ in scene.told(messages.Stage)] == [T0, T1]


def test_a_version_of_another_coordinator_begins_anew_with_the_same_input() -> None:
    spans = (Span("orders", T0, 0, 3),)
    scene = Scene(Batch(Version(4, 2), {"orders": {T1: 8}}, spans))
    (prime,) = scene.entries
    assert isinstance(prime, microbatch_entries.Prime)
    assert (prime.batch.version, prime.batch.spans) == (Version(4, 3), spans)
    assert prime.batch.progress == {"orders": {T1: 8}}


def test_a_committed_batch_of_another_coordinator_is_rolled_and_nothing_else() -> None:
    scene = Scene(Batch(Version(4, 2), {}, (Span("orders", T0, 0, 3),), tasks=(T1,)))
    assert scene.told(messages.Roll) == [(T1, messages.Roll(Version(4, 2)))]
    assert scene.entries == []
    scene.roll(4, tasks=(T1,))
    assert scene.phase == Phase.IDLE


def test_an_answer_of_another_leader_of_the_task_ends_the_version() -> None:
    scene = Scene()
    scene.input(3, 3)
    scene.run()
    scene.receive(messages.Staged(FIRST, T0, Speaker(8)))
    scene.later(1_000)
    assert scene.coordinator.progress.version == Version(1, 1)
    assert scene.coordinator.progress.why == "task 0: another leader took over"


def test_a_task_that_is_silent_for_too_long_ends_the_version_and_one_that_works_does_not() -> None:
    scene = Scene()
    scene.input(3, 3)
    scene.run(tasks=(T0,))
    for _ in range(20):
        scene.later(1_000)
        scene.receive(messages.Working(FIRST, T1))
    assert scene.coordinator.progress.version == FIRST
    assert len(scene.told(messages.Begin)) > 20
    scene.later(15_000)
    assert scene.coordinator.progress.version == Version(1, 1)
    (note,) = scene.notes
    assert (note.event, note.fields["why"]) == ("microbatch_retried", "task 1: no answer for 10000 ms")


def test_a_record_that_fails_too_often_is_left_out_and_the_others_are_not() -> None:
    scene = Scene()
    scene.input(3, 3)
    scene.run(tasks=(T1,))
    scene.receive(messages.Broken(FIRST, 0, T0, "no", (failure(2),)))
    scene.later(1_000)
    again = Version(1, 1)
    assert scene.batch is not None
    assert (scene.batch.version, scene.batch.failed, scene.batch.left_out) == (
        again,
        ((Source("orders", T0, 2), 1),),
        (),
    )
    scene.run(again, tasks=(T1,))
    scene.told(messages.Begin)
    scene.receive(messages.Broken(again, 0, T0, "no", (failure(2), failure(1))))
    assert scene.batch.version == Version(1, 2)
    assert [(each.source.offset, each.attempts, each.error) for each in scene.batch.left_out] == [
        (2, 2, "ValueError: no")
    ]
    assert scene.batch.failed == ((Source("orders", T0, 1), 1),)
    begins = dict(scene.told(messages.Begin))
    assert [each.source.offset for each in begins[T0].left_out] == [2]
    assert begins[T1].left_out == ()


def test_failures_in_a_round_are_gathered_before_the_version_ends() -> None:
    scene = Scene(settings=replace(SETTINGS, retries=0))
    scene.input(3, 3)
    scene.receive(messages.Broken(FIRST, 0, T0, "no", (failure(2),)))
    assert scene.phase == Phase.RUNNING
    scene.receive(messages.Broken(FIRST, 0, T1, "no", (failure(0, T1),)))
    assert scene.batch is not None
    assert [each.source for each in scene.batch.left_out] == [("orders", T0, 2), ("orders", T1, 0)]


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_a_record_that_fails_is_counted_although_others_broke_because_of_it(order: tuple[int, int]) -> None:
    scene = Scene(settings=replace(SETTINGS, retries=0))
    scene.input(3, 3)
    broken = [
        messages.Broken(FIRST, 0, T0, "ran longer than 10 s", (failure(2),)),
        messages.Broken(FIRST, 0, T1, "what ran before it ended its executor"),
    ]
    for index in order:
        scene.receive(broken[index])
    assert scene.batch is not None
    assert [each.source.offset for each in scene.batch.left_out] == [2]
    assert scene.coordinator.progress.why == "task 0: ran longer than 10 s"


def test_what_fails_behind_a_hop_is_counted_once_records_are_run_one_by_one() -> None:
    scene = Scene(settings=replace(SETTINGS, retries=0))
    scene.input(3, 0)
    for version in (FIRST, Version(1, 1)):
        scene.receive(messages.Ran(version, 0, T0, Speaker(7), ((T1, 2),)))
        scene.receive(messages.Broken(version, 1, T1, "no", (failure(2),)))
        scene.later(1_000)
    assert scene.batch is not None
    assert (scene.batch.version, scene.batch.careful) == (Version(1, 2), True)
    assert [each.source.offset for each in scene.batch.left_out] == [2]


def test_changes_that_are_too_large_for_an_entry_halve_the_input() -> None:
    scene = Scene()
    scene.input(3, 9)
    scene.run()
    scene.receive(messages.Broken(FIRST, 1, T1, "too large", too_large=True))
    scene.later(1_000)
    assert scene.batch is not None
    assert scene.batch.spans == (Span("orders", T0, 0, 1), Span("orders", T1, 0, 4))


def test_records_that_are_too_large_together_are_taken_one_after_the_other() -> None:
    scene = Scene()
    scene.input(1, 1)
    scene.run()
    scene.receive(messages.Broken(FIRST, 1, T1, "too large", too_large=True))
    scene.later(1_000)
    assert scene.batch is not None
    assert scene.batch.spans == (Span("orders", T0, 0, 1),)


def test_a_record_that_is_too_large_by_itself_is_left_out_in_the_end() -> None:
    scene = Scene()
    scene.input(1, 0)
    for version in (FIRST, Version(1, 1)):
        scene.receive(messages.Broken(version, 0, T0, "it changes too much", too_large=True))
        scene.later(1_000)
    assert scene.batch is not None
    assert scene.batch.spans == (Span("orders", T0, 0, 1),)
    assert [(each.source, each.error) for each in scene.batch.left_out] == [
        (Source("orders", T0, 0), "it changes too much")
    ]


def test_microbatches_grow_again_from_what_was_not_too_large() -> None:
    scene = Scene()
    scene.input(100, 0)
    sizes = []
    for id_ in range(1, 5):
        version = Version(id_, 0)
        if id_ == 1:
            for number in range(2):
                scene.receive(messages.Broken(Version(1, number), 0, T0, "too large", too_large=True))
            version = Version(1, 2)
        assert scene.batch is not None
        (span,) = scene.batch.spans
        sizes.append(span.end - span.start)
        scene.run(version, (T0,))
        scene.stage(version, (T0,))
        scene.roll(id_, (T0,))
        scene.later(100)
    assert sizes == [2, 4, 8, 10]


def test_code_that_hangs_makes_the_next_version_careful() -> None:
    scene = Scene()
    scene.input(3, 0)
    scene.receive(messages.Broken(FIRST, 0, T0, "ran longer than 10 s", hung=True))
    scene.later(1_000)
    *_, (_, begin) = scene.told(messages.Begin)
    assert (begin.version, begin.careful) == (Version(1, 1), True)


def test_entries_that_are_refused_are_tried_again_with_pauses_that_grow() -> None:
    scene = Scene()
    scene.refuses = True
    scene.input(3, 3)
    scene.later(60_000)
    assert 5 < len(scene.notes) < 50
    scene.refuses = False
    scene.later(10_000)
    assert scene.phase == Phase.RUNNING
    scene.run()
    scene.refuses = True
    scene.stage()
    assert scene.phase == Phase.COMMITTING
    scene.receive(messages.Broken(FIRST, 1, T1, "too late to matter"))
    scene.refuses = False
    scene.later(10_000)
    assert [type(entry) for entry in scene.entries] == [microbatch_entries.Prime, microbatch_entries.Commit]
    assert scene.phase == Phase.ROLLING


def test_a_paused_module_ends_its_microbatch_and_begins_no_other() -> None:
    scene = Scene()
    scene.input(3, 3)
    scene.step(events.SettingsChanged(settings=replace(SETTINGS, paused=True)))
    scene.run()
    scene.stage()
    scene.roll()
    number = scene.told(messages.Poll)[-1][1].number
    scene.receive(messages.Input(number, T0, 1, {"orders": (0, 9)}))
    scene.later(10_000)
    assert (scene.coordinator.phase, len(scene.entries)) == (Phase.IDLE, 2)
    scene.step(events.SettingsChanged(settings=SETTINGS))
    scene.later(10)
    assert len(scene.entries) == 3


@pytest.mark.parametrize(("ends", "lag"), [((3, 9), 12), ((0, 0), 0)])
def test_the_lag_is_what_no_committed_microbatch_has(ends: tuple[int, int], lag: int) -> None:
    scene = Scene()
    assert scene.coordinator.progress.lag is None
    scene.input(*ends)
    assert scene.coordinator.progress.lag == lag


def test_where_depots_end_is_told_as_far_as_it_was_heard() -> None:
    scene = Scene()
    assert scene.coordinator.ends == {"orders": {}}
    scene.input(3, 9)
    assert scene.coordinator.ends == {"orders": {T0: 3, T1: 9}}


def test_the_lag_ends_with_the_commit() -> None:
    scene = Scene()
    scene.input(3, 3)
    scene.run()
    scene.stage()
    assert scene.coordinator.progress.lag == 0


def took_effect(scene: Scene) -> None:
    """The first microbatch, everywhere."""
    scene.input(3, 3)
    scene.run()
    scene.stage()
    scene.roll()
    assert scene.phase == Phase.IDLE


def test_tasks_hear_at_once_what_took_effect_on_all_of_them() -> None:
    scene = Scene()
    scene.input(3, 3)
    assert {poll.everywhere for _, poll in scene.told(messages.Poll)} == {0}
    scene.run()
    scene.stage()
    scene.roll(tasks=(T1,))
    assert scene.told(messages.Poll) == []
    scene.roll(tasks=(T0,))
    assert [(task, poll.everywhere) for task, poll in scene.told(messages.Poll)] == [(T0, 1), (T1, 1)]


HOURLY = replace(SETTINGS, interval_ms=Millis(3_600_000))


def test_who_waits_for_records_does_not_wait_for_the_interval() -> None:
    scene = Scene(settings=HOURLY)
    took_effect(scene)
    number = scene.told(messages.Poll)[-1][1].number
    scene.receive(messages.Input(number, T0, 1, {"orders": (0, 5)}))
    scene.later(1_000)
    assert scene.phase == Phase.IDLE
    scene.receive(messages.Input(number, T1, 1, {"orders": (0, 4)}, {"orders": 4}))
    scene.later(5)
    assert scene.batch is not None
    assert scene.batch.version == Version(2, 0)
    assert scene.batch.spans == (Span("orders", T0, 3, 5), Span("orders", T1, 3, 4))


def test_who_began_to_wait_during_a_microbatch_has_the_next_one_begin_after_it() -> None:
    scene = Scene(settings=HOURLY)
    scene.input(3, 3)
    scene.receive(messages.Input(1, T1, 0, {"orders": (0, 4)}, {"orders": 4}))
    scene.run()
    scene.stage()
    scene.roll()
    scene.later(10)
    assert scene.batch is not None
    assert scene.batch.version == Version(2, 0)


def test_the_interval_counts_again_when_nobody_waits_any_more() -> None:
    scene = Scene(settings=HOURLY)
    number = scene.told(messages.Poll)[-1][1].number
    for task in (T0, T1):
        scene.receive(messages.Input(number, task, 0, {"orders": (0, 3)}, {"orders": 3}))
    scene.later(10)
    scene.run()
    scene.stage()
    scene.roll()
    number = scene.told(messages.Poll)[-1][1].number
    scene.receive(messages.Input(number, T0, 1, {"orders": (0, 5)}))
    scene.later(1_000)
    assert scene.phase == Phase.IDLE


def test_a_version_that_a_new_leader_ended_is_soon_tried_again_however_often_that_happens() -> None:
    scene = Scene()
    scene.input(3, 3)
    for number in range(8):
        version = Version(1, number)
        scene.run(version)
        scene.receive(messages.Staged(version, T1, Speaker(8)))
        assert scene.phase == Phase.WAITING
        scene.later(800)
        assert scene.batch is not None
        assert scene.batch.version == Version(1, number + 1)
