"""The spec of a worker's module: known before its session begins, and followed from then on."""

from __future__ import annotations

import msgspec
from kazoo.client import KazooClient

from stretto.specs.modules import ModuleSpec, ModuleState
from stretto.zk.server.embedded import EmbeddedZooKeeper
from stretto.zk.znodes.records import encode
from tests.support.proxy import Proxy
from tests.support.recorder import Recorder, Specified, Started
from tests.support.servers import Workers
from tests.support.waiting import wait_until

SPEC = ModuleSpec(
    artifact="d" * 64, tasks=1, threads=1, workers=1, replication_factor=1, state=ModuleState.RUNNING
)
PAUSED = msgspec.structs.replace(SPEC, state=ModuleState.PAUSED)


def told(recorder: Recorder) -> list[ModuleSpec | None]:
    return [each.spec for each in recorder.of(Specified)]


def test_a_session_begins_with_the_spec_and_each_change_is_told_once(
    zookeeper: EmbeddedZooKeeper, workers: Workers, operator: KazooClient
) -> None:
    path = workers.paths.spec("counts")
    operator.create(path, encode(SPEC), makepath=True)
    _, recorder = workers.open(zookeeper.address, "a", options_of="counts")
    before = recorder.heard[: [isinstance(each, Started) for each in recorder.heard].index(True)]
    assert Specified(SPEC) in before
    operator.set(path, encode(PAUSED))
    wait_until("it is told", lambda: told(recorder) == [SPEC, PAUSED])
    operator.set(path, encode(PAUSED))
    operator.set(path, b"{")
    operator.delete(path)
    wait_until("it is told that it is gone", lambda: told(recorder) == [SPEC, PAUSED, None])
    operator.create(path, encode(SPEC))
    wait_until("it is told that it is back", lambda: told(recorder) == [SPEC, PAUSED, None, SPEC])


def test_a_worker_that_was_away_learns_of_a_pause_before_it_registers_again(
    zookeeper: EmbeddedZooKeeper, workers: Workers, operator: KazooClient, proxy: Proxy
) -> None:
    path = workers.paths.spec("counts")
    operator.create(path, encode(SPEC), makepath=True)
    _, recorder = workers.open(proxy.address, "a", options_of="counts")
    proxy.cut()
    operator.set(path, encode(PAUSED))
    wait_until("its registration is gone", lambda: not _registered(workers, operator))
    proxy.heal()
    recorder.wait_started(2)
    second = [index for index, each in enumerate(recorder.heard) if isinstance(each, Started)][1]
    assert Specified(PAUSED) in recorder.heard[:second]


def _registered(workers: Workers, operator: KazooClient) -> list[str]:
    return list(operator.get_children(f"{workers.paths.workers}/a"))


def test_no_session_begins_on_a_spec_that_cannot_be_read(
    zookeeper: EmbeddedZooKeeper, workers: Workers, operator: KazooClient
) -> None:
    path = workers.paths.spec("counts")
    operator.create(path, b"{", makepath=True)
    metastore, recorder = workers.open(zookeeper.address, "a", options_of="counts", starts=False)
    spec = metastore._spec
    assert spec is not None
    wait_until("it has read the damage", lambda: spec._znode.problem)
    assert metastore.incarnation is None
    operator.set(path, encode(SPEC))
    recorder.wait_started()
    assert told(recorder) == [SPEC]
