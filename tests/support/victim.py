"""A daemon's service in a process of its own, for tests that would end it or fill its memory.

``python -m tests.support.victim [KEY]`` prints its address and serves until its input ends. ``Nodes`` is
answered at once; ``Operations`` takes ``limit`` milliseconds.
"""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from stretto import control
from stretto.network.keys import ClusterKey
from stretto.network.loop import Loop
from stretto.network.service import Service


@dataclass(frozen=True)
class Victim:
    process: subprocess.Popen[str]
    address: str

    @property
    def is_running(self) -> bool:
        return self.process.poll() is None

    def memory_mb(self, name: str = "VmRSS") -> float:
        """Return the process's memory in MB: ``VmRSS`` is what it has now, ``VmHWM`` the most it has had."""
        for line in Path(f"/proc/{self.process.pid}/status").read_text().splitlines():
            if line.startswith(name):
                return int(line.split()[1]) / 1024
        raise AssertionError(f"no {name}: the process has ended")


@contextmanager
def victim(key: Path | None = None) -> Iterator[Victim]:
    """Start a victim, and end it behind the test."""
    command = [sys.executable, "-m", "tests.support.victim", *([str(key)] if key else [])]
    root = str(Path(__file__).parents[2])
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=root
    ) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        try:
            yield Victim(process, process.stdout.readline().strip())
        finally:
            process.stdin.close()
            process.kill()


def _handle(call: control.AnyCall, _: list[memoryview]) -> object:
    if isinstance(call, control.Operations):
        time.sleep(call.limit / 1_000)
    return ()


def main(key: Path | None) -> None:
    loop = Loop()
    service = Service(
        loop,
        address="127.0.0.1:0",
        cluster="c",
        name="the victim",
        key=ClusterKey.load(key) if key is not None else None,
        handle=_handle,
    )

    def until_told() -> None:
        sys.stdin.read()
        loop.call_soon(loop.stop)

    threading.Thread(target=until_told, daemon=True).start()
    print(service.address, flush=True)  # noqa: T201 - told to who started us
    loop.run()
    service.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else None)
