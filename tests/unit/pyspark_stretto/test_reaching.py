"""How the data source reaches a cluster, what it pins there, and what it says when it cannot."""

from __future__ import annotations

import os
import sys
from types import SimpleNamespace
from typing import Any, cast

import pytest
from pyspark.sql import SparkSession

from pyspark_stretto import connecting, errors, registering, states
from pyspark_stretto.options import Options
from pyspark_stretto.registering import register
from pyspark_stretto.source import DefaultSource
from pyspark_stretto.states import Described
from stretto import control
from stretto.client.reading.scan import PinnedGroup
from stretto.errors import RetriableError, StrettoError, UsageError
from stretto.vocabulary.groups import GroupKey
from stretto.vocabulary.types import Epoch, TaskId, WorkerId
from stretto.wire import messages as wire

DESCRIBED = Described(module="m", version=1, tasks=2, type=None, origin="")


def options(bootstrap: str = "a:1", **more: Any) -> Options:
    return Options(bootstrap=(bootstrap,), module="m", pstate="counts", **more)


# One connection for a process.


class Client:
    def __init__(self) -> None:
        self.is_closed = False

    def close(self) -> None:
        self.is_closed = True


@pytest.fixture
def connected(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, ...]]:
    made: list[tuple[str, ...]] = []

    def connect(bootstrap: tuple[str, ...], *, key: object, timeout: float) -> Client:
        assert (key, timeout) == (None, connecting.CONNECT_SECONDS)
        made.append(bootstrap)
        if bootstrap == ("nobody:1",):
            raise RetriableError("no worker answered")
        return Client()

    monkeypatch.setattr(connecting, "_current", None)
    monkeypatch.setattr(connecting, "connect", connect)
    return made


def test_a_process_has_one_connection_and_keeps_it(connected: list[tuple[str, ...]]) -> None:
    first: Any = connecting.client_of(options())
    again: Any = connecting.client_of(options())
    assert again is first
    second: Any = connecting.client_of(options("b:1"))
    assert (first.is_closed, second.is_closed) == (True, False)
    assert connected == [("a:1",), ("b:1",)]
    with pytest.raises(RetriableError, match="no worker of the cluster answered at nobody:1: no worker"):
        connecting.client_of(options("nobody:1"))
    assert second.is_closed
    assert connecting.client_of(options("b:1")) is not second
    with pytest.raises(UsageError, match="say where the cluster is"):
        connecting.client_of(Options())


# Errors.


def test_an_error_of_stretto_is_told_without_a_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SPARK_HIDE_TRACEBACK", raising=False)
    with pytest.raises(ZeroDivisionError), errors.plainly():
        raise ZeroDivisionError
    assert "SPARK_HIDE_TRACEBACK" not in os.environ
    monkeypatch.setenv("SPARK_HIDE_TRACEBACK", "0")
    with pytest.raises(UsageError), errors.plainly():
        raise UsageError("so not")
    assert os.environ["SPARK_HIDE_TRACEBACK"] == "1"


def test_the_sentence_of_stretto_is_found_in_what_spark_says() -> None:
    assert errors.sentence_of(UsageError("so not")) == "so not"
    assert errors.sentence_of(ValueError("Spark: x\nstretto.errors.UsageError: so not \nat b")) == "so not"
    assert errors.sentence_of(ValueError("it broke")) is None


# Registering.


class ActiveSession:
    """The active session as the JVM keeps it: a Scala option of one."""

    def __init__(self, name: str | None) -> None:
        self.name = name

    def getActiveSession(self) -> Any:  # noqa: N802 - Spark's name
        name = self.name
        return SimpleNamespace(isDefined=lambda: name is not None, get=lambda: name)

    def setActiveSession(self, name: str) -> None:  # noqa: N802
        self.name = name

    def clearActiveSession(self) -> None:  # noqa: N802
        self.name = None


class Session(SparkSession):
    """Only what registering looks at; with what each source is registered to be run, and in which session."""

    def __init__(self, master: str, *, active: str | None = None, **conf: str) -> None:
        self.registered: list[tuple[type, str, str | None]] = []
        settings = SimpleNamespace(contains=conf.__contains__)
        self.context = SimpleNamespace(getConf=lambda: settings, master=master, pythonExec="another")
        self.sessions = ActiveSession(active)
        self._jvm = SimpleNamespace(**{"org.apache.spark.sql.classic.SparkSession": self.sessions})
        self._jsparkSession = "this"

    @property
    def sparkContext(self) -> Any:  # noqa: N802 - Spark's name
        return self.context

    @property
    def dataSource(self) -> Any:  # noqa: N802
        def register(source: type) -> None:
            self.registered.append((source, self.context.pythonExec, self.sessions.name))

        return SimpleNamespace(register=register)


@pytest.mark.parametrize(
    ("master", "conf", "named", "python"),
    [
        ("local[2]", {}, False, sys.executable),
        ("local[2]", {}, True, "another"),
        ("local[2]", {"spark.pyspark.python": "p"}, False, "another"),
        ("spark://h:1", {}, False, "another"),
    ],
)
def test_on_a_local_master_the_source_runs_with_the_python_of_the_caller(
    monkeypatch: pytest.MonkeyPatch, master: str, conf: dict[str, str], named: bool, python: str
) -> None:
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
    if named:
        monkeypatch.setenv("PYSPARK_PYTHON", "p")
    session = Session(master, **conf)
    register(session)
    assert session.registered == [(DefaultSource, python, "this")]
    assert session.context.pythonExec == "another"


@pytest.mark.parametrize("active", [None, "before"])
def test_the_session_that_was_active_before_registering_is_active_after_it(active: str | None) -> None:
    session = Session("local[2]", active=active)
    register(session)
    assert (session.registered[0][2], session.sessions.name) == ("this", active)


def test_a_session_of_spark_connect_has_a_python_of_its_own() -> None:
    registered: list[type] = []
    remote = SimpleNamespace(dataSource=SimpleNamespace(register=registered.append))
    registering.register(cast(Any, remote))
    assert registered == [DefaultSource]


# Pins.


def pinned(*, version: int = 1, max_age_ms: int = 60_000) -> PinnedGroup:
    return PinnedGroup(
        pin="p",
        module="m",
        group="m/1/0",
        worker="w0",
        address="a",
        offset=7,
        epoch=1,
        version=version,
        tasks=(0, 1),
        max_age_ms=max_age_ms,
    )


@pytest.fixture
def pins(monkeypatch: pytest.MonkeyPatch) -> Any:
    """What is pinned, how, and what is let go."""
    told = SimpleNamespace(found=(pinned(),), asked={}, released=[])

    def pin_module(_: object, module: str, **asked: Any) -> tuple[PinnedGroup, ...]:
        assert module == "m"
        told.asked = asked
        return cast(tuple[PinnedGroup, ...], told.found)

    monkeypatch.setattr(states, "pin_module", pin_module)
    monkeypatch.setattr(states, "release", lambda each, _: told.released.append(each))
    return told


def test_pins_of_queries_last_for_a_query_and_those_that_are_held_as_long_as_told(pins: Any) -> None:
    cluster: Any = None
    assert states.pin(cluster, options(), DESCRIBED) == pins.found
    assert (pins.asked["idle_ms"], pins.asked["hold_ms"]) == (states.QUERY_IDLE_MS, 0)
    states.pin(cluster, options(hold_ms=5_000), DESCRIBED)
    assert (pins.asked["idle_ms"], pins.asked["hold_ms"]) == (None, 5_000)
    states.pin(cluster, options(moment="load"), DESCRIBED)
    assert pins.asked["idle_ms"] is None
    assert pins.asked["source"] == "follower"
    assert pins.released == []


def test_pins_that_do_not_fit_are_let_go(pins: Any) -> None:
    cluster: Any = None
    states.pin(cluster, options(hold_ms=60_000), DESCRIBED)
    with pytest.raises(UsageError, match=r"hold.seconds is 60, and a pin lasts at most 60 s here"):
        states.pin(cluster, options(hold_ms=60_001), DESCRIBED)
    assert pins.released == [pins.found]
    pins.found = (pinned(), pinned(version=2))
    with pytest.raises(UsageError, match="module m was updated from version 1 to 2"):
        states.pin(cluster, options(), DESCRIBED)
    assert pins.released[1:] == [pins.found]


def test_a_module_is_described_by_the_first_of_its_workers_that_answers() -> None:
    workers = tuple(WorkerId(f"w{number}") for number in range(3))
    view = wire.GroupView(GroupKey("m", 1, 0), (TaskId(0),), workers, Epoch(1), workers[0], workers, 2)
    described = control.ModuleDescription(tasks=2, depots=None)
    asked: list[str] = []

    def ask_worker(address: str, call: control.Describe) -> control.ModuleDescription:
        asked.append(address)
        assert call == control.Describe(module="m")
        if address == "second":
            raise StrettoError("it stops")
        return described

    def cluster(**addresses: str) -> Any:
        found = {WorkerId(worker): address for worker, address in addresses.items()}
        return SimpleNamespace(metadata=lambda: wire.Metadata(0, found, (view,)), ask_worker=ask_worker)

    assert states._ask(cluster(w1="second", w2="third"), "m") == described
    assert asked == ["second", "third"]
    with pytest.raises(RetriableError, match="module m cannot be read now: it stops; see"):
        states._ask(cluster(w1="second"), "m")
    with pytest.raises(RetriableError, match="none of its workers can be found"):
        states._ask(cluster(), "m")
