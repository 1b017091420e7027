"""Workers that cannot start say why in one sentence; running ones outlive whatever is sent to them."""

from __future__ import annotations

import random
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from kazoo.client import KazooClient

from stretto import connect, control
from stretto.errors import StrettoError, UsageError
from stretto.network.keys import ClusterKey
from stretto.replog.core import messages
from stretto.replog.core.producers import named_producer_id, new_producer_id
from stretto.replog.frame import Header, Kind, encode
from stretto.specs.modules import DepotSpec
from stretto.state.environment import DEPOTS_MAX
from stretto.vocabulary.groups import GroupKey
from stretto.vocabulary.records import BATCH_BYTES_MAX, pack
from stretto.vocabulary.types import Epoch, Incarnation, Offset, ProducerId, TaskId, WorkerId
from stretto.wire import messages as wire
from stretto.zk.creation import evenly, write_assignment
from stretto.zk.server.embedded import EmbeddedZooKeeper
from tests.support.cluster import MODULE, Cluster, free_port
from tests.support.hostile_messages import Hostile
from tests.support.waiting import wait_until
from tests.support.wires import NO_TEXT, Wire


def run(*arguments: str) -> tuple[int, str]:
    """Exit code and what it said on stderr, which is one sentence."""
    done = subprocess.run(
        [sys.executable, "-m", "stretto", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert "Traceback" not in done.stderr, done.stderr
    said = [line for line in done.stderr.splitlines() if line.startswith("stretto: ")]
    assert len(said) == 1, f"not one sentence: {done.stderr!r}"
    return done.returncode, said[0]


def worker_arguments(running: Cluster, data_dir: Path, **options: str) -> list[str]:
    given = {
        "id": "w0",
        "module": MODULE,
        "data-dir": str(data_dir),
        "zookeeper": running.zookeeper,
        "root": running.paths.root,
    } | {name.replace("_", "-"): value for name, value in options.items()}
    return ["worker", *(part for name, value in given.items() for part in (f"--{name}", value))]


def test_a_folder_in_use_by_another_process_is_named(calm: Cluster) -> None:
    folder = calm.workers["w0"].data_dir
    code, said = run(*worker_arguments(calm, folder))
    assert code in (1, 2)
    assert f"{folder} is in use" in said


def test_a_folder_of_another_cluster_is_refused(calm: Cluster, tmp_path: Path) -> None:
    code, said = run(*worker_arguments(calm, _folder_of(calm, tmp_path), cluster="another"))
    assert code in (1, 2)
    assert "another" in said
    assert "stretto" in said.removeprefix("stretto: ")


def _folder_of(cluster: Cluster, folder: Path) -> Path:
    """A copy of the identity of a worker's replicas."""
    source = cluster.workers["w0"].data_dir
    for identity in source.glob("groups/*/replog/*"):
        if not identity.name.endswith(".replog"):
            target = folder / identity.relative_to(source)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(identity.read_bytes())
    return folder


def test_an_unreachable_zookeeper_is_named_and_tried_again(calm: Cluster, tmp_path: Path) -> None:
    port = free_port()
    arguments = worker_arguments(calm, tmp_path / "data", zookeeper=f"127.0.0.1:{port}", id="nobody")
    said = tmp_path / "said"
    with said.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "stretto", *arguments], stdout=output, stderr=output
        )
    try:
        wait_until("it is named", lambda: f"127.0.0.1:{port}" in said.read_text())
        with EmbeddedZooKeeper(tmp_path / "zookeeper", port):
            client = KazooClient(f"127.0.0.1:{port}")
            client.start()
            write_assignment(client, calm.paths, MODULE, evenly(1, 1, [WorkerId("a")], 1))
            client.stop()
            client.close()
            wait_until("it serves", lambda: "worker nobody serves" in said.read_text())
    finally:
        process.terminate()
        assert process.wait(30) == 0, said.read_text()


def test_a_worker_that_waits_for_zookeeper_can_be_stopped(calm: Cluster, tmp_path: Path) -> None:
    nowhere = f"127.0.0.1:{free_port()}"
    said = tmp_path / "said"
    with said.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "stretto", *worker_arguments(calm, tmp_path / "d", zookeeper=nowhere)],
            stdout=output,
            stderr=output,
        )
    wait_until("it waits", lambda: nowhere in said.read_text())
    process.terminate()
    assert process.wait(30) == 0, said.read_text()


@pytest.mark.parametrize("verb", ["worker", "supervisor", "conductor"])
def test_an_address_that_nobody_can_connect_to_is_refused(tmp_path: Path, verb: str) -> None:
    key = tmp_path / "cluster.key"
    ClusterKey.generate().save(key)
    arguments = {
        "worker": ["--id", "a", "--module", "m", "--data-dir", str(tmp_path / "d")],
        "supervisor": ["--node", "n", "--data-dir", str(tmp_path / "d")],
        "conductor": [],
    }
    code, said = run(verb, *arguments[verb], "--address", "0.0.0.0:0", "--key", str(key))
    assert code == 2
    assert "--advertise HOST" in said


@pytest.mark.parametrize("address", ["10.1.2.3:7000", "example.org:7000"])
def test_an_address_that_others_can_reach_needs_the_cluster_key(
    calm: Cluster, tmp_path: Path, address: str
) -> None:
    code, said = run(*worker_arguments(calm, tmp_path, address=address))
    assert code in (1, 2)
    assert "needs the cluster key" in said
    assert address in said


def test_a_port_in_use_is_named(calm: Cluster, tmp_path: Path) -> None:
    taken = calm.addresses(["w0"])[0]
    code, said = run(*worker_arguments(calm, tmp_path, address=taken))
    assert code in (1, 2)
    assert taken in said


def test_a_connection_string_that_is_none_is_refused(calm: Cluster, tmp_path: Path) -> None:
    code, said = run(*worker_arguments(calm, tmp_path, zookeeper="127.0.0.1:port"))
    assert code in (1, 2)
    assert "127.0.0.1:port" in said


def test_only_who_has_the_key_gets_in(tmp_path: Path, zookeeper: EmbeddedZooKeeper) -> None:
    key = tmp_path / "cluster.key"
    ClusterKey.generate().save(key)
    with Cluster(tmp_path, zookeeper.address, groups=1, key=key) as cluster:
        client = cluster.connect()
        client.producer(MODULE, "events").append(b"secret", task=0).result(30)
        assert client.reader(MODULE, "events").read(0, 0).records[0].data == b"secret"
        for stranger in (None, ClusterKey.generate()):
            with pytest.raises(StrettoError, match="no worker answered") as refusal:
                connect(cluster.addresses(), key=stranger, timeout=2)
            assert len(str(refusal.value).splitlines()) == 1


def test_a_depot_that_the_module_does_not_declare_is_refused_for_good(
    tmp_path: Path, zookeeper: EmbeddedZooKeeper
) -> None:
    depots = (DepotSpec(name="sentences"),)
    with Cluster(tmp_path, zookeeper.address, groups=1, depots=depots) as cluster:
        client = cluster.connect()
        sentence = "module counts has no depot sentence; did you mean sentences?"
        with pytest.raises(UsageError) as refusal:
            client.producer(MODULE, "sentence").append(b"lost", task=0).result(30)
        assert str(refusal.value) == sentence
        with pytest.raises(UsageError) as refusal:
            client.reader(MODULE, "sentence").read(0, 0)
        assert str(refusal.value) == sentence
        client.producer(MODULE, "sentences").append(b"kept", task=0).result(30)
        assert [record.data for record in client.reader(MODULE, "sentences").read_all()] == [b"kept"]


def test_a_key_file_that_is_no_key_is_refused(calm: Cluster, tmp_path: Path) -> None:
    bad = tmp_path / "key"
    bad.write_text("not a key")
    code, said = run(*worker_arguments(calm, tmp_path, key=str(bad)))
    assert code in (1, 2)
    assert "not a cluster key" in said
    code, said = run(*worker_arguments(calm, tmp_path, key=str(tmp_path / "missing")))
    assert code in (1, 2)
    assert "missing" in said


# Messages.

GARBAGE_SEED = 20_240_601
HELLO = wire.Hello(wire.PROTOCOL_VERSION, "", WorkerId(""), Incarnation(""))


def proper_messages(cluster: Cluster) -> list[bytes]:
    key = cluster.key_of(0)
    return [
        wire.encode(wire.GetMetadata(1)),
        wire.encode(wire.AppendBatch(2, key, Kind.DEPOT, TaskId(0), ProducerId(7), 0, 1)),
        wire.encode(wire.ReadDepot(3, key, TaskId(0), "events", 0, 1 << 20, True)),
        wire.encode(wire.FindOffset(4, key, TaskId(0), "events", None)),
    ]


def check_alive(cluster: Cluster) -> None:
    for worker in cluster.workers.values():
        assert worker.is_running, f"{worker.name} ended"
        with Wire(worker.address) as caller:
            assert isinstance(caller.ask(wire.GetMetadata(caller.number())), wire.Metadata)


def test_random_bytes_do_not_kill_a_worker(calm: Cluster) -> None:
    dice = random.Random(GARBAGE_SEED)
    for worker in calm.workers.values():
        for hello in (True, False):
            with Wire(worker.address, hello=hello) as caller:
                for _ in range(200):
                    parts = [dice.randbytes(dice.randrange(60)) for _ in range(dice.randrange(1, 4))]
                    caller.send_raw(*parts)
    check_alive(calm)


def test_messages_cut_short_or_changed_do_not_kill_a_worker(calm: Cluster) -> None:
    dice = random.Random(GARBAGE_SEED)
    for worker in calm.workers.values():
        with Wire(worker.address) as caller:
            for message in proper_messages(calm):
                for end in range(len(message)):
                    caller.send_raw(message[:end])
                for _ in range(100):
                    changed = bytearray(message)
                    changed[dice.randrange(len(changed))] = dice.randrange(256)
                    caller.send_raw(bytes(changed), dice.randbytes(20))
                    # It is not trusted any more after a malformed message: say hello again.
                    caller.send(HELLO)
    check_alive(calm)


def test_a_call_with_text_that_is_no_text_does_not_kill_a_worker(calm: Cluster) -> None:
    """What travels as it is in another message is decoded later, and UTF-8 was not looked at before."""
    for worker in calm.workers.values():
        with Wire(worker.address) as caller:
            answer = caller.ask(wire.Ask(1, NO_TEXT))
            assert isinstance(answer, wire.Failed)
            assert "no such call" in answer.why
    check_alive(calm)


def test_damaged_frames_from_a_worker_do_not_kill_a_worker(calm: Cluster) -> None:
    dice = random.Random(GARBAGE_SEED)
    key, record = calm.key_of(0), calm.record()
    leader, incarnation = record.leader, record.leader_incarnation
    assert leader is not None
    assert incarnation is not None
    frame = b"".join(
        encode(
            Header(
                offset=Offset(1),
                epoch=record.epoch,
                kind=Kind.DEPOT,
                task=TaskId(0),
                producer=ProducerId(0),
                sequence=0,
                timestamp_ms=0,
                count=1,
            ),
            pack("events", [b"record"]),
        ).parts
    )
    message = messages.Entries(
        epoch=record.epoch,
        incarnation=incarnation,
        to=Incarnation("somebody"),
        apply_offset=Offset(0),
        log_end=Offset(1),
        retain_offset=Offset(0),
        probe=False,
    )
    for follower in calm.followers():
        with Wire(follower.address, worker=leader) as caller:
            hello = wire.Hello(wire.PROTOCOL_VERSION, "", WorkerId(leader), incarnation)
            for at in range(0, len(frame), 3):
                damaged = bytearray(frame)
                damaged[at] ^= 1 << dice.randrange(8)
                caller.send(wire.Replicate(key, message), bytes(damaged))
                caller.send(wire.Replicate(key, message), frame[:at])
                caller.send(hello)
    check_alive(calm)


ABSURD = (-1, 1 << 31, 1 << 32, (1 << 63) - 1, 1 << 63, (1 << 64) - 1)


@pytest.mark.parametrize("kind", list(Kind))
def test_appends_with_absurd_numbers_do_not_kill_a_worker(calm: Cluster, kind: Kind) -> None:
    with Wire(calm.leader().address) as caller:
        # What would be taken but for the number: records of a producer, a marker of none.
        for producer, body in ((1, pack("events", [b"record"])), (0, b"marker")):
            for field in ("task", "producer", "sequence", "count"):
                for number in ABSURD:
                    message = wire.AppendBatch(
                        caller.number(), calm.key_of(0), kind, TaskId(0), ProducerId(producer), 0, 1
                    )
                    caller.send(msgspec.structs.replace(message, **{field: number}), body)
    check_alive(calm)


@pytest.mark.parametrize("kind", [Kind.DEPOT, Kind.CLAIM])
def test_a_sequence_that_no_other_can_follow_is_refused_before_it_is_in_the_log(
    calm: Cluster, kind: Kind
) -> None:
    """There it would end every replica that applies it, whenever it starts."""
    last, producer = (1 << 64) - 1, ProducerId(named_producer_id(1, lasting=False))
    body = pack("events", [b"record"]) if kind is Kind.DEPOT else b""
    with Wire(calm.leader().address) as caller:
        message = wire.AppendBatch(caller.number(), calm.key_of(0), kind, TaskId(0), producer, last, 1)
        assert isinstance(caller.ask(message, body), wire.Failed)
        # Behind it in the log.
        marker = wire.AppendBatch(
            caller.number(), calm.key_of(0), Kind.MARKER, TaskId(0), ProducerId(0), 0, 1
        )
        assert isinstance(caller.ask(marker, b"marker"), wire.Appended)
    check_alive(calm)


def test_reads_with_absurd_numbers_do_not_kill_a_worker(calm: Cluster) -> None:
    key = calm.key_of(0)
    with Wire(calm.leader().address) as caller:
        for number in ABSURD:
            for message in (
                wire.ReadDepot(caller.number(), key, TaskId(number), "events", 0, 1, True),
                wire.ReadDepot(caller.number(), key, TaskId(0), "events", number, 1, False),
                wire.ReadDepot(caller.number(), key, TaskId(0), "events", 0, number, True),
                wire.FindOffset(caller.number(), key, TaskId(number), "events", 0),
                wire.FindOffset(caller.number(), key, TaskId(0), "events", number),
                wire.FindOffset(caller.number(), key, TaskId(0), "\0", number),
            ):
                assert isinstance(caller.ask(message), wire.Failed | wire.DepotBatches | wire.DepotOffsets)
    check_alive(calm)


def test_an_append_that_can_never_be_taken_is_answered_with_a_sentence(calm: Cluster) -> None:
    key = calm.key_of(0)
    proper = pack("events", [b"record"])
    with Wire(calm.leader().address) as caller:
        for body, why in (
            (b"", "batch"),
            (proper[:-1], "add up"),
            (proper + b"x", "add up"),
            (bytes(BATCH_BYTES_MAX + 1), "beyond the limit"),
        ):
            message = wire.AppendBatch(caller.number(), key, Kind.DEPOT, TaskId(0), ProducerId(1), 0, 1)
            answer = caller.ask(message, body)
            assert isinstance(answer, wire.Failed)
            assert re.search(why, answer.why), answer.why
    check_alive(calm)


def test_nothing_is_answered_before_a_hello_of_this_protocol(calm: Cluster) -> None:
    address = calm.leader().address
    with Wire(address, hello=False) as caller:
        assert isinstance(caller.ask(wire.GetMetadata(1)), wire.HelloRefused)
        assert isinstance(caller.ask(msgspec.structs.replace(HELLO, version=99)), wire.HelloRefused)
        assert isinstance(caller.ask(msgspec.structs.replace(HELLO, cluster="other")), wire.HelloRefused)
        assert isinstance(caller.ask(HELLO), wire.Welcome)
        assert isinstance(caller.ask(wire.GetMetadata(1)), wire.Metadata)


def test_a_client_cannot_speak_for_a_worker(calm: Cluster) -> None:
    reject = messages.Reject(
        epoch=Epoch(99), incarnation=Incarnation("x"), reason=messages.RejectReason.STALE_EPOCH
    )
    before = calm.record()
    with Wire(calm.leader().address) as caller:
        caller.send(wire.Replicate(calm.key_of(0), reject))
        assert isinstance(caller.ask(wire.GetMetadata(1)), wire.HelloRefused)
    assert calm.record() == before
    check_alive(calm)


def test_a_task_takes_no_more_depots_than_its_file_can_hold(start: Callable[..., Cluster]) -> None:
    """One more would stop every replica of the group."""
    cluster = start(tasks=1, groups=1)
    key = cluster.key_of(0)
    producer = new_producer_id(time.time_ns() // 1_000_000, 7)
    with Wire(cluster.leader().address) as caller:
        number = caller.number()
        opening = wire.AppendBatch(number, key, Kind.PRODUCER_OPEN, TaskId(0), producer, 0, 1)
        assert isinstance(caller.ask(opening, b""), wire.Appended)

        def append(depot: str, sequence: int) -> None:
            message = wire.AppendBatch(caller.number(), key, Kind.DEPOT, TaskId(0), producer, sequence, 1)
            caller.send(message, pack(depot, [b"record"]))

        for at in range(DEPOTS_MAX + 3):
            append(f"depot-{at}", at)
        answers = [caller.receive() for _ in range(DEPOTS_MAX + 3)]
        failed = [answer for answer in answers if isinstance(answer, wire.Failed)]
        assert len(failed) == 3
        assert all("takes no other" in answer.why for answer in failed)
        assert sum(isinstance(answer, wire.Appended) for answer in answers) == DEPOTS_MAX
        append("depot-0", DEPOTS_MAX)
        assert isinstance(caller.receive(), wire.Appended)
    check_alive(cluster)


@pytest.mark.parametrize("claimed", ["", "w1"], ids=["as a client", "as a worker"])
def test_no_message_of_a_peer_ends_a_worker(start: Callable[..., Cluster], claimed: str) -> None:
    running = start(workers=1, tasks=2, groups=1, factor=1)
    worker = running.workers["w0"]
    key = running.key_of()
    hostile = Hostile(17, {GroupKey: (key,), str: (MODULE, "w0", "w1")})
    calls = [
        wire.encode(wire.Ask(1, msgspec.Raw(call))) for call in hostile.messages(control.AnyCall.__args__, 20)
    ]
    requests = hostile.messages(wire.ToWorker.__args__, 60)
    with Wire(worker.address, worker=claimed) as peer:
        for message in (wire.encode(wire.GetMetadata(1, "a/b")), *requests, *calls):
            assert worker.is_running, worker.log()[-20:]
            peer.send_raw(message, *hostile.bodies())
            # Whoever sent what a peer of its kind does not send has to begin anew.
            peer.send(wire.Hello(wire.PROTOCOL_VERSION, "", WorkerId(claimed), Incarnation("")))
    with Wire(worker.address) as other:
        assert worker.is_running, worker.log()[-20:]
        assert isinstance(other.ask(wire.Ask(1, control.encode(control.Replicas()))), wire.Answer)
    assert worker.is_running, worker.log()[-20:]
