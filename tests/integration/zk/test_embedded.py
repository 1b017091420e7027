"""The embedded ZooKeeper: starts, says what is wrong, and leaves nothing behind."""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from kazoo.client import KazooClient

from stretto.errors import StrettoError
from stretto.zk.server import embedded
from stretto.zk.server.embedded import EmbeddedZooKeeper, PortInUse, ZooKeeperFailed, free_ports
from tests.support.waiting import wait_until


def processes_of(folder: Path) -> list[int]:
    """Whoever has the folder on its command line."""
    found = []
    for process in Path("/proc").iterdir():
        if process.name.isdigit() and process.name != str(os.getpid()):
            try:
                words = (process / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if any(word.startswith(f"{folder}/".encode()) for word in words):
                found.append(int(process.name))
    return found


def port_is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def test_it_serves_keeps_its_data_and_leaves_nothing_behind(tmp_path: Path) -> None:
    server = EmbeddedZooKeeper(tmp_path)
    with server:
        assert server.mode() == "standalone"
        client = KazooClient(server.address)
        client.start()
        client.create("/kept", b"value")
        client.stop()
        client.close()
        assert processes_of(tmp_path)
    assert not server.is_running
    assert processes_of(tmp_path) == []
    assert port_is_free(server.port)

    with server:
        client = KazooClient(server.address)
        client.start()
        assert client.get("/kept")[0] == b"value"
        client.stop()
        client.close()


def test_it_listens_on_loopback_only(zookeeper: EmbeddedZooKeeper) -> None:
    listening = Path("/proc/net/tcp").read_text().splitlines()[1:]
    local = [line.split()[1] for line in listening if line.split()[3] == "0A"]
    assert [address for address in local if address.endswith(f":{zookeeper.port:04X}")] == [
        f"0100007F:{zookeeper.port:04X}"
    ]


def test_a_crash_is_noticed_and_it_starts_again(tmp_path: Path) -> None:
    with EmbeddedZooKeeper(tmp_path) as server:
        server.signal(signal.SIGKILL)
        assert server.wait(10)
        assert not server.is_running
        server.start()
        assert server.mode() == "standalone"


def test_it_does_not_outlive_the_process_that_started_it(tmp_path: Path) -> None:
    folder = tmp_path / "zookeeper"
    program = (
        "import sys, signal, pathlib\n"
        "from stretto.zk.server.embedded import EmbeddedZooKeeper\n"
        "server = EmbeddedZooKeeper(pathlib.Path(sys.argv[1]))\n"
        "server.start()\n"
        "print(server.port, flush=True)\n"
        "signal.pause()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program, str(folder)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    ) as parent:
        assert parent.stdout is not None
        port = 0
        for line in parent.stdout:
            if line.strip().isdigit():
                port = int(line)
                break
        assert processes_of(folder)
        parent.kill()
    wait_until("it is gone", lambda: not [pid for pid in processes_of(folder) if pid != parent.pid])
    assert port_is_free(port)


def test_a_port_in_use_is_told(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as occupant:
        port = occupant.getsockname()[1]
        with pytest.raises(PortInUse, match=f"port {port} .* is in use"):
            EmbeddedZooKeeper(tmp_path, port).start()
    assert processes_of(tmp_path) == []


def test_a_free_port_that_is_taken_meanwhile_is_given_up_for_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as occupant:
        taken = occupant.getsockname()[1]
        ports = iter([[taken], free_ports(1)])
        monkeypatch.setattr(embedded, "free_ports", lambda _: next(ports))
        with EmbeddedZooKeeper(tmp_path) as server:
            assert server.port != taken
            assert server.mode() == "standalone"


def test_a_folder_has_one_server(tmp_path: Path) -> None:
    with (
        EmbeddedZooKeeper(tmp_path),
        pytest.raises(ZooKeeperFailed, match="in use by another ZooKeeper"),
    ):
        EmbeddedZooKeeper(tmp_path).start()


def test_a_folder_that_cannot_be_used_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(ZooKeeperFailed, match=r"cannot hold ZooKeeper's data \(Not a directory\)"):
        EmbeddedZooKeeper(tmp_path / "file" / "zookeeper").start()


def test_without_java_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(StrettoError, match=r"needs Java 17 or newer.*install it with"):
        EmbeddedZooKeeper(tmp_path).start()
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "jdk"))
    with pytest.raises(StrettoError, match="none in JAVA_HOME"):
        EmbeddedZooKeeper(tmp_path).start()


def test_a_server_that_ends_while_it_starts_says_why(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    (data / "version-2").write_text("not a folder")
    with pytest.raises(ZooKeeperFailed, match=r"ended while it started: .*zookeeper\.log"):
        EmbeddedZooKeeper(tmp_path).start()
    assert processes_of(tmp_path) == []


# The command.


def stretto(*args: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "stretto", *args],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_command_prints_its_address_and_stops_cleanly(tmp_path: Path, number: signal.Signals) -> None:
    port = free_ports(1)[0]
    with stretto("zookeeper", "--data-dir", str(tmp_path), "--port", str(port)) as command:
        assert command.stdout is not None
        assert select.select([command.stdout], [], [], 30)[0]
        for line in command.stdout:
            if line.startswith("ZooKeeper listens on"):
                assert f"127.0.0.1:{port}" in line
                break
        command.send_signal(number)
        assert command.wait(30) == 0
        assert "Traceback" not in command.communicate()[1]
    assert [pid for pid in processes_of(tmp_path) if pid != command.pid] == []
    assert port_is_free(port)


def test_the_command_refuses_in_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with socket.create_server(("127.0.0.1", 0)) as occupant:
        port = str(occupant.getsockname()[1])
        for args, sentence in (
            (("--data-dir", str(tmp_path), "--port", port), f"port {port} of 127.0.0.1 is in use"),
            (("--data-dir", str(tmp_path / "file"), "--port", "0"), "cannot hold ZooKeeper's data"),
        ):
            with stretto("zookeeper", *args) as command:
                out, err = command.communicate(timeout=30)
            assert command.returncode == 1
            assert out == ""
            assert err.startswith("stretto: ")
            assert err.count("\n") == 1
            assert sentence in err
