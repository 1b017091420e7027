"""What disks do to workers: writes that are not synced, crashes of machines, folders that cannot be used."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from crc32c import crc32c
from kazoo.exceptions import NoNodeError

from stretto.replog.core.effects import Refusal
from stretto.replog.identity import IDENTITY_NAME
from stretto.wire import messages as wire
from stretto.zk.znodes.records import WorkerRegistration
from stretto.zk.znodes.records import decode as decode_record
from tests.integration.worker.test_crashes import wait_for_more
from tests.integration.worker.test_outages import refusal
from tests.integration.worker.test_refusals import run, worker_arguments
from tests.support.cluster import Cluster, WorkerProcess
from tests.support.load import Load, check_history
from tests.support.waiting import wait_until
from tests.support.wires import Wire


def storages(cluster: Cluster, group: int = 0) -> dict[str, str]:
    return {member.worker: member.storage for member in cluster.record(group).isr}


def identity_path(cluster: Cluster, worker: WorkerProcess, group: int) -> Path:
    return cluster.replica_folder(worker.name, group) / "replog" / IDENTITY_NAME


def identity(cluster: Cluster, worker: WorkerProcess, group: int) -> dict[str, Any]:
    content = identity_path(cluster, worker, group).read_bytes().partition(b"\n")[0]
    return msgspec.json.decode(content, type=dict[str, Any])


def change_identities(cluster: Cluster, worker: WorkerProcess, **changes: Any) -> None:
    for plan in cluster.plans:
        path = identity_path(cluster, worker, plan.key.group)
        content = msgspec.json.encode(identity(cluster, worker, plan.key.group) | changes)
        path.write_bytes(b"%s\n%08x\n" % (content, crc32c(content)))


def crash_machine(cluster: Cluster, worker: WorkerProcess) -> None:
    """As its folder sees it: nobody closed it, and the machine has booted since."""
    change_identities(cluster, worker, boot_id="another-boot")


# Without a sync for each write.


@pytest.fixture
def unsynced(start: Callable[..., Cluster]) -> Cluster:
    cluster = start(options={"replication.fsync": "interval"})
    wait_until("all replicas confirm unsynced", lambda: all(fsyncs(cluster)), 40.0)
    return cluster


def fsyncs(cluster: Cluster) -> Iterator[bool]:
    for worker in cluster.workers.values():
        for plan in cluster.plans:
            yield identity(cluster, worker, plan.key.group)["fsync"] == "interval"


def test_unsynced_writes_survive_kill_9_of_the_leader(unsynced: Cluster) -> None:
    before = storages(unsynced)
    with Load(unsynced.connect()) as load:
        wait_for_more(load)
        leader, epoch = unsynced.leader(), unsynced.record().epoch
        leader.kill()
        unsynced.wait_led_by(set(unsynced.workers) - {leader.name}, above_epoch=epoch)
        wait_for_more(load)
    assert check_history(unsynced, load)["failed"] == 0
    assert storages(unsynced) == before


def test_unsynced_writes_survive_kill_9_of_all_workers(unsynced: Cluster) -> None:
    before = storages(unsynced)
    with Load(unsynced.connect()) as load:
        wait_for_more(load)
        unsynced.kill_at_once()
        for worker in unsynced.workers.values():
            worker.start()
        wait_for_more(load)
    assert check_history(unsynced, load)["failed"] == 0
    assert storages(unsynced) == before, "a crash of a process is not a crash of its machine"


def test_a_machine_that_crashed_with_unsynced_writes_comes_back_under_a_fresh_id(unsynced: Cluster) -> None:
    with Load(unsynced.connect()) as load:
        wait_for_more(load)
        before = storages(unsynced)
        victim = unsynced.followers()[0]
        victim.kill()
        crash_machine(unsynced, victim)
        victim.start()
        wait_until(
            "it is in the ISR under a fresh storage id",
            lambda: storages(unsynced).get(victim.name, before[victim.name]) != before[victim.name],
            40.0,
        )
        wait_for_more(load)
    assert check_history(unsynced, load)["failed"] == 0


def test_when_all_machines_crashed_with_unsynced_writes_nobody_leads(unsynced: Cluster) -> None:
    with Load(unsynced.connect()) as load:
        wait_for_more(load)
    record = unsynced.record()
    unsynced.kill_at_once()
    for worker in unsynced.workers.values():
        crash_machine(unsynced, worker)
        worker.start()
    wait_until("all have registered fresh ids", lambda: all_fresh(unsynced), 40.0)
    for worker in unsynced.workers.values():
        with Wire(worker.address) as caller:
            assert refusal(unsynced, caller) == Refusal.NOT_LEADER
            answer = caller.ask(wire.GetMetadata(caller.number()))
            assert isinstance(answer, wire.Metadata)
    assert unsynced.record() == record, "one without a claim to everything was elected"


def all_fresh(cluster: Cluster) -> bool:
    listed = set(storages(cluster).values())
    found = {each.worker: each.storage_of(cluster.key_of(0)) for each in registrations(cluster)}
    return found.keys() == set(cluster.workers) and not listed & set(found.values())


def registrations(cluster: Cluster) -> Iterator[WorkerRegistration]:
    paths, operator = cluster.paths, cluster.operator
    for worker in operator.get_children(paths.workers):
        for incarnation in operator.get_children(f"{paths.workers}/{worker}"):
            path = f"{paths.workers}/{worker}/{incarnation}"
            with contextlib.suppress(NoNodeError):
                yield decode_record(operator.get(path)[0], WorkerRegistration, path)


# Folders that cannot be used.


def test_a_folder_of_another_format_version_is_refused_and_left_alone(start: Callable[..., Cluster]) -> None:
    cluster = start(groups=1)
    victim = cluster.followers()[0]
    victim.kill()
    change_identities(cluster, victim, format_version=99, fsync="a word of a later release")
    folder = cluster.replica_folder(victim.name) / "replog"
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    code, said = run(*worker_arguments(cluster, victim.data_dir, id=victim.name))
    assert code == 1
    assert "format version 99" in said
    assert "the release that wrote it" in said
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    change_identities(cluster, victim, format_version=1, fsync="always")
    victim.start()
    cluster.wait_healed()


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own."""
    path = tmp_path / "disk"
    path.mkdir()
    if os.geteuid() != 0:
        pytest.skip("only root can mount a file system to make it read-only")
    mounted = subprocess.run(["mount", "-t", "tmpfs", "none", path], capture_output=True, check=False)
    if mounted.returncode != 0:
        pytest.skip(f"nothing can be mounted here: {mounted.stderr.decode().strip()}")
    yield path
    subprocess.run(["umount", "--lazy", path], check=True)


def remount(disk: Path, mode: str) -> None:
    subprocess.run(["mount", "-o", f"remount,{mode}", "none", disk], check=True)


def test_a_worker_on_a_read_only_disk_says_so_and_starts_when_it_is_writable(
    start: Callable[..., Cluster], disk: Path
) -> None:
    cluster = start(groups=1)
    victim = cluster.followers()[0]
    victim.kill()
    shutil.move(victim.data_dir, disk)
    victim.data_dir = disk / victim.name
    remount(disk, "ro")
    code, said = run(*worker_arguments(cluster, victim.data_dir, id=victim.name))
    assert code in (1, 2)
    assert "Read-only file system" in said
    assert str(victim.data_dir) in said
    remount(disk, "rw")
    victim.start()
    cluster.wait_healed()


class FragileDisk:
    """A file system that can be made to find an error in itself: then it writes nothing until repaired."""

    def __init__(self, path: Path, image: Path) -> None:
        self.path = path
        self._image = image

    def mount(self) -> str:
        """Returns why that is not possible, if it is not."""
        options = ["-t", "ext4", "-o", "loop,errors=remount-ro"]
        done = subprocess.run(
            ["mount", *options, self._image, self.path], capture_output=True, text=True, check=False
        )
        return done.stderr.strip()

    def fail(self) -> None:
        source = subprocess.run(["findmnt", "-no", "SOURCE", self.path], capture_output=True, check=True)
        device = Path(source.stdout.decode().strip()).name
        Path(f"/sys/fs/ext4/{device}/trigger_fs_error").write_text("an error")

    def repair(self) -> None:
        """Nobody may use it meanwhile."""
        subprocess.run(["umount", self.path], check=True)
        done = subprocess.run(["e2fsck", "-fy", self._image], capture_output=True, check=False)
        assert done.returncode in (0, 1), done.stdout
        assert not self.mount()


@pytest.fixture
def fragile_disk(tmp_path: Path) -> Iterator[FragileDisk]:
    if os.geteuid() != 0 or shutil.which("mkfs.ext4") is None:
        pytest.skip("this needs a file system of its own: root, and mkfs.ext4")
    path, image = tmp_path / "fragile", tmp_path / "image"
    path.mkdir()
    with image.open("wb") as file:
        file.truncate(256 << 20)
    subprocess.run(["mkfs.ext4", "-q", image], check=True)
    disk = FragileDisk(path, image)
    why = disk.mount()
    if why:
        pytest.skip(f"this needs a file system of its own, and mounting one failed: {why}")
    yield disk
    subprocess.run(["umount", "--lazy", path], check=True)


@pytest.mark.soak
def test_a_disk_that_turns_read_only_stops_its_replica_and_nothing_else(
    start: Callable[..., Cluster], fragile_disk: FragileDisk
) -> None:
    cluster = start(groups=1)
    victim = cluster.followers()[0]
    greetings = victim.said('"reconciled"')
    victim.kill()
    shutil.move(victim.data_dir, fragile_disk.path)
    victim.data_dir = fragile_disk.path / victim.name
    victim.start()
    wait_until("it follows", lambda: victim.said('"reconciled"') > greetings, 60.0)
    cluster.wait_healed()
    before = storages(cluster)
    with Load(cluster.connect()) as load:
        wait_for_more(load)
        fragile_disk.fail()
        wait_until("the others go on without it", lambda: victim.name not in storages(cluster), 60.0)
        wait_for_more(load)
        assert victim.said("Read-only file system")
        wait_until("it tries again", lambda: victim.said("replica_cannot_be_opened") > 1, 60.0)
        victim.kill()
        fragile_disk.repair()
        victim.start()
        cluster.wait_healed()
        wait_for_more(load)
    assert check_history(cluster, load)["failed"] == 0
    assert storages(cluster) == before, "what it had confirmed was not lost, so it is no stranger"
