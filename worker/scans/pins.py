"""The pins of a scan process: for each, a read transaction on every task of a group.

All transactions of a pin begin while nothing is applied, so that they show the same offset. LMDB keeps the
pages that a transaction sees, and a file grows by what is written meanwhile; so a pin ends when it has not
been read for a while, and when it is old, whoever reads it. Why a pin ended is remembered, to be told to who
still asks for it.

A map must not change while a transaction is on it. So it is made much larger than the file: that costs
address space, of which there is plenty.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import lmdb

from stretto.errors import StorageError, StrettoError, UsageError
from stretto.pstate.btree import Pages, Tree, map_pages
from stretto.state.environment import MAX_DBS, map_size_for
from stretto.worker.scans.protocol import LISTED_MAX, Kept, Open

if TYPE_CHECKING:
    from stretto.state.environment import Database

MAP_BYTES = 64 << 30
GROWTH = 16
"""How many times its present size a file may reach while it is pinned."""
PINS_MAX = 128
"""How many pins one group may have: each takes a reader's slot in the files of its tasks."""
READ_MS = 15_000
"""How long a pin is kept at least once all of its parts were read: some may be read again."""
ENDED_MAX = 1_000


class NoPin(StrettoError):
    """There is no pin of that name; the text says why, as far as that is known."""


class PinnedTask:
    """A task as of a pin's offset."""

    def __init__(self, file: _File, txn: lmdb.Transaction[bytes], databases: dict[str, Database]) -> None:
        self._file = file
        self.txn = txn
        #: The databases that have rows, by their names in the file.
        self.databases = databases
        self._pages: Pages | None = None
        self._trees: dict[str, Tree] = {}

    @property
    def page_bytes(self) -> int:
        return self._file.page_bytes

    def tree(self, name: str) -> Tree:
        """Return the tree of one of the databases."""
        if name not in self._trees:
            if self._pages is None:
                self._pages = map_pages(self._file.folder / "data.mdb", self.page_bytes)
            self._trees[name] = Tree(self.txn, name, self._pages)
        return self._trees[name]

    def close(self) -> None:
        self._trees.clear()
        self._pages = None
        self.txn.abort()


@dataclass(slots=True)
class Pin:
    """A group's state as of one offset: a transaction on each of its tasks."""

    opened: Open
    tasks: dict[int, PinnedTask]
    opened_at: int
    used_at: int
    sent_bytes: int = 0
    parts: set[int] = field(default_factory=set)
    """Parts that were read to their end."""
    read_at: int | None = None
    """When all parts had been read for the first time."""

    @property
    def is_read(self) -> bool:
        return self.read_at is not None

    def is_left(self, now: int) -> bool:
        """Whether nobody has read the pin for so long that a reader would have renewed it."""
        return now - self.used_at > self.opened.idle_ms // 2

    def part_read(self, part: int, parts: int, now: int) -> None:
        """Note that a part was read to its end."""
        self.parts.add(part)
        if self.read_at is None and len(self.parts) >= parts:
            self.read_at = now

    def task(self, number: int) -> PinnedTask:
        """Return a task of the pin. Raises UsageError if its group does not have it."""
        found = self.tasks.get(number)
        if found is None:
            raise UsageError(
                f"task {number} is not in group {self.opened.group}, which has {sorted(self.tasks)}"
            )
        return found

    @property
    def ends_at(self) -> int:
        """When the pin ends if nobody reads it any more."""
        return min(self.used_at + self._patience_ms, self.opened_at + self.opened.max_age_ms)

    @property
    def _patience_ms(self) -> int:
        """How long the pin is kept after it was last used. A reader that reads all of it again (a sort does,
        which samples first, and a join with itself) begins within about the time that the first pass took:
        stages before it are as long. So a short read costs the disk little, and a long one is not lost
        between two passes."""
        if self.read_at is None:
            return max(self.opened.idle_ms, self.opened.hold_ms)
        shortened = min(self.opened.idle_ms, max(READ_MS, self.read_at - self.opened_at))
        return max(shortened, self.opened.hold_ms)

    def why_it_ends(self, now: int) -> str:
        """Say why the pin ends, to be shown to its readers."""
        if now >= self.opened_at + self.opened.max_age_ms:
            return (
                f"it was kept for {self.opened.max_age_ms / 1_000:g} s, as long as pin.max.age.millis allows"
            )
        if self.is_read:
            return f"all its parts were read, and nobody read it for {self._patience_ms / 1_000:.0f} s since"
        if self.opened.hold_ms >= self.opened.idle_ms:
            return f"nobody read it for {self.opened.hold_ms / 1_000:g} s, as long as it was to be held"
        return (
            f"nobody read it for {self.opened.idle_ms / 1_000:g} s, as long as pin.idle.timeout.millis allows"
        )


@dataclass(slots=True)
class _Group:
    folder: str
    files: dict[int, _File]
    pins: set[str] = field(default_factory=set)


class Pins:
    """The pins of a scan process. ``now`` is in milliseconds, of any clock that only goes forward."""

    def __init__(self, *, map_bytes: int = MAP_BYTES) -> None:
        self._map_bytes = map_bytes
        self._pins: dict[str, Pin] = {}
        self._groups: dict[str, _Group] = {}
        #: Why each of the latest pins that ended did.
        self._ended: OrderedDict[str, str] = OrderedDict()

    def __len__(self) -> int:
        return len(self._pins)

    def prepare(self, group: str, folder: str, tasks: tuple[int, ...]) -> None:
        """Open the files of a group that is about to be pinned. Raises StorageError."""
        known = self._groups.get(group)
        if known is not None and (known.folder, tuple(known.files)) == (folder, tasks):
            return
        self.forget(group, "the files of its replica were replaced")
        files: dict[int, _File] = {}
        try:
            for task in tasks:
                files[task] = _File(Path(folder, f"task-{task}"), self._map_bytes)
        except StorageError:
            for file in files.values():
                file.close()
            raise
        self._groups[group] = _Group(folder, files)

    def open(self, message: Open, now: int) -> None:
        """Begin a pin: a transaction on each task. Raises StorageError."""
        self.prepare(message.group, message.folder, message.tasks)
        group = self._groups[message.group]
        if len(group.pins) >= PINS_MAX and not self._make_room(group, now):
            raise StorageError(f"group {message.group} has {PINS_MAX} pins here, and takes no other")
        tasks: dict[int, PinnedTask] = {}
        try:
            for task, file in group.files.items():
                tasks[task] = file.begin(is_free=not group.pins and task not in tasks)
        except StorageError:
            for each in tasks.values():
                each.close()
            raise
        self._pins[message.pin] = Pin(message, tasks, now, now)
        group.pins.add(message.pin)

    def _make_room(self, group: _Group, now: int) -> bool:
        """Close a pin that nobody seems to need: all of it was read, or half of its time has passed without
        anybody reading it. A reader of a plan renews its pins more often than that."""
        pins = [self._pins[pin] for pin in group.pins]
        unneeded = [pin for pin in pins if not pin.opened.hold_ms and (pin.is_read or pin.is_left(now))]
        if unneeded:
            oldest = min(unneeded, key=lambda pin: (not pin.is_read, pin.used_at))
            left = "all its parts were read" if oldest.is_read else "nobody read it for a while"
            self.close(oldest.opened.pin, f"{left}, and others came")
        return bool(unneeded)

    def find(self, pin: str, now: int) -> Pin:
        """Return a pin to be read, which renews it. Raises NoPin."""
        found = self._pins.get(pin)
        if found is None:
            raise NoPin(self._ended.get(pin, "the process that kept it has been started anew"))
        found.used_at = now
        return found

    def renew(self, pins: tuple[str, ...], now: int) -> tuple[str, ...]:
        """Renew pins for a reader that reads others of the same plan, and these when their turn comes; return
        those that are gone."""
        for pin in pins:
            if pin in self._pins:
                self._pins[pin].used_at = now
        return tuple(pin for pin in pins if pin not in self._pins)

    def close(self, pin: str, why: str) -> Pin | None:
        """End a pin; return it, if there was one."""
        found = self._pins.pop(pin, None)
        if found is None:
            return None
        for task in found.tasks.values():
            task.close()
        group = self._groups[found.opened.group]
        group.pins.discard(pin)
        if not group.pins:
            self._close_files(found.opened.group)
        self._ended[pin] = why
        while len(self._ended) > ENDED_MAX:
            self._ended.popitem(last=False)
        return found

    def forget(self, group: str, why: str) -> list[Pin]:
        """End all pins of a group, and close its files; return the pins."""
        known = self._groups.get(group)
        if known is None:
            return []
        ended = [self.close(pin, why) for pin in list(known.pins)]
        self._close_files(group)
        return [pin for pin in ended if pin is not None]

    def expire(self, now: int) -> list[tuple[Pin, str]]:
        """Close the pins whose time is over; return them, with why."""
        over = [(pin, pin.why_it_ends(now)) for pin in self._pins.values() if pin.ends_at <= now]
        for pin, why in over:
            self.close(pin.opened.pin, why)
        return over

    @property
    def next_end(self) -> int | None:
        return min((pin.ends_at for pin in self._pins.values()), default=None)

    def list(self, now: int) -> tuple[Kept, ...]:
        """Describe the pins, oldest first."""
        pins = sorted(self._pins.values(), key=lambda pin: pin.opened_at)[:LISTED_MAX]
        return tuple(
            Kept(
                pin.opened.pin,
                pin.opened.group,
                pin.opened.offset,
                pin.opened.holder,
                now - pin.opened_at,
                now - pin.used_at,
                pin.sent_bytes,
            )
            for pin in pins
        )

    def _close_files(self, group: str) -> None:
        known = self._groups.pop(group, None)
        for file in known.files.values() if known is not None else ():
            file.close()


class _File:
    """The LMDB file of a task, which its worker writes, opened for reading."""

    def __init__(self, folder: Path, map_bytes: int) -> None:
        self.folder = folder
        self._databases: dict[str, Database] = {}
        try:
            used = os.stat(folder / "data.mdb").st_size
            self._env = lmdb.open(
                os.fspath(folder),
                readonly=True,
                map_size=map_size_for(GROWTH // 2 * used, map_bytes),
                max_dbs=MAX_DBS,
            )
            self._open_databases()
        except (lmdb.Error, OSError) as error:
            raise StorageError(f"the state in {folder} cannot be opened for a scan: {error}") from error
        self.page_bytes = int(self._env.stat()["psize"])

    def begin(self, *, is_free: bool) -> PinnedTask:
        """Begin a transaction as of now. ``is_free`` says that there is no other one on the file."""
        try:
            self._open_databases(is_free=is_free)
            txn = self._begin(is_free=is_free)
            with txn.cursor() as cursor:
                names = {name.decode() for name in cursor.iternext(values=False)}
            there = {name: handle for name, handle in self._databases.items() if name in names}
            with_rows = {name: each for name, each in there.items() if txn.stat(each)["entries"]}
            return PinnedTask(self, txn, with_rows)
        except lmdb.Error as error:
            raise StorageError(f"the state in {self.folder} cannot be pinned: {error}") from error

    def _begin(self, *, is_free: bool) -> lmdb.Transaction[bytes]:
        try:
            return self._env.begin()
        except lmdb.MapResizedError:
            if not is_free:
                raise
            self._env.set_mapsize(0)
            return self._env.begin()

    def _open_databases(self, *, is_free: bool = True) -> None:
        """Make handles for databases that have none. Only transactions that begin later know a handle, and it
        is made in one of its own."""
        txn = self._begin(is_free=is_free)
        with txn.cursor() as cursor:
            missing = [name for name in cursor.iternext(values=False) if name.decode() not in self._databases]
        txn.abort()
        for name in missing:
            self._databases[name.decode()] = self._env.open_db(name, create=False)

    def close(self) -> None:
        self._env.close()
