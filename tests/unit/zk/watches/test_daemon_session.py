"""A daemon's place in the metastore, with sessions whose answers come when the test says so."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import pytest
from kazoo.exceptions import ConnectionLoss, NoAuthError, SessionExpiredError

from stretto.vocabulary.types import Incarnation
from stretto.zk.sessions.session import Done, MetastoreUnavailable, Send
from stretto.zk.watches import daemon_session as view_module
from stretto.zk.watches.daemon_session import DaemonSession
from tests.unit.zk.watches.fake_znodes import Questions, Znodes


class FakeSession(Questions):
    def __init__(self, incarnation: str, znodes: Znodes | None = None) -> None:
        super().__init__(znodes)
        self.incarnation = Incarnation(incarnation)
        self.registration_path = ""
        self.is_connected = True
        self.answers_at_once = False
        self.urgent = 0
        self.pulses = 0
        self.silent_ms = 0
        self.negotiated_timeout_ms = 3_000
        self.dropped = 0

    def submit(self, send: Send, done: Done, *, at_once: bool = False) -> None:
        self.urgent += at_once
        self.ask(send, done)
        if self.answers_at_once:
            self.settle()

    def pulse(self, done: Callable[..., None]) -> None:
        self.pulses += 1

    def drop_connection(self) -> None:
        self.dropped += 1

    def close(self) -> None:
        pass


class Daemon:
    """Registered as /c/nodes/<incarnation>, in its first session."""

    def __init__(self) -> None:
        self.started: list[Incarnation] = []
        self.view = DaemonSession(
            "127.0.0.1:1",
            session_timeout_ms=3_000,
            registration=lambda incarnation: (f"/c/nodes/{incarnation}", b"me"),
            started=self.started.append,
        )
        self.session = FakeSession("one")
        self.znodes = self.session.znodes
        self.view._session = cast(Any, self.session)

    def connect(self) -> None:
        self.view.connected(cast(Any, self.session))
        self.session.settle()

    def next_session(self, incarnation: str) -> None:
        self.znodes.forget_watches()
        self.session = FakeSession(incarnation, self.znodes)
        self.view._session = cast(Any, self.session)
        self.view._is_registered = False
        self.connect()

    def tick(self) -> None:
        later, self.view._later = self.view._later, []
        for again in later:
            again()
        self.session.settle()


@pytest.fixture
def daemon() -> Daemon:
    daemon = Daemon()
    daemon.connect()
    return daemon


def test_a_daemon_registers_once_in_each_session(daemon: Daemon) -> None:
    assert daemon.started == ["one"]
    assert daemon.znodes.data("/c/nodes/one") == b"me"
    assert daemon.znodes.ephemerals == {"/c/nodes/one"}
    assert daemon.session.registration_path == "/c/nodes/one"
    daemon.connect()
    assert daemon.started == ["one"]
    daemon.next_session("two")
    assert daemon.started == ["one", "two"]
    assert daemon.znodes.has("/c/nodes/two")


def test_a_registration_whose_answer_was_lost_is_found_there() -> None:
    daemon = Daemon()
    daemon.view.connected(cast(Any, daemon.session))
    daemon.session.answer(ConnectionLoss())
    assert daemon.started == []
    assert daemon.view._later == [], "the next connection tries again"
    daemon.znodes.put("/c/nodes/one", b"me")
    daemon.connect()
    assert daemon.started == ["one"]


def test_a_registration_that_is_refused_is_tried_again() -> None:
    daemon = Daemon()
    daemon.view.connected(cast(Any, daemon.session))
    daemon.session.answer(NoAuthError())
    assert daemon.started == []
    daemon.tick()
    assert daemon.started == ["one"]


def test_a_refused_registration_is_not_tried_again_in_another_session() -> None:
    daemon = Daemon()
    daemon.view.connected(cast(Any, daemon.session))
    old = daemon.session
    old.answer(NoAuthError())
    daemon.next_session("two")
    daemon.tick()
    assert old.count == 0
    assert daemon.started == ["two"]
    # Nor in one that has registered meanwhile.
    daemon.view.again_later(lambda: daemon.view._register(cast(Any, daemon.session)))
    later, daemon.view._later = daemon.view._later, []
    later[0]()
    assert daemon.session.count == 0


def test_an_earlier_session_registers_nothing_any_more() -> None:
    daemon = Daemon()
    daemon.view.connected(cast(Any, daemon.session))
    late = daemon.session
    daemon.next_session("two")
    late.settle()
    assert daemon.started == ["two"]
    daemon.view.connected(cast(Any, late))
    assert late.count == 0


def test_a_znode_is_told_at_once_and_with_every_change(daemon: Daemon) -> None:
    told: list[bytes | None] = []
    followed = daemon.view.follow_data("/c/a", told.append)
    daemon.session.settle()
    assert told == [None]
    for data in (b"1", b"2"):
        daemon.znodes.put("/c/a", data)
        daemon.session.settle()
    assert told == [None, b"1", b"2"]
    daemon.znodes.drop("/c/a")
    daemon.session.settle()
    assert told == [None, b"1", b"2", None]
    daemon.znodes.put("/c/a", b"3")
    daemon.session.settle()
    assert told[4:] == [b"3"]
    followed.again()
    daemon.session.settle()
    assert told[4:] == [b"3", b"3"]
    followed.stop()
    daemon.znodes.put("/c/a", b"4")
    daemon.connect()
    followed.again()
    daemon.session.settle()
    assert told[4:] == [b"3", b"3"]
    assert daemon.view.followed == {}


def test_however_often_a_znode_changes_one_read_is_under_way(daemon: Daemon) -> None:
    told: list[bytes | None] = []
    daemon.znodes.put("/c/a", b"0")
    followed = daemon.view.follow_data("/c/a", told.append)
    daemon.session.settle()
    followed.again()
    for number in range(1, 5):
        daemon.znodes.put("/c/a", b"%d" % number)
        followed.again()
    assert daemon.session.count == 1
    daemon.session.settle()
    assert told == [b"0", b"4", b"4"], "and one more, for what fired meanwhile"


def test_one_that_is_created_between_two_looks_is_told(daemon: Daemon) -> None:
    told: list[bytes | None] = []
    daemon.view.follow_data("/c/a", told.append)
    daemon.session.answer()
    daemon.znodes.put("/c/a", b"1")
    daemon.session.settle()
    assert told == [b"1"]


def test_children_are_told_but_for_names_that_nobody_gave(daemon: Daemon) -> None:
    told: list[list[str] | None] = []
    daemon.view.follow_children("/c/m", told.append)
    daemon.session.settle()
    for path in ("/c/m", "/c/m/a", "/c/m/zookeeper", "/c/m/b"):
        daemon.znodes.put(path, b"")
        daemon.session.settle()
    assert told[0] is None
    assert [sorted(each or []) for each in told[1:]] == [[], ["a"], ["a"], ["a", "b"]]


def test_what_cannot_be_read_is_not_told_as_missing_and_read_again(daemon: Daemon) -> None:
    told: list[bytes | None] = []
    daemon.znodes.put("/c/a", b"1")
    daemon.view.follow_data("/c/a", told.append)
    daemon.session.answer(NoAuthError())
    assert told == []
    daemon.tick()
    assert told == [b"1"]
    daemon.view.follow_data("/c/b", told.append)
    daemon.session.answer()
    daemon.session.answer(NoAuthError())
    assert told == [b"1"]
    daemon.tick()
    assert told == [b"1", None]


def test_after_a_lost_connection_all_is_read_again_and_old_answers_are_void(daemon: Daemon) -> None:
    told: list[bytes | None] = []
    daemon.znodes.put("/c/a", b"1")
    daemon.view.follow_data("/c/a", told.append)
    daemon.session.answer(ConnectionLoss())
    assert daemon.view._later == []
    daemon.znodes.forget_watches()
    daemon.connect()
    assert told == [b"1"]
    old = daemon.session
    daemon.znodes.put("/c/a", b"2")
    daemon.next_session("two")
    old.settle()
    assert told == [b"1", b"2"]


def test_a_deletion_is_sent_until_it_is_done_and_told_to_all_who_wanted_it(daemon: Daemon) -> None:
    daemon.znodes.put("/c/a", b"")
    gone: list[int] = []
    daemon.view.delete("/c/a", lambda: gone.append(1))
    daemon.view.delete("/c/a", lambda: gone.append(2))
    assert daemon.session.count == 1
    assert daemon.session.urgent == 1
    daemon.session.answer(ConnectionLoss())
    assert gone == []
    assert daemon.view._later == []
    daemon.connect()
    assert gone == [1, 2]
    assert not daemon.znodes.has("/c/a")
    daemon.connect()
    assert gone == [1, 2]
    daemon.view.delete("/c/a", lambda: gone.append(3))
    daemon.session.answer(NoAuthError())
    assert gone == [1, 2]
    daemon.tick()
    assert gone == [1, 2, 3], "what is not there is gone"
    # Wanted anew, it is done anew.
    daemon.znodes.put("/c/a", b"")
    daemon.view.delete("/c/a", lambda: gone.append(4))
    daemon.session.settle()
    assert gone == [1, 2, 3, 4]
    assert not daemon.znodes.has("/c/a")


def test_what_is_written_is_created_or_replaced_until_it_is_there(daemon: Daemon) -> None:
    daemon.znodes.put("/c", b"")
    daemon.view.write("/c/a", b"1")
    daemon.session.answer(ConnectionLoss())
    assert not daemon.znodes.has("/c/a")
    assert daemon.view._later == []
    daemon.connect()
    assert daemon.znodes.data("/c/a") == b"1"
    daemon.view.write("/c/a", b"2")
    daemon.session.settle()
    assert daemon.znodes.data("/c/a") == b"2"
    daemon.znodes.put("/c/a", b"by another")
    daemon.connect()
    assert daemon.znodes.data("/c/a") == b"by another", "what is done is done"
    daemon.view.write("/c/a", b"3")
    daemon.session.answer()
    daemon.session.answer(NoAuthError())
    daemon.tick()
    assert daemon.znodes.data("/c/a") == b"3"


def test_what_is_written_meanwhile_is_written_too(daemon: Daemon) -> None:
    daemon.znodes.put("/c", b"")
    daemon.view.write("/c/a", b"1")
    daemon.view.write("/c/a", b"2")
    daemon.session.answer()
    daemon.session.answer(ConnectionLoss())
    assert daemon.znodes.data("/c/a") == b"1"
    daemon.connect()
    assert daemon.znodes.data("/c/a") == b"2"


def test_what_has_no_parent_any_more_is_not_written(daemon: Daemon) -> None:
    daemon.view.write("/gone/a", b"1")
    daemon.session.settle()
    daemon.znodes.put("/gone", b"")
    daemon.connect()
    assert not daemon.znodes.has("/gone/a")


def test_who_may_wait_reads_once(daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    daemon.session.answers_at_once = True
    daemon.znodes.put("/c", b"root")
    daemon.znodes.put("/c/zookeeper", b"")
    assert daemon.view.data("/c") == b"root"
    assert daemon.view.data("/x") is None
    assert daemon.view.children("/c") == []
    daemon.znodes.put("/c/a", b"")
    assert daemon.view.children("/c") == ["a"]
    assert daemon.view.children("/x") == []
    daemon.session.answers_at_once = False
    monkeypatch.setattr(view_module, "WAIT_SECONDS", 0.01)
    with pytest.raises(MetastoreUnavailable, match="did not answer; try again"):
        daemon.view.data("/c")
    monkeypatch.setattr(daemon.session, "submit", lambda _, done, **__: done(None, SessionExpiredError()))
    with pytest.raises(MetastoreUnavailable):
        daemon.view.data("/c")
    daemon.view._session = None
    monkeypatch.setattr(view_module, "WAIT_SECONDS", 10.0)
    with pytest.raises(MetastoreUnavailable):
        daemon.view.children("/c")
    assert not daemon.view.is_connected


def test_a_connected_session_gives_signs_of_life_and_a_silent_one_is_dropped(daemon: Daemon) -> None:
    assert daemon.view.is_connected
    daemon.view._tick_session()
    assert (daemon.session.pulses, daemon.session.dropped) == (1, 0)
    daemon.session.silent_ms = 2_000
    daemon.view._tick_session()
    assert daemon.session.dropped == 0
    daemon.session.silent_ms = 2_001
    daemon.view._tick_session()
    assert daemon.session.dropped == 1
    daemon.session.is_connected = False
    daemon.view._tick_session()
    assert (daemon.session.pulses, daemon.session.dropped) == (3, 1)
    assert not daemon.view.is_connected


def test_a_closed_view_follows_nothing(daemon: Daemon) -> None:
    daemon.view.follow_data("/c/a", lambda _: None)
    daemon.view.close()
    assert daemon.view.followed == {}
