"""The Spark job of an export as a child process: started, watched, and never left behind.

It has a session of its own, so Ctrl-C reaches this process only, which then ends all of the job. Its log, its
scratch files and those of Spark are in a folder that goes away with it; of a job that failed the log stays.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

import msgspec

from stretto.errors import StrettoError, UsageError
from stretto.export.job import Done, Event, Failed, Order, Progress

_END_SECONDS = 10.0


class JobFailed(StrettoError):
    """The Spark job failed; the sentence names its log."""


def run_job(order: Order, tell: Callable[[Progress], None]) -> Done:
    """Run the Spark job to its end; raises UsageError for what a person asked wrongly, else JobFailed."""
    with _scratch() as scratch:
        log = scratch / "spark.log"
        order_file = scratch / "order.json"
        local = {
            "spark.local.dir": str(scratch),
            # ORC files keep times by the zone of the process that writes them.
            "spark.driver.extraJavaOptions": f"{_quoted(f'-Djava.io.tmpdir={scratch}')} -Duser.timezone=UTC",
            "spark.executor.extraJavaOptions": "-Duser.timezone=UTC",
        }
        order = msgspec.structs.replace(order, settings=local | order.settings)
        order_file.write_bytes(msgspec.json.encode(order))
        with log.open("wb") as words, _started(order_file, words) as process:
            ended = _follow(process, tell)
        match ended:
            case Done():
                return ended
            case Failed(sentence=sentence, is_usage=True):
                raise UsageError(sentence)
            case Failed(sentence=sentence):
                raise JobFailed(f"{sentence}; Spark's log is {_kept(log)}")
            case _:
                how = f"ended with exit code {process.returncode}"
                raise JobFailed(f"the Spark job {how} before it was done; its log is {_kept(log)}")


def _quoted(option: str) -> str:
    """Quote an option of Java as Spark takes it apart: at spaces, but for those in quotes."""
    escaped = option.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


@contextmanager
def _scratch() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="stretto-export-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _started(order: Path, log: BinaryIO) -> Iterator[subprocess.Popen[bytes]]:
    # Spark runs its Python processes with the interpreter that has the data source, which is this one.
    environment = {"PYSPARK_PYTHON": sys.executable, "PYTHONWARNINGS": "ignore"} | os.environ
    process: subprocess.Popen[bytes] | None = None
    try:
        # Who is interrupted while it starts the process has one to end.
        with _uninterrupted():
            process = subprocess.Popen(
                [sys.executable, "-m", "stretto.export.job", str(order)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,
                env=environment,
            )
        yield process
        with suppress(subprocess.TimeoutExpired):
            process.wait(_END_SECONDS)
    finally:
        if process is not None:
            _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    # Java as well, which may outlive its Python. Once the job has told how it ended, nothing is lost.
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            pipe.close()
    process.wait()


@contextmanager
def _uninterrupted() -> Iterator[None]:
    """Delay Ctrl-C until the end of the block.

    To block the signal in this thread would not do: another one takes it then, such as that of a progress
    bar, and the interpreter interrupts the main thread all the same.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    noted: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, _frame: noted.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if noted:
        signal.raise_signal(signal.SIGINT)


def _follow(process: subprocess.Popen[bytes], tell: Callable[[Progress], None]) -> Done | Failed | None:
    """How the job ended, by its own last event; None if it sent none."""
    assert process.stdout is not None  # noqa: S101 - a pipe
    for line in process.stdout:
        event: Event = msgspec.json.decode(line, type=Event)
        if not isinstance(event, Progress):
            return event
        tell(event)
    return None


def _kept(log: Path) -> Path:
    """Move the log out of the folder that goes away, and return where it is."""
    kept = log.parent.with_suffix(".log")
    shutil.move(log, kept)
    return kept
