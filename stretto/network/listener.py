"""A ROUTER socket that listens: it hears none but stretto peers, and bounds what they make it hold.

*Who is heard.* ZeroMQ takes whatever does not begin as ZMTP 2 or 3 for ZMTP/1.0, whose frames any bytes can
be: a web page that POSTs to the port of a daemon would be a peer. A socket with an authenticator speaks
ZMTP 3 alone, so there is always one, with a key or without. It is no thread: the owner's loop answers it
(:meth:`Listener.admit`), and if nobody does, nobody is let in.

*How much is held.* ZeroMQ bounds the bytes of a frame and the number of messages, but neither the frames of
one message nor what arrives before a connection is authenticated. Its queue shows a message only when it is
whole. So what the kernel has received on a connection is compared with what was heard from it:

* a connection that nothing was heard from yet may have sent 64 KiB, and has some seconds;
* one that was heard may have sent one message of the greatest size since;
* all connections together may have so much under way; whoever has been at it longest goes first;
* connections that nothing was heard from, and all of them, are bounded in number.

What exceeds a bound is shut down. :meth:`Listener.look` is called often. It looks each time at connections
that nothing was heard from or that have much under way, and at a share of the others in turn. It judges only
by what ZeroMQ had read at the last look and would have shown since: whoever is slow to listen must not take
that out on others.

*Routing ids.* ZeroMQ names connections by a counter behind a zero byte, unless a peer brings a name of its
own, and aborts the process when the counter meets such a name. Stretto's peers bring none. So the counter
begins at chance, and whoever brings a name is shut down when it is first heard.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import itertools
import os
import resource
import socket
import struct
import sys
import termios
from collections.abc import Callable
from dataclasses import dataclass

import structlog
import zmq
from zmq.utils import z85

from stretto.errors import UsageError
from stretto.network.keys import ClusterKey, require_key
from stretto.process.logs import Sparing

MESSAGE_BYTES_MAX = 80 * 1024 * 1024
HIGH_WATER_MARK = 1_000
HEARTBEAT_MS = 2_000
HEARTBEAT_TIMEOUT_MS = 8_000

UNHEARD_BYTES_MAX = 64 * 1024
"""Bytes that a connection may send before it is heard; handshake and hello have some hundred."""
UNHEARD_MS_MAX = 10_000
"""How long a connection may stay without being heard."""
UNHEARD_MAX = 1_000
"""Connections that may be open without having been heard."""
UNDER_WAY_BYTES_MAX = 512 * 1024 * 1024
"""Bytes that messages which are not whole yet may have, on all connections together."""
SMALL_BYTES = 1024 * 1024
"""A connection with less under way is not what fills the memory."""
HEARTBEAT_BYTES_PER_SECOND = 256
"""Bytes per second that a connection without messages sends to show that it is there."""

LOOK_MS = 100
LOOK_AGAIN_MS = 20
"""How often to look while there is a connection that was not heard yet, or that sends much."""
PATIENCE_MS = 1_000
"""Time within which a listener that is never done reading has read from every connection."""
OTHERS_AT_ONCE = 256
OTHERS_LOOKS_MAX = 5
"""Number of looks within which all other connections are looked at, if they are more."""
GAP_MS_MAX = 1_000
"""How much of the time between two looks counts, at most.

A loop that stood still, or a machine that was suspended, heard nobody meanwhile.
"""

_ZAP = "inproc://zeromq.zap.01"
_ZAP_VERSION = b"1.0"
_DOMAIN = b"stretto"
_SO_COOKIE = 57
_BYTES_RECEIVED = struct.Struct("=Q")
_BYTES_RECEIVED_AT = 128
"""Position of ``tcpi_bytes_received`` in ``struct tcp_info``, since Linux 4.1."""
_GREETING_BYTES = 64
"""Bytes of the greeting of ZMTP, which come before all messages."""
_EVENT = struct.Struct("=HI")
_COUNTER = struct.Struct("!I")
_AT_ONCE = struct.pack("ii", 1, 0)
_NO_WAIT = int(zmq.NOBLOCK)

_names = itertools.count()
log = structlog.get_logger()


def configure(socket: zmq.Socket[bytes]) -> None:
    """Give a socket explicit bounds, and heartbeats that notice a peer that is gone without a word."""
    socket.linger = 0
    socket.sndhwm = socket.rcvhwm = HIGH_WATER_MARK
    socket.maxmsgsize = MESSAGE_BYTES_MAX
    socket.setsockopt(zmq.HEARTBEAT_IVL, HEARTBEAT_MS)
    socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, HEARTBEAT_TIMEOUT_MS)
    socket.setsockopt(zmq.TCP_KEEPALIVE, 1)


@dataclass(slots=True)
class _Accepted:
    """A connection, by its descriptor, which ZeroMQ owns and closes when it likes."""

    descriptor: int
    cookie: bytes
    """The kernel's name of the socket, which no other socket ever has."""
    since: int | None = None
    """When it was first looked at, by the listener's own time."""
    sender: bytes | None = None
    """Its routing id, once it was heard."""
    base: int = 0
    """Bytes that were received when it was last heard, or which are no message."""
    looked_at: int = 0
    under_way: int = 0
    """Bytes of a message that it was last seen to have on its way."""
    under_way_since: int | None = None
    """When a message of some size was first seen to be on its way."""
    suspected_at: int | None = None
    """When it was first seen beyond its bound."""


class Listener:
    """A bound ROUTER, and what watches over it. Its owner waits for all of :attr:`sockets`, on one thread."""

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        address: str,
        key: ClusterKey | None,
        now: int,
        on_gone: Callable[[bytes], None] = lambda _: None,
    ) -> None:
        """``on_gone`` is called with the routing id of a connection that was heard and is gone.

        Raises UsageError if it cannot listen there.
        """
        require_key(address, key)
        self._key = key
        self._on_gone = on_gone
        self._accepted: dict[int, _Accepted] = {}
        self._by_sender: dict[bytes, _Accepted] = {}
        #: Connections to be looked at each time, oldest first: not heard yet, or with much under way.
        self._watched: dict[int, _Accepted] = {}
        #: Descriptors of the other connections, which are looked at in turn, from the end of the list.
        self._turns: list[int] = []
        self._turned_at = now
        #: The sum of what all connections have under way.
        self._under_way = 0
        self._connections_max = _connections_max()
        self._accepts = 0
        #: Routing ids heard since the last look; the owner adds that of each message.
        self.heard: set[bytes] = set()
        #: Connections that were shut down because they exceeded a bound or brought a routing id.
        self.shut = 0
        self._now = now
        #: The time that the listener was awake, by which it judges: gaps between looks count only in part.
        self._awake_ms = 0
        self._told = Sparing(log)
        #: When there was first seen to be too much under way.
        self._crowded_since: int | None = None
        self._public = z85.decode(key.public) if key is not None else b""
        _seed_routing_ids()
        self.zap = context.socket(zmq.ROUTER)
        self.router = context.socket(zmq.ROUTER)
        self.monitor = context.socket(zmq.PAIR)
        self.sockets = (self.router, self.zap, self.monitor)
        try:
            self._first_id = self._prepare(key)
            self.router.bind(f"tcp://{address}")
        except zmq.ZMQError as error:
            self.close()
            raise UsageError(f"cannot listen on {address}: {error.strerror}; choose another") from None
        except BaseException:
            self.close()
            raise
        endpoint = self.router.getsockopt_string(zmq.LAST_ENDPOINT)
        self.address = endpoint.rstrip("\0").removeprefix("tcp://")

    def _prepare(self, key: ClusterKey | None) -> int:
        self.zap.linger = 0
        self.zap.bind(_ZAP)
        configure(self.router)
        self.router.router_mandatory = True
        self.router.zap_domain = _DOMAIN
        self.router.setsockopt(zmq.ZAP_ENFORCE_DOMAIN, 1)
        if key is not None:
            key.serve_with(self.router)
        first = _learn_counter(self.router)
        watched = f"inproc://accepted-{next(_names)}"
        self.router.monitor(watched, zmq.EVENT_ACCEPTED)
        # Without a bound: ZeroMQ's thread would wait for room, and all connections with it.
        self.monitor.rcvhwm = 0
        self.monitor.linger = 0
        self.monitor.connect(watched)
        return first

    def close(self) -> None:
        with contextlib.suppress(zmq.ZMQError):
            self.router.disable_monitor()
        for each in self.sockets:
            each.close(0)

    # Who comes.

    def admit(self) -> bool:
        """Answer one question of ZeroMQ whether to let somebody in. False if there is none."""
        try:
            asker, empty, version, request, domain, _, _, mechanism, *credentials = self.zap.recv_multipart(
                _NO_WAIT
            )
        except (zmq.Again, ValueError):
            return False
        is_ours = domain == _DOMAIN and version == _ZAP_VERSION and self._may_enter(mechanism, credentials)
        status, text = (b"200", b"OK") if is_ours else (b"400", b"no access")
        with contextlib.suppress(zmq.ZMQError):
            self.zap.send_multipart((asker, empty, _ZAP_VERSION, request, status, text, b"", b""), _NO_WAIT)
        return True

    def _may_enter(self, mechanism: bytes, credentials: list[bytes]) -> bool:
        if self._key is None:
            return mechanism == b"NULL"
        return mechanism == b"CURVE" and credentials == [self._public]

    def accepted(self) -> bool:
        """Take note of one connection that ZeroMQ accepted. False if there is none."""
        try:
            event, _ = self.monitor.recv_multipart(_NO_WAIT)
        except zmq.Again:
            return False
        self._accepts += 1
        descriptor = _EVENT.unpack(event)[1]
        with contextlib.suppress(OSError), _Borrowed(descriptor) as connection:
            cookie = connection.getsockopt(socket.SOL_SOCKET, _SO_COOKIE, 8)
            self._forget(descriptor)
            accepted = _Accepted(descriptor, cookie)
            self._accepted[descriptor] = self._watched[descriptor] = accepted
        return True

    def is_peer(self, sender: bytes, frame: zmq.Frame) -> bool:
        """Whether a sender that was not heard before is a peer, by its first frame; else it is ignored."""
        if sender in self._by_sender:
            return True
        while self.accepted():
            pass
        found = self._accepted.get(frame.get(zmq.SRCFD))
        if not self._is_counted(sender):
            if found is not None:
                self._shut(found, "it brought a routing id of its own")
            return False
        if found is not None and self._is_of(sender, found, len(frame)):
            if found.sender is not None:
                self._by_sender.pop(found.sender, None)
                self._on_gone(found.sender)
            found.sender = sender
            found.suspected_at = None
            self._by_sender[sender] = found
        return True

    def _is_of(self, sender: bytes, found: _Accepted, message_bytes: int) -> bool:
        """Whether a message can have come over a connection that has the descriptor it came from.

        Whoever sends a message and hangs up before it is heard may have left its descriptor to another one.
        Then that one has not received so much yet, or is heard as well: ZeroMQ names connections in their
        order, so the later name is that of the connection that is there.
        """
        if found.sender is not None and self._number(sender) < self._number(found.sender):
            return False
        try:
            received = _received_bytes(found)
        except OSError:
            return False
        return received is None or received >= _GREETING_BYTES + message_bytes

    def _number(self, sender: bytes) -> int:
        """How many connections were named before this one."""
        return (int(_COUNTER.unpack_from(sender, 1)[0]) - self._first_id) % (1 << 32)

    def _is_counted(self, sender: bytes) -> bool:
        """Whether ZeroMQ may have named it: for how many connections there were, the counter went up."""
        if len(sender) != 1 + _COUNTER.size or sender[0] != 0:
            return False
        return self._number(sender) <= self._accepts

    # How much they send.

    def look(self, now: int) -> int | None:
        """Shut down what exceeds a bound. Returns after how many milliseconds to look again; None if there is
        nobody to look at before :meth:`accepted` has told of somebody."""
        self._awake_ms += min(max(0, now - self._now), GAP_MS_MAX)
        self._now = now
        while self.accepted():
            pass
        is_drained = not int(self.router.getsockopt(zmq.EVENTS)) & zmq.POLLIN
        looked = [*self._watched.values(), *self._others()]
        for each in looked:
            self._look_at(each, is_drained=is_drained)
        if self._under_way > UNDER_WAY_BYTES_MAX:
            # Some of that may have been heard since it was counted.
            for each in [each for each in self._accepted.values() if each.looked_at != now]:
                self._look_at(each, is_drained=is_drained)
        self._bound_under_way(is_drained=is_drained)
        unheard = sum(each.sender is None for each in self._watched.values())
        if unheard > UNHEARD_MAX or len(self._accepted) > self._connections_max:
            self._shut_unheard()
        if not self._accepted:
            return None
        return LOOK_AGAIN_MS if self._watched else LOOK_MS

    def _others(self) -> list[_Accepted]:
        """The connections whose turn it is, of those that need not be looked at each time."""
        if self._now - self._turned_at < LOOK_MS:
            return []
        self._turned_at = self._now
        if not self._turns:
            self._turns = list(self._accepted)
            # Whoever was gone before it was heard is not looked at.
            self.heard.intersection_update(self._by_sender)
        count = max(OTHERS_AT_ONCE, -(-len(self._accepted) // OTHERS_LOOKS_MAX))
        turn, self._turns = self._turns[-count:], self._turns[:-count]
        return [self._accepted[each] for each in turn if each in self._accepted and each not in self._watched]

    def _look_at(self, each: _Accepted, *, is_drained: bool) -> None:
        sent = self._measure(each)
        if sent is None:
            self._forget(each.descriptor)
            return
        self._under_way += sent - each.under_way
        each.under_way = sent
        if sent <= SMALL_BYTES:
            each.under_way_since = None
        elif each.under_way_since is None:
            each.under_way_since = self._awake_ms
        if each.sender is None or each.under_way_since is not None:
            self._watched[each.descriptor] = each
        else:
            self._watched.pop(each.descriptor, None)
        self._judge(each, sent, is_drained=is_drained)

    def _measure(self, each: _Accepted) -> int | None:
        """Return the bytes of a message that it has under way; None if it is gone."""
        try:
            received = _received_bytes(each)
        except OSError:
            return None
        if received is None:
            # Its time is bounded all the same.
            received = each.base
        if each.since is None:
            # What passed before is nobody's: while there are no connections, nobody looks.
            each.since, each.looked_at = self._awake_ms, self._now
        elapsed_ms, each.looked_at = self._now - each.looked_at, self._now
        if each.sender in self.heard:
            self.heard.remove(each.sender)
            each.base = received
        elif each.sender is not None:
            each.base = min(received, each.base + elapsed_ms * HEARTBEAT_BYTES_PER_SECOND // 1_000)
        return max(0, received - each.base)

    def _judge(self, each: _Accepted, sent: int, *, is_drained: bool) -> None:
        """Suspect or shut down a connection beyond its bound; ``sent`` counts since it was last heard."""
        is_late = False
        if each.sender is None and each.since is not None:
            bound, why = UNHEARD_BYTES_MAX, "it sent much, or waited long, and has not said hello"
            is_late = self._awake_ms - each.since > UNHEARD_MS_MAX
        else:
            bound, why = MESSAGE_BYTES_MAX + SMALL_BYTES, "it sent a message without end"
        if sent <= bound and not is_late:
            each.suspected_at = None
        elif each.suspected_at is None:
            # Only what ZeroMQ has read by now is certain to be shown by the next look.
            if is_late or sent - _waiting_bytes(each.descriptor) > bound:
                each.suspected_at = self._awake_ms
        elif is_drained or self._awake_ms - each.suspected_at > PATIENCE_MS:
            self._shut(each, why)

    def _bound_under_way(self, *, is_drained: bool) -> None:
        if self._under_way <= UNDER_WAY_BYTES_MAX:
            self._crowded_since = None
        elif self._crowded_since is None:
            self._crowded_since = self._awake_ms
        elif is_drained or self._awake_ms - self._crowded_since > PATIENCE_MS:
            large = [each for each in self._watched.values() if each.under_way_since is not None]
            if large:
                oldest = min(large, key=lambda each: each.under_way_since or 0)
                self._shut(oldest, "all connections together have too much under way")

    def _shut_unheard(self) -> None:
        """Shut down the oldest connections that were not heard, until the rest is within its bound."""
        unheard = [each for each in self._watched.values() if each.sender is None]
        surplus = max(len(unheard) - UNHEARD_MAX, len(self._accepted) - self._connections_max)
        for each in unheard[: max(0, surplus)]:
            self._shut(each, "too many connections are open")

    def _shut(self, each: _Accepted, why: str) -> None:
        """Shut a connection down; ZeroMQ finds it hung up, and throws away what it has of it."""
        self._forget(each.descriptor)
        # A descriptor of our own: what it names cannot change between the question and the deed.
        with contextlib.suppress(OSError), socket.socket(fileno=os.dup(each.descriptor)) as ours:
            if ours.getsockopt(socket.SOL_SOCKET, _SO_COOKIE, 8) == each.cookie:
                # Reset, when ZeroMQ closes it: whoever waits for room to send more would wait for minutes.
                ours.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _AT_ONCE)
                ours.shutdown(socket.SHUT_RDWR)
                self.shut += 1
                self._told.warning("connection_shut", why=why)

    def _forget(self, descriptor: int) -> None:
        found = self._accepted.pop(descriptor, None)
        if found is None:
            return
        self._watched.pop(descriptor, None)
        self._under_way -= found.under_way
        if found.sender is not None:
            self.heard.discard(found.sender)
            self._by_sender.pop(found.sender, None)
            self._on_gone(found.sender)


class _Borrowed:
    """A Python socket for a descriptor that stays somebody else's."""

    def __init__(self, descriptor: int) -> None:
        self._socket = socket.socket(
            socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, fileno=descriptor
        )

    def __enter__(self) -> socket.socket:
        return self._socket

    def __exit__(self, *_: object) -> None:
        self._socket.detach()


def _received_bytes(accepted: _Accepted) -> int | None:
    """Return the bytes received since the connection was made; None if the kernel does not know.

    Raises OSError if the connection is gone.
    """
    with _Borrowed(accepted.descriptor) as connection:
        if connection.getsockopt(socket.SOL_SOCKET, _SO_COOKIE, 8) != accepted.cookie:
            raise OSError(errno.EBADF, "the descriptor is another connection's")
        told = connection.getsockopt(
            socket.IPPROTO_TCP, socket.TCP_INFO, _BYTES_RECEIVED_AT + _BYTES_RECEIVED.size
        )
    if len(told) < _BYTES_RECEIVED_AT + _BYTES_RECEIVED.size:
        return None
    return int(_BYTES_RECEIVED.unpack_from(told, _BYTES_RECEIVED_AT)[0])


def _waiting_bytes(descriptor: int) -> int:
    """Bytes of a connection that the kernel has and ZeroMQ has not read."""
    try:
        return int.from_bytes(fcntl.ioctl(descriptor, termios.FIONREAD, bytes(4)), sys.byteorder)
    except OSError:
        return 0


def _seed_routing_ids() -> None:
    """Seed C's ``rand()``, from which ZeroMQ takes the first routing id without seeding it."""
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).srand(ctypes.c_uint(int.from_bytes(os.urandom(4), sys.byteorder)))


def _learn_counter(router: zmq.Socket[bytes]) -> int:
    """The number in the routing id of the first connection, which is one of our own."""
    name = f"inproc://first-{next(_names)}"
    router.bind(name)
    with router.context.socket(zmq.DEALER) as first:
        first.linger = 0
        first.connect(name)
        first.send(b"")
        sender, _ = router.recv_multipart()
    router.unbind(name)
    return int(_COUNTER.unpack_from(sender, 1)[0])


def _connections_max() -> int:
    """How many connections may be open, so that descriptors are left for files."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return sys.maxsize if limit == resource.RLIM_INFINITY else max(64, limit * 3 // 4)
