"""A leader's state takes the place of a replica's own: all of it or nothing, whenever the process ends."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random

import pytest

from stretto.catchup import images as images_of
from stretto.catchup import staging as staging_of
from stretto.catchup.hasher import open_direct
from stretto.catchup.images import SpooledImage, make_image, task_folder
from stretto.catchup.install import INSTALL, Install, carry_out, steps
from stretto.catchup.machines import blocks
from stretto.catchup.staging import Abandoned, AlignedParts, Staging
from stretto.errors import StorageError
from stretto.replog.frame import Kind
from stretto.replog.storage import EpochStart
from stretto.specs.assignments import GroupPlan
from stretto.state.applied import AppliedState
from stretto.state.environment import NoSpace
from stretto.vocabulary.groups import GroupKey
from stretto.vocabulary.types import Epoch, Incarnation, Offset, StorageId, TaskId, WorkerId
from stretto.wire import catchup
from stretto.worker.replica.storage import ReplicaFolder, ReplicaStorage
from tests.support.entries import TASKS, Log, applied_in_one_go, digests
from tests.support.syncs import RecordedSyncs
from tests.unit.state.syncing import folders_synced

PLAN = GroupPlan(GroupKey("counts", 0, 0), TASKS, (WorkerId("w0"), WorkerId("w1")))
LEAF = 0x02
"""Among the flags of a page of LMDB."""
EPOCH, ME = Epoch(1), Incarnation("w1.1")
SEED = blocks.seed_of(ME)


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(2) as pool:
        yield pool


def a_log(entries: int) -> Log:
    log = Log()
    log.add(Kind.EPOCH)
    log.add(Kind.PRODUCER_OPEN, producer=7)
    for number in range(entries):
        log.depot([b"%d" % number * 50], task=number % 2, producer=7, sequence=number)
    return log


def opened(path: Path, pool: ThreadPoolExecutor, log: Log | None = None) -> ReplicaStorage:
    path.mkdir(exist_ok=True)
    storage = ReplicaFolder(path, PLAN, cluster="c", pool=pool).open()
    if log is not None:
        storage.log.append(log.frames)
        storage.log.sync()
        storage.state.apply(log.frames)
    return storage


def close(storage: ReplicaStorage) -> None:
    storage.log.close()
    storage.state.close()


def ask(task: TaskId, number: int = 1) -> catchup.AskImage:
    return catchup.AskImage(EPOCH, ME, 1, task=task, round=number, base=number - 1)


def fetch_image(staging: Staging, image: SpooledImage, *, mangle: bool = False) -> int:
    """Returns how many bytes were missing."""
    missing = staging.compare(image.described, (image.listed,))
    assert missing is not None
    content = image.spool.read(image.pieces(tuple(missing))) if missing else b""
    if missing:
        if mangle:
            spoilt = bytes([content[0] ^ 1]) + content[1:]
            assert staging.store(image.described, tuple(missing), memoryview(spoilt)) == ((missing[0][0], 1),)
        assert staging.store(image.described, tuple(missing), memoryview(content)) == ()
    return len(content)


def staged(path: Path, leader: ReplicaStorage, log: Log, source: Path) -> Offset:
    """Everything in ``incoming``, durable."""
    staging = Staging(path, TASKS, None, seed=SEED)
    for task in TASKS:
        staging.prepare(task)
        fetch_image(staging, make_image(leader.state, source, ask(task), None))
    staging.assemble(log.end)
    staging.close()
    return log.end


def test_a_state_that_came_is_on_disk_before_it_can_be_installed(
    tmp_path: Path, pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = a_log(40)
    leader = opened(tmp_path / "leader", pool, log)
    syncs = RecordedSyncs(monkeypatch)
    staged(tmp_path / "replica", leader, log, tmp_path / "leader")
    files = list((tmp_path / "replica" / "incoming").rglob("data.mdb"))
    assert len(files) == len(TASKS)
    assert [file for file in files if not syncs.count(file)] == []
    close(leader)


def test_a_crash_at_any_step_leaves_the_old_state_or_the_new_one(
    tmp_path: Path, pool: ThreadPoolExecutor
) -> None:
    old_log, new_log = a_log(10), a_log(40)
    leader = opened(tmp_path / "leader", pool, new_log)
    old_digests = applied_in_one_go(tmp_path / "old", old_log.frames)
    new_digests = applied_in_one_go(tmp_path / "new", new_log.frames)
    outcomes = []
    for crash_after in itertools.count():
        path = tmp_path / f"replica-{crash_after}"
        storage = opened(path, pool, old_log)
        storage_id = storage.storage_id
        end = staged(path, leader, new_log, tmp_path / "leader")
        close(storage)
        install = Install(storage_id=storage_id, end=end, before=EpochStart(EPOCH, Offset(0)))
        running = steps(path, install)
        finished = len(list(itertools.islice(running, crash_after))) < crash_after

        found = opened(path, pool)

        assert found.storage_id == storage_id
        if digests(found.state) == old_digests:
            outcomes.append("old")
            assert (found.log.start_offset, found.log.end_offset) == (0, old_log.end)
            assert found.state.applied == old_log.end
        else:
            outcomes.append("new")
            assert digests(found.state) == new_digests
            assert (found.log.start_offset, found.log.end_offset) == (end, end)
            assert found.log.history == (EpochStart(EPOCH, Offset(0)),)
            assert found.state.applied == end
            assert found.state.producers() == new_log.producers()
            assert not (path / INSTALL).exists()
        close(found)
        if finished:
            break
    assert outcomes[0] == "old"
    assert outcomes[1:] == ["new"] * (len(outcomes) - 1)
    assert len(outcomes) >= 7
    close(leader)


def test_an_install_meant_for_another_identity_is_not_carried_out(
    tmp_path: Path, pool: ThreadPoolExecutor
) -> None:
    log = a_log(10)
    close(opened(tmp_path / "r", pool, log))
    install = Install(storage_id=StorageId("another"), end=Offset(99), before=None)
    next(steps(tmp_path / "r", install))

    found = opened(tmp_path / "r", pool)

    assert found.state.applied == log.end
    assert not (tmp_path / "r" / INSTALL).exists()
    close(found)


def test_a_damaged_install_file_makes_the_replica_somebody_else(
    tmp_path: Path, pool: ThreadPoolExecutor
) -> None:
    storage = opened(tmp_path / "r", pool, a_log(10))
    storage_id = storage.storage_id
    close(storage)
    (tmp_path / "r" / INSTALL).write_bytes(b"{}\n00000000\n")

    found = opened(tmp_path / "r", pool)

    assert found.storage_id != storage_id
    assert found.state.applied == 0
    close(found)
    close(opened(tmp_path / "r", pool))


def test_images_of_different_offsets_are_brought_to_the_highest(
    tmp_path: Path, pool: ThreadPoolExecutor
) -> None:
    log = a_log(60)
    leader = opened(tmp_path / "leader", pool)
    staging = Staging(tmp_path / "r", TASKS, None, seed=SEED)
    third = len(log.frames) // 3
    lowest = None
    for number, task in enumerate(TASKS):
        frames = log.frames[number * third : (number + 1) * third]
        leader.state.apply(frames)
        image = make_image(leader.state, tmp_path / "leader", ask(task), None)
        assert image.described.offset == frames[-1].end_offset
        lowest = lowest or image.described.offset
        staging.prepare(task)
        fetch_image(staging, image)
    assert lowest is not None
    end = leader.state.applied
    between = [frame for frame in log.frames if lowest <= frame.header.offset < end]
    body = b"".join(bytes(part) for frame in between for part in frame.parts)
    staging.store_entries(lowest, memoryview(body))

    staging.assemble(end)

    expected = digests(leader.state)
    close(leader)
    staging.close()
    (tmp_path / "installed").mkdir()
    os.rename(tmp_path / "r" / "incoming" / "state", tmp_path / "installed" / "state")
    state = AppliedState.open(tmp_path / "installed" / "state", TASKS)
    assert (state.applied, digests(state)) == (end, expected)
    assert state.producers() == log.producers(end)
    state.close()


def test_images_that_do_not_meet_are_no_state(tmp_path: Path, pool: ThreadPoolExecutor) -> None:
    log = a_log(30)
    leader = opened(tmp_path / "leader", pool)
    staging = Staging(tmp_path / "r", TASKS, None, seed=SEED)
    for frames, task in zip((log.frames[:10], log.frames[10:20], log.frames[20:]), TASKS, strict=True):
        leader.state.apply(frames)
        staging.prepare(task)
        fetch_image(staging, make_image(leader.state, tmp_path / "leader", ask(task), None))

    with pytest.raises(StorageError, match="not at"):
        staging.assemble(log.end)
    staging.close()
    close(leader)


def test_an_image_that_was_damaged_before_it_was_hashed_is_found_by_its_structure(
    tmp_path: Path, pool: ThreadPoolExecutor
) -> None:
    log = a_log(3_000)
    leader = opened(tmp_path / "leader", pool, log)
    path, task = tmp_path / "r", TaskId(0)
    staged(path, leader, log, tmp_path / "leader")
    staging = Staging(path, TASKS, None, seed=SEED)
    for each in TASKS:
        staging.prepare(each)
    staging.assemble(log.end, verify_structure=True)
    file = task_folder(path / "incoming" / "state", task) / "data.mdb"
    with file.open("r+b") as damaged:
        damaged.seek(_a_leaf(file.read_bytes()))
        damaged.write(b"\xff" * 64)

    staging.assemble(log.end)
    with pytest.raises(StorageError, match=r"the image of task 0 .* is damaged"):
        staging.assemble(log.end, verify_structure=True)
    staging.close()
    close(leader)


def _a_leaf(content: bytes) -> int:
    """Where the entries of some full page of records begin: after its header of 16 bytes."""
    for at in range(4 * 4096, len(content), 4096):
        if int.from_bytes(content[at + 10 : at + 12], "little") == LEAF and content.count(
            b"2" * 50, at, at + 4096
        ):
            return at + 16
    raise AssertionError("the image has no such page")


def test_a_later_round_lists_and_sends_what_changed(tmp_path: Path, pool: ThreadPoolExecutor) -> None:
    log = a_log(2_000)
    leader = opened(tmp_path / "leader", pool)
    leader.state.apply(log.frames[:-5])
    staging = Staging(tmp_path / "r", TASKS, None, seed=SEED)
    staging.prepare(TaskId(0))
    first = make_image(leader.state, tmp_path / "leader", ask(TaskId(0)), None)
    whole = fetch_image(staging, first, mangle=True)

    same = make_image(leader.state, tmp_path / "leader", ask(TaskId(0), 2), first)
    leader.state.apply(log.frames[-5:])
    changed = make_image(leader.state, tmp_path / "leader", ask(TaskId(0), 3), same)

    assert (same.described.offset, same.listed) == (first.described.offset, b"")
    assert fetch_image(staging, same) == 0
    assert changed.described.base == 2
    assert len(changed.listed) < len(first.listed) / 2
    assert 0 < fetch_image(staging, changed) < whole / 2
    staging.close()
    close(leader)


def test_no_transaction_is_open_once_an_image_is_made(tmp_path: Path, pool: ThreadPoolExecutor) -> None:
    leader = opened(tmp_path / "leader", pool, a_log(20))
    image = make_image(leader.state, tmp_path / "leader", ask(TaskId(0)), None)
    folder = task_folder(tmp_path / "leader" / "state", TaskId(0))

    command = [sys.executable, "-I", "-m", "lmdb", "readers", "-e", str(folder)]
    readers = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()

    transactions = [line.split()[-1] for line in readers if line.split()[:1] == [str(os.getpid())]]
    assert set(transactions) <= {"-"}
    assert image.spool.read(image.pieces(((0, 1),)))
    close(leader)


def test_a_restarted_follower_goes_on_with_the_blocks_that_are_there(
    tmp_path: Path, pool: ThreadPoolExecutor
) -> None:
    leader = opened(tmp_path / "leader", pool, a_log(2_000))
    image = make_image(leader.state, tmp_path / "leader", ask(TaskId(0)), None)
    before = Staging(tmp_path / "r", TASKS, None, seed=SEED)
    before.prepare(TaskId(0))
    missing = before.compare(image.described, (image.listed,))
    assert missing is not None
    half = ((missing[0][0], missing[0][1] // 2),)
    assert before.store(image.described, half, memoryview(image.spool.read(image.pieces(half)))) == ()

    after = Staging(tmp_path / "r", TASKS, before, seed=SEED)
    after.prepare(TaskId(0))
    left = fetch_image(after, image)

    assert left == image.described.size_bytes - half[0][1] * blocks.BLOCK_BYTES
    with pytest.raises(Abandoned):
        before.store(image.described, half, memoryview(b""))
    after.close()
    close(leader)


def test_a_list_that_is_not_the_images_is_refused(tmp_path: Path, pool: ThreadPoolExecutor) -> None:
    leader = opened(tmp_path / "leader", pool, a_log(20))
    image = make_image(leader.state, tmp_path / "leader", ask(TaskId(0)), None)
    staging = Staging(tmp_path / "r", TASKS, None, seed=SEED)
    staging.prepare(TaskId(0))

    assert staging.compare(image.described, (bytes(len(image.listed)),)) is None
    assert staging.compare(image.described, (image.listed[:-1],)) is None
    staging.close()
    close(leader)


def test_a_disk_without_room_is_told_before_anything_is_sent(
    tmp_path: Path, pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    leader = opened(tmp_path / "leader", pool, a_log(20))
    image = make_image(leader.state, tmp_path / "leader", ask(TaskId(0)), None)
    staging = Staging(tmp_path / "r", TASKS, None, seed=SEED)
    staging.prepare(TaskId(0))
    with monkeypatch.context() as patched:
        patched.setattr(staging_of, "SPARE_BYTES", 1 << 60)
        with pytest.raises(NoSpace, match="are needed to receive the leader's state"):
            staging.compare(image.described, (image.listed,))

    assert staging.compare(image.described, (image.listed,))
    staging.close()
    close(leader)


def test_a_leader_does_not_fill_its_own_disk_with_images(
    tmp_path: Path, pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    leader = opened(tmp_path / "leader", pool, a_log(20))
    monkeypatch.setattr(images_of, "SPOOL_SPARE_BYTES", 1 << 60)
    with pytest.raises(NoSpace, match=r"too few for a copy of .* free some space there"):
        make_image(leader.state, tmp_path / "leader", ask(TaskId(0)), None)
    assert not list((tmp_path / "leader" / "spool").iterdir())
    close(leader)


def test_a_state_is_durable_where_it_is_before_it_is_gone_where_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    incoming = tmp_path / "incoming"
    (incoming / "state" / "task-0").mkdir(parents=True)
    (tmp_path / "replog").mkdir()
    synced = folders_synced(monkeypatch)
    carry_out(tmp_path, Install(storage_id=StorageId("disk"), end=Offset(9), before=None))
    assert (tmp_path / "state" / "task-0").is_dir()
    # The first time for the file that says what is to be done.
    assert synced[:4] == [tmp_path, incoming / "state", tmp_path, incoming]


def test_parts_are_where_they_can_be_written_past_the_page_cache(tmp_path: Path) -> None:
    parts = AlignedParts(3, 16 * blocks.BLOCK_BYTES)
    contents = [Random(number).randbytes(5 * blocks.BLOCK_BYTES) for number in range(50)]
    fd = open_direct(tmp_path / "file", os.O_WRONLY | os.O_CREAT)

    def put(number: int) -> None:
        with parts.put(memoryview(contents[number])) as copied:
            os.pwrite(fd, copied, number * len(copied))

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(put, range(len(contents))))
    os.close(fd)
    assert (tmp_path / "file").read_bytes() == b"".join(contents)
