"""Point reads of a PState from a real leader, next to an echo over bare ZeroMQ, in the same run and in turn.

The echo is one process with a ROUTER that answers each message with one of fixed size, and one with a DEALER
that keeps as many of them under way as the reader does; the sizes are those of a read and its answer. It
looks nothing up, checks no lease and encodes nothing.

To read a hundred keys at a time takes more than to send them. So the detail of that tells of an echo, too,
that looks its rows up: a list of keys goes there, each is one ``get`` of an LMDB file, and a list of values
comes back, which are decoded. It knows one task, and no epochs, offsets, leases, limits or types.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import statistics
import time
from collections.abc import Iterator
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NamedTuple

import lmdb
import msgspec
import zmq

from stretto.bench import Result
from stretto.bench.floor import HOST
from stretto.bench.replication import (
    MODULE,
    READY_SECONDS,
    REPLICAS,
    ROUNDS,
    TASKS,
    Run,
    asking,
    in_turn,
    requests,
    running,
    workers,
)
from stretto.client import connect
from stretto.client.api import AsyncClient, Client
from stretto.client.asking.question import Question
from stretto.errors import StrettoError
from stretto.module.partition import owner_of
from stretto.network.routing import Network
from stretto.pstate import ordered
from stretto.pstate.changes import Changes, pack
from stretto.pstate.types import describe
from stretto.replog.frame import Kind
from stretto.specs.modules import DepotSpec, ModuleSpec, ModuleState, PStateSpec
from stretto.vocabulary.groups import GroupKey
from stretto.vocabulary.invariants import check
from stretto.vocabulary.types import Epoch, Offset, ProducerId, TaskId, WorkerId
from stretto.wire import messages as wire
from stretto.zk.server.embedded import free_ports

PSTATE = "counts"
KEYS = 10_000
AT_ONCE = 64
BATCH = 100
READS = 2_000
READS_AT_ONCE = 10_000
BATCHES = 300
READS_TARGET = 0.5


class Load(NamedTuple):
    """A load: so many messages under way at a time, each for so many keys."""

    at_once: int
    keys: int


LOADS = {"one": Load(1, 1), "at-once": Load(AT_ONCE, 1), "batch": Load(1, BATCH)}
ROWS = "rows"
"""The command that makes the echo look up the rows of a batch."""


def one_at_a_time(folder: Path) -> Result:
    """Measure reads of one key, each after the answer to the one before."""
    return _measure(folder, "one", READS)


def at_once(folder: Path) -> Result:
    """Measure reads of one key by many coroutines at once."""
    return _measure(folder, "at-once", READS_AT_ONCE)


def batched(folder: Path) -> Result:
    """Measure reads of many keys by one caller, one message after the other."""
    return _measure(folder, "batch", BATCHES)


def _measure(folder: Path, load: str, messages: int) -> Result:
    reads = messages * LOADS[load].keys
    spec = ModuleSpec(
        artifact="",
        tasks=TASKS,
        threads=1,
        workers=REPLICAS,
        replication_factor=REPLICAS,
        state=ModuleState.RUNNING,
        depots=(DepotSpec(name="events"),),
        pstates=(PStateSpec(name=PSTATE, type=describe(dict[str, int])),),
    )
    with (
        workers(folder / "real", spec) as addresses,
        asking(_read_from_workers, addresses) as real,
        _echo(folder) as echo,
    ):
        result = in_turn(
            lambda: reads / real(load, messages),
            lambda: reads / echo(load, messages),
            unit="reads/s",
            target=READS_TARGET,
        )
        if load != "batch":
            return result
        rows = statistics.median(reads / echo(ROWS, messages) for _ in range(ROUNDS))
    told = (
        f"{result.detail}; {result.value / rows:.2f} of an echo that looks the rows up, {rows:,.0f} reads/s"
    )
    return replace(result, detail=told)


# The real thing.


def _key(number: int) -> str:
    return f"key {number:05d}"


def _read_from_workers(commands: Connection, addresses: list[str]) -> None:
    client = connect(addresses, timeout=READY_SECONDS)
    _fill(addresses)
    keys = [_key(number) for number in random.Random(0).sample(range(KEYS), KEYS)]
    counts = client.pstate(MODULE, PSTATE)
    with client:
        for what, messages in requests(commands):
            started = time.perf_counter()
            load = LOADS[what]
            if load.at_once > 1:
                asyncio.run(_gather(client, keys, messages, load.at_once))
            elif load.keys > 1:
                for number in range(messages):
                    at = number * load.keys % KEYS
                    counts.get_many(keys[at : at + load.keys])
            else:
                for number in range(messages):
                    counts.get(keys[number % KEYS])
            commands.send(time.perf_counter() - started)


async def _gather(client: Client, keys: list[str], reads: int, at_once: int) -> None:
    counts = await AsyncClient(client).pstate(MODULE, PSTATE)
    left = iter(range(reads))

    async def read() -> None:
        for number in left:
            await counts.get(keys[number % KEYS])

    await asyncio.gather(*(read() for _ in range(at_once)))


def _fill(addresses: list[str]) -> None:
    """Fill the PState with entries, as a worker does whose topology changes it."""
    values: dict[TaskId, list[tuple[bytes, bytes]]] = {}
    for number in range(KEYS):
        row = ordered.encode(_key(number)), msgspec.msgpack.encode(number)
        values.setdefault(owner_of(_key(number), TASKS), []).append(row)
    network = Network(addresses, None, worker=WorkerId("bench"))
    with Client(network) as client:
        client.refresh(READY_SECONDS)
        for task, rows in values.items():
            payload = pack({PSTATE: Changes(puts=tuple(sorted(rows)))})

            def message(number: int, group: GroupKey, task: TaskId = task) -> wire.ToWorker:
                return wire.AppendBatch(number, group, Kind.STATE, task, ProducerId(0), 0, 1)

            Question(network, MODULE, task, message, READY_SECONDS, bodies=[payload]).begin().wait()


# The echo.


def _sizes(keys: int) -> tuple[int, int]:
    """Return the size in bytes of the header of a read of so many keys, and of its answer."""
    names = tuple(ordered.encode(_key(number)) for number in range(keys))
    read = wire.ReadRows(1_000, GroupKey(MODULE, 0, 0), PSTATE, (TaskId(0),) * keys, names)
    values = tuple(msgspec.msgpack.encode(1_000) for _ in names)
    return len(wire.encode(read)), len(wire.encode(wire.RowValues(1_000, values, Epoch(1), Offset(1_000))))


@contextlib.contextmanager
def _echo(folder: Path) -> Iterator[Run]:
    [port] = free_ports(1)
    with (
        running(["-m", "stretto.bench.reads", str(port), str(folder / "echo")], folder / "echo.log"),
        asking(_ask_echo, port) as run,
    ):
        yield run


def _ask_echo(commands: Connection, port: int) -> None:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    socket = context.socket(zmq.DEALER)
    socket.connect(f"tcp://{HOST}:{port}")
    for what, messages in requests(commands):
        if what == ROWS:
            commands.send(_ask_for_rows(socket, messages, BATCH))
            continue
        load = LOADS[what]
        request, reply = _sizes(load.keys)
        message = reply.to_bytes(4, "little") + bytes(request - 4)
        check(message[0] != _LIST_BEGINS, "an echo is taken for a list", reply=reply)
        started = time.perf_counter()
        for _ in range(load.at_once):
            socket.send(message)
        for _ in range(messages - load.at_once):
            socket.recv()
            socket.send(message)
        for _ in range(load.at_once):
            socket.recv()
        commands.send(time.perf_counter() - started)
    context.destroy(0)


def _ask_for_rows(socket: zmq.Socket[bytes], messages: int, keys: int) -> float:
    names = [_key(number) for number in random.Random(0).sample(range(KEYS), KEYS)]
    decode = msgspec.msgpack.Decoder(int).decode
    started = time.perf_counter()
    for number in range(messages):
        at = number * keys % KEYS
        wanted = names[at : at + keys]
        socket.send(_encode([ordered.encode(name) for name in wanted]))
        values = dict(zip(wanted, map(decode, _decode(socket.recv())), strict=True))
        if len(values) != keys:
            raise StrettoError("the floor lacks rows")
    return time.perf_counter() - started


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[bytes]).decode


def _serve_echo(port: int, folder: Path) -> None:
    socket = zmq.Context().socket(zmq.ROUTER)
    socket.bind(f"tcp://{HOST}:{port}")
    environment = lmdb.open(str(folder))
    with environment.begin(write=True) as txn:
        for number in range(KEYS):
            txn.put(ordered.encode(_key(number)), msgspec.msgpack.encode(number))
    while True:
        sender, message = socket.recv_multipart()
        if message[0] == _LIST_BEGINS:
            with environment.begin() as txn:
                answer = _encode([txn.get(key) for key in _decode(message)])
        else:
            answer = bytes(int.from_bytes(message[:4], "little"))
        socket.send_multipart([sender, answer])


_LIST_BEGINS = 0xDC
"""First byte of a MessagePack list of a hundred keys; no size of an answer begins with it."""


if __name__ == "__main__":
    import sys

    _serve_echo(int(sys.argv[1]), Path(sys.argv[2]))
