"""One executor, as its worker sees it: a process that is started, written to, heard, and killed.

Its death is told by a pidfd, once, after everything it answered was heard. It leads a process group, so that
whatever a module starts goes with it. What it prints becomes lines of the worker's log.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Sequence

import structlog

from stretto.network.loop import Loop
from stretto.vocabulary.decoding import MALFORMED
from stretto.vocabulary.types import Buffer
from stretto.worker.executors import protocol

RECEIVE_BYTES = 1 << 20
LINE_CHARACTERS_MAX = 2_000
LINES_PER_SECOND_MAX = 200
"""How many lines that a module prints are logged in a second; the rest is counted."""

log = structlog.get_logger()


class ExecutorProcess:
    """One process of an executor. All methods are to be called on the loop."""

    def __init__(
        self,
        loop: Loop,
        name: str,
        *,
        heard: Callable[[protocol.FromChild, list[bytes]], None],
        died: Callable[[str], None],
    ) -> None:
        """Start the process. Raises OSError if the machine has no room for another one."""
        self._loop = loop
        self._heard = heard
        self._told_died = died
        ours, theirs = socket.socketpair()
        read, write = os.pipe()
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "stretto.worker.executors.child", str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=write,
                stderr=write,
                pass_fds=(theirs.fileno(),),
                process_group=0,
            )
        except OSError:
            ours.close()
            os.close(read)
            raise
        finally:
            theirs.close()
            os.close(write)
        self.pid = self._process.pid
        self._log = log.bind(executor=name, executor_pid=self.pid)
        self._pidfd = os.pidfd_open(self.pid)
        self._parser = protocol.Parser()
        #: Messages, or what is left of them, that do not fit the socket now.
        self._unsent: deque[memoryview] = deque()
        self._socket = ours
        ours.setblocking(False)
        self._output = _Output(loop, read, self._log)
        loop.register(ours.fileno(), self._receive)
        loop.register(self._pidfd, self._exited)

    def send(self, message: protocol.ToChild, bodies: Sequence[Buffer] = ()) -> None:
        """Send a message, or as much of it as fits the socket now and the rest later."""
        is_first = not self._unsent
        self._unsent.append(memoryview(protocol.framed(message, bodies)))
        if is_first:
            self._flush()

    def _flush(self) -> None:
        unsent = self._unsent
        try:
            while unsent:
                sent = self._socket.send(unsent[0])
                if sent < len(unsent[0]):
                    unsent[0] = unsent[0][sent:]
                else:
                    unsent.popleft()
        except BlockingIOError:
            self._loop.when_writable(self._socket.fileno(), self._flush)
        except OSError:
            # It is dead or about to be, and that is told by its pidfd.
            unsent.clear()

    def kill(self) -> None:
        """Kill the process with all that it started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)

    def close(self) -> None:
        """Kill the process, and wait for its end, which is not reported."""
        self.kill()
        self._process.wait()
        self._let_go()

    def _receive(self) -> bool:
        try:
            data = self._socket.recv(RECEIVE_BYTES)
        except OSError:
            return False
        try:
            for header, *bodies in self._parser.feed(data):
                self._heard(protocol.decode_from_child(header), bodies)
        except MALFORMED as error:
            self._log.error("executor_malformed_answer", why=str(error))
            self.kill()
            return False
        if not data:
            # Closed by the module's code: nothing more is to be heard from it.
            self._loop.unregister(self._socket.fileno())
            self.kill()
        return len(data) == RECEIVE_BYTES

    def _exited(self) -> bool:
        while self._socket.fileno() >= 0 and self._receive():
            pass
        self.kill()
        status = self._process.wait()
        self._let_go()
        self._told_died(_how(status))
        return False

    def _let_go(self) -> None:
        self._loop.unregister(self._pidfd)
        os.close(self._pidfd)
        self._loop.unregister(self._socket.fileno())
        self._socket.close()
        self._output.close()


class _Output:
    """Logs what the process prints, line by line."""

    def __init__(self, loop: Loop, descriptor: int, log_: structlog.typing.FilteringBoundLogger) -> None:
        self._loop = loop
        self._descriptor = descriptor
        self._log = log_
        self._line = b""
        self._second = 0
        self._lines = 0
        self._dropped = 0
        os.set_blocking(descriptor, False)
        loop.register(descriptor, self._read)

    def _read(self) -> bool:
        try:
            data = os.read(self._descriptor, 65_536)
        except OSError:
            return False
        if not data:
            self._loop.unregister(self._descriptor)
            return False
        *lines, self._line = (self._line + data).split(b"\n")
        if len(self._line) > LINE_CHARACTERS_MAX:
            lines, self._line = [*lines, self._line], b""
        for line in lines:
            self._say(line)
        return False

    def _say(self, line: bytes) -> None:
        second = self._loop.now // 1_000
        if second != self._second:
            if self._dropped:
                self._log.warning("executor_said_too_much", lines_dropped=self._dropped)
            self._second, self._lines, self._dropped = second, 0, 0
        self._lines += 1
        if self._lines > LINES_PER_SECOND_MAX:
            self._dropped += 1
        else:
            self._log.info("executor_said", text=line.decode(errors="replace")[:LINE_CHARACTERS_MAX])

    def close(self) -> None:
        """Log what is left, and close the pipe."""
        self._read()
        if self._line:
            self._say(self._line)
        self._loop.unregister(self._descriptor)
        os.close(self._descriptor)


def _how(status: int) -> str:
    if status < 0:
        known = -status in set(signal.Signals)
        return f"signal {signal.Signals(-status).name if known else -status}"
    return f"exit code {status}"
