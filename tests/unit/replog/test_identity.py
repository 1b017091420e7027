from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest

from stretto.errors import StrettoError, UsageError
from stretto.replog.identity import (
    ASIDE_PREFIX,
    IDENTITY_NAME,
    Fsync,
    Identity,
    Record,
    _write,
    open_identity,
)
from stretto.replog.log import Replog
from stretto.vocabulary.types import StorageId
from tests.support.frames import make_frames
from tests.support.power import PowerFolder, PowerLoss


@pytest.fixture
def new_id() -> Callable[[], StorageId]:
    numbers = itertools.count(1)
    return lambda: StorageId(f"id{next(numbers)}")


OpenFolder = Callable[..., Identity]


@pytest.fixture
def opened(new_id: Callable[[], StorageId]) -> OpenFolder:
    def open_folder(folder: PowerFolder, *, fsync: Fsync = "always", boot: str = "boot1") -> Identity:
        return open_identity(
            folder, cluster="c", group="m/0", fsync=fsync, boot_id=boot, new_storage_id=new_id
        )

    return open_folder


def test_an_empty_folder_gets_a_fresh_id(opened: OpenFolder) -> None:
    identity = opened(PowerFolder())
    assert identity.storage_id == "id1"
    assert identity.fresh == "the folder is empty"


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("boot", ["boot1", "boot2"])
@pytest.mark.parametrize("fsync", ["always", "interval"])
def test_only_an_unclean_end_under_interval_with_a_restart_of_the_machine_costs_the_id(
    opened: OpenFolder, fsync: Fsync, boot: str, clean: bool
) -> None:
    folder = PowerFolder()
    identity = opened(folder, fsync=fsync)
    if clean:
        identity.mark_clean()
    again = opened(folder.power_off(), boot=boot)
    lost = fsync == "interval" and boot == "boot2" and not clean
    assert (again.fresh is not None) == lost
    assert again.storage_id == ("id2" if lost else "id1")


def test_opening_ends_cleanliness_durably(opened: OpenFolder) -> None:
    folder = PowerFolder()
    opened(folder, fsync="interval").mark_clean()
    opened(folder, fsync="interval")
    assert opened(folder.power_off(), boot="boot2").fresh


def test_a_change_to_interval_counts_from_when_it_is_noted(opened: OpenFolder) -> None:
    folder = PowerFolder()
    identity = opened(folder, fsync="always")
    identity.mark_fsync("interval")
    assert opened(folder.power_off(), boot="boot2", fsync="always").storage_id == "id2"
    identity = opened(folder, fsync="interval")
    identity.mark_fsync("always")
    assert opened(folder.power_off(), boot="boot2").fresh is None


def test_after_a_write_that_failed_it_is_written_again_whatever_it_was(opened: OpenFolder) -> None:
    """The rename may have been done: then the file says what the failed write wanted."""
    folder = PowerFolder()
    identity = opened(folder, fsync="interval")
    before = len(folder.operations)
    identity.mark_fsync("always")
    folder.fail_before = 2 * len(folder.operations) - before - 1
    with pytest.raises(OSError, match="failed"):
        identity.mark_fsync("interval")
    unsure = identity.fsync
    assert unsure is None
    folder.fail_before = None
    identity.mark_fsync("always")
    assert identity.fsync == "always"
    assert opened(folder.power_off(), boot="boot2").fresh is None


def test_what_an_earlier_process_left_unsynced_is_remembered_until_a_sync(opened: OpenFolder) -> None:
    folder = PowerFolder()
    opened(folder, fsync="interval")
    identity = opened(folder, fsync="always")
    assert (identity.fresh, identity.fsync) == (None, "interval")
    assert opened(folder.power_off(), boot="boot2").fresh, "the log was not opened, hence not synced"
    identity.mark_fsync("always")
    assert opened(folder.power_off(), boot="boot2").fresh is None


def test_renewing_sets_all_files_aside_and_deletes_none(opened: OpenFolder) -> None:
    folder = PowerFolder()
    identity = opened(folder)
    log = Replog.open(folder)
    log.append(make_frames(0, 3))
    log.sync()
    log.close()
    before = {name: bytes(inode.live) for name, inode in folder.files.items() if name != IDENTITY_NAME}
    identity.renew("segment 0 is corrupt")
    assert (identity.storage_id, identity.fresh) == ("id2", "segment 0 is corrupt")
    after = {name: bytes(inode.live) for name, inode in folder.power_off().files.items()}
    assert after.keys() == {IDENTITY_NAME, *(f"{ASIDE_PREFIX}id2.{name}" for name in before)}
    assert [after[f"{ASIDE_PREFIX}id2.{name}"] for name in before] == list(before.values())
    assert Replog.open(folder).end_offset == 0
    assert opened(folder).storage_id == "id2"


def test_what_was_set_aside_before_stays_as_it_is(opened: OpenFolder) -> None:
    folder = PowerFolder()
    identity = opened(folder)
    for reason in ("first", "second"):
        folder.open("00.replog", create=True)
        identity.renew(reason)
    assert set(folder.files) == {IDENTITY_NAME, "aside.id2.00.replog", "aside.id3.00.replog"}


def test_a_crash_at_any_operation_of_renewing_keeps_the_old_id_and_files_or_ends_with_a_fresh_one(
    opened: OpenFolder,
) -> None:
    for number in range(100):
        folder = PowerFolder()
        identity = opened(folder)
        old = identity.storage_id
        for name in ("a", "b"):
            folder.open(name, create=True).fdatasync()
        folder.sync()
        folder.crash_before = len(folder.operations) + number
        try:
            identity.renew("why")
        except PowerLoss:
            pass
        else:
            break
        for survivor in folder.survivors():
            found = opened(survivor)
            names = set(survivor.power_off().files) - {IDENTITY_NAME}
            if found.storage_id == old:
                assert names == {"a", "b"}
            else:
                assert names == {f"aside.{found.storage_id}.a", f"aside.{found.storage_id}.b"}
    assert number > 5


@pytest.mark.parametrize("damage", ["flipped", "empty", "gone"])
def test_files_without_a_readable_identity_are_set_aside(opened: OpenFolder, damage: str) -> None:
    folder = PowerFolder()
    opened(folder)
    folder.open("00.replog", create=True)
    live = folder.files[IDENTITY_NAME].live
    if damage == "flipped":
        live[20] ^= 1
    elif damage == "empty":
        del live[:]
    else:
        folder.remove(IDENTITY_NAME)
    identity = opened(folder)
    assert (identity.storage_id, identity.fresh) == ("id2", "the folder has no readable identity")
    assert "aside.id2.00.replog" in folder.files
    assert "00.replog" not in folder.files
    assert (f"aside.id2.{IDENTITY_NAME}" in folder.files) == (damage != "gone")


def test_the_folder_of_another_group_is_refused(opened: OpenFolder, new_id: Callable[[], StorageId]) -> None:
    folder = PowerFolder()
    opened(folder)
    with pytest.raises(UsageError, match=r"group m/0 of cluster c, not to group m/1"):
        open_identity(folder, cluster="c", group="m/1", fsync="always", boot_id="b", new_storage_id=new_id)


def test_another_format_version_is_named(opened: OpenFolder) -> None:
    folder = PowerFolder()
    _write(
        folder,
        Record(
            format_version=7, storage_id=StorageId("x"), cluster="c", group="m/0", fsync="always", boot_id="b"
        ),
    )
    with pytest.raises(StrettoError, match="format version 7"):
        opened(folder)
