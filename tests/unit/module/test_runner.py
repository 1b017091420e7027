"""Running a module's functions on one task: what comes out, and what a failure leaves behind."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec
import pytest

from stretto import Depot, Module, PState, microbatch, query, step, stream
from stretto.errors import UsageError
from stretto.module.partition import owner_of
from stretto.module.runner import SLOW_NS, TaskRunner
from stretto.module.work import Calls, Outcome, Records, RowsFailed, StepCall
from stretto.pstate.overlay import NoRows, Overlay, Rows
from stretto.vocabulary.records import DepotOffset
from stretto.vocabulary.types import TaskId


@dataclass
class Sentence:
    user: str
    text: str


class WordCount(Module):
    sentences = Depot(partition_by="user")
    shouts = Depot()
    counts = PState(dict[str, int])
    said = PState(dict[str, list[str]])
    log = PState(dict[int, str])

    @stream(sentences)
    def split(self, sentence: Sentence) -> int:
        self.said.append(sentence.user, value=sentence.text)
        for word in sentence.text.split():
            self.count.at(word)(word)
        if "!" in sentence.text:
            raise ValueError("it is\nloud")
        return len(sentence.text.split())

    @step
    def count(self, word: str, by: int = 1) -> None:
        if word == "bad":
            raise KeyError(word)
        self.counts.increment(word, by=by)

    @microbatch(shouts, batch=True)
    def shout(self, records: list[str]) -> list[str | None]:
        if "no" in records:
            raise RuntimeError("no")
        for text in records:
            self.note.once()(len(text), text)
        return [None if len(each) < 3 else each.upper() for each in records]

    @step(batch=True)
    def note(self, calls: list[tuple[int, str]]) -> None:
        for number, text in calls:
            if text == "odd":
                raise ValueError(text)
            if owner_of(number, self.tasks) == self.task:
                self.log.set(number, value=f"{text} of {len(calls)}")

    @query(key="word")
    def count_of(self, word: str) -> int:
        return int(self.counts.get(word, default=0))

    @query
    def top(self, limit: int = 2) -> list[tuple[int, str]]:
        return sorted(((n, word) for word, n in self.counts.items()), reverse=True)[:limit]

    @top.combine
    def merged(self, parts: list[list[tuple[int, str]]], limit: int) -> list[tuple[int, str]]:
        return sorted((each for part in parts for each in part), reverse=True)[:limit]


def nothing(_: str) -> Rows:
    return NoRows()


def sentences(*texts: str, user: str = "ann") -> Records:
    records = [json.dumps({"user": user, "text": text}).encode() for text in texts]
    return Records("split", "sentences", DepotOffset(0), records)


def shouts(*texts: str) -> Records:
    return Records("shout", "shouts", DepotOffset(0), [json.dumps(text).encode() for text in texts])


def run(work: Records | Calls, *, task: int = 0, tasks: int = 1, **options: Any) -> Outcome:
    return TaskRunner(WordCount, TaskId(task), tasks).run(work, nothing, **options)


def state(outcome: Outcome, name: str) -> dict[Any, Any]:
    """Of a PState after it."""
    overlay = Overlay(NoRows())
    if name in outcome.changes:
        overlay.add(outcome.changes[name])
    runner = TaskRunner(WordCount, TaskId(0), 1)
    _, bound = runner.bind("top", lambda _: overlay, hops=False)
    return dict(getattr(bound, name).items())


def test_a_function_changes_pstates_and_hops_within_its_task() -> None:
    outcome = run(sentences("the cat", "the dog"))
    assert state(outcome, "counts") == {"the": 2, "cat": 1, "dog": 1}
    assert state(outcome, "said") == {"ann": ["the cat", "the dog"]}
    assert outcome.results == [(0, b"2"), (1, b"2")]
    assert (outcome.hops, outcome.failures, outcome.done) == ({}, [], 2)


def test_hops_to_other_tasks_come_out_in_order_with_what_caused_them() -> None:
    words = ["a", "b", "c", "d", "e", "f"]
    user = next(f"u{n}" for n in range(100) if owner_of(f"u{n}", 4) == 1)
    outcome = run(sentences(" ".join(words), "a f", user=user), task=1, tasks=4)
    sent = [
        (owner_of(word, 4), word, origin) for origin, text in enumerate([words, ["a", "f"]]) for word in text
    ]
    assert {
        task: [(msgspec.msgpack.decode(call.args)[0], call.origin) for call in calls]
        for task, calls in outcome.hops.items()
    } == {
        task: [(word, origin) for owner, word, origin in sent if owner == task]
        for task in {owner for owner, _, _ in sent} - {1}
    }
    assert set(state(outcome, "counts")) == {word for owner, word, _ in sent if owner == 1}


def test_a_record_that_fails_has_no_effect_and_the_others_have() -> None:
    outcome = run(sentences("the cat", "a bird !", "the dog"))
    assert state(outcome, "counts") == {"the": 2, "cat": 1, "dog": 1}
    assert state(outcome, "said") == {"ann": ["the cat", "the dog"]}
    assert outcome.results == [(0, b"2"), (2, b"2")]
    [failure] = outcome.failures
    assert (failure.index, failure.error) == (1, "ValueError: it is loud")
    assert failure.traceback.splitlines()[-2:] == ["ValueError: it is", "loud"]
    assert failure.traceback.count("File ") == 1
    assert "in split" in failure.traceback
    assert outcome.done == 3


def test_a_step_that_fails_takes_its_record_with_it() -> None:
    outcome = run(sentences("the cat", "a bad bird", "the dog"))
    assert state(outcome, "counts") == {"the": 2, "cat": 1, "dog": 1}
    assert [(failure.index, failure.error) for failure in outcome.failures] == [(1, "KeyError: 'bad'")]


def test_hops_of_a_record_that_fails_are_dropped() -> None:
    user = next(f"u{n}" for n in range(100) if owner_of(f"u{n}", 4) == 0)
    outcome = run(sentences("x y z", "p q r s t u v w !", "x y z", user=user), tasks=4)
    sent = [
        msgspec.msgpack.decode(call.args)[0]
        for calls in outcome.hops.values()
        for call in calls
        if call.origin in (0, 2)
    ]
    assert sum(map(len, outcome.hops.values())) == len(sent)
    assert set(sent) <= {"x", "y", "z"}


def test_a_run_can_end_before_what_fails() -> None:
    outcome = run(sentences("the cat", "loud !", "the dog"), stop_at_failure=True)
    assert state(outcome, "counts") == {"the": 1, "cat": 1}
    assert (outcome.done, [failure.index for failure in outcome.failures]) == (1, [1])


def test_what_is_to_be_skipped_is() -> None:
    outcome = run(sentences("the cat", "loud !", "the dog"), skip={0, 1})
    assert state(outcome, "counts") == {"the": 1, "dog": 1}
    assert (outcome.done, outcome.failures) == (3, [])


def test_a_record_of_another_shape_is_a_failure() -> None:
    records = [b'{"user": "ann", "text": "hi"}', b'{"user": "ann"}', b"nonsense", b'"\xff"']
    outcome = run(Records("split", "sentences", DepotOffset(0), records))
    assert [failure.index for failure in outcome.failures] == [1, 2, 3]
    assert (
        "the record is no Sentence in JSON: Object missing required field `text`" in outcome.failures[0].error
    )
    assert outcome.failures[0].traceback == ""
    assert state(outcome, "counts") == {"hi": 1}


def test_calls_run_in_order_and_name_themselves_as_origin() -> None:
    calls = [StepCall("count", msgspec.msgpack.encode((word, 2)), 77) for word in ("a", "bad", "a")]
    outcome = run(Calls("split", calls))
    assert state(outcome, "counts") == {"a": 4}
    assert [failure.index for failure in outcome.failures] == [1]
    assert run(Calls("split", calls), stop_at_failure=True).done == 1


def test_a_call_with_wrong_arguments_or_to_no_step_is_a_failure() -> None:
    calls = [StepCall("count", msgspec.msgpack.encode((7, 2)), 0), StepCall("cout", b"\x90", 0)]
    outcome = run(Calls("split", calls))
    assert [failure.error for failure in outcome.failures] == [
        "count cannot take [7, 2]: Expected `str`, got `int` - at `$[0]`",
        "there is no step cout; did you mean count?",
    ]


def test_a_function_may_take_all_records_at_once_and_so_may_a_step() -> None:
    outcome = run(shouts("oh", "hey", "what"))
    assert state(outcome, "log") == {2: "oh of 3", 3: "hey of 3", 4: "what of 3"}
    assert outcome.results == [(1, b'"HEY"'), (2, b'"WHAT"')]
    assert outcome.done == 3


def test_of_many_at_once_only_what_fails_is_lost() -> None:
    outcome = run(shouts("oh", "no", "what", "odd"))
    assert state(outcome, "log") == {2: "oh of 1", 4: "what of 1"}
    assert [(failure.index, failure.error) for failure in outcome.failures] == [
        (1, "RuntimeError: no"),
        (3, "ValueError: odd"),
    ]
    assert outcome.results == [(2, b'"WHAT"')]
    stopped = run(shouts("oh", "no", "what"), stop_at_failure=True)
    assert (stopped.done, state(stopped, "log")) == (1, {2: "oh of 1"})


def test_an_undecodable_record_among_many_stops_there_if_asked() -> None:
    work = Records("shout", "shouts", DepotOffset(0), [b'"oh"', b"7", b'"hey"'])
    outcome = run(work)
    assert ([failure.index for failure in outcome.failures], outcome.done) == ([1], 3)
    assert state(outcome, "log") == {2: "oh of 2", 3: "hey of 2"}
    stopped = run(work, stop_at_failure=True)
    assert ([failure.index for failure in stopped.failures], stopped.done) == ([1], 1)
    assert state(stopped, "log") == {2: "oh of 1"}


def test_calls_of_a_batch_step_are_run_together_and_one_that_fails_alone() -> None:
    calls = [StepCall("note", msgspec.msgpack.encode((len(text), text)), 0) for text in ("x", "yy")]
    assert state(run(Calls("shout", calls)), "log") == {1: "x of 2", 2: "yy of 2"}
    odd = StepCall("note", msgspec.msgpack.encode((3, "odd")), 0)
    outcome = run(Calls("shout", [*calls, odd]))
    assert state(outcome, "log") == {1: "x of 1", 2: "yy of 1"}
    assert [failure.index for failure in outcome.failures] == [2]


def test_queries_read_and_their_parts_are_combined() -> None:
    overlay = Overlay(NoRows())
    overlay.add(run(sentences("a b b c c c")).changes["counts"])
    runner = TaskRunner(WordCount, TaskId(0), 1)
    answer = runner.query("count_of", msgspec.msgpack.encode(("b",)), lambda _: overlay)
    assert msgspec.msgpack.decode(answer.result) == 2
    args = msgspec.msgpack.encode((2,))
    part = runner.query("top", args, lambda _: overlay).result
    other = msgspec.msgpack.encode([(9, "z")])
    assert msgspec.msgpack.decode(runner.combine("top", args, [part, other]).result) == [[9, "z"], [3, "c"]]
    failed = runner.query("count_of", msgspec.msgpack.encode((7,)), lambda _: overlay)
    assert failed.failure is not None
    assert "count_of cannot take [7]" in failed.failure.error


def one(function: Callable[[Any], Any], tasks: int = 4, task: int = 0) -> Outcome:
    """Of a module whose only topology does this with ``self``."""

    class Only(Module):
        things = Depot()
        mine = PState(dict[str, int])
        others = PState(dict[str, int])
        numbers = PState(dict[int, dict[str, float]])

        @stream(things, writes=[mine, numbers])
        def only(self, record: object) -> Any:
            return function(self)

        @stream(things)
        def other(self, record: object) -> None:
            self.others.set("k", value=1)
            self.far.at("k")()

        @step
        def far(self, more: int = 0) -> None:
            pass

    work = Records("only", "things", DepotOffset(0), [b"1"])
    return TaskRunner(Only, TaskId(task), tasks).run(work, nothing)


def error_of(function: Callable[[Any], Any]) -> str:
    outcome = one(function)
    assert not outcome.changes
    assert not outcome.hops
    return outcome.failures[0].error


HERE = next(f"k{n}" for n in range(100) if owner_of(f"k{n}", 4) == 0)
THERE = next(f"k{n}" for n in range(100) if owner_of(f"k{n}", 4) == 3)


def test_a_key_of_another_task_is_refused_with_where_to_go() -> None:
    refused = f"'{THERE}' of PState mine is on task 3, and this is task 0; hop there first"
    assert refused in error_of(lambda self: self.mine.set(THERE, value=1))
    assert refused in error_of(lambda self: self.mine.get(THERE))
    assert one(lambda self: self.mine.set(HERE, value=1)).changes.keys() == {"mine"}


def test_who_is_not_the_writer_reads_only() -> None:
    assert one(lambda self: self.others.get(HERE, default=7)).results == [(0, b"7")]
    assert "PState others is written by other, and has one writer" in error_of(
        lambda self: self.others.set(HERE, value=1)
    )


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        (lambda self: self.mine.set(HERE, value="x"), "'x' is no int"),
        (lambda self: self.mine.set(HERE + "x" * 600, value=1), "beyond the limit of 511"),
        (lambda self: self.far(1), "say where far is to run: self.far.at(key)(...)"),
        (lambda self: self.far.on(4)(1), "there is no task 4; they are 0 to 3"),
        (lambda self: self.far.at("k")(1, 2, 3), "TypeError: far(): too many positional arguments"),
        (lambda self: self.far.at("k")(less=2), "TypeError: far(): got an unexpected keyword"),
        (lambda self: self.far.on(1)(object()), "TypeError: Encoding objects of type object"),
        (lambda self: setattr(self, "memory", 1), "keeps nothing in attributes, and 'memory' would be lost"),
        (lambda self: sys.exit(3), "SystemExit: 3"),
        (lambda self: object(), "TypeError: Encoding objects of type object"),
        (lambda self: 1 / 0, "ZeroDivisionError: division by zero"),
    ],
)
def test_what_goes_wrong_in_a_function_is_a_failure(wrong: Callable[[Any], Any], sentence: str) -> None:
    assert sentence in error_of(wrong)


def test_all_ways_to_hop() -> None:
    def hop(self: Any) -> None:
        self.far.on(3)(1)
        self.far.everywhere()(2)
        self.far.once()(3)
        self.far.anywhere()(more=4)
        self.far.at(THERE)()

    outcome = one(hop, task=1)
    assert {0, 2, 3} <= outcome.hops.keys()
    sent = {
        task: [msgspec.msgpack.decode(call.args) for call in calls] for task, calls in outcome.hops.items()
    }
    assert sent[TaskId(3)][:2] == [[1], [2]]
    assert [3] in sent[TaskId(0)]
    assert [0] in sent[TaskId(3)]


def test_an_error_of_the_rows_passes_through_whatever_the_function_catches() -> None:
    class Broken(NoRows):
        def get(self, key: bytes) -> bytes | None:
            raise RowsFailed("map resized")

    class Careless(Module):
        things = Depot()
        mine = PState(dict[str, int])

        @stream(things)
        def only(self, record: object) -> None:
            try:
                self.mine.increment("a")
            except Exception:  # noqa: BLE001
                self.mine.set("a", value=0)

    runner = TaskRunner(Careless, TaskId(0), 1)
    with pytest.raises(RowsFailed):
        runner.run(Records("only", "things", DepotOffset(0), [b"1"]), lambda _: Broken())


def test_a_topology_that_is_not_there_is_an_error_of_the_caller() -> None:
    with pytest.raises(UsageError, match="there is no topology spilt; did you mean split"):
        run(Calls("spilt", []))


def test_a_module_is_not_made_by_hand() -> None:
    with pytest.raises(UsageError, match=r"try it with stretto\.testing\.module\(WordCount\)"):
        WordCount()


class Large(Module):
    things = Depot()
    blobs = PState(dict[int, bytes])

    @stream(things)
    def keep(self, size: int) -> None:
        self.blobs.set(size, value=bytes(size))
        if size % 2:
            self.blobs.set(size + 1, value=bytes(size))


def test_what_is_too_large_for_an_entry_is_done_in_parts_and_alone_it_fails(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("stretto.module.runner.OUTCOME_BYTES_MAX", 10_000)
    runner = TaskRunner(Large, TaskId(0), 1)
    records = [str(size).encode() for size in (3_000, 3_002, 5_000, 7_001, 10)]

    def done_from(at: int, **options: Any) -> Outcome:
        return runner.run(Records("keep", "things", DepotOffset(at), records[at:]), nothing, **options)

    first = done_from(0)
    assert (first.done, len(first.changes["blobs"].puts)) == (2, 2)
    assert done_from(2).done == 1
    failed = done_from(3)
    assert (failed.done, failed.changes) == (1, {})
    assert "beyond the limit of 10000; take smaller steps" in failed.failures[0].error
    assert done_from(3, stop_at_failure=True).done == 0
    assert done_from(4).done == 1


class Fussy(Module):
    things = Depot()
    totals = PState(dict[str, int])
    numbered = PState(dict[int, int])
    halves = PState(dict[str, float])

    @stream(things, batch=True)
    def take(self, records: list[dict[str, Any]]) -> None:
        for record in records:
            key, by = record.pop("key"), record.pop("by", 1)
            if isinstance(key, str):
                self.totals.increment(key, by=by)
                if record.get("twice"):
                    self.totals.increment(key, by=by)
                    self.totals.get(key)
                    self.totals.increment(key, by=by)
                if record.get("fail"):
                    raise ValueError(key)
            else:
                self.numbered.increment(key, by=by)


def take(*records: dict[str, Any]) -> tuple[Outcome, dict[str, dict[Any, Any]]]:
    work = Records("take", "things", DepotOffset(0), [json.dumps(record).encode() for record in records])
    outcome = TaskRunner(Fussy, TaskId(0), 1).run(work, nothing)
    held: dict[str, dict[Any, Any]] = {}
    for name in ("totals", "numbered"):
        overlay = Overlay(NoRows())
        if name in outcome.changes:
            overlay.add(outcome.changes[name])
        _, bound = TaskRunner(Fussy, TaskId(0), 1).bind("asks", lambda _, below=overlay: below, hops=False)  # type: ignore[misc]
        held[name] = dict(getattr(bound, name).items())
    return outcome, held


def test_what_a_function_did_to_its_records_does_not_reach_their_second_run() -> None:
    outcome, held = take({"key": "a"}, {"key": "b", "fail": True}, {"key": "a", "by": 4})
    assert [failure.index for failure in outcome.failures] == [1]
    assert held["totals"] == {"a": 5}


def test_numbers_go_up_whatever_is_read_between_and_what_fails_goes_back() -> None:
    _, held = take({"key": "a", "twice": True}, {"key": "a", "twice": True, "fail": True}, {"key": "a"})
    assert held["totals"] == {"a": 4}


@pytest.mark.parametrize("by", [2**63, -(2**63), 1.5, "x", True])
def test_a_number_that_is_none_is_refused_also_the_second_time(by: Any) -> None:
    outcome, held = take({"key": "a"}, {"key": "a"}, {"key": "a", "by": by}, {"key": "a"})
    if by is True:
        assert held["totals"] == {"a": 4}
    elif by == -(2**63):
        assert held["totals"] == {"a": -(2**63) + 3}
    else:
        assert [failure.index for failure in outcome.failures] == [2]
        assert held["totals"] == {"a": 3}


def test_keys_that_are_equal_and_not_the_same_are_told_apart() -> None:
    outcome, held = take({"key": 1}, {"key": 1}, {"key": True}, {"key": 1.0}, {"key": 1})
    assert held["numbered"] == {1: 3}
    assert [failure.index for failure in outcome.failures] == [2, 3]


class Slow(Module):
    events = Depot()

    @stream(events)
    def each(self, seconds: float) -> None:
        if seconds:
            time.sleep(seconds)
            self.after.at(1)()

    @step
    def after(self) -> None:
        pass


def test_functions_are_timed_and_a_slow_call_by_itself() -> None:
    runner = TaskRunner(Slow, TaskId(0), 2)
    records = Records("each", "events", DepotOffset(0), [b"0", b"0.02", b"0"])
    [timed] = runner.run(records, nothing).times
    assert timed.function == "each"
    assert timed.quick + len(timed.slow_ns) == 3
    assert max(timed.slow_ns) >= 20_000_000
    assert timed.quick_ns <= timed.quick * SLOW_NS
    assert len(timed.merged(timed).slow_ns) == 2 * len(timed.slow_ns)
    calls = Calls("each", [StepCall("after", msgspec.msgpack.encode(()), 0)] * 3)
    [timed] = runner.run(calls, nothing).times
    assert (timed.function, timed.quick + len(timed.slow_ns)) == ("after", 3)


def test_a_function_that_takes_many_is_timed_as_one_call() -> None:
    times = run(shouts("a", "b", "c")).times
    assert [(each.function, each.quick + len(each.slow_ns)) for each in times] == [("shout", 1)]
