"""The replog of one replica: entries in segment files, with their end in memory.

A log has an owner, who appends and reads, and a writer, who brings to disk what was appended. They may
be two threads, so that the owner never waits for the disk::

    log.append(frames)             owner   readable at once, and queued
    pending = log.take_pending()   writer  all that is queued by now
    log.write(pending)             writer  one writev, one fdatasync
    log.written(pending)           owner   the durable end moves

:meth:`Replog.sync` is the last three in a row, for who is both. The two share a queue of frames and the
bookkeeping of the active segment, which only the writer extends; everything else is the owner's. What
changes files under the writer (truncate, reset, close) needs it to be *quiet*: nothing taken that is
not noted as written. Only :meth:`Replog.cut`, which stays away from the active segment, does not.

Cutting and truncating come in parts as well, so that the owner does not wait for the disk: the files are
changed by any thread, one change at a time, and the owner, who may go on reading what stays, takes note
afterwards::

    first = log.cut_point(start)         owner   which segment will be the first; None if it is
    log.remove_below(first)              any     the others are gone
    log.removed_below(first)             owner   the log's start moves

    log.shorten(end)                     any     while the writer is quiet
    log.shortened(end)                   owner   the log's end moves

The active segment is the last one. When it is full, the next write first *seals* it (its bytes are
durable, its index file is written) and creates the next; a crash in between leaves a log whose last
segment is full, or one whose last segment is empty, and both are the log before the write.

Opening is :mod:`stretto.replog.recovery`; changes of more than one file are made atomic by
:mod:`stretto.replog.intent`.

A failed write or fdatasync leaves the kernel's and the disk's view of a file in doubt, and trying
again may report success for bytes that are gone. So the first failure is the last: from then on
everything but :meth:`Replog.close` raises it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from operator import attrgetter

from stretto.errors import StorageError, UsageError
from stretto.replog import epochs as epochs_of
from stretto.replog.frame import Frame, Header
from stretto.replog.intent import Change, Intent, carry_out
from stretto.replog.recovery import recover
from stretto.replog.segment import Segment, index_name, segment_name
from stretto.replog.storage import Chunk, EpochStart, Folder
from stretto.replog.tail import Tail
from stretto.vocabulary.invariants import check
from stretto.vocabulary.types import Buffer, Offset

SEGMENT_BYTES = 64 * 1024 * 1024
INDEX_INTERVAL_BYTES = 16 * 1024
TAIL_BYTES = 4 * 1024 * 1024

_base_of = attrgetter("base")


class Pending:
    """Frames on their way to disk: made by ``take_pending``, used up by ``written``."""

    __slots__ = ("durable", "frames", "rolled")

    def __init__(self, frames: list[Frame], *, durable: bool) -> None:
        self.frames = frames
        self.durable = durable
        #: The segment that the write had to begin, if any.
        self.rolled: Segment | None = None


class Replog:
    """The log of one replica: a :class:`~stretto.replog.storage.Storage` over any folder.

    Open it with :meth:`open`.
    """

    def __init__(
        self, folder: Folder, *, segment_bytes: int, index_interval_bytes: int, tail_bytes: int, create: bool
    ) -> None:
        self._folder = folder
        self._segment_bytes = segment_bytes
        self._index_interval_bytes = index_interval_bytes
        self._tail = Tail(tail_bytes)
        #: The segments, ascending and contiguous; there is always one.
        self._segments: list[Segment] = []
        self._end = Offset(0)
        #: Offsets that obey ``_durable_end <= _written_end <= _end``.
        self._written_end = Offset(0)
        self._durable_end = Offset(0)
        self._history: epochs_of.History = ()
        #: Epoch of the newest entry, or of the last one before an empty log; -1 if there was none.
        self._epoch = -1
        #: Frames appended and not taken yet: the owner adds at the end, the writer takes from the front.
        self._queue: deque[Frame] = deque()
        #: The segment that the writer writes to, and whether all it wrote is synced; only the writer uses
        #: both.
        self._active: Segment
        self._synced = True
        #: Number of writes begun, by the writer, and of writes noted, by the owner.
        self._taken = 0
        self._noted = 0
        self._failure: StorageError | None = None
        #: Whether the files may be shorter than what is known of them.
        self._is_shortening = False
        self._load(create=create)

    @classmethod
    def open(
        cls,
        folder: Folder,
        *,
        segment_bytes: int = SEGMENT_BYTES,
        index_interval_bytes: int = INDEX_INTERVAL_BYTES,
        tail_bytes: int = TAIL_BYTES,
        create: bool = True,
    ) -> Replog:
        """Recover the log in ``folder``; if there is none, begin one at offset 0.

        Unless ``create`` is false: a replica that had a log and finds none has lost it, and must not go on as
        if it were new.

        Raises StorageCorrupt, StorageError, or StrettoError for a format this release does not read.
        """
        try:
            return cls(
                folder,
                segment_bytes=segment_bytes,
                index_interval_bytes=index_interval_bytes,
                tail_bytes=tail_bytes,
                create=create,
            )
        except OSError as error:
            raise StorageError(f"the replog cannot be opened: {error}") from error

    # What the log holds

    @property
    def start_offset(self) -> Offset:
        return self._segments[0].base

    @property
    def end_offset(self) -> Offset:
        return self._end

    @property
    def written_end_offset(self) -> Offset:
        """End of what survives a crash of this process, but maybe not of the machine."""
        return self._written_end

    @property
    def durable_end_offset(self) -> Offset:
        return self._durable_end

    @property
    def history(self) -> tuple[EpochStart, ...]:
        return self._history

    # Appending

    def append(self, frames: Sequence[Frame]) -> None:
        if self._failure is not None:
            raise self._failure
        push = self._tail.push
        enqueue = self._queue.append
        for frame in frames:
            header = frame.header
            if header.offset != self._end:
                check(False, "append is not contiguous", offset=header.offset, end=self._end)
            if header.epoch != self._epoch:
                self._begin_epoch(header)
            push(frame)
            self._end = Offset(header.offset + header.count)
            # Last, for from here on the writer may have it.
            enqueue(frame)

    def sync(self) -> Offset:
        if self._is_shortening:
            raise StorageError("the replog is being truncated")
        pending = self.take_pending()
        if pending is not None:
            self.write(pending)
            self.written(pending)
        return self._durable_end

    def take_pending(self, *, durable: bool = True) -> Pending | None:
        """Take all that waits to be written, or with ``durable`` to be synced; None if nothing does."""
        if self._failure is not None:
            raise self._failure
        queue = self._queue
        if not queue and (self._synced or not durable):
            return None
        self._taken += 1
        return Pending([queue.popleft() for _ in range(len(queue))], durable=durable)

    def write(self, pending: Pending) -> None:
        """Write frames to disk, and sync them if they are to be durable. Blocks. Raises StorageError."""
        if self._failure is not None:
            raise self._failure
        frames = pending.frames
        active = self._active
        try:
            if frames:
                if active.size >= self._segment_bytes:
                    active = pending.rolled = self._active = self._roll(active)
                active.file.writev(active.size, [part for frame in frames for part in frame.parts])
                self._synced = False
            if pending.durable:
                active.file.fdatasync()
                self._synced = True
        except OSError as error:
            raise self._fail("a write", error) from error
        if frames:
            active.extend(frames)

    def written(self, pending: Pending) -> None:
        """Take note of a finished write; writes are noted in the order in which they were taken."""
        self._noted += 1
        if pending.rolled is not None:
            self._segments.append(pending.rolled)
        if pending.frames:
            self._tail.mark_written(len(pending.frames))
            self._written_end = pending.frames[-1].end_offset
        if pending.durable:
            self._durable_end = self._written_end

    # Reading

    def read(self, start: Offset, end: Offset, max_bytes: int) -> Chunk:
        if self._failure is not None:
            raise self._failure
        if not self.start_offset <= start <= end <= self._end:
            raise UsageError(f"[{start}, {end}) is not within the log's [{self.start_offset}, {self._end})")
        buffers: list[Buffer] = []
        at = start
        while at < end and (max_bytes > 0 or at == start):
            part: Sequence[Buffer]
            if self._tail.holds(at):
                next_at, part = self._tail.read(at, end, max_bytes)
            else:
                next_at, view = self._segment_of(at).read(at, end, max_bytes)
                part = (view,)
            if next_at == at:
                break
            taken = sum(map(len, part))
            if buffers and taken > max_bytes:
                break
            buffers.extend(part)
            max_bytes -= taken
            at = next_at
        if at == start < end:
            raise UsageError(f"no whole frame lies within [{start}, {end})")
        return Chunk(start, at, tuple(buffers))

    def absent(self, start: Offset, max_bytes: int) -> Callable[[], None] | None:
        if self._failure is not None:
            raise self._failure
        fetches: list[Callable[[], None]] = []
        at = start
        while self.start_offset <= at < self._end and max_bytes > 0 and not self._tail.holds(at):
            segment = self._segment_of(at)
            length, fetch = segment.absent(at, max_bytes)
            if fetch is not None:
                fetches.append(fetch)
            at, max_bytes = segment.end, max_bytes - length
        return partial(_call_all, fetches) if fetches else None

    def headers(self, start: Offset) -> Iterator[Header]:
        if self._failure is not None:
            raise self._failure
        if not self.start_offset <= start <= self._end:
            raise UsageError(f"{start} is not within the log's [{self.start_offset}, {self._end}]")
        return self._headers(start, self._end)

    # Dropping

    def truncate(self, end: Offset) -> None:
        self.shorten(end)
        self.shortened(end)

    def shorten(self, end: Offset) -> None:
        """Truncate the files at ``end``. Blocks on the disk.

        Until :meth:`shortened`, the owner does nothing but read below ``end``.
        """
        self._require_quiet()
        if not self.start_offset <= end <= self._end:
            raise UsageError(f"{end} is not within the log's [{self.start_offset}, {self._end}]")
        if end < self._end and self._tail.holds(end):
            self._tail.index(end)
        if end >= self._written_end:
            return
        self._is_shortening = True
        segment = self._segment_of(end)
        try:
            position = segment.locate(end)
            # Before the file, so that whoever reads what stays does not miss the rest.
            segment.shortened(end, position)
            if segment is self._active:
                segment.file.truncate(position)
                segment.file.fdatasync()
            else:
                carry_out(self._folder, Intent(change=Change.TRUNCATE, offset=end, position=position))
        except OSError as error:
            raise self._fail("a truncation", error) from error

    def shortened(self, end: Offset) -> None:
        """Take note of a truncation that :meth:`shorten` has made."""
        if end == self._end:
            return
        if self._is_shortening:
            self._is_shortening = False
            while self._active is not self._segment_of(end):
                self._segments.pop().file.close()
                self._active = self._segments[-1]
            # What is left was synced with the file, or before it was sealed.
            self._synced = True
            self._written_end = self._durable_end = end
        self._drop_queued(end)
        self._tail.truncate(end)
        self._end = end
        self._written_end = min(self._written_end, end)
        self._durable_end = min(self._durable_end, end)
        # The epoch before the start has no entry here that could be dropped.
        before = self._history[:1] if end == self.start_offset and self._segments[0].before else ()
        self._set_history(before or epochs_of.starting_below(self._history, end))

    def cut(self, start: Offset) -> Offset:
        first = self.cut_point(start)
        if first is not None:
            self.remove_below(first)
            self.removed_below(first)
        return self.start_offset

    def cut_point(self, start: Offset) -> Offset | None:
        """Base of the segment that a cut at ``start`` makes the first; None if it is the first already."""
        if self._failure is not None:
            raise self._failure
        keep = bisect_right(self._segments, start, key=_base_of) - 1
        return self._segments[keep].base if keep > 0 else None

    def remove_below(self, first: Offset) -> None:
        """Remove the segments below ``first``. Blocks on the disk; the owner may go on reading them."""
        dropped = [segment.base for segment in list(self._segments) if segment.base < first]
        try:
            if len(dropped) > 1:
                carry_out(self._folder, Intent(change=Change.CUT, offset=first))
                return
            for base in dropped:
                self._folder.remove(segment_name(base))
                if index_name(base) in self._folder.names():
                    self._folder.remove(index_name(base))
            self._folder.sync()
        except OSError as error:
            raise self._fail("a cut", error) from error

    def removed_below(self, first: Offset) -> None:
        """Take note of a cut that :meth:`remove_below` has made."""
        while self._segments[0].base < first:
            self._segments.pop(0).file.close()
        self._history = epochs_of.ending_above(self._history, self.start_offset)

    def reset(self, start: Offset, history: tuple[EpochStart, ...]) -> None:
        self._require_quiet()
        before = history[-1] if history else None
        if before is not None and before.start > start:
            raise UsageError(f"epoch {before.epoch} starts at {before.start}, beyond the log's {start}")
        try:
            carry_out(self._folder, Intent(change=Change.RESET, offset=start, before=before))
            self._reload()
        except OSError as error:
            raise self._fail("a reset", error) from error

    def close(self) -> None:
        """Let go of the files. What was appended and not synced is lost."""
        check(self._taken == self._noted or self._failure is not None, "close with a write in flight")
        for segment in self._segments:
            segment.file.close()
        self._failure = self._failure or StorageError("the replog is closed")

    def _load(self, *, create: bool = False) -> None:
        self._segments = recover(self._folder, self._index_interval_bytes, create=create)
        self._active = self._segments[-1]
        self._synced = True
        end = self._active.end
        self._end = self._written_end = self._durable_end = end
        first_before = self._segments[0].before
        history: epochs_of.History = (first_before,) if first_before else ()
        for segment in self._segments:
            history += segment.epochs
        self._set_history(history)

    def _reload(self) -> None:
        """Read the folder anew after a change of several segments."""
        for segment in self._segments:
            segment.file.close()
        self._tail.clear()
        self._queue.clear()
        self._failure = StorageError("the replog could not be read again after a change of its segments")
        self._load()
        self._failure = None

    def _begin_epoch(self, header: Header) -> None:
        check(header.epoch > self._epoch, "epochs go back", epoch=header.epoch, last=self._epoch)
        self._set_history((*self._history, EpochStart(header.epoch, header.offset)))

    def _set_history(self, history: epochs_of.History) -> None:
        self._history = history
        self._epoch = history[-1].epoch if history else -1

    def _roll(self, full: Segment) -> Segment:
        """Seal a full segment and begin the next."""
        if not self._synced:
            full.file.fdatasync()
        full.store_index(self._folder)
        return Segment.create(self._folder, full.end, full.last_epoch, self._index_interval_bytes)

    def _segment_of(self, offset: Offset) -> Segment:
        return self._segments[bisect_right(self._segments, offset, key=_base_of) - 1]

    def _headers(self, start: Offset, end: Offset) -> Iterator[Header]:
        at = start
        while at < end and not self._tail.holds(at):
            for header, _ in self._segment_of(at).walk(at):
                yield header
                at = header.end_offset
                if at >= end:
                    return
        if at < end:
            for frame in self._tail.frames_from(at):
                if frame.header.offset < end:
                    yield frame.header

    def _drop_queued(self, end: Offset) -> None:
        while self._queue and self._queue[-1].header.offset >= end:
            self._queue.pop()

    def _require_quiet(self) -> None:
        if self._failure is not None:
            raise self._failure
        check(self._taken == self._noted, "the log is changed while a write is in flight")

    def _fail(self, what: str, error: OSError) -> StorageError:
        self._failure = StorageError(
            f"{what} of the replog failed ({error}); this replica stops, as retrying could lose data"
        )
        return self._failure


def _call_all(functions: list[Callable[[], None]]) -> None:
    for function in functions:
        function()
