"""An ensemble of three that loses its leader while records change."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from stretto.replog.core.effects import CompareAndSet, ReadRecord
from stretto.replog.core.events import CasOutcome, CasReply, ReadFailed, RecordRead
from stretto.replog.core.record import GroupRecord
from stretto.vocabulary.clock import boot_time_ms
from stretto.vocabulary.types import Epoch
from stretto.zk.metastore import Metastore
from stretto.zk.server.ensemble import EmbeddedEnsemble
from tests.support.recorder import Expired, Recorder, Renewed, Started
from tests.support.servers import GROUP, Workers
from tests.support.waiting import DEADLINE_SECONDS, wait_until

CREATED = GroupRecord(epoch=Epoch(0), leader=None, leader_incarnation=None, isr=())


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedEnsemble]:
    folder: Path = tmp_path_factory.mktemp("ensemble")
    with EmbeddedEnsemble(folder, fsync=False) as ensemble:
        yield ensemble


@pytest.fixture
def ensemble(servers: EmbeddedEnsemble) -> EmbeddedEnsemble:
    """Whole, whatever the test before did to it."""
    servers.start()
    return servers


def _is_answer_to(token: int, reply: CasReply) -> bool:
    return reply.token == token


class Counter:
    """Counts up in the epoch of the record, as a leader would change it: never blindly."""

    def __init__(self, metastore: Metastore, recorder: Recorder) -> None:
        self._metastore = metastore
        self._recorder = recorder
        self._token = 0
        self.version = 0
        self.unknown = 0

    def count_to(self, end: int) -> None:
        while self.version < end:
            self._token += 1
            token = self._token
            wanted = Epoch(self.version + 1)
            record = GroupRecord(epoch=wanted, leader=None, leader_incarnation=None, isr=())
            self._metastore.compare_and_set(
                GROUP, CompareAndSet(token=token, version=self.version, record=record)
            )
            reply = self._recorder.wait_event(CasReply, partial(_is_answer_to, token))
            if reply.outcome is CasOutcome.OK:
                assert reply.version == self.version + 1
                self.version += 1
            else:
                assert reply.outcome is CasOutcome.UNKNOWN
                self.unknown += 1
                self._settle()

    def _settle(self) -> None:
        """Nobody else writes: the record is at our version, or one further."""
        read = self.read()
        assert self.version <= read.version <= self.version + 1
        assert read.record.epoch == read.version
        self.version = read.version

    def read(self) -> RecordRead:
        for _ in range(int(DEADLINE_SECONDS * 20)):
            self._token += 1
            token = self._token
            self._metastore.read(GROUP, ReadRecord(token=token))
            answer = self._recorder.wait("an answer", partial(self._answer_to, token))
            if isinstance(answer, RecordRead):
                return answer
            self._wait_for_connection()
        pytest.fail("no read was answered")

    def _answer_to(self, token: int, _: object) -> RecordRead | ReadFailed | None:
        reads, failures = self._recorder.events(RecordRead), self._recorder.events(ReadFailed)
        answers: list[RecordRead | ReadFailed] = [*reads, *failures]
        return next((each for each in answers if each.token == token), None)

    def _wait_for_connection(self) -> None:
        before = len(self._recorder.of(Renewed))
        self._recorder.wait("a renewal", lambda _: len(self._recorder.of(Renewed)) > before)


def test_changes_go_on_over_the_loss_of_the_ensembles_leader(
    ensemble: EmbeddedEnsemble, workers: Workers
) -> None:
    metastore, recorder = workers.open(ensemble.hosts, "a")
    _, observer = workers.open(ensemble.hosts, "b")
    assert metastore.create_group(GROUP, CREATED).result(30)
    counter = Counter(metastore, recorder)
    counter.count_to(30)
    leader = ensemble.leader()
    leader.kill()
    counter.count_to(60)
    leader.start()
    assert ensemble.leader() is not leader
    ensemble.leader().kill()
    counter.count_to(90)
    assert counter.read().version == 90
    assert counter.read().record.epoch == 90
    # Sessions outlive a leader: the worker is the same incarnation, unless the ensemble was long without one.
    assert len(recorder.of(Started)) == 1 + len(recorder.of(Expired))
    assert observer.of(Started)


def test_a_worker_that_loses_the_quorum_has_no_lease(ensemble: EmbeddedEnsemble, workers: Workers) -> None:
    metastore, recorder = workers.open(ensemble.hosts, "a")
    leader = ensemble.leader()
    others = [server for server in ensemble.servers if server is not leader]
    for server in others:
        server.kill()
    killed_at = boot_time_ms()

    def renewed() -> bool:
        return any(each.sent_at > killed_at for each in recorder.of(Renewed))

    wait_until("it is suspended", lambda: not metastore._session or not metastore._session.is_connected)
    assert not renewed()
    for server in others:
        server.launch()
    recorder.wait("a renewal", lambda _: renewed())
