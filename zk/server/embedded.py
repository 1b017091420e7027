"""A real ZooKeeper server for development and tests, from the jars that the pyspark wheel carries.

One server is one JVM under a guardian process (see :mod:`stretto.zk.server.guardian`): it stops when it is
told to and when this process ends, however that happens. It listens on loopback only. The folder holds its
configuration, its log and its data; a lock on it lasts as long as the JVM, so that two servers never share
it. A server counts as started when it answers that it serves requests.
"""

from __future__ import annotations

import errno
import fcntl
import importlib.util
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from stretto.errors import StrettoError
from stretto.process.java import require_java
from stretto.process.private_files import UMASK, open_private, private_folder
from stretto.zk.server import guardian

HOST = "127.0.0.1"
START_SECONDS = 30.0
_POLL_SECONDS = 0.02
_STOP_SECONDS = 10.0
_PORT_ATTEMPTS = 5

#: What a server needs, and no more: a short class path starts faster.
_JARS = (
    "zookeeper",
    "zookeeper-jute",
    "slf4j-api",
    "log4j-api",
    "log4j-core",
    "log4j-slf4j2-impl",
    "metrics-core",
    "snappy-java",
    "netty-buffer",
    "netty-common",
    "netty-handler",
    "netty-transport",
    "commons-cli",
    "commons-io",
)

#: It lives for minutes and does little: a quick start is worth more than a fast steady state.
_JVM_FLAGS = (
    "-Xmx96m",
    "-Xshare:auto",
    "-XX:TieredStopAtLevel=1",
    "-XX:+UseSerialGC",
    "-XX:-UsePerfData",
    "-Dlog4j2.disableJmx=true",
    "-Dzookeeper.jmx.log4j.disable=true",
    "-Djava.net.preferIPv4Stack=true",
    # KiB by which the transaction log grows; the default of 64 MiB is for bigger things.
    "-Dzookeeper.preAllocSize=1024",
)

_LOGGING = """\
status = error
rootLogger.level = warn
rootLogger.appenderRef.console.ref = console
appender.console.type = Console
appender.console.name = console
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d{ISO8601} %p %c{1} %m%n
"""


class ZooKeeperFailed(StrettoError):
    """The embedded server did not start, or ended by itself."""


class PortInUse(ZooKeeperFailed):
    """Another process listens on the port."""

    def __init__(self, port: int) -> None:
        super().__init__(f"port {port} of {HOST} is in use; choose another one with --port")


@dataclass(frozen=True, slots=True, kw_only=True)
class QuorumAddress:
    """How the servers of an ensemble reach each other."""

    server: int
    port: int
    election_port: int

    def line(self) -> str:
        return f"server.{self.server}={HOST}:{self.port}:{self.election_port}"


class EmbeddedZooKeeper:
    """One ZooKeeper server; ``port=0`` takes a free port, anew at each start."""

    def __init__(
        self,
        folder: Path,
        port: int = 0,
        *,
        tick_ms: int = 1000,
        fsync: bool = True,
        server: int | None = None,
        quorum: Sequence[QuorumAddress] = (),
    ) -> None:
        self.folder = folder
        self.port = port
        self._any_port = port == 0
        self._tick_ms = tick_ms
        self._fsync = fsync
        self._server = server
        self._quorum = quorum
        self._process: subprocess.Popen[bytes] | None = None
        self._deadline = 0.0
        self._log = folder / "zookeeper.log"
        self._log_start = 0

    @property
    def address(self) -> str:
        return f"{HOST}:{self.port}"

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self, timeout_seconds: float = START_SECONDS) -> None:
        """Start the server; returns when it serves requests."""
        for _ in range(_PORT_ATTEMPTS):
            self.launch(timeout_seconds)
            try:
                self.wait_until_serving()
            except PortInUse:
                # Somebody took the free port before the JVM did.
                if not self._any_port:
                    raise
            else:
                return
        raise PortInUse(self.port)

    def launch(self, timeout_seconds: float = START_SECONDS) -> None:
        """Begin to start; :meth:`wait_until_serving` ends it."""
        if self.is_running:
            return
        self._release()
        self._deadline = time.monotonic() + timeout_seconds
        if self._any_port:
            self.port = free_ports(1)[0]
        else:
            _check_port(self.port)
        self._spawn()

    def wait_until_serving(self) -> None:
        while self.mode() is None:
            if not self.is_running:
                self._release()
                if any("BindException" in line for line in self._said()):
                    raise PortInUse(self.port)
                raise ZooKeeperFailed(f"ZooKeeper ended while it started: {self._last_words()}")
            if time.monotonic() > self._deadline:
                self.stop()
                raise ZooKeeperFailed(f"ZooKeeper does not answer at {self.address}: {self._last_words()}")
            time.sleep(_POLL_SECONDS)

    def mode(self) -> str | None:
        """``standalone``, ``leader`` or ``follower``; None while the server does not serve requests."""
        for line in four_letter_word(self.port, b"srvr").splitlines():
            name, _, value = line.partition(": ")
            if name == "Mode":
                return value
        return None

    def wait(self, timeout_seconds: float | None = None) -> bool:
        """Wait until the server ends by itself; True if it did."""
        if self._process is not None:
            try:
                self._process.wait(timeout_seconds)
            except subprocess.TimeoutExpired:
                return False
        return True

    def signal(self, number: signal.Signals) -> None:
        """Pass a signal to the JVM; SIGKILL is how a test makes it crash."""
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.write(bytes([number]))
            self._process.stdin.flush()

    def kill(self) -> None:
        """End the JVM as a crash would."""
        if self.is_running:
            self.signal(signal.SIGKILL)
            self.wait(_STOP_SECONDS)
        self._release()

    def stop(self) -> None:
        """Stop the server; returns when the JVM is gone. Harmless if it is not there."""
        if self._process is None:
            return
        if self._process.stdin is not None:
            self._process.stdin.close()
        if not self.wait(_STOP_SECONDS):
            self._process.kill()
            self._process.wait()
        self._release()

    def _release(self) -> None:
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.close()
        self._process = None

    # Starting the JVM.

    def _spawn(self) -> None:
        java, jars = require_java(), _find_jars()
        lock = self._prepare_folder()
        command = [
            java,
            *_JVM_FLAGS,
            f"-Dzookeeper.forceSync={'yes' if self._fsync else 'no'}",
            f"-Dlog4j2.configurationFile={self.folder / 'log4j2.properties'}",
            "-cp",
            os.pathsep.join(str(jar) for jar in jars),
            "org.apache.zookeeper.server.quorum.QuorumPeerMain",
            str(self.folder / "zoo.cfg"),
        ]
        try:
            with open_private(self._log, "ab") as output:
                self._log_start = output.tell()
                self._process = subprocess.Popen(
                    [sys.executable, "-I", "-S", guardian.__file__, *command],
                    stdin=subprocess.PIPE,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    pass_fds=(lock,),
                    # Ctrl-C is for us: we stop the server when everything that uses it has stopped.
                    start_new_session=True,
                    umask=UMASK,
                )
        finally:
            os.close(lock)

    def _prepare_folder(self) -> int:
        """Lock the folder and write what it holds; returns the lock's descriptor, which the JVM inherits."""
        try:
            data = self.folder / "data"
            private_folder(self.folder)
            private_folder(data)
            lock = os.open(self.folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                _write(self.folder / "log4j2.properties", _LOGGING)
                _write(self.folder / "zoo.cfg", self._configuration())
                if self._server is not None:
                    _write(data / "myid", f"{self._server}\n")
            except BaseException:
                os.close(lock)
                raise
        except BlockingIOError:
            raise ZooKeeperFailed(f"{self.folder} is in use by another ZooKeeper; stop that first") from None
        except OSError as error:
            raise ZooKeeperFailed(
                f"{self.folder} cannot hold ZooKeeper's data ({error.strerror}); name a folder that can be"
                " written"
            ) from None
        return lock

    def _configuration(self) -> str:
        lines = [
            f"tickTime={self._tick_ms}",
            f"dataDir={_escaped(self.folder / 'data')}",
            f"clientPortAddress={HOST}",
            f"clientPort={self.port}",
            f"minSessionTimeout={2 * self._tick_ms}",
            f"maxSessionTimeout={max(60_000, 20 * self._tick_ms)}",
            "maxClientCnxns=0",
            "admin.enableServer=false",
            "4lw.commands.whitelist=srvr",
            "autopurge.snapRetainCount=3",
            "autopurge.purgeInterval=1",
        ]
        if self._quorum:
            lines += ["initLimit=20", "syncLimit=10", *(address.line() for address in self._quorum)]
        return "\n".join(lines) + "\n"

    def _said(self) -> list[str]:
        """The lines of its log since it was launched."""
        try:
            data = self._log.read_bytes()
        except OSError:
            return []
        return data[self._log_start :].decode(errors="replace").splitlines()

    def _last_words(self) -> str:
        """What its log ends with, for the one sentence a person sees."""
        said = [line.strip() for line in self._said() if line.strip() and not line.startswith(("\t", " "))]
        return f"{said[-1]} (see {self._log})" if said else f"see {self._log}"


def _escaped(path: Path) -> str:
    """A path in Java's properties format, where a backslash escapes."""
    return str(path.absolute()).replace("\\", "\\\\")


def _find_jars() -> list[Path]:
    spec = importlib.util.find_spec("pyspark")
    folders = [Path(each) / "jars" for each in (spec.submodule_search_locations or ())] if spec else []
    found = []
    for name in _JARS:
        # The digit tells netty-handler-4.2.jar from netty-handler-proxy-4.2.jar.
        jars = [jar for folder in folders for jar in sorted(folder.glob(f"{name}-[0-9]*.jar"))]
        if not jars:
            raise ZooKeeperFailed(
                f"the embedded ZooKeeper needs {name}.jar, which the installed pyspark does not carry;"
                " install stretto again with its dependencies"
            )
        found.append(jars[-1])
    return found


def free_ports(count: int) -> list[int]:
    """Ports that were free a moment ago, all different.

    None that systems give to outgoing connections: they are to be free when their daemon is started, and when
    it is started again.
    """
    dice = random.SystemRandom()
    found: list[int] = []
    while len(found) < count:
        port = dice.randrange(20_000, 32_768)
        if port not in found and is_free(port):
            found.append(port)
    return found


def is_free(port: int) -> bool:
    """Whether a port was free a moment ago."""
    try:
        _check_port(port)
    except PortInUse:
        return False
    return True


def _check_port(port: int) -> None:
    with socket.socket() as probe:
        # As Java does: a port whose earlier connections linger is free.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise PortInUse(port) from None
            raise ZooKeeperFailed(f"cannot listen on port {port}: {error.strerror}") from None


def four_letter_word(port: int, word: bytes, timeout_seconds: float = 2.0) -> str:
    """The server's answer to a four-letter word; empty if it does not answer."""
    answer = b""
    try:
        with socket.create_connection((HOST, port), timeout_seconds) as connection:
            connection.sendall(word)
            while chunk := connection.recv(4096):
                answer += chunk
    except OSError:
        return ""
    return answer.decode(errors="replace")


def _write(path: Path, text: str) -> None:
    with open_private(path, "w") as file:
        file.write(text)
