"""The scan process of a worker.

    python -P -m stretto.worker.scans.child DESCRIPTOR

It has one thread, which answers one request after the other: those of its worker, over the descriptor, come
before those of readers. It ends with its worker, and when there has been no pin for a while.
"""

from __future__ import annotations

import gc
import os
import socket
import struct
import sys
from collections.abc import Sequence
from typing import TypeAlias, assert_never

import lmdb
import msgspec
import structlog
import zmq

from stretto.errors import PeerError, StorageError, StrettoError
from stretto.network.keys import ClusterKey
from stretto.network.listener import Listener
from stretto.process import logs
from stretto.process.logs import Sparing
from stretto.pstate.ordered import KEY_BYTES_MAX
from stretto.pstate.pages import PAGE_BYTES, read_page
from stretto.state import depot as depots
from stretto.state import pstate as pstates
from stretto.vocabulary.clock import boot_time_ms
from stretto.vocabulary.records import DepotOffset
from stretto.vocabulary.types import Buffer
from stretto.wire import scans
from stretto.worker.scans import protocol
from stretto.worker.scans.pins import NoPin, Pin, Pins

NICENESS = 5
"""The niceness of the process, since replication comes first."""
REQUESTS_PER_TURN = 16
ADMISSIONS_PER_TURN = 256
BATCHES_BYTES_MAX = 16 * 1024 * 1024
BATCH_RECORDS_MAX = 1_000_000

log = structlog.get_logger()

Answer: TypeAlias = tuple[scans.FromScans, Sequence[Buffer]]


class ScanProcess:
    """The scan process: keeps pins, and answers its worker and the readers."""

    def __init__(self, control: socket.socket, start: protocol.Start) -> None:
        """Listen on any port. Raises StrettoError if that fails."""
        self._control = control
        self._idle_ms = start.idle_ms
        self._log = log.bind(worker=start.worker)
        self._pins = Pins()
        #: The time since when there has been no pin.
        self._idle_since = boot_time_ms()
        key = ClusterKey(start.public, start.secret) if start.public else None
        self._sparing = Sparing(self._log)
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._listener = Listener(self._context, f"{start.host}:0", key, boot_time_ms())
        self._router = self._listener.router
        self.address = self._listener.address
        #: The time of the next look at the bounds of connections; None while there are none.
        self._look_at: int | None = None

    def run(self) -> None:
        """Answer requests until the worker is gone, or until there is nothing to do."""
        poller = zmq.Poller()
        for each in self._listener.sockets:
            poller.register(each, zmq.POLLIN)
        poller.register(self._control.fileno(), zmq.POLLIN)
        while True:
            ready = dict(poller.poll(self._patience_ms()))
            if self._control.fileno() in ready and not self._hear_worker():
                return
            if self._listener.zap in ready:
                self._admit()
            if self._router in ready:
                self._hear_reader()
            now = boot_time_ms()
            if self._listener.monitor in ready or (self._look_at is not None and now >= self._look_at):
                again_ms = self._listener.look(now)
                self._look_at = None if again_ms is None else now + again_ms
            for pin, why in self._pins.expire(now):
                self._ended(pin, why)
            if self._pins:
                self._idle_since = now
            elif now - self._idle_since >= self._idle_ms:
                return

    def _admit(self) -> None:
        """Let in all connections that wait: a turn that answers readers may take long, and many come at
        once."""
        for _ in range(ADMISSIONS_PER_TURN):
            if not self._listener.admit():
                return

    def close(self) -> None:
        self._listener.close()
        self._context.destroy(0)

    def _patience_ms(self) -> int:
        next_ = self._pins.next_end
        if next_ is None:
            next_ = self._idle_since + self._idle_ms
        if self._look_at is not None:
            next_ = min(next_, self._look_at)
        return max(0, next_ - boot_time_ms())

    def _ended(self, pin: Pin, why: str) -> None:
        opened = pin.opened
        self._log.info(
            "pin_ended",
            pin=opened.pin,
            group=opened.group,
            offset=opened.offset,
            holder=opened.holder,
            why=why,
            age_ms=boot_time_ms() - pin.opened_at,
            sent_bytes=pin.sent_bytes,
        )

    # The worker.

    def _hear_worker(self) -> bool:
        data = self._control.recv(protocol.MESSAGE_BYTES_MAX)
        if not data:
            return False
        message = protocol.decode_to_child(data)
        self._idle_since = boot_time_ms()
        try:
            answer = self._do(message)
        except StorageError as error:
            answer = protocol.Failed(message.number, str(error))
        self._control.send(protocol.encode(answer))
        return True

    def _do(self, message: protocol.ToChild) -> protocol.FromChild:
        now = boot_time_ms()
        match message:
            case protocol.Open():
                self._pins.open(message, now)
                self._log.info(
                    "pin_opened",
                    pin=message.pin,
                    group=message.group,
                    offset=message.offset,
                    holder=message.holder,
                )
            case protocol.Prepare(group=group, folder=folder, tasks=tasks):
                self._pins.prepare(group, folder, tasks)
            case protocol.Close(pin=pin, why=why):
                closed = self._pins.close(pin, why)
                if closed is not None:
                    self._ended(closed, why)
            case protocol.Forget(group=group, why=why):
                for each in self._pins.forget(group, why):
                    self._ended(each, why)
            case protocol.List(number=number):
                return protocol.Listed(number, self._pins.list(now))
            case protocol.Start(number=number):
                return protocol.Failed(number, "it is started already")
            case _:
                assert_never(message)
        return protocol.Done(message.number)

    # Readers.

    def _hear_reader(self) -> None:
        for _ in range(REQUESTS_PER_TURN):
            try:
                connection, header, *_rest = self._router.recv_multipart(zmq.NOBLOCK, copy=False)
            except zmq.Again:
                return
            except ValueError:
                continue
            if not self._listener.is_peer(connection.bytes, header):
                continue
            self._listener.heard.add(connection.bytes)
            try:
                message = scans.decode_to_scans(header.buffer)
            except PeerError as error:
                self._sparing.warning("malformed_message", why=str(error))
                continue
            try:
                reply, bodies = self._answer(message)
            except Exception:  # noqa: BLE001 - no message of a reader ends the process
                self._sparing.exception("message_failed", message=type(message).__name__)
                reply, bodies = (
                    scans.Refused(message.request, "the scan process failed at this; see its log"),
                    (),
                )
            try:
                self._router.send_multipart([connection, scans.encode(reply), *bodies], zmq.NOBLOCK)
            except zmq.ZMQError:
                # Gone, or too slow to read its replies: it asks again.
                continue

    def _answer(self, message: scans.ToScans) -> Answer:
        if isinstance(message, scans.Release):
            closed = self._pins.close(message.pin, "it was released")
            if closed is not None:
                self._ended(closed, "it was released")
            return scans.Released(message.request), ()
        if isinstance(message, scans.Renew):
            gone = self._pins.renew(message.pins, boot_time_ms())
            return scans.Released(message.request, gone), ()
        try:
            pin = self._pins.find(message.pin, boot_time_ms())
        except NoPin as error:
            return scans.Lost(message.request, str(error)), ()
        if isinstance(message, scans.PartRead):
            pin.part_read(message.part, message.parts, boot_time_ms())
            return scans.Released(message.request), ()
        try:
            reply, bodies = _read(pin, message)
        except StrettoError as error:
            return scans.Refused(message.request, str(error)), ()
        except (lmdb.Error, IndexError, struct.error) as error:
            # The latter two are what a page that is none looks like to who reads it beside LMDB.
            why = f"group {pin.opened.group} could not be read: {error}"
            return scans.Refused(message.request, why), ()
        pin.sent_bytes += sum(map(len, bodies))
        return reply, bodies


def _read(
    pin: Pin,
    message: scans.ReadPage | scans.FindSplits | scans.FindSizes | scans.ReadBatches | scans.FindBounds,
) -> Answer:
    match message:
        case scans.ReadPage():
            return _page(pin, message)
        case scans.FindSplits():
            return _splits(pin, message), ()
        case scans.FindSizes():
            return scans.SizesFound(message.request, {task: _sizes(pin, task) for task in pin.tasks}), ()
        case scans.ReadBatches():
            return _batches(pin, message)
        case scans.FindBounds():
            return _bounds(pin, message), ()
        case _:
            assert_never(message)


def _page(pin: Pin, message: scans.ReadPage) -> Answer:
    task = pin.task(message.task)
    name = pstates.PREFIX + message.pstate
    if name not in task.databases:
        return scans.PageRead(message.request, 0, False), ()
    max_bytes = max(1, min(message.max_bytes, 16 * PAGE_BYTES))
    start, end, after = message.start[:KEY_BYTES_MAX], message.end, message.after
    found = task.tree(name).read_page(start, end, after=after, max_bytes=max_bytes)
    if found is None:
        cursor = task.txn.cursor(task.databases[name])
        found = read_page(cursor, start, end, after=after, max_bytes=max_bytes)
    page, more = found
    bodies = (page.keys, page.key_ends, page.values, page.value_ends) if page.count else ()
    return scans.PageRead(message.request, page.count, more), bodies


def _splits(pin: Pin, message: scans.FindSplits) -> scans.SplitsFound:
    task = pin.task(message.task)
    name = pstates.PREFIX + message.pstate
    keys: list[bytes] = []
    if name in task.databases:
        keys = task.tree(name).splits(message.parts, message.start, message.end)
    return scans.SplitsFound(message.request, tuple(keys))


def _sizes(pin: Pin, number: int) -> scans.TaskSizes:
    task = pin.task(number)
    found: dict[str, dict[str, scans.Size]] = {pstates.PREFIX: {}, depots.PREFIX: {}}
    for name, database in task.databases.items():
        stat = task.txn.stat(database)
        pages = stat["branch_pages"] + stat["leaf_pages"] + stat["overflow_pages"]
        for prefix, sizes in found.items():
            if name.startswith(prefix):
                sizes[name[len(prefix) :]] = scans.Size(stat["entries"], pages * task.page_bytes)
    return scans.TaskSizes(found[pstates.PREFIX], found[depots.PREFIX])


def _batches(pin: Pin, message: scans.ReadBatches) -> Answer:
    task = pin.task(message.task)
    database = task.databases.get(depots.PREFIX + message.depot)
    if database is None or message.offset >= message.end:
        return scans.BatchesRead(message.request, (), (), None), ()
    found = depots.read(
        task.txn,  # type: ignore[arg-type] # bytes are buffers too
        database,
        DepotOffset(message.offset),
        max_bytes=max(1, min(message.max_bytes, BATCHES_BYTES_MAX)),
        max_records=BATCH_RECORDS_MAX,
    )
    batches = [batch for batch in found.batches if batch.base < message.end]
    is_last = len(batches) < len(found.batches) or not batches or found.end >= message.end
    reply = scans.BatchesRead(
        message.request,
        tuple(batch.base for batch in batches),
        tuple(batch.timestamp_ms for batch in batches),
        None if is_last else found.end,
    )
    return reply, tuple(batch.payload for batch in batches)


def _bounds(pin: Pin, message: scans.FindBounds) -> scans.BoundsFound:
    task = pin.task(message.task)
    database = task.databases.get(depots.PREFIX + message.depot)
    if database is None:
        return scans.BoundsFound(message.request, 0, 0, None)
    start, end = depots.bounds(task.txn, database)  # type: ignore[arg-type] # bytes are buffers too
    found = None
    if message.timestamp_ms is not None:
        found = depots.offset_at(task.txn, database, message.timestamp_ms)  # type: ignore[arg-type]
    return scans.BoundsFound(message.request, start, end, found)


def main(descriptor: int) -> None:
    """Run the scan process of the worker at the other end of this descriptor."""
    logs.configure()
    os.nice(NICENESS)
    with socket.socket(fileno=descriptor) as control:
        control.setblocking(True)
        data = control.recv(protocol.MESSAGE_BYTES_MAX)
        if not data:
            return
        start = msgspec.msgpack.decode(data, type=protocol.Start)
        try:
            process = ScanProcess(control, start)
        except StrettoError as error:
            control.send(protocol.encode(protocol.Failed(start.number, str(error))))
            return
        control.send(protocol.encode(protocol.Ready(start.number, process.address)))
        # Rows are many small objects without cycles; looking for these would take longer than reading them.
        gc.freeze()
        gc.disable()
        process.run()
        process.close()


if __name__ == "__main__":
    main(int(sys.argv[1]))
