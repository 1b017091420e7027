"""The processes of a node's workers: started, found again after a crash of the supervisor, and proven dead.

A worker must outlive its supervisor, so it has a session of its own and a run file that says how to know it:
pid, start time, boot and launch, the random word that its registrations carry. Nobody else has that pid *and*
that start time before the machine starts anew.

Death is never guessed. It is proven by the kernel: through a pidfd, which stands for one process and no later
one of the same pid; or, for a process whose supervisor was away, by a run file of another boot, or whose pid
is nobody's, or somebody else's by the start time. A run file of another pid namespace proves nothing.

A run file is written before the process exists, without a pid. If the supervisor dies in between, the next
one looks for the launch among the command lines of this machine.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import structlog

from stretto.network.loop import Loop
from stretto.process.folder_lock import boot_id
from stretto.process.private_files import UMASK, open_private, private_folder
from stretto.vocabulary.decoding import MALFORMED
from stretto.vocabulary.types import Millis, WorkerId

log = structlog.get_logger()

PATIENCE_MS = 20_000
"""Time from SIGTERM to SIGKILL."""
STARTING_SECONDS = 1.0
"""Time from a fork to a command line, with room for a machine that is busy."""
UNBURIED_MAX = 64
LOG_BYTES_MAX = 64 * 1024 * 1024
_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
_SUFFIX = ".json"
_PROC = Path("/proc")


class RunFile(msgspec.Struct, frozen=True, kw_only=True):
    """What the next supervisor must know about a worker's process."""

    worker: WorkerId
    module: str
    launch: str
    """Launch of the process; empty once it is dead and buried, if earlier ones are not."""
    boot: str
    namespace: str
    """Namespace of pids that the process is in."""
    pid: int = 0
    """Pid of the process; 0 if it is about to be started."""
    start_time: int = 0
    """When the process started, in clock ticks since boot, as the kernel counts it."""
    unburied: tuple[str, ...] = ()
    """Earlier launches that are dead, and may still be registered."""


@dataclass(slots=True, eq=False)
class Child:
    """A process that lives, or did a moment ago."""

    worker: WorkerId
    module: str
    launch: str
    pid: int
    pidfd: int
    started_ms: Millis
    process: subprocess.Popen[bytes] | None
    """Handle of the process; None if an earlier supervisor started it, and its exit code goes to others."""
    is_stopping: bool = False

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the process, unless it is dead."""
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.pidfd, number)


@dataclass(frozen=True, slots=True)
class Dead:
    """A launch that is proven dead, and whose registrations may still be there."""

    worker: WorkerId
    launch: str


class Children:
    """The processes of the workers of a node; all methods run on the loop's thread."""

    def __init__(self, loop: Loop, folder: Path, exited: Callable[[Child, str], None]) -> None:
        """Call ``exited`` at every death, first of all, with how it was: "exit code 3", "signal SIGKILL"."""
        self._loop = loop
        self._folder = folder
        self._exited = exited
        self._boot = boot_id()
        self._namespace = os.readlink("/proc/self/ns/pid")
        self._files: dict[WorkerId, RunFile] = {}
        self.alive: dict[WorkerId, Child] = {}
        private_folder(folder)

    # Starting.

    def start(
        self, worker: WorkerId, module: str, launch: str, command: Sequence[str], log_path: Path
    ) -> Child:
        """Start the process of a worker; raises OSError if the machine has no room for another."""
        before = self._files.get(worker)
        unburied = (*before.unburied, before.launch) if before is not None else ()
        # Older ones belong to sessions that have expired meanwhile.
        unburied = tuple(each for each in unburied if each)[-UNBURIED_MAX:]
        file = RunFile(
            worker=worker,
            module=module,
            launch=launch,
            boot=self._boot,
            namespace=self._namespace,
            unburied=unburied,
        )
        self._write(file)
        private_folder(log_path.parent)
        _rotate(log_path)
        with open_private(log_path, "ab") as output:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
                umask=UMASK,
            )
        try:
            # Not waited for yet, so the pid is its own even if it is dead by now.
            pidfd = os.pidfd_open(process.pid)
            start_time = _start_time(process.pid) or 0
            self._write(msgspec.structs.replace(file, pid=process.pid, start_time=start_time))
        except OSError:
            process.kill()
            process.wait()
            raise
        child = Child(worker, module, launch, process.pid, pidfd, self._loop.now, process)
        self._watch(child)
        return child

    def _watch(self, child: Child) -> None:
        self.alive[child.worker] = child
        self._loop.register(child.pidfd, lambda: self._died(child))

    def _died(self, child: Child) -> bool:
        self._loop.unregister(child.pidfd)
        os.close(child.pidfd)
        del self.alive[child.worker]
        self._exited(child, _how(child.process.wait() if child.process is not None else None))
        return False

    # Stopping.

    def stop(self, child: Child) -> None:
        """Send SIGTERM to a process, and SIGKILL if it takes too long."""
        if not child.is_stopping:
            child.is_stopping = True
            child.signal(signal.SIGTERM)
            self._loop.call_after(PATIENCE_MS, self._lose_patience, child)

    def _lose_patience(self, child: Child) -> None:
        if self.alive.get(child.worker) is child:
            log.warning("worker_killed", worker=child.worker, pid=child.pid, after_ms=PATIENCE_MS)
            child.signal(signal.SIGKILL)

    def let_go(self) -> None:
        """Stop watching the processes that are alive."""
        for child in self.alive.values():
            self._loop.unregister(child.pidfd)
            os.close(child.pidfd)
        self.alive.clear()

    # After a crash of the supervisor.

    def recover(self) -> tuple[list[Child], list[Dead]]:
        """Find what earlier supervisors started: the living are ours again, the others are proven dead."""
        adopted: list[Child] = []
        dead: list[Dead] = []
        for path in sorted(self._folder.glob(f"*{_SUFFIX}")):
            try:
                file = msgspec.json.decode(path.read_bytes(), type=RunFile)
            except MALFORMED as error:
                # Cut short by a power failure, which no process has survived.
                log.warning("run_file_unreadable", path=str(path), error=str(error))
                path.unlink()
                continue
            self._files[file.worker] = file
            dead += [Dead(file.worker, launch) for launch in file.unburied]
            child, is_dead = self._find(file) if file.launch else (None, True)
            if child is not None:
                self._watch(child)
                adopted.append(child)
            elif is_dead:
                dead += [Dead(file.worker, file.launch)] if file.launch else []
            else:
                log.warning("worker_unaccounted_for", worker=file.worker, pid=file.pid, launch=file.launch)
                self.buried(file.worker, file.launch)
        return adopted, dead

    def _find(self, file: RunFile) -> tuple[Child | None, bool]:
        """The process of a run file, if it lives; and whether it is proven dead, if not."""
        if file.boot != self._boot:
            return None, True
        if file.namespace != self._namespace:
            return None, False
        pid = file.pid or _pid_of(file.launch)
        if pid == 0:
            return None, False
        pidfd = _open(pid)
        if pidfd is None:
            return None, True
        # After opening: from here on the pid cannot come to mean another process unnoticed.
        start_time = _start_time(pid)
        if start_time is None or (file.pid and start_time != file.start_time):
            os.close(pidfd)
            return None, True
        if not file.pid:
            self._write(msgspec.structs.replace(file, pid=pid, start_time=start_time))
        started_ms = Millis(start_time * 1_000 // _TICKS_PER_SECOND)
        return Child(file.worker, file.module, file.launch, pid, pidfd, started_ms, None), False

    def buried(self, worker: WorkerId, launch: str) -> None:
        """Forget a launch: no registration of it is left, or none will be looked for."""
        file = self._files.get(worker)
        if file is None:
            return
        unburied = tuple(each for each in file.unburied if each != launch)
        last = "" if launch == file.launch and worker not in self.alive else file.launch
        try:
            if last or unburied:
                self._write(msgspec.structs.replace(file, launch=last, unburied=unburied))
            else:
                del self._files[worker]
                self._path(worker).unlink(missing_ok=True)
        except OSError as error:
            # The next supervisor looks for what is gone already.
            log.warning("run_file_not_written", worker=worker, error=str(error))

    # Run files: renamed into place, and not synced, since they are about processes of this boot.

    def _write(self, file: RunFile) -> None:
        self._files[file.worker] = file
        path = self._path(file.worker)
        draft = path.with_suffix(".tmp")
        with open_private(draft, "wb") as opened:
            opened.write(msgspec.json.encode(file))
        draft.rename(path)

    def _path(self, worker: WorkerId) -> Path:
        return self._folder / f"{worker}{_SUFFIX}"


def read_run_files(folder: Path) -> dict[WorkerId, RunFile]:
    """Read the run files as they are now, to watch the workers from another process."""
    found = {}
    for path in folder.glob(f"*{_SUFFIX}"):
        with contextlib.suppress(FileNotFoundError, msgspec.DecodeError):
            file = msgspec.json.decode(path.read_bytes(), type=RunFile)
            found[file.worker] = file
    return found


def signal_process(file: RunFile, number: int) -> bool:
    """Send a signal to the very process that the file is about, 0 to look; False if it is dead."""
    pidfd = _open(file.pid) if file.pid else None
    if pidfd is None:
        return False
    try:
        if _start_time(file.pid) != file.start_time:
            return False
        signal.pidfd_send_signal(pidfd, number)
    except ProcessLookupError:
        return False
    finally:
        os.close(pidfd)
    return True


def _open(pid: int) -> int | None:
    try:
        return os.pidfd_open(pid)
    except OSError as error:
        # ESRCH: nobody's. EINVAL, ENOENT: now the number of a thread, hence no process of that pid.
        if error.errno in (errno.ESRCH, errno.EINVAL, errno.ENOENT):
            return None
        raise


def _start_time(pid: int) -> int | None:
    """When a process started, in clock ticks since boot; None if it is dead.

    It is field 22 of its stat; the name before it may contain anything, parentheses too.
    """
    try:
        return int((_PROC / str(pid) / "stat").read_text("ascii", "replace").rpartition(")")[2].split()[19])
    except (FileNotFoundError, ProcessLookupError):
        return None


def _pid_of(launch: str) -> int:
    """Pid of the process that was started with this launch, whether or not it is a worker yet; 0 if none is.

    It is looked for until it must show its command line: a process whose supervisor was killed while it was
    being started still has that of the supervisor, or for a moment none.
    """
    needles = (f"\0--launch\0{launch}\0".encode(), f'"launch":"{launch}"'.encode())
    deadline = time.monotonic() + STARTING_SECONDS
    while True:
        for entry in _PROC.iterdir():
            if entry.name.isdigit():
                with contextlib.suppress(OSError):
                    words = (entry / "cmdline").read_bytes()
                    if any(needle in words for needle in needles):
                        return int(entry.name)
        if time.monotonic() > deadline:
            return 0
        time.sleep(STARTING_SECONDS / 50)


def _how(status: int | None) -> str:
    if status is None:
        return "unknown, it was started by an earlier supervisor"
    if status < 0:
        known = -status in set(signal.Signals)
        return f"signal {signal.Signals(-status).name if known else -status}"
    return f"exit code {status}"


def _rotate(path: Path) -> None:
    with contextlib.suppress(FileNotFoundError):
        if path.stat().st_size > LOG_BYTES_MAX:
            path.rename(path.with_suffix(".log.1"))


def bound_logs(folder: Path) -> None:
    """Cut logs that are too long and are being appended to; what is written meanwhile is lost.

    Waits for the disk. Where there is no room to keep what is old, it goes: a module that prints must not
    cost others their disk.
    """
    for path in folder.glob("*.log"):
        with contextlib.suppress(OSError):
            if path.stat().st_size > LOG_BYTES_MAX:
                older = path.with_suffix(".log.1")
                try:
                    shutil.copyfile(path, older)
                except OSError:
                    older.unlink(missing_ok=True)
                os.truncate(path, 0)
