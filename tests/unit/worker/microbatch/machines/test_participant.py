"""A participant, event by event. What faults do to it is the simulation's: tests/sim/test_microbatch.py."""

from __future__ import annotations

import pytest

from stretto.state import microbatch_entries
from stretto.state.microbatch_entries import LeftOut, Returned, Source, Span, Version
from stretto.vocabulary.types import TaskId
from stretto.worker.microbatch.machines import effects, events, messages, participant
from stretto.worker.microbatch.machines.messages import Speaker
from stretto.worker.microbatch.machines.participant import ROUNDS_MAX, Participant
from stretto.worker.microbatch.machines.settings import Settings

T0, T1, T2 = TaskId(0), TaskId(1), TaskId(2)
ME = Speaker(7)
FIRST, SECOND = Version(1, 0), Version(1, 1)
SPANS = (Span("orders", T1, 0, 3),)


class Scene:
    """A participant of task 1."""

    def __init__(self, rolled: int = 0) -> None:
        self.participant = Participant("book", T1, ME, Settings())
        self.now = 1_000
        self.rolled = rolled
        self.effects: list[effects.Effect] = []
        self.step(events.Started())

    def step(self, event: events.Event) -> list[effects.Effect]:
        """What it wants, but for what is read at once."""
        wanted = []
        for effect in self.participant.step(event, self.now):
            if isinstance(effect, effects.Load):
                wanted += self.step(events.Loaded(token=effect.token, rolled=self.rolled))
            else:
                wanted.append(effect)
        return wanted

    def receive(self, message: messages.AnyMessage, body: bytes = b"") -> list[effects.Effect]:
        return self.step(events.Received(message=message, body=body))

    def begin(self, version: Version = FIRST) -> list[effects.Effect]:
        return self.receive(messages.Begin(version, SPANS, (), False))

    def executed(self, round_: int = 0, **calls: bytes) -> list[effects.Effect]:
        made = {TaskId(int(task[1:])): (1, body) for task, body in calls.items()}
        return self.step(events.Executed(version=FIRST, round=round_, calls=made))

    def later(self, ms: int) -> list[effects.Effect]:
        self.now += ms
        return self.step(events.Tick())


def answer(message: messages.AnyMessage) -> effects.Send:
    return effects.Send(task=T0, message=message)


def ran(round_: int = 0, *sent: tuple[TaskId, int]) -> effects.Send:
    return answer(messages.Ran(FIRST, round_, T1, ME, sent))


def test_records_are_run_once_however_often_that_is_asked() -> None:
    scene = Scene()
    (execute,) = scene.begin()
    assert execute == effects.Execute(version=FIRST, round=0, after=0, careful=False, spans=SPANS)
    assert scene.begin() == [answer(messages.Working(FIRST, T1))]
    assert scene.executed() == [ran()]
    assert scene.begin() == [ran()]


def test_calls_are_held_where_they_will_run_before_the_round_is_told() -> None:
    scene = Scene()
    scene.begin()
    calls = messages.Calls(FIRST, 1, T1, ME, 1)
    assert scene.executed(t2=b"calls") == [effects.Send(task=T2, message=calls, body=b"calls")]
    assert scene.begin() == [answer(messages.Working(FIRST, T1))]
    assert scene.later(500) == [effects.Send(task=T2, message=calls, body=b"calls")]
    assert scene.receive(messages.CallsHeld(FIRST, 1, T2)) == [ran(0, (T2, 1))]
    assert scene.receive(messages.CallsHeld(FIRST, 1, T2)) == []


def test_a_round_runs_the_calls_of_the_speakers_that_count_in_their_order() -> None:
    scene = Scene()
    for sender, speaker, body in ((T2, 5, b"c"), (T0, 4, b"b"), (T0, 3, b"a")):
        (held,) = scene.receive(messages.Calls(FIRST, 1, sender, Speaker(speaker), 2), body)
        assert held == effects.Send(task=sender, message=messages.CallsHeld(FIRST, 1, T1))
    expected = (messages.Expected(T2, Speaker(5), 2), messages.Expected(T0, Speaker(4), 2))
    (execute,) = scene.receive(messages.Go(FIRST, 1, expected, False))
    assert isinstance(execute, effects.Execute)
    assert (execute.round, execute.after, execute.calls) == (1, 0, (b"b", b"c"))


@pytest.mark.parametrize(("speaker", "count"), [(5, 2), (4, 3)])
def test_calls_that_are_missing_break_the_version(speaker: int, count: int) -> None:
    scene = Scene()
    scene.receive(messages.Calls(FIRST, 1, T2, Speaker(4), 2), b"c")
    expected = (messages.Expected(T2, Speaker(speaker), count),)
    (told,) = scene.receive(messages.Go(FIRST, 1, expected, False))
    assert isinstance(told, effects.Send)
    assert isinstance(told.message, messages.Broken)
    assert told.message.why == "calls were lost with their leader"


def test_calls_that_are_too_large_together_make_the_microbatch_smaller(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(participant, "CALLS_BYTES_MAX", 9)
    scene = Scene()
    expected = []
    for sender in (T0, T2):
        scene.receive(messages.Calls(FIRST, 1, sender, ME, 1), b"calls")
        expected.append(messages.Expected(sender, ME, 1))
    (told,) = scene.receive(messages.Go(FIRST, 1, tuple(expected), False))
    assert isinstance(told, effects.Send)
    assert isinstance(told.message, messages.Broken)
    assert told.message.too_large


def test_calls_that_hop_for_ever_break_the_version() -> None:
    scene = Scene()
    (told,) = scene.receive(messages.Go(FIRST, ROUNDS_MAX + 1, (), False))
    assert isinstance(told, effects.Send)
    assert isinstance(told.message, messages.Broken)
    assert "more than 1000 rounds" in told.message.why


def test_a_higher_version_replaces_a_lower_one_which_is_not_heard_any_more() -> None:
    scene = Scene()
    scene.begin()
    discard, execute = scene.begin(SECOND)
    assert discard == effects.Discard(version=FIRST)
    assert isinstance(execute, effects.Execute)
    assert execute.version == SECOND
    assert scene.executed() == []
    assert scene.begin(FIRST) == []
    assert scene.receive(messages.Calls(FIRST, 1, T2, Speaker(4), 2), b"c") == []


def test_failures_and_accidents_are_told_again_and_nothing_is_run_again() -> None:
    scene = Scene()
    scene.begin()
    failed = messages.Failure(Source("orders", T1, 2), "ValueError: no", "line 1")
    broken = answer(messages.Broken(FIRST, 0, T1, "ValueError: no", (failed,)))
    executed = events.Executed(version=FIRST, round=0, calls={}, failures=(failed,))
    assert scene.step(executed) == [broken]
    assert scene.begin() == [broken]
    scene.begin(SECOND)
    (told,) = scene.step(events.ExecutionFailed(version=SECOND, why="an executor died"))
    assert scene.begin(SECOND) == [told]


def staging(scene: Scene) -> effects.Append:
    scene.begin()
    scene.executed()
    (collect,) = scene.receive(messages.Stage(FIRST, SPANS, ()))
    assert collect == effects.Collect(version=FIRST, after=1, spans=SPANS, left_out=())
    assert scene.receive(messages.Stage(FIRST, SPANS, ())) == [answer(messages.Working(FIRST, T1))]
    (append,) = scene.step(events.Collected(version=FIRST, changes=b"changes"))
    assert isinstance(append, effects.Append)
    assert append.entry == microbatch_entries.Stage("book", FIRST, b"changes")
    return append


def test_staged_is_told_when_it_is_applied() -> None:
    scene = Scene()
    append = staging(scene)
    staged = answer(messages.Staged(FIRST, T1, ME))
    assert scene.step(events.Appended(token=append.token, applied=True)) == [staged]
    assert scene.receive(messages.Stage(FIRST, SPANS, ())) == [staged]


def test_changes_that_are_not_replicated_break_the_version() -> None:
    scene = Scene()
    append = staging(scene)
    (told,) = scene.step(events.Appended(token=append.token, applied=False, why="stalled"))
    assert isinstance(told, effects.Send)
    assert isinstance(told.message, messages.Broken)
    assert told.message.why == "its changes were not replicated: stalled"


def test_an_id_is_rolled_once_and_that_is_told_as_often_as_it_is_asked() -> None:
    scene = Scene()
    (append,) = scene.receive(messages.Roll(FIRST))
    assert isinstance(append, effects.Append)
    assert append.entry == microbatch_entries.Roll("book", FIRST)
    assert scene.receive(messages.Roll(FIRST)) == []
    scene.rolled = 1
    rolled = answer(messages.Rolled(T1, 1, {}))
    assert scene.step(events.Appended(token=append.token, applied=True)) == [rolled]
    assert scene.receive(messages.Roll(FIRST)) == [rolled]
    assert scene.begin() == []


def test_a_roll_that_is_refused_is_tried_again_when_it_is_asked_again() -> None:
    scene = Scene()
    (append,) = scene.receive(messages.Roll(FIRST))
    assert isinstance(append, effects.Append)
    assert scene.step(events.Appended(token=append.token, applied=False)) == []
    (again,) = scene.receive(messages.Roll(FIRST))
    assert isinstance(again, effects.Append)


def test_what_was_staged_and_is_lost_is_told_and_others_need_not_wait_for_it() -> None:
    scene = Scene()
    (append,) = scene.receive(messages.Roll(FIRST, SPANS))
    assert isinstance(append, effects.Append)
    note, miss = scene.step(events.Appended(token=append.token, applied=True))
    assert isinstance(note, effects.Note)
    assert note.event == "microbatch_has_nothing_staged"
    assert isinstance(miss, effects.Miss)
    assert (miss.version, miss.spans) == (FIRST, SPANS)
    assert scene.receive(messages.Roll(FIRST, SPANS)) == []
    scene.rolled = 1
    told = scene.step(events.Appended(token=miss.token, applied=True))
    assert told == [answer(messages.Rolled(T1, 1, {}))]


def test_a_loss_that_was_not_replicated_is_told_again_when_the_coordinator_asks_again() -> None:
    scene = Scene()
    for applied in (False, True):
        (append,) = scene.receive(messages.Roll(FIRST, SPANS))
        assert isinstance(append, effects.Append)
        _, miss = scene.step(events.Appended(token=append.token, applied=True))
        assert isinstance(miss, effects.Miss)
        # Not even then is it rolled: somebody staged it after all, and it is for the next Roll to find that.
        assert scene.step(events.Appended(token=miss.token, applied=applied)) == []


def test_what_was_rolled_before_its_time_is_known_to_a_new_leader() -> None:
    scene = Scene(rolled=4)
    assert scene.receive(messages.Roll(Version(4, 2))) == [answer(messages.Rolled(T1, 4, {}))]


def test_a_poll_is_answered_when_there_is_more_or_after_a_while() -> None:
    scene = Scene()
    scene.step(events.Grown(bounds={"orders": (0, 3)}))

    def told(number: int, end: int) -> list[effects.Send]:
        return [answer(messages.Input(number, T1, 0, {"orders": (0, end)}))]

    assert scene.receive(messages.Poll(1, {})) == told(1, 3)
    assert scene.receive(messages.Poll(2, {"orders": 3})) == []
    assert scene.later(10) == []
    assert scene.step(events.Grown(bounds={"orders": (0, 5)})) == told(2, 5)
    assert scene.receive(messages.Poll(3, {"orders": 5})) == []
    assert scene.participant.next_deadline() == scene.now + 1_000
    assert scene.later(1_000) == told(3, 5)


# Appenders that wait.

RESULTS = (microbatch_entries.Result("orders", 0, b'"a"'), microbatch_entries.Result("orders", 2, b'"c"'))


def processed(wanted: list[effects.Effect]) -> list[effects.Processed]:
    return [effect for effect in wanted if isinstance(effect, effects.Processed)]


def rolled_run(scene: Scene, left_out: tuple[LeftOut, ...] = ()) -> list[effects.Effect]:
    """The first microbatch, run and staged and rolled by the same leader."""
    scene.begin()
    scene.step(events.Executed(version=FIRST, round=0, calls={}, results=RESULTS))
    scene.receive(messages.Stage(FIRST, SPANS, left_out))
    (append,) = scene.step(events.Collected(version=FIRST, changes=b"changes"))
    assert isinstance(append, effects.Append)
    scene.step(events.Appended(token=append.token, applied=True))
    return roll(scene)


def roll(scene: Scene) -> list[effects.Effect]:
    (append,) = scene.receive(messages.Roll(FIRST, SPANS))
    assert isinstance(append, effects.Append)
    scene.rolled = 1
    return scene.step(events.Appended(token=append.token, applied=True))


def test_who_waits_is_told_when_the_microbatch_shows_on_all_tasks_and_what_its_run_returned() -> None:
    scene = Scene()
    assert processed(rolled_run(scene)) == []
    assert scene.participant.processed == {}
    assert processed(scene.receive(messages.Poll(1, {}, 0))) == []
    (told,) = processed(scene.receive(messages.Poll(2, {}, 1)))
    assert told == effects.Processed(depot="orders", start=0, end=3, results=((0, b'"a"'), (2, b'"c"')))
    assert scene.participant.processed == {"orders": 3}
    assert processed(scene.receive(messages.Poll(3, {}, 1))) == []


def test_who_waits_for_a_record_that_was_left_out_is_told_its_error() -> None:
    scene = Scene()
    rolled_run(scene, (LeftOut(Source("orders", T1, 1), 4, "ValueError: no", "line 1"),))
    (told,) = processed(scene.receive(messages.Poll(1, {}, 1)))
    assert told.failures == ((1, "ValueError: no"),)


def test_what_another_leader_ran_is_processed_and_what_it_returned_is_not_known() -> None:
    scene = Scene()
    roll(scene)
    (told,) = processed(scene.receive(messages.Poll(1, {}, 1)))
    assert (told.end, told.results) == (3, None)


def test_a_run_for_a_message_that_came_late_tells_nothing_of_the_one_that_took_effect() -> None:
    scene = Scene()
    scene.begin()
    scene.step(events.Executed(version=FIRST, round=0, calls={}, results=RESULTS))
    roll(scene)
    (told,) = processed(scene.receive(messages.Poll(1, {}, 1)))
    assert told.results is None


def test_what_took_effect_under_the_leader_before_is_processed_once_it_has_everywhere() -> None:
    participant_ = Participant("book", T1, ME, Settings())
    (load,) = participant_.step(events.Started(), 0)
    assert load == effects.Load(token=1, with_progress=True)
    participant_.step(events.Received(message=messages.Poll(1, {}, 3)), 0)
    loaded = events.Loaded(token=1, rolled=4, progress={"orders": 7})
    assert processed(participant_.step(loaded, 0)) == []
    (told,) = processed(participant_.step(events.Received(message=messages.Poll(2, {}, 4)), 0))
    assert told == effects.Processed(depot="orders", start=0, end=7, results=None)


def test_that_somebody_waits_is_told_with_the_records_and_unasked_once_for_each_poll() -> None:
    scene = Scene()
    scene.step(events.Grown(bounds={"orders": (0, 3)}))
    scene.receive(messages.Poll(1, {}))

    def told(number: int, end: int, awaited: int) -> list[effects.Send]:
        return [answer(messages.Input(number, T1, 0, {"orders": (0, end)}, {"orders": awaited}))]

    # They are applied, and it hears of that next: then the coordinator hears of both.
    assert scene.step(events.Awaited(depot="orders", end=4)) == []
    assert scene.step(events.Grown(bounds={"orders": (0, 4)})) == told(1, 4, 4)
    scene.step(events.Grown(bounds={"orders": (0, 6)}))
    assert scene.step(events.Awaited(depot="orders", end=5)) == []
    assert scene.receive(messages.Poll(2, {"orders": 6})) == told(2, 6, 5)
    assert scene.receive(messages.Poll(2, {"orders": 6})) == []
    assert scene.step(events.Awaited(depot="orders", end=6)) == told(2, 6, 6)


def test_nobody_waits_for_what_is_processed() -> None:
    scene = Scene()
    rolled_run(scene)
    scene.receive(messages.Poll(1, {}, 1))
    scene.receive(messages.Poll(2, {"orders": 3}, 1))
    assert scene.step(events.Awaited(depot="orders", end=3)) == []


HANDED_ON = Returned(FIRST, SPANS, RESULTS, ((Source("orders", T1, 1), "ValueError: no"),))
TOLD = effects.Processed(
    depot="orders", start=0, end=3, results=((0, b'"a"'), (2, b'"c"')), failures=((1, "ValueError: no"),)
)


@pytest.mark.parametrize(("awaited", "is_kept"), [(None, False), (0, False), (1, True)])
def test_what_is_returned_is_staged_for_the_next_leader_if_somebody_waits(
    awaited: int | None, is_kept: bool
) -> None:
    scene = Scene()
    if awaited is not None:
        scene.step(events.Awaited(depot="orders", end=awaited))
    scene.begin()
    scene.step(events.Executed(version=FIRST, round=0, calls={}, results=RESULTS))
    left_out = LeftOut(Source("orders", T1, 1), 4, "ValueError: no", "line 1")
    scene.receive(messages.Stage(FIRST, SPANS, (left_out,)))
    (append,) = scene.step(events.Collected(version=FIRST, changes=b"changes"))
    assert isinstance(append, effects.Append)
    assert isinstance(append.entry, microbatch_entries.Stage)
    assert append.entry.returned == (microbatch_entries.encode(HANDED_ON) if is_kept else b"")


def test_what_is_much_is_not_staged_for_the_next_leader(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(participant, "RETURNED_BYTES_MAX", 10)
    scene = Scene()
    scene.step(events.Awaited(depot="orders", end=3))
    entry = staging(scene).entry
    assert isinstance(entry, microbatch_entries.Stage)
    assert entry.returned == b""


@pytest.mark.parametrize("rolled", [1, 2])
def test_the_next_leader_tells_what_the_run_returned_that_took_effect_before_it(rolled: int) -> None:
    """Not if another one took effect since: what is kept is of the first."""
    participant_ = Participant("book", T1, ME, Settings())
    participant_.step(events.Started(), 0)
    loaded = events.Loaded(token=1, rolled=rolled, returned=HANDED_ON, progress={"orders": 3})
    participant_.step(loaded, 0)
    told = processed(participant_.step(events.Received(message=messages.Poll(1, {}, rolled)), 0))
    lost = effects.Processed(depot="orders", start=0, end=3, results=None)
    assert [each for each in told if each.start < each.end] == ([TOLD] if rolled == 1 else [lost])


def test_the_next_leader_tells_what_the_run_returned_that_it_rolls_itself() -> None:
    scene = Scene()
    (append,) = scene.receive(messages.Roll(FIRST, SPANS))
    assert isinstance(append, effects.Append)
    (load,) = scene.participant.step(events.Appended(token=append.token, applied=True), 0)
    assert isinstance(load, effects.Load)
    scene.participant.step(events.Loaded(token=load.token, rolled=1, returned=HANDED_ON), 0)
    assert processed(scene.receive(messages.Poll(1, {}, 1))) == [TOLD]
