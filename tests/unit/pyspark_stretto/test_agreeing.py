"""How the tasks of a query agree on the moment that they read at: the cluster keeps what was decided."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, Self, cast

import pytest

from pyspark_stretto import moments, renewing, states
from pyspark_stretto.moments import Plan, moment_of, name_of, new_name, pinned_of, query_of_task
from pyspark_stretto.options import Options
from pyspark_stretto.renewing import Pins, renewed
from pyspark_stretto.states import Described
from stretto import control
from stretto.client.reading.scan import PinnedGroup
from stretto.errors import RetriableError, StrettoError, UsageError
from stretto.vocabulary.groups import GroupKey
from stretto.vocabulary.types import Epoch, TaskId, WorkerId
from stretto.wire import messages as wire

DESCRIBED = Described(module="m", version=1, tasks=2, type=None, origin="")
SECONDS = 20.0


def pinned(pin: str, *, tasks: tuple[int, ...] = (0, 1), address: str = "a", idle_ms: int = 0) -> PinnedGroup:
    return PinnedGroup(
        pin=pin,
        address=address,
        worker="w0",
        module="m",
        group="m/1/0",
        tasks=tasks,
        offset=7,
        epoch=1,
        version=1,
        by_leader=True,
        idle_ms=idle_ms,
        max_age_ms=60_000,
    )


class Cluster:
    """Keeps the first offer for each query, and pins when it is asked to."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.decided: dict[int, control.ReadMoment] = {}
        self.lost: set[str] = set()
        self.released: list[str] = []
        self.asked: list[str] = []
        self.silent: set[str] = set()
        #: Called before a moment is looked for.
        self.before_find: Callable[[], None] = lambda: None
        self.now_ms = 1_000_000
        self.now = 0.0
        self._numbers = itertools.count(1)
        monkeypatch.setattr(moments, "_known", type(moments._known)())
        monkeypatch.setattr(moments, "_now_ms", lambda: self.now_ms)
        clock = SimpleNamespace(monotonic=lambda: self.now, sleep=self._sleep)
        monkeypatch.setattr(moments, "time", clock)
        monkeypatch.setattr(moments, "release", lambda each, _: self.released.extend(p.pin for p in each))
        monkeypatch.setattr(states, "pin", lambda *_: (pinned(f"new {next(self._numbers)}"),))
        monkeypatch.setattr(states, "reached", self._reached)
        monkeypatch.setattr(Pins, "renew", lambda pins, _: not self.lost & set(pins.through[0][1]))

    @contextmanager
    def _reached(self, _: Options) -> Iterator[Cluster]:
        yield self

    def _sleep(self, seconds: float) -> None:
        assert seconds > 0
        self.now += seconds

    def metadata(self) -> wire.Metadata:
        workers = tuple(WorkerId(f"w{number}") for number in range(3))
        view = wire.GroupView(GroupKey("m", 1, 0), (TaskId(0),), workers, Epoch(1), workers[0], workers, 2)
        # One of them cannot be found.
        return wire.Metadata(0, {workers[0]: "first", workers[2]: "third"}, (view,))

    def ask_worker(self, address: str, call: control.Call[Any]) -> Any:
        self.asked.append(address)
        if address in self.silent:
            raise RetriableError(f"nothing answers at {address}")
        match call:
            case control.FindMoment(query=query) | control.AnnounceMoment(query=query):
                self.before_find()
                latest = self.decided[max(self.decided)] if self.decided else None
                return control.MomentFound(moment=self.decided.get(query), latest=latest)
            case control.FindMoments():
                return tuple(self.decided.values())
            case control.DecideMoment(offer=offer):
                return self.decided.setdefault(offer.query, offer)
            case _:
                raise AssertionError(call)

    def decide(self, query: int, pin: str, *, planned_ms: int = 0) -> control.ReadMoment:
        self.decided[query] = control.ReadMoment(query=query, planned_ms=planned_ms, pinned=(pinned(pin),))
        return self.decided[query]


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    return Cluster(monkeypatch)


def options(*, hold_seconds: int = 0) -> Options:
    return Options(bootstrap=("127.0.0.1:1",), module="m", pstate="counts", hold_ms=hold_seconds * 1_000)


def agreed(query: int, *, is_first: bool = True, hold_seconds: int = 0, planned_ms: int = 999_000) -> str:
    """The pin that a task of the query reads under."""
    plan = Plan(name="plan", planned_ms=planned_ms, is_first=True, pinned=(pinned("planned"),))
    plan = plan if is_first else plan.of_others
    return moment_of(options(hold_seconds=hold_seconds), DESCRIBED, plan, query).generation


def test_what_was_decided_for_the_query_stands(cluster: Cluster) -> None:
    cluster.decide(5, "decided")
    assert agreed(5) == "decided"
    assert agreed(5, is_first=False) == "decided"
    # The second task of this process had no need to ask.
    assert cluster.asked == ["first"]


def test_a_process_remembers_only_the_latest_queries(cluster: Cluster) -> None:
    for query in range(moments.KNOWN_MAX + 1):
        cluster.decide(query, "decided")
        agreed(query)
    asked = len(cluster.asked)
    agreed(1)
    assert len(cluster.asked) == asked
    agreed(0)
    assert len(cluster.asked) == asked + 1


@pytest.mark.parametrize(
    ("age_ms", "is_lost", "pin"),
    [
        (moments.FRESH_MS - 1, False, "planned"),
        (moments.FRESH_MS, False, "new 1"),
        (0, True, "new 1"),
    ],
)
def test_the_first_query_reads_under_the_pins_of_the_plan_while_they_are_fresh(
    cluster: Cluster, age_ms: int, is_lost: bool, pin: str
) -> None:
    cluster.lost = {"planned"} if is_lost else set()
    assert agreed(5, planned_ms=cluster.now_ms - age_ms) == pin
    assert cluster.decided[5].generation == pin
    assert cluster.released == []


def test_later_queries_read_the_present(cluster: Cluster, capsys: pytest.CaptureFixture[str]) -> None:
    cluster.decide(4, "before", planned_ms=cluster.now_ms)
    assert agreed(5) == "new 1"
    assert cluster.decided[5].planned_ms == cluster.now_ms
    assert capsys.readouterr().err == ""


def test_a_moment_that_is_held_is_read_until_it_is_over(
    cluster: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster.decide(4, "before", planned_ms=cluster.now_ms - 9_999)
    assert agreed(5, hold_seconds=10) == "before"
    assert capsys.readouterr().err == ""
    cluster.now_ms += 1
    assert agreed(6, hold_seconds=10) == "new 1"
    assert "hold.seconds is 10" in capsys.readouterr().err


def test_pins_of_an_offer_that_came_second_are_let_go(cluster: Cluster) -> None:
    cluster.decide(4, "before")
    real = cluster.ask_worker

    def overtaken(address: str, call: control.Call[Any]) -> Any:
        if isinstance(call, control.DecideMoment):
            cluster.decided.setdefault(
                5, control.ReadMoment(query=5, planned_ms=1, pinned=(pinned("other"),))
            )
        return real(address, call)

    cast(Any, cluster).ask_worker = overtaken
    assert agreed(5) == "other"
    assert cluster.released == ["new 1"]


def test_others_wait_for_the_first_part(cluster: Cluster) -> None:
    cluster.decide(4, "before")
    finds = itertools.count(1)

    def decide_late() -> None:
        if next(finds) == 4:
            cluster.decide(5, "decided")

    cluster.before_find = decide_late
    assert agreed(5, is_first=False) == "decided"
    assert 0 < cluster.now < moments.FIRST_PART_SECONDS


def test_a_query_whose_beginning_is_cached_reads_at_the_only_moment_there_was(cluster: Cluster) -> None:
    cluster.decide(3, "before", planned_ms=77)
    cluster.decide(4, "before", planned_ms=77)
    assert agreed(5, is_first=False) == "before"
    assert cluster.decided[5].planned_ms == 77
    assert moments.FIRST_PART_SECONDS < cluster.now < moments.GIVE_UP_SECONDS


def test_where_nothing_was_ever_read_nothing_is_cached(cluster: Cluster) -> None:
    assert agreed(5, is_first=False) == "new 1"


@pytest.mark.parametrize("is_lost", [False, True])
def test_a_query_that_would_mix_two_moments_fails(cluster: Cluster, is_lost: bool) -> None:
    cluster.decide(3, "before")
    cluster.decide(4, "before" if is_lost else "after")
    cluster.lost = {"before"} if is_lost else set()
    with pytest.raises(UsageError, match="does not read the beginning of"):
        agreed(5, is_first=False)
    assert cluster.now > moments.GIVE_UP_SECONDS
    assert 5 not in cluster.decided


def test_the_next_worker_is_asked_if_one_is_silent(cluster: Cluster) -> None:
    cluster.decide(5, "decided")
    cluster.silent = {"first"}
    assert agreed(5) == "decided"
    assert cluster.asked == ["first", "third"]


def test_workers_are_asked_for_a_while_and_looked_for_anew(cluster: Cluster) -> None:
    cluster.silent = {"first", "third"}
    with pytest.raises(RetriableError, match="no worker of module m could agree"):
        agreed(5)
    assert cluster.now > moments.ASK_AGAIN_SECONDS
    cluster.silent = set()
    assert agreed(5) == "planned"


def test_names_of_loads_differ_and_those_with_the_same_options_do_not() -> None:
    assert new_name() != new_name()
    given = {"module": "m", "pstate": "counts"}
    assert name_of(given) == name_of(dict(reversed(given.items())))
    assert name_of(given) != name_of({"module": "m", "pstate": "other"})
    assert len(name_of(given)) == 36
    assert name_of(given)[:12] == "0" * 12


@pytest.mark.parametrize(("number", "query"), [("17", 17), (None, None), ("x", None)])
def test_the_number_of_a_query_is_that_of_its_task(
    monkeypatch: pytest.MonkeyPatch, number: str | None, query: int | None
) -> None:
    class Context:
        def getLocalProperty(self, name: str) -> str | None:  # noqa: N802 - Spark's name
            return number if name == "spark.sql.execution.root.id" else "99"

    assert query_of_task() is None
    monkeypatch.setattr(moments, "TaskContext", SimpleNamespace(get=Context))
    assert query_of_task() == query


def test_a_part_reads_under_the_pin_of_its_group() -> None:
    first, second = pinned("a", tasks=(0, 1)), pinned("b", tasks=(2,))
    moment = control.ReadMoment(query=1, planned_ms=0, pinned=(first, second))
    assert [pinned_of(moment, task).pin for task in (1, 2)] == ["a", "b"]
    with pytest.raises(UsageError, match="module m has no task 3 any more"):
        pinned_of(moment, 3)
    assert Plan.of("p", (first,)).is_first
    assert not Plan.of("p", (first,)).of_others.is_first


class Scanner:
    """Renews pins of a process; those that begin with x are lost, and nobody is at the address ``none``."""

    renewed: list[tuple[str, ...]]

    def __init__(self, first: PinnedGroup, _: object, *, timeout: float) -> None:
        assert timeout == renewing.ANSWER_SECONDS
        if first.address == "none":
            raise StrettoError("nothing answers")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def renew(self, names: tuple[str, ...]) -> list[str]:
        Scanner.renewed.append(names)
        return [name for name in names if name.startswith("x")]


def test_all_pins_of_a_process_are_renewed_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(renewing, "Scanner", Scanner)
    Scanner.renewed = []
    kept = [pinned("a1", address="a"), pinned("b1", address="b"), pinned("a2", address="a")]
    assert Pins.of(kept).renew(None)
    assert Scanner.renewed == [("a1", "a2"), ("b1",)]
    assert Pins().renew(None)
    for lost in (pinned("x", address="c"), pinned("n", address="none")):
        Scanner.renewed = []
        assert not Pins.of([lost, *kept]).renew(None)
        # The others are kept all the same.
        assert Scanner.renewed[-2:] == [("a1", "a2"), ("b1",)]


def test_pins_are_renewed_a_few_times_within_the_shortest_time_that_they_last() -> None:
    pins = Pins.of([pinned("a", address="a", idle_ms=8_000), pinned("b", address="b", idle_ms=4_000)])
    assert pins.every_seconds == 4_000 / 1_000 / renewing.TIMES
    assert Pins.of([pinned("a")]).every_seconds is None
    assert Pins().every_seconds is None


def test_pins_are_renewed_as_long_as_the_block_lasts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(renewing, "_latest", None)
    often = threading.Semaphore(0)

    def renew(*_: object) -> bool:
        often.release()
        return True

    monkeypatch.setattr(Pins, "renew", renew)
    pins = Pins.of([pinned("a", idle_ms=4)])
    with renewed(pins, None):
        thread = next(each for each in threading.enumerate() if each.name == "renewing")
        for _ in range(3):
            assert often.acquire(timeout=SECONDS)
    thread.join(SECONDS)
    assert not thread.is_alive()
    with renewed(Pins(), None):
        assert all(each.name != "renewing" for each in threading.enumerate())


def test_pins_that_another_task_has_just_renewed_are_not_renewed_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pins = Pins.of([pinned("a", idle_ms=4_000)])
    waited: list[float] = []

    class Over(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            waited.append(timeout or 0.0)
            return len(waited) > 1

    monkeypatch.setattr(Pins, "renew", lambda *_: True)
    monkeypatch.setattr(renewing, "time", SimpleNamespace(monotonic=lambda: 100.0))
    for latest, first in (((pins, 99.5), 0.5), ((pins, 90.0), 0.0), ((Pins(), 99.5), 0.0), (None, 0.0)):
        monkeypatch.setattr(renewing, "_latest", latest)
        waited.clear()
        renewing._renew(pins, None, 1.0, Over())
        assert waited == [first, 1.0]
        assert renewing._latest == (pins, 100.0)
