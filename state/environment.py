"""The LMDB file of one task: transactions that grow the map, readers on other threads, errors in sentences.

**Durability.** A commit writes its pages, calls ``fdatasync``, and only then writes the meta page that
makes them current (``sync=True, metasync=False``). The meta page itself reaches the disk with the next
commit or :meth:`Environment.sync`, so a power loss takes back at most the last transaction, which the
replog still has, and what is left is a whole, earlier state: LMDB reuses no page that the two latest
states need. Not chosen:

``sync=False``
    saves the ``fdatasync``, but then pages and meta pages reach the disk in any order, and a power loss
    leaves a file that is damaged without anybody noticing, on all replicas at once if they share a room.
``writemap=True`` (and ``map_async``)
    saves a copy, but writes through the map of a sparse file: a full disk is then a SIGBUS and not an error.
``meminit=False``
    saves little, and leaves pieces of this process's memory in a file that is sent to other machines.

**Growth.** A map that is full is doubled and the transaction is run again from its beginning. Changing a
map is only allowed while this process has no transaction on it, so every transaction is within the
*gate*: many at a time, or one change of the map. Who waits for the gate to change the map comes before
who comes to read, and reads are short: so a change waits for the reads that are running and for nothing
else. A long read (:meth:`Environment.reading` with ``long=True``) first makes sure that the map has room
for as much again as it holds, so that growth seldom has to wait for it. Another process that grew the
map is noticed by the next transaction, which adopts its size the same way.

**Readers that died.** A process killed inside a read keeps its slot, and with it every page freed since;
such slots are cleared at open, at each sync, and when no slot is left.
"""

from __future__ import annotations

import errno
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import lmdb

from stretto.errors import StorageError
from stretto.process.private_files import private_folder

if TYPE_CHECKING:
    from lmdb import _Database

Database: TypeAlias = "_Database"

MAP_BYTES = 1024 * 1024 * 1024
"""Initial size of the map: address space, not disk space. A file is as large as what was written to it."""
MAX_DBS = 1_024
DEPOTS_MAX = 1_000
"""Most depots in the file of one task; the rest of its databases is for what else it keeps."""
MAX_READERS = 256
SPARE_BYTES = 16 * 1024 * 1024
"""Free space below which nothing is written."""
_META_PAGES = 2
PLENTY_BYTES = 1024 * 1024 * 1024
PLENTY_SECONDS = 0.1
"""Time for which the disk is not looked at again after PLENTY_BYTES were found free.

So much space does not go in so little time.
"""

T = TypeVar("T")
ReadTransaction: TypeAlias = "lmdb.Transaction[memoryview]"
WriteTransaction: TypeAlias = "lmdb.Transaction[bytes]"


@dataclass(frozen=True, slots=True)
class StandingFile:
    """A file to be copied up to ``size_bytes``, with ``head`` in place of its first bytes."""

    path: Path
    size_bytes: int
    head: bytes = b""


class NoSpace(StorageError):
    """The disk is full. Nothing was changed: the same call may succeed once there is space."""


class WouldWait(Exception):
    """A snapshot cannot be had at once. Ask again on a thread that may wait."""


class StateCorrupt(StorageError):
    """The file of a task is damaged or is no such file. Never healed by deleting (rule 12)."""


class Environment:
    """One LMDB environment. Any thread may read; writes are for one thread at a time."""

    def __init__(self, folder: Path, *, map_bytes: int = MAP_BYTES) -> None:
        self.folder = folder
        self._gate = _Gate()
        self._plenty_until = 0.0
        #: Set once by an error after which the file or its map is in doubt; raised ever after.
        self._failure: StorageError | None = None
        try:
            _make_folder(folder)
            file = folder / "data.mdb"
            used = file.stat().st_size if file.exists() else 0
            self._env = lmdb.open(
                os.fspath(folder),
                map_size=map_size_for(used, map_bytes),
                metasync=False,
                max_dbs=MAX_DBS,
                max_readers=MAX_READERS,
                mode=0o600,
            )
            _sync_folder(folder)
            self._env.reader_check()
        except (lmdb.Error, OSError) as error:
            raise self._translated(error, "open") from error

    # Transactions.

    def reading(self, *, long: bool = False) -> Reading:
        """Open a snapshot for the length of a block.

        Its buffers are views of the map: whatever is to outlive the block is copied.
        """
        return Reading(self, long=long)

    def look_up(
        self,
        keys: Iterable[bytes],
        database: Database,
        first: tuple[bytes, Database],
        *,
        max_bytes: int,
        wait: bool,
    ) -> tuple[bytes | None, list[bytes | None]]:
        """Copy the values of a first key, and of others, as of one moment.

        Small values cost less so than as views. Of the others, one that fills ``max_bytes`` is the last.
        Without ``wait``, raises WouldWait if they are not to be had at once.
        """
        if wait:
            self._gate.__enter__()
        elif not self._gate.enter_at_once():
            raise WouldWait
        values: list[bytes | None] = []
        try:
            with self._begin_read(wait, views=False) as txn:
                get = txn.get
                first_value = get(first[0], None, first[1])
                for key in keys:
                    value = get(key, None, database)
                    values.append(value)
                    if value is not None:
                        max_bytes -= len(value)
                        if max_bytes <= 0:
                            break
        except lmdb.Error as error:
            raise self._translated(error, "read") from error
        finally:
            self._gate.__exit__()
        return first_value, values

    def write(self, change: Callable[[WriteTransaction], T], *, size_bytes: int = 0) -> T:
        """Run ``change`` in a transaction that writes about ``size_bytes``, and commit it.

        It is run again if the map has to grow, so it must leave everything but its transaction alone.
        Raises StorageError, of which NoSpace may be tried again; either way nothing was changed.
        """
        if size_bytes:
            self._require_space(size_bytes)
        while True:
            try:
                with self._gate:
                    self._require_sound()
                    with self._env.begin(write=True) as txn:
                        return change(txn)
            except lmdb.MapFullError:
                self._resize(self._map_bytes() * 2)
            except lmdb.MapResizedError:
                self._resize(0)
            except lmdb.Error as error:
                raise self._translated(error, "write") from error

    def open_db(self, name: str, txn: WriteTransaction) -> Database:
        """Open a named database, or create it; valid elsewhere once the transaction has committed."""
        return self._env.open_db(name.encode(), txn=txn)

    def names(self, txn: WriteTransaction) -> list[str]:
        return [bytes(name).decode() for name in self._env.dbs(txn)]

    def sync(self) -> None:
        """Make every committed transaction survive a power loss."""
        try:
            with self._gate:
                self._require_sound()
                self._env.sync(True)
                self._env.reader_check()
        except lmdb.Error as error:
            self._failure = self._translated(error, "sync")
            raise self._failure from error

    def copy(self, fd: int) -> None:
        """Write an image of the latest state to a file, beside the writer: the file as it is, uncompacted."""
        self._reserve()
        try:
            with self._gate:
                self._require_sound()
                self._env.copyfd(fd)
        except lmdb.Error as error:
            raise self._translated(error, "copy") from error

    @contextmanager
    def standing(self) -> Iterator[StandingFile]:
        """Show the file as of the latest state to another process that copies it, beside the writer.

        As for any read, no page of that state is written to before the block ends. Only the first two pages,
        which tell where the two latest states begin, change with every commit; so they are given as they are
        while nobody commits, as LMDB's own copies have them.
        """
        self._reserve()
        with self._gate:
            self._require_sound()
            try:
                with self._env.begin(write=True):
                    held = self._env.begin()
                    file = self._file_now()
            except (lmdb.Error, OSError) as error:
                raise self._translated(error, "copy") from error
            try:
                yield file
            finally:
                held.abort()

    def _file_now(self) -> StandingFile:
        path = self.folder / "data.mdb"
        page_bytes = self._env.stat()["psize"]
        with path.open("rb", 0) as file:
            head = os.pread(file.fileno(), _META_PAGES * page_bytes, 0)
            # Pages at the end that were taken and given back at once may never have been written.
            end = min((self._env.info()["last_pgno"] + 1) * page_bytes, os.fstat(file.fileno()).st_size)
        return StandingFile(path, end, head)

    def copy_held(self, txn: ReadTransaction, fd: int) -> None:
        """Write a compact copy of what a transaction of :meth:`reading` sees, beside the writer."""
        try:
            self._env.copyfd(fd, compact=True, txn=txn)
        except lmdb.Error as error:
            raise StorageError(f"the state in {self.folder} could not be copied ({error})") from error

    def clear_readers(self) -> int:
        """Give back the slots of processes that died inside a read; return how many."""
        with self._gate:
            self._require_sound()
            return self._env.reader_check()

    @property
    def transaction(self) -> int:
        """Number of the transaction that made the latest state; as long as it is the same, so is an image."""
        with self._gate:
            self._require_sound()
            return self._env.info()["last_txnid"]

    @property
    def size_bytes(self) -> int:
        """Size of an image of the latest state, or a little more."""
        with self._gate:
            self._require_sound()
            return (self._env.info()["last_pgno"] + 1) * self._env.stat()["psize"]

    def close(self) -> None:
        """Close the file after what is running; calls that come meanwhile are refused and do not wait."""
        self._failure = self._failure or StorageError(f"the state in {self.folder} is closed")
        self._gate.open_for_good()
        with self._gate.exclusive():
            self._env.close()

    def _enter_read(self, *, long: bool) -> ReadTransaction:
        if long:
            self._reserve()
        self._gate.__enter__()
        try:
            return self._begin_read(wait=True, views=True)
        except BaseException:
            self._gate.__exit__()
            raise

    def _exit_read(self, txn: ReadTransaction, error: BaseException | None) -> None:
        try:
            txn.abort()
        finally:
            self._gate.__exit__()
        if isinstance(error, lmdb.Error):
            raise self._translated(error, "read") from error

    # The map.

    def _begin_read(self, wait: bool, *, views: bool) -> lmdb.Transaction[Any]:
        while True:
            self._require_sound()
            try:
                return self._env.begin(buffers=True) if views else self._env.begin()
            except lmdb.MapResizedError:
                if not wait:
                    raise WouldWait from None
                # The gate cannot be changed from inside it.
                with self._gate.outside():
                    self._resize(0)
            except lmdb.ReadersFullError as error:
                if not wait:
                    raise WouldWait from None
                if self._env.reader_check() == 0:
                    raise self._translated(error, "read") from error
            except lmdb.Error as error:
                raise self._translated(error, "read") from error

    def _map_bytes(self) -> int:
        return self._env.info()["map_size"]

    def _resize(self, size: int) -> None:
        """Resize the map to ``size`` bytes, or with 0 to the size that another process gave it."""
        with self._gate.exclusive():
            self._require_sound()
            if 0 < size <= self._map_bytes():
                return
            try:
                self._env.set_mapsize(size)
            except lmdb.Error as error:
                # LMDB has let go of the old map by now.
                self._failure = StorageError(
                    f"the map of {self.folder} cannot grow to {size} bytes ({error}); "
                    "raise the limit of address space or free memory, and start again"
                )
                raise self._failure from error

    def _reserve(self) -> None:
        with self._gate:
            self._require_sound()
            info = self._env.info()
            used = (info["last_pgno"] + 1) * self._env.stat()["psize"]
        if used * 2 > info["map_size"]:
            self._resize(info["map_size"] * 2)

    # Errors.

    def _require_sound(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _require_space(self, size_bytes: int) -> None:
        # LMDB reports a write that a full disk cut short as an I/O error, which is not to be tried again.
        if size_bytes < SPARE_BYTES and time.monotonic() < self._plenty_until:
            return
        try:
            stat = os.statvfs(self.folder)
        except OSError as error:
            raise self._translated(error, "write") from error
        free = stat.f_bavail * stat.f_frsize
        if free < 2 * size_bytes + SPARE_BYTES:
            raise NoSpace(f"the disk of {self.folder} is full ({free} bytes left); free some space")
        if free > PLENTY_BYTES:
            self._plenty_until = time.monotonic() + PLENTY_SECONDS

    def _translated(self, error: lmdb.Error | OSError, what: str) -> StorageError:
        match error:
            case lmdb.CorruptedError() | lmdb.PageNotFoundError() | lmdb.InvalidError():
                return StateCorrupt(f"the state in {self.folder} is damaged: {error}")
            case lmdb.VersionMismatchError():
                return StorageError(f"the state in {self.folder} has a format of another LMDB: {error}")
            case lmdb.DbsFullError():
                return StorageError(f"the state in {self.folder} has all {MAX_DBS} databases it may have")
            case lmdb.ReadersFullError():
                return StorageError(f"the state in {self.folder} has all {MAX_READERS} readers it may have")
            case lmdb.DiskError():
                return NoSpace(f"the disk of {self.folder} is full; free some space")
            case lmdb.ReadonlyError():
                return StorageError(f"the state in {self.folder} is read-only; make it writable")
            case OSError(errno=errno.EROFS | errno.EACCES):
                return StorageError(f"the state in {self.folder} is read-only; make it writable")
            case _:
                failure = StorageError(f"the state in {self.folder} failed to {what} ({error})")
                if what == "write":
                    # Perhaps an fdatasync: what the disk holds is in doubt, and trying again would hide it.
                    self._failure = failure
                return failure


class Reading:
    """Context manager of :meth:`Environment.reading`: a generator would take longer than a short read."""

    __slots__ = ("_environment", "_long", "_txn")

    def __init__(self, environment: Environment, *, long: bool) -> None:
        self._environment = environment
        self._long = long
        self._txn: ReadTransaction

    def __enter__(self) -> ReadTransaction:
        self._txn = self._environment._enter_read(long=self._long)  # noqa: SLF001 - its own
        return self._txn

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        self._environment._exit_read(self._txn, error)  # noqa: SLF001 - its own


class _Gate:
    """A lock for many threads inside at a time, or one alone, which goes before those that come later.

    To be inside is to be in a ``with`` block of the gate itself.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._inside = 0
        self._alone = 0
        #: Whether no thread is kept waiting any more.
        self._is_open = False

    def __enter__(self) -> None:
        with self._lock:
            if self._alone and not self._is_open:
                self._changed.wait_for(lambda: self._alone == 0 or self._is_open)
            self._inside += 1

    def enter_at_once(self) -> bool:
        """Enter without waiting; False, without effect, if a thread is or wants to be alone inside."""
        if not self._lock.acquire(blocking=False):
            return False
        try:
            if self._alone and not self._is_open:
                return False
            self._inside += 1
            return True
        finally:
            self._lock.release()

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._inside -= 1
            if self._alone and not self._inside:
                self._changed.notify_all()

    def open_for_good(self) -> None:
        """Let every thread in from now on, without waiting: inside there is nothing left to do."""
        with self._changed:
            self._is_open = True
            self._changed.notify_all()

    @contextmanager
    def outside(self) -> Iterator[None]:
        """Leave the gate for the length of the block, so that the map can be changed meanwhile."""
        self.__exit__()
        try:
            yield
        finally:
            self.__enter__()

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """Wait until no thread is inside, and keep all others out for the length of the block."""
        with self._changed:
            self._alone += 1
            try:
                self._changed.wait_for(lambda: self._inside == 0)
                # Nobody enters without the lock, which is ours for the length of the block.
                yield
            finally:
                self._alone -= 1
                self._changed.notify_all()


def map_size_for(used_bytes: int, map_bytes: int) -> int:
    """The first doubling of ``map_bytes`` that is at least twice what is used."""
    size = map_bytes
    while size < 2 * used_bytes:
        size *= 2
    return size


def _make_folder(folder: Path) -> None:
    """Create the folder and what is missing above it, so that it survives a power loss."""
    if not folder.is_dir():
        _make_folder(folder.parent)
        private_folder(folder)
        _sync_folder(folder.parent)


def _sync_folder(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
