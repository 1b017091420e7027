"""The scan process as its worker sees it: started, asked one thing after the other, ended.

Everything here is for one thread, which may wait: the worker's pinning thread.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import socket
import subprocess
import sys
import time
from typing import TypeVar

import msgspec

from stretto.errors import RetriableError, StrettoError
from stretto.network.keys import ClusterKey
from stretto.worker.scans import protocol

START_SECONDS = 15.0

T = TypeVar("T", bound=protocol.FromChild)


class Gone(RetriableError):
    """The scan process has ended."""


class ScanProcess:
    """The scan process of a worker. Each request waits for its answer."""

    def __init__(self, worker: str, host: str, key: ClusterKey | None, idle_ms: int) -> None:
        """Start the process, and wait until it listens. Raises StrettoError if it cannot be started."""
        self._numbers = itertools.count(1)
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "stretto.worker.scans.child", str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
                process_group=0,
            )
        except OSError as error:
            self._control.close()
            raise RetriableError(f"a scan process cannot be started: {error.strerror}") from None
        finally:
            theirs.close()
        self.pid = self._process.pid
        self.pidfd = os.pidfd_open(self.pid)
        public, secret = (key.public, key.secret) if key is not None else (b"", b"")
        start = protocol.Start(next(self._numbers), worker, host, public, secret, idle_ms)
        try:
            self.address = self._ask(start, protocol.Ready, START_SECONDS).address
        except StrettoError:
            self.end()
            raise

    def prepare(self, group: str, folder: str, tasks: tuple[int, ...], timeout: float) -> None:
        """Have the process open the files of a group that is about to be pinned."""
        self._ask(protocol.Prepare(next(self._numbers), group, folder, tasks), protocol.Done, timeout)

    def open(self, message: protocol.Open, timeout: float) -> None:
        """Have the process begin a pin; the number of the request is set here."""
        message = msgspec.structs.replace(message, number=next(self._numbers))
        self._ask(message, protocol.Done, timeout)

    def close(self, pin: str, why: str, timeout: float) -> None:
        """Have the process end a pin."""
        self._ask(protocol.Close(next(self._numbers), pin, why), protocol.Done, timeout)

    def forget(self, group: str, why: str, timeout: float) -> None:
        """Have the process end all pins of a group, and close its files."""
        self._ask(protocol.Forget(next(self._numbers), group, why), protocol.Done, timeout)

    def list(self, timeout: float) -> tuple[protocol.Kept, ...]:
        """Return the pins that the process keeps."""
        return self._ask(protocol.List(next(self._numbers)), protocol.Listed, timeout).pins

    def kill(self) -> None:
        """Kill the process. Safe from any thread, as long as it is not ended."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)

    def end(self) -> int:
        """Kill the process if it runs, wait, and return its exit code."""
        self._control.close()
        self.kill()
        status = self._process.wait()
        os.close(self.pidfd)
        return status

    def _ask(self, message: protocol.ToChild, kind: type[T], timeout: float) -> T:
        """Send a request and return its answer. Answers to earlier requests, which were given up, are passed
        over."""
        deadline = time.monotonic() + timeout
        try:
            self._control.settimeout(timeout)
            self._control.send(protocol.encode(message))
            while True:
                self._control.settimeout(max(0.001, deadline - time.monotonic()))
                data = self._control.recv(protocol.MESSAGE_BYTES_MAX)
                if not data:
                    raise Gone("the scan process has ended; try again")
                answer = protocol.decode_from_child(data)
                if answer.number == message.number:
                    break
        except TimeoutError:
            raise RetriableError(f"the scan process did not answer within {timeout:g} s; try again") from None
        except OSError as error:
            raise Gone(f"the scan process has ended ({error.strerror}); try again") from None
        if isinstance(answer, protocol.Failed):
            raise RetriableError(answer.why)
        if not isinstance(answer, kind):
            raise StrettoError(f"the scan process answers with {type(answer).__name__}")
        return answer
