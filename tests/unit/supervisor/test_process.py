from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest

from stretto.errors import UsageError
from stretto.supervisor.children import PATIENCE_MS
from stretto.supervisor.process import Supervisor, SupervisorConfig, _Post
from stretto.vocabulary.types import Millis, WorkerId
from tests.unit.supervisor.deaf import command


@pytest.mark.parametrize(
    ("flags", "why"),
    [
        ({"address": "0.0.0.0:0"}, "needs the cluster key"),
        ({"zookeeper": "localhost:port"}, "is not a ZooKeeper connection string"),
        ({"node": "a/b"}, "cannot be a name in the metastore"),
        ({"root": "stretto"}, "cannot be the metastore's root"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_started(
    tmp_path: Path, flags: dict[str, Any], why: str
) -> None:
    usual: dict[str, Any] = {"node": "n1", "cluster": "c", "zookeeper": "127.0.0.1:1", "data_dir": tmp_path}
    with pytest.raises(UsageError, match=why):
        Supervisor(SupervisorConfig(**usual | flags))


def test_the_first_restart_is_immediate_and_each_later_one_waits_twice_as_long_up_to_a_bound() -> None:
    post = _Post(WorkerId("w"), "m")
    waits = [post.back_off(Millis(7)) for _ in range(9)]
    assert waits == [0, 500, 1_000, 2_000, 4_000, 8_000, 16_000, 30_000, 30_000]
    assert post.not_before == 30_007
    for _ in range(100):
        assert post.back_off(Millis(0)) == 30_000


def test_workers_read_the_files_that_their_supervisor_was_given(tmp_path: Path) -> None:
    file, credentials = tmp_path / "stretto.toml", tmp_path / "zookeeper.credentials"
    credentials.write_text("stretto:secret")
    credentials.chmod(0o600)
    supervisor = Supervisor(
        SupervisorConfig(
            node="n1",
            cluster="c",
            zookeeper="127.0.0.1:1",
            data_dir=tmp_path / "n1",
            config_file=file,
            credentials_file=credentials,
        )
    )
    try:
        command = supervisor._command(_Post(WorkerId("m-0"), "m"), "launch")
        assert command[command.index("--config") + 1] == str(file)
        assert command[command.index("--zookeeper-credentials") + 1] == str(credentials)
        assert "secret" not in " ".join(command)
    finally:
        supervisor._close()


def test_a_supervisor_that_is_asked_twice_to_stop_kills_who_does_not_listen(tmp_path: Path) -> None:
    supervisor = Supervisor(
        SupervisorConfig(node="n1", cluster="c", zookeeper="127.0.0.1:1", data_dir=tmp_path / "n1")
    )
    loop, children = supervisor.loop, supervisor._children
    log = tmp_path / "worker.log"
    child = children.start(WorkerId("m-0"), "m", "launch", command(deaf=True), log)
    assert child.process is not None

    def stop_twice() -> None:
        if log.read_text():
            supervisor.stop()
            supervisor.stop()
        else:
            loop.call_after(10, stop_twice)

    loop.call_soon(stop_twice)
    loop.call_after(PATIENCE_MS // 2, loop.stop)
    try:
        loop.run()
        assert (child.process.poll(), children.alive) == (-signal.SIGKILL, {})
    finally:
        child.process.kill()
        child.process.wait()
        supervisor._close()
