"""``stretto up``: a whole cluster as its user starts, stops and breaks it."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import ClassVar

import msgspec
import pytest

from stretto import connect, control
from stretto.artifact import load
from stretto.client.operating.upload import upload
from stretto.errors import RetriableError
from stretto.network.asking import ask
from stretto.network.routing import Network
from stretto.supervisor.children import RunFile
from tests.support.waiting import wait_until

SOURCE = "from stretto import Depot, Module\n\n\nclass Counts(Module):\n    events = Depot()\n"
RECORDS = [str(number).encode() for number in range(2_000)]
READY_SECONDS = 90.0


class Up:
    """The command in a process of its own; its output goes to a file."""

    started: ClassVar[list[subprocess.Popen[bytes]]] = []

    def __init__(self, folder: Path, *more: str) -> None:
        self.data_dir = folder / "data"
        self._output = folder / f"up-{len(list(folder.glob('up-*')))}.out"
        with self._output.open("wb") as output:
            self.process = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "stretto",
                    "up",
                    "--data-dir",
                    self.data_dir,
                    "--port",
                    "0",
                    "--no-ui",
                    *more,
                ],
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        Up.started.append(self.process)

    @property
    def output(self) -> str:
        return self._output.read_text()

    def ready(self) -> str:
        """The conductor's address, once it is printed."""

        def printed() -> str | None:
            assert self.process.poll() is None, self.output
            lines = self.output.splitlines()
            found = [line.split()[1] for line in lines if line.startswith("  conductor ")]
            return found[0] if found and "Ctrl-C stops it" in lines[-1] else None

        wait_until("the cluster is ready", printed, READY_SECONDS)
        return printed() or ""

    def pages(self) -> str:
        """The address of the Cluster UI, as it is printed."""
        [found] = [line.split()[1] for line in self.output.splitlines() if line.startswith("  UI ")]
        return found

    def stop(self) -> int:
        self.process.send_signal(signal.SIGINT)
        return self.process.wait(60)

    def daemons(self) -> dict[str, int]:
        return _pids(self.data_dir / "run")

    def workers(self) -> dict[str, int]:
        found: dict[str, int] = {}
        for folder in self.data_dir.glob("node-*/run"):
            found |= _pids(folder)
        return found

    def kill_everything(self) -> None:
        pids = {**self.daemons(), **self.workers()}
        self.process.kill()
        self.process.wait()
        for pid in pids.values():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for pid in pids.values():
            wait_until("it is dead", partial(_is_dead, pid))


def _pids(folder: Path) -> dict[str, int]:
    files = [msgspec.json.decode(path.read_bytes(), type=RunFile) for path in folder.glob("*.json")]
    return {str(file.worker): file.pid for file in files if file.pid}


def _is_dead(pid: int) -> bool:
    return not _is_alive(pid)


def _is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """Whatever a failed test leaves running there is killed."""
    yield tmp_path
    while Up.started:
        process = Up.started.pop()
        process.kill()
        process.wait()
    for path in [*tmp_path.glob("data/run"), *tmp_path.glob("data/node-*/run")]:
        for pid in _pids(path).values():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def launch(conductor: str, folder: Path, factor: int = 3) -> None:
    source = folder / "counts.py"
    source.write_text(SOURCE)
    network = Network([conductor], None)
    try:
        artifact, manifest = load(f"{source}:Counts", folder)

        def known() -> list[str]:
            # A conductor whose ZooKeeper is slow to answer says so, and is asked again.
            with contextlib.suppress(RetriableError):
                return [node.address for node in ask(network, conductor, control.Nodes()) if node.address]
            return []

        nodes = wait_until("the nodes are known", known, READY_SECONDS)
        upload(network, nodes, artifact, copies=factor)
        call = control.Launch(
            module="Counts",
            artifact=artifact.digest,
            manifest=manifest,
            tasks=4,
            threads=2,
            workers=1,
            replication_factor=factor,
        )
        ask(network, conductor, call)

        def runs() -> bool:
            [module] = ask(network, conductor, control.Modules(module="Counts"))
            return module.state == "running"

        wait_until("the module runs", runs, READY_SECONDS)
    finally:
        network.close()


def append_all(conductor: str) -> None:
    with connect([conductor]) as client:
        producer = client.producer("Counts", "events")
        acks = [producer.append(record) for record in RECORDS]
        producer.flush()
        for ack in acks:
            ack.result(60)


def read_all(conductor: str) -> list[bytes]:
    with connect([conductor]) as client:
        return sorted(record.data for record in client.reader("Counts", "events").read_all())


@pytest.mark.soak
def test_it_comes_back_from_the_death_of_everything(folder: Path) -> None:
    first = Up(folder)
    launch(first.ready(), folder)
    append_all(first.ready())
    assert len(first.daemons()) == 5
    assert len(first.workers()) == 3
    first.kill_everything()
    second = Up(folder)
    assert read_all(second.ready()) == sorted(RECORDS)
    pids = [*second.daemons().values(), *second.workers().values()]
    assert second.stop() == 0, second.output
    assert "Stopped." in second.output
    assert not [pid for pid in pids if _is_alive(pid)]


@pytest.mark.soak
def test_a_second_one_is_refused_and_one_that_died_is_taken_over(folder: Path) -> None:
    first = Up(folder, "--nodes", "2", "--ui", "--ui-port", "0")
    conductor = first.ready()
    pages = first.pages()
    refused = subprocess.run(
        [sys.executable, "-m", "stretto", "up", "--data-dir", first.data_dir],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert refused.returncode == 2
    assert "runs in" in refused.stderr
    assert len(refused.stderr.splitlines()) == 1
    daemons = first.daemons()
    first.process.kill()
    first.process.wait()
    second = Up(folder, "--nodes", "2", "--ui")
    assert second.ready() == conductor
    assert second.pages() == pages
    with urllib.request.urlopen(pages, timeout=60) as answer:
        assert b"stretto" in answer.read()
    assert second.daemons() == daemons
    os.kill(daemons["node-2"], signal.SIGKILL)
    gone = (None, 0, daemons["node-2"])
    wait_until("node-2 is started again", lambda: second.daemons().get("node-2") not in gone)
    assert "node-2 ended with" in second.output
    launch(conductor, folder, factor=1)
    check_second_interrupt(second)
    check_taken_port(folder, conductor)


def check_second_interrupt(cluster: Up) -> None:
    """It ends what does not end by itself, workers too."""
    [worker] = cluster.workers().values()
    daemons = cluster.daemons()
    os.kill(worker, signal.SIGSTOP)
    cluster.process.send_signal(signal.SIGINT)
    wait_until("it stops", lambda: "Stopping" in cluster.output)
    cluster.process.send_signal(signal.SIGINT)
    assert cluster.process.wait(60) == 0, cluster.output
    for pid in (worker, *daemons.values()):
        wait_until("it is dead", partial(_is_dead, pid))


def check_taken_port(folder: Path, conductor: str) -> None:
    with socket.create_server(("127.0.0.1", int(conductor.rpartition(":")[2]))):
        refused = Up(folder, "--nodes", "2")
        assert refused.process.wait(60) == 2
        assert "choose another with --port" in refused.output
        assert len(refused.output.splitlines()) == 1


@pytest.mark.soak
def test_the_demo_loses_nothing_with_a_key_of_the_environment(tmp_path: Path) -> None:
    key = tmp_path / "cluster.key"
    subprocess.run([sys.executable, "-m", "stretto", "keys", "generate", str(key)], check=True)
    command = [sys.executable, "-m", "stretto", "demo", "--seconds", "4", "--data-dir", str(tmp_path / "d")]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
        env=os.environ | {"STRETTO_KEY": str(key)},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "none lost" in done.stdout
    acknowledged = done.stdout.rpartition(" records acknowledged,")[0].rpartition("\n")[2]
    assert int(acknowledged.replace(",", "")) > 0
    assert not [
        pid for path in tmp_path.glob("d/node-*/run") for pid in _pids(path).values() if _is_alive(pid)
    ]
