"""What a worker asks of the metastore and when, with a client whose answers the test gives."""

from __future__ import annotations

from typing import Any

import pytest
from kazoo.exceptions import ConnectionLoss
from kazoo.protocol.states import KazooState

from stretto.replog.core.effects import ReadRecord
from stretto.replog.core.events import Event, ReadFailed
from stretto.replog.core.record import Registration
from stretto.vocabulary.groups import GroupKey
from stretto.vocabulary.invariants import present
from stretto.vocabulary.types import Incarnation, Millis, WorkerId
from stretto.zk.metastore import Metastore
from stretto.zk.znodes.paths import Paths
from stretto.zk.znodes.records import WorkerRegistration
from tests.unit.zk.clients import FakeClient

ME = WorkerId("w0")
OTHER = Registration(WorkerId("w1"), Incarnation("i1"))
GROUP = GroupKey("counts", 1, 0)
PATHS = Paths("/stretto")


class Listener:
    def __init__(self) -> None:
        self.renewed: list[Millis] = []
        self.events: list[Event] = []
        self.started = 0

    def session_started(self, _: Incarnation) -> None:
        self.started += 1

    def session_expired(self) -> None: ...

    def lease_renewed(self, sent_at_ms: Millis) -> None:
        self.renewed.append(sent_at_ms)

    def group_event(self, _: GroupKey, event: Event) -> None:
        self.events.append(event)

    def options_changed(self, _: object) -> None: ...

    def spec_changed(self, _: object) -> None: ...


class Driven:
    """A metastore under test, whose session is told by the test what becomes of its connection."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, options_of: str | None = None) -> None:
        self.now = 1_000
        monkeypatch.setattr("stretto.zk.metastore.boot_time_ms", lambda: Millis(self.now))
        self.listener = Listener()
        self.metastore = Metastore(
            "127.0.0.1:1",
            paths=PATHS,
            worker=ME,
            session_timeout_ms=6_000,
            registration=lambda incarnation: WorkerRegistration(
                worker=ME, incarnation=incarnation, node="n", address="tcp://127.0.0.1:1"
            ),
            listener=self.listener,
            options_of=options_of,
        )
        self.session = present(self.metastore._session, "session")
        self.client = FakeClient(PATHS.registration(ME, self.session.incarnation))
        self.session._client = self.client  # type: ignore[assignment]

    def connect(self) -> None:
        self.session._state_changed(KazooState.CONNECTED)

    def answer(self, name: str, value: Any = None, exception: Exception | None = None) -> None:
        """The latest call of that name."""
        next(answer for each, answer in reversed(self.client.calls) if each == name).give(value, exception)


@pytest.fixture
def driven(monkeypatch: pytest.MonkeyPatch) -> Driven:
    """Registered; the first renewal of its lease is on its way."""
    driven = Driven(monkeypatch)
    driven.connect()
    driven.answer("create")
    assert driven.client.names == ["create", "write"]
    return driven


def test_a_lease_counts_from_when_its_renewal_was_sent(driven: Driven) -> None:
    """The ensemble may have heard it just then, and lets the session expire from there."""
    driven.now = 3_500
    driven.answer("write", [True])
    assert driven.listener.renewed == [1_000]
    driven.now = 4_000
    driven.metastore._ticked(driven.session)
    driven.now = 9_999
    driven.metastore._ticked(driven.session)
    driven.answer("write", [True])
    assert driven.listener.renewed == [1_000, 4_000]


def test_a_renewal_that_failed_renews_nothing(driven: Driven) -> None:
    driven.answer("write", exception=ConnectionLoss())
    assert driven.listener.renewed == []


def test_a_read_that_must_be_of_now_comes_after_a_write(driven: Driven) -> None:
    """Without, a server that lags, or a deposed leader of the ensemble, answers with what was."""
    before = len(driven.client.calls)
    driven.metastore.read(GROUP, ReadRecord(token=1, sync=True))
    assert driven.client.names[before:] == ["write", f"get {PATHS.group(GROUP)}"]
    driven.answer("write", exception=ConnectionLoss())
    driven.answer(f"get {PATHS.group(GROUP)}", (b"perhaps old", None))
    assert driven.listener.events == [ReadFailed(token=1)]

    before = len(driven.client.calls)
    driven.metastore.read(GROUP, ReadRecord(token=2, sync=False))
    assert driven.client.names[before:] == [f"get {PATHS.group(GROUP)}"]


def test_whether_others_live_is_asked_after_a_write(driven: Driven) -> None:
    before = len(driven.client.calls)
    driven.metastore.check(GROUP, OTHER)
    driven.metastore.look_for_members(GROUP, 1)
    assert driven.client.names[before:] == [
        "write",
        f"test {PATHS.registration_of(OTHER)}",
        "write",
        f"get {PATHS.group(GROUP)}",
    ]


def test_what_a_worker_goes_by_is_read_after_a_write_before_it_registers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    driven = Driven(monkeypatch, options_of="counts")
    driven.client.registration_path = "/"
    driven.connect()
    spec = PATHS.spec("counts")
    assert driven.client.names == ["write", f"test {PATHS.options}", "write", f"get {spec}"]
    assert driven.listener.started == 0
