"""A supervisor as a real process, the workers it starts, and the znodes that tell it what to run."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError

from stretto.specs.assignments import Assignment, PlacedWorker
from stretto.specs.modules import ModuleSpec, ModuleState
from stretto.supervisor.children import RunFile
from stretto.vocabulary.types import Incarnation, WorkerId
from stretto.zk.creation import write_assignment
from stretto.zk.znodes.paths import Paths
from stretto.zk.znodes.records import NodeRegistration, WorkerRegistration, decode, encode
from tests.support.waiting import wait_until

MODULE = "counts"
#: As long as the test server grants: what is seen to go sooner was deleted, and did not expire.
SESSION_TIMEOUT_MS = 6_000
DEADLINE_SECONDS = 40.0
_EXIT_SECONDS = 40.0


class Node:
    """One node over all lives of its supervisor."""

    def __init__(self, folder: Path, name: str, zookeeper: str, operator: KazooClient, paths: Paths) -> None:
        self.name = name
        self.zookeeper = zookeeper
        self.data_dir = folder / name
        self.log_path = folder / f"{name}.log"
        self.operator = operator
        self.paths = paths
        self.process: subprocess.Popen[bytes] | None = None

    # The supervisor.

    def command(self, *more: str) -> list[str]:
        command = [sys.executable, "-m", "stretto", "supervisor", "--node", self.name]
        command += ["--data-dir", str(self.data_dir), "--zookeeper", self.zookeeper]
        command += ["--root", self.paths.root, "--session-timeout-millis", str(SESSION_TIMEOUT_MS)]
        return [*command, *more]

    def start(self, *more: str) -> None:
        with self.log_path.open("ab") as log:
            self.process = subprocess.Popen(
                self.command(*more), stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait(_EXIT_SECONDS)

    def stop(self) -> int:
        assert self.process is not None
        self.process.terminate()
        return self.process.wait(_EXIT_SECONDS)

    def events(self, name: str) -> list[dict[str, Any]]:
        """What it said, over all its lives."""
        said = []
        for line in self.log_path.read_text(errors="replace").splitlines():
            with contextlib.suppress(json.JSONDecodeError):
                event = json.loads(line)
                if isinstance(event, dict) and event.get("event") == name:
                    said.append(event)
        return said

    def wait_said(self, name: str, times: int = 1) -> list[dict[str, Any]]:
        wait_until(f"it said {name} {times} times", lambda: len(self.events(name)) >= times, DEADLINE_SECONDS)
        return self.events(name)

    def registrations(self) -> dict[str, NodeRegistration]:
        """Registrations of the supervisor, by incarnation."""
        found = {}
        for name in self._children(f"{self.paths.nodes}/{self.name}"):
            path = self.paths.node(self.name, Incarnation(name))
            with contextlib.suppress(NoNodeError):
                found[name] = decode(self.operator.get(path)[0], NodeRegistration, path)
        return found

    # Its workers.

    def run_file(self, worker: str) -> RunFile | None:
        path = self.data_dir / "run" / f"{worker}.json"
        try:
            return msgspec.json.decode(path.read_bytes(), type=RunFile)
        except FileNotFoundError:
            return None

    def write_run_file(self, file: RunFile) -> None:
        folder = self.data_dir / "run"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{file.worker}.json").write_bytes(msgspec.json.encode(file))

    def worker_registrations(self, worker: str) -> dict[str, WorkerRegistration]:
        """By path."""
        found = {}
        for name in self._children(self.paths.worker(WorkerId(worker))):
            path = self.paths.registration(WorkerId(worker), Incarnation(name))
            with contextlib.suppress(NoNodeError):
                found[path] = decode(self.operator.get(path)[0], WorkerRegistration, path)
        return found

    def wait_worker(self, worker: str, *, other_than: str = "") -> tuple[str, WorkerRegistration]:
        """Its registration under a launch that the run file knows, and another than the given one."""

        def found() -> list[tuple[str, WorkerRegistration]]:
            file = self.run_file(worker)
            registered = self.worker_registrations(worker).items()
            return [each for each in registered if file and each[1].launch == file.launch != other_than]

        return wait_until(f"{worker} is registered", found, DEADLINE_SECONDS)[0]

    def pid_of(self, worker: str) -> int:
        file = self.run_file(worker)
        assert file is not None, f"there is no run file of {worker}"
        return file.pid

    def kill_worker(self, worker: str) -> int:
        pid = self.pid_of(worker)
        os.kill(pid, signal.SIGKILL)
        return pid

    def _children(self, path: str) -> list[str]:
        try:
            return list(self.operator.get_children(path))
        except NoNodeError:
            return []

    # What it is told to run.

    def place(self, *workers: str, module: str = MODULE, artifact: str = "", elsewhere: str = "") -> None:
        """A module whose groups are one per worker, all of them here unless named otherwise."""
        placed = tuple(PlacedWorker(WorkerId(worker), elsewhere or self.name) for worker in workers)
        assignment = Assignment(
            generation=1,
            tasks=len(workers),
            workers=placed,
            groups=tuple((number,) for number in range(len(workers))),
        )
        write_assignment(self.operator, self.paths, module, assignment)
        self.operator.create(
            self.paths.spec(module), encode(_spec(ModuleState.RUNNING, artifact, len(workers)))
        )

    def set_state(self, state: ModuleState, *, module: str = MODULE) -> None:
        path = self.paths.spec(module)
        spec = decode(self.operator.get(path)[0], ModuleSpec, path)
        self.operator.set(path, encode(msgspec.structs.replace(spec, state=state)))

    def forget_module(self, module: str = MODULE) -> None:
        self.operator.delete(self.paths.module(module), recursive=True)

    # The end.

    def finish(self) -> None:
        """By force; nothing is left."""
        if self.process is not None and self.process.poll() is None:
            self.kill()
        for path in (self.data_dir / "run").glob("*.json"):
            file = msgspec.json.decode(path.read_bytes(), type=RunFile)
            if file.pid and is_alive(file.pid, file.launch):
                os.kill(file.pid, signal.SIGKILL)
                wait_until(f"{file.worker} is gone", lambda file=file: not is_alive(file.pid, file.launch))  # type: ignore[misc] # mypy: lambda defaults

    def describe(self) -> str:
        lines = [f"--- the end of {self.log_path}:"]
        logs = [self.log_path, *sorted((self.data_dir / "logs").glob("*.log"))]
        for path in logs:
            if path.exists():
                lines += [f"--- the end of {path}:", *path.read_text(errors="replace").splitlines()[-30:]]
        return "\n".join(lines)


def _spec(state: ModuleState, artifact: str, workers: int) -> ModuleSpec:
    return ModuleSpec(
        artifact=artifact, tasks=workers, threads=workers, workers=workers, replication_factor=1, state=state
    )


def is_alive(pid: int, launch: str) -> bool:
    """Whether that pid is the process of that launch, and no zombie."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[0]
        return state != "Z" and launch.encode() in Path(f"/proc/{pid}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return False


def new_launch() -> str:
    return secrets.token_hex(8)


Start = Callable[..., Node]
