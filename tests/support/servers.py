"""One ZooKeeper for all tests of a pytest process, and a part of it for each test."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from kazoo.client import KazooClient

from stretto.vocabulary.groups import GroupKey
from stretto.vocabulary.types import StorageId, WorkerId
from stretto.zk.metastore import Metastore
from stretto.zk.server.embedded import EmbeddedZooKeeper
from stretto.zk.sessions.credentials import Credentials
from stretto.zk.znodes.paths import Paths
from stretto.zk.znodes.records import WorkerRegistration
from tests.support.proxy import Proxy
from tests.support.recorder import Recorder

#: Session timeout that is short, so that expiry is soon, but long enough for a busy machine.
SESSION_TIMEOUT_MS = 2000
#: Session timeout of tests whose session is to live on: through a flood, or while its connection is cut.
LONG_SESSION_TIMEOUT_MS = 20_000
GROUP = GroupKey("counts", 1, 0)

_SHARED = pytest.StashKey[EmbeddedZooKeeper]()


@pytest.fixture(scope="session")
def zookeeper(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> EmbeddedZooKeeper:
    """Start one ZooKeeper for all modules that import this fixture; it is stopped when pytest ends."""
    stash = request.config.stash
    if _SHARED not in stash:
        server = EmbeddedZooKeeper(tmp_path_factory.mktemp("zookeeper"), tick_ms=300, fsync=False)
        server.start()
        request.config.add_cleanup(server.stop)
        stash[_SHARED] = server
    return stash[_SHARED]


@pytest.fixture
def paths() -> Paths:
    """Return the paths under a root of the test's own."""
    return Paths(f"/test-{secrets.token_hex(4)}")


class Workers:
    """Metastores of workers that a test opens; all are closed at its end."""

    def __init__(self, paths: Paths, closing: ExitStack) -> None:
        self.paths = paths
        self._closing = closing

    def open(
        self,
        hosts: str,
        worker: str,
        *,
        storage: str | None = None,
        credentials: Credentials | None = None,
        groups: tuple[GroupKey, ...] = (GROUP,),
        options_of: str | None = None,
        starts: bool = True,
        session_timeout_ms: int = SESSION_TIMEOUT_MS,
    ) -> tuple[Metastore, Recorder]:
        """Open the metastore of a worker; returns when its session has started, if it ``starts``."""
        recorder = Recorder()
        metastore = Metastore(
            hosts,
            paths=self.paths,
            worker=WorkerId(worker),
            session_timeout_ms=session_timeout_ms,
            registration=lambda incarnation: WorkerRegistration(
                worker=WorkerId(worker),
                incarnation=incarnation,
                node=f"node-of-{worker}",
                address="127.0.0.1:1",
                members={str(group): StorageId(storage or f"disk-of-{worker}") for group in groups},
            ),
            listener=recorder,
            options_of=options_of,
            credentials=credentials,
        )
        self._closing.callback(metastore.close)
        metastore.start()
        if starts:
            recorder.wait_started()
        return metastore, recorder


@pytest.fixture
def workers(paths: Paths) -> Iterator[Workers]:
    with ExitStack() as closing:
        yield Workers(paths, closing)


@pytest.fixture
def proxy(zookeeper: EmbeddedZooKeeper) -> Iterator[Proxy]:
    with Proxy(zookeeper.port) as between:
        yield between


@pytest.fixture
def operator(zookeeper: EmbeddedZooKeeper) -> Iterator[KazooClient]:
    """Yield a plain client of ZooKeeper, for what an operator does."""
    client = KazooClient(zookeeper.address)
    client.start()
    yield client
    client.stop()
    client.close()
