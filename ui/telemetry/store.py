"""The windows of all workers and the story of all groups, kept for weeks in a file of bounded size.

Three tiers: every window for hours, minutes for days, tens of minutes for weeks. A window is merged into
those of the coarser tiers as it comes, so nothing has to be rolled up later, and a store that was down for a
while is right again with the first window after it. When the file reaches its limit, the oldest of each tier
go first.
"""

from __future__ import annotations

import sqlite3
import threading
import zlib
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import msgspec
import structlog
from msgspec.structs import replace

from stretto.errors import StrettoError
from stretto.process.private_files import private_folder
from stretto.telemetry.windows import WINDOW_MS, StoryLine, Window
from stretto.vocabulary.groups import GroupKey
from stretto.vocabulary.types import WorkerId

log = structlog.get_logger()

FORMAT = 2
BYTES_MAX = 1024 * 1024 * 1024
HALVINGS_MAX = 12
"""How often the time that each tier keeps is halved at most, when there is too much."""
STORY_LINES_MAX = 2_000
"""Most lines that are kept of the story of a group."""
HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS


@dataclass(frozen=True, slots=True)
class Tier:
    """Windows of one length, and how long they are kept."""

    step_ms: int
    kept_ms: int


TIERS = (Tier(WINDOW_MS, 6 * HOUR_MS), Tier(60_000, 3 * DAY_MS), Tier(600_000, 35 * DAY_MS))

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Window).decode
_line = msgspec.msgpack.Decoder(StoryLine).decode

_SCHEMA = """
CREATE TABLE IF NOT EXISTS windows (
    step_ms INTEGER NOT NULL,
    start_ms INTEGER NOT NULL,
    worker TEXT NOT NULL,
    data BLOB NOT NULL,
    PRIMARY KEY (step_ms, start_ms, worker)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS story (
    module TEXT NOT NULL,
    generation INTEGER NOT NULL,
    number INTEGER NOT NULL,
    at_ms INTEGER NOT NULL,
    worker TEXT NOT NULL,
    line BLOB NOT NULL
);
CREATE INDEX IF NOT EXISTS story_of ON story (module, generation, number, at_ms);
"""


class Store:
    """The file of windows and stories; may be used from several threads."""

    def __init__(self, path: Path, *, bytes_max: int = BYTES_MAX) -> None:
        private_folder(path.parent)
        self._lock = threading.Lock()
        try:
            self._database = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
            for pragma in ("auto_vacuum=INCREMENTAL", "journal_mode=WAL", "synchronous=NORMAL"):
                self._database.execute(f"PRAGMA {pragma}")
            found = self._database.execute("PRAGMA user_version").fetchone()[0]
            if found not in (0, FORMAT):
                raise StrettoError(
                    f"{path} is of another version ({found}); move it away, and its history begins anew"
                )
            self._database.executescript(_SCHEMA)
            self._database.execute(f"PRAGMA user_version={FORMAT}")
            page = self._database.execute("PRAGMA page_size").fetchone()[0]
        except sqlite3.DatabaseError as error:
            raise StrettoError(
                f"{path} cannot be used ({error}); move it away, and its history begins anew"
            ) from None
        self._pages_max = bytes_max // page
        #: How often the windows of a tier that begin at a time were changed by this process.
        self._changes: Counter[tuple[int, int]] = Counter()

    def close(self) -> None:
        with self._lock:
            self._database.close()

    def add(self, windows: Iterable[Window]) -> None:
        """Keep windows; those that are there already change nothing."""
        with self._lock, self._database:
            self._database.execute("BEGIN")
            for window in windows:
                if self._at(TIERS[0].step_ms, window.start_ms, window) is None:
                    told = self._without_story(window)
                    self._put(TIERS[0].step_ms, told)
                    for tier in TIERS[1:]:
                        self._merge(tier.step_ms, told)

    def _without_story(self, window: Window) -> Window:
        """Keep the story of a window by itself, and return the window without it."""
        for each in window.groups:
            self._database.executemany(
                "INSERT INTO story VALUES (?, ?, ?, ?, ?, ?)",
                [(*each.group, line.at_ms, window.worker, _encode(line)) for line in each.story],
            )
        return replace(window, groups=tuple(replace(each, story=()) for each in window.groups))

    def story(self, group: GroupKey) -> list[tuple[WorkerId, StoryLine]]:
        """The story of all replicas of a group that ever reported, by time."""
        with self._lock:
            rows = self._database.execute(
                "SELECT worker, line FROM story WHERE module = ? AND generation = ? AND number = ? "
                "ORDER BY at_ms DESC LIMIT ?",
                (*group, STORY_LINES_MAX),
            ).fetchall()
        return [(WorkerId(worker), _line(line)) for worker, line in reversed(rows)]

    def latest(self, worker: str) -> int | None:
        """Start of the last window of a worker; None if there is none."""
        with self._lock:
            found = self._database.execute(
                "SELECT max(start_ms) FROM windows WHERE step_ms = ? AND worker = ?", (WINDOW_MS, worker)
            ).fetchone()[0]
        return None if found is None else int(found)

    def between(self, start_ms: int, end_ms: int, step_ms: int, *, worker: str | None = None) -> list[Window]:
        """Windows of one tier, by start and worker."""
        with self._lock:
            rows = self._database.execute(
                "SELECT data FROM windows WHERE step_ms = ?1 AND start_ms >= ?2 AND start_ms < ?3 "
                "AND (?4 IS NULL OR worker = ?4) ORDER BY start_ms, worker",
                (step_ms, start_ms, end_ms, worker),
            ).fetchall()
        return [window for (data,) in rows if (window := _read(data)) is not None]

    def starts(self, start_ms: int, end_ms: int, step_ms: int) -> dict[int, int]:
        """When windows of a tier begin, each with a number that is another one once they have changed."""
        with self._lock:
            rows = self._database.execute(
                "SELECT DISTINCT start_ms FROM windows WHERE step_ms = ? AND start_ms >= ? AND start_ms < ?",
                (step_ms, start_ms, end_ms),
            ).fetchall()
            return {start: self._changes[step_ms, start] for (start,) in rows}

    def expire(self, now_ms: int) -> None:
        """Forget what is too old, and more if there is too much."""
        with self._lock:
            for halvings in range(HALVINGS_MAX):
                for tier in TIERS:
                    self._forget(tier.step_ms, now_ms - (tier.kept_ms >> halvings))
                self._forget_story(now_ms - (TIERS[-1].kept_ms >> halvings))
                if self._pages() <= self._pages_max:
                    break
            oldest_ms = {tier.step_ms: now_ms - tier.kept_ms for tier in TIERS}
            self._changes = Counter(
                {key: count for key, count in self._changes.items() if key[1] >= oldest_ms[key[0]]}
            )

    def _pages(self) -> int:
        # Each step of this statement frees a page; a script runs to its end, a query does not.
        self._database.executescript("PRAGMA incremental_vacuum")
        return int(self._database.execute("PRAGMA page_count").fetchone()[0])

    def _forget(self, step_ms: int, before_ms: int) -> None:
        self._database.execute("DELETE FROM windows WHERE step_ms = ? AND start_ms < ?", (step_ms, before_ms))

    def _forget_story(self, before_ms: int) -> None:
        self._database.execute("DELETE FROM story WHERE at_ms < ?", (before_ms,))
        self._database.execute(
            "DELETE FROM story WHERE rowid IN (SELECT rowid FROM (SELECT rowid, row_number() OVER "
            "(PARTITION BY module, generation, number ORDER BY at_ms DESC) AS place FROM story) "
            "WHERE place > ?)",
            (STORY_LINES_MAX,),
        )

    def _merge(self, step_ms: int, window: Window) -> None:
        start_ms = window.start_ms - window.start_ms % step_ms
        before = self._at(step_ms, start_ms, window)
        merged = replace(window, start_ms=start_ms) if before is None else before.merged(window)
        self._put(step_ms, merged)

    def _at(self, step_ms: int, start_ms: int, window: Window) -> Window | None:
        found = self._database.execute(
            "SELECT data FROM windows WHERE step_ms = ? AND start_ms = ? AND worker = ?",
            (step_ms, start_ms, window.worker),
        ).fetchone()
        return None if found is None else _read(found[0])

    def _put(self, step_ms: int, window: Window) -> None:
        self._changes[step_ms, window.start_ms] += 1
        self._database.execute(
            "INSERT OR REPLACE INTO windows VALUES (?, ?, ?, ?)",
            (step_ms, window.start_ms, window.worker, zlib.compress(_encode(window), 1)),
        )


def _read(data: bytes) -> Window | None:
    """Decode a window; None if it is damaged: that is one point less, and no reason to show and keep none."""
    try:
        return _decode(zlib.decompress(data))
    except (zlib.error, msgspec.MsgspecError) as error:
        log.warning("damaged_window", why=str(error))
        return None


def tier_for(span_ms: int) -> Tier:
    """The finest tier that keeps so long a time, in no more points than a chart has pixels."""
    return next((tier for tier in TIERS if span_ms <= min(tier.kept_ms, tier.step_ms * 1_100)), TIERS[-1])
