"""The order of requests and their answers, with a client whose answers the test gives."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import ConnectionLoss, NoNodeError, SessionExpiredError
from kazoo.protocol.states import KazooState

from stretto.vocabulary.invariants import InvariantViolation
from stretto.zk.sessions.session import WINDOW, Session
from tests.unit.zk.clients import FakeClient


class Owner:
    def __init__(self) -> None:
        self.heard: list[str] = []

    def connected(self, session: Session) -> None:
        self.heard.append("connected")

    def over(self, session: Session) -> None:
        self.heard.append("over")

    def failed(self, error: BaseException) -> None:
        self.heard.append(f"failed: {error}")


class Driven:
    """A session under test."""

    def __init__(self) -> None:
        self.owner = Owner()
        self.client = FakeClient("/me")
        self.session = Session(
            "127.0.0.1:1", timeout_ms=1000, credentials=None, lock=threading.RLock(), owner=self.owner
        )
        self.session._client = self.client  # type: ignore[assignment]
        self.session.registration_path = "/me"
        self.answers: list[tuple[str, Any]] = []

    def state(self, state: str) -> None:
        self.session._state_changed(state)

    def ask(self, name: str, *, synced: bool = False) -> None:
        def send(client: KazooClient) -> Any:
            return client.call(name)

        def done(value: Any, error: Exception | None) -> None:
            self.answers.append((name, value if error is None else type(error)))

        (self.session.submit_synced if synced else self.session.submit)(send, done)


@pytest.fixture
def driven() -> Driven:
    driven = Driven()
    driven.state(KazooState.CONNECTED)
    return driven


def test_without_a_connection_a_request_fails_at_once(driven: Driven) -> None:
    driven.state(KazooState.SUSPENDED)
    driven.ask("a")
    driven.ask("b", synced=True)
    assert driven.answers == [("a", ConnectionLoss), ("b", ConnectionLoss)]
    assert driven.client.calls == []
    driven.state(KazooState.CONNECTED)
    driven.ask("c")
    assert driven.client.names == ["c"]
    assert driven.owner.heard == ["connected", "connected"]


def test_few_requests_are_on_their_way_and_in_order(driven: Driven) -> None:
    names = [str(number) for number in range(3 * WINDOW)]
    for name in names:
        driven.ask(name)
    assert driven.client.names == names[:WINDOW]
    for number in range(len(names)):
        driven.client.calls[number][1].give(number)
    assert driven.client.names == names
    assert driven.answers == [(name, int(name)) for name in names]


def test_the_renewal_of_the_lease_goes_before_what_waits(driven: Driven) -> None:
    for number in range(2 * WINDOW):
        driven.ask(str(number))
    driven.session.pulse(lambda *_: None)
    driven.client.calls[0][1].give()
    assert driven.client.names[WINDOW] == "write"


def test_a_busy_server_is_not_a_silent_one(driven: Driven, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr("stretto.zk.sessions.session.time.monotonic", lambda: now)
    assert driven.session.silent_ms == 0
    for number in range(3):
        driven.ask(str(number))
    for number in range(2):
        now += 1.0
        driven.client.calls[number][1].give()
        assert driven.session.silent_ms == 0
    now += 1.5
    assert driven.session.silent_ms == 1500
    driven.client.calls[2][1].give()
    now += 1.0
    assert driven.session.silent_ms == 0


def test_a_synced_read_comes_after_a_write_of_its_own_time(driven: Driven) -> None:
    driven.ask("read", synced=True)
    driven.ask("again", synced=True)
    assert driven.client.names == ["write", "read", "write", "again"]
    driven.client.calls[0][1].give([True])
    driven.client.calls[1][1].give("value")
    assert driven.answers == [("read", "value")]


def test_a_synced_read_without_its_write_is_no_answer(driven: Driven) -> None:
    driven.ask("read", synced=True)
    driven.client.calls[0][1].give(exception=ConnectionLoss())
    driven.client.calls[1][1].give("perhaps old")
    assert driven.answers == [("read", ConnectionLoss)]


def test_synced_reads_that_wait_share_one_write(driven: Driven) -> None:
    for number in range(WINDOW):
        driven.ask(str(number))
    for number in range(100):
        driven.ask(f"read {number}", synced=True)
    for number in range(WINDOW):
        driven.client.calls[number][1].give()
    names = driven.client.names[WINDOW:]
    assert names[:3] == ["write", "read 0", "read 1"]
    assert names.count("write") == 1
    # It has been sent: what is asked from now on needs another.
    driven.ask("later", synced=True)
    for name, answer in driven.client.sent_from(WINDOW):
        answer.give([True] if name == "write" else name)
    assert driven.client.names.count("write") == 2
    assert driven.answers[-1] == ("later", "later")


def test_an_expired_session_answers_everything_once_before_it_is_told(driven: Driven) -> None:
    for number in range(WINDOW + 2):
        driven.ask(str(number))
    sent = [answer for _, answer in driven.client.calls]
    driven.state(KazooState.LOST)
    assert sorted(driven.answers) == sorted(
        (str(number), SessionExpiredError) for number in range(WINDOW + 2)
    )
    assert driven.owner.heard == ["connected", "over"]
    for answer in sent:
        answer.give("too late")
    assert len(driven.answers) == WINDOW + 2
    assert len(driven.client.calls) == WINDOW


def test_nothing_more_is_sent_for_a_session_that_is_over(driven: Driven) -> None:
    """Kazoo goes on by itself, under a session that is not ours."""
    driven.state(KazooState.LOST)
    driven.state(KazooState.CONNECTED)
    driven.ask("a")
    driven.ask("b", synced=True)
    assert driven.answers == [("a", SessionExpiredError), ("b", SessionExpiredError)]
    assert driven.client.calls == []
    assert driven.owner.heard == ["connected", "over"]


def test_whose_registration_was_deleted_is_over(driven: Driven) -> None:
    outcomes: list[Exception | None] = []
    driven.session.pulse(lambda _, error: outcomes.append(error))
    driven.ask("waiting")
    driven.client.calls[0][1].give([NoNodeError()])
    assert driven.owner.heard == ["connected", "over"]
    assert driven.answers == [("waiting", SessionExpiredError)]
    assert [type(each) for each in outcomes] == [NoNodeError]


@pytest.mark.parametrize("error", [ValueError("no number"), InvariantViolation("two leaders", {})])
def test_a_failure_on_a_thread_of_kazoo_is_told_and_what_waits_goes_on(
    driven: Driven, error: BaseException
) -> None:
    def done(*_: object) -> None:
        raise error

    driven.session.submit(lambda client: client.call("bad"), done)
    for number in range(WINDOW):
        driven.ask(str(number))
    assert len(driven.client.calls) == WINDOW
    driven.client.calls[0][1].give()
    assert driven.owner.heard == ["connected", f"failed: {error}"]
    assert len(driven.client.calls) == WINDOW + 1
