"""The newest frames of a log, in memory.

Every frame enters here when it is appended. It stays at least until it is written, and after that
as long as the written ones fit in a fixed number of bytes: followers, the apply step and the disk
all want the newest entries, and get them without a read.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right

from stretto.errors import UsageError
from stretto.replog.frame import Frame
from stretto.vocabulary.types import Buffer, Offset


class Tail:
    """Consecutive frames up to the end of the log; the first ``written`` of them are on disk too."""

    __slots__ = ("_capacity_bytes", "_ends_bytes", "_first", "_frames", "_offsets", "_written")

    def __init__(self, capacity_bytes: int) -> None:
        self._capacity_bytes = capacity_bytes
        self._frames: list[Frame] = []
        self._offsets: list[int] = []
        #: For each frame, the number of bytes of all frames ever pushed up to its end.
        self._ends_bytes: list[int] = [0]
        #: Index of the first frame that was not evicted; evicted ones are deleted in bulk, now and then.
        self._first = 0
        #: Index of the first frame that is not written yet.
        self._written = 0

    def push(self, frame: Frame) -> None:
        self._frames.append(frame)
        self._offsets.append(frame.header.offset)
        self._ends_bytes.append(self._ends_bytes[-1] + frame.size_bytes)

    def holds(self, offset: Offset) -> bool:
        """Whether the frame with ``offset`` is here (``offset`` is below the end of the log)."""
        return self._first < len(self._offsets) and self._offsets[self._first] <= offset

    def mark_written(self, count: int) -> None:
        """Note that the next ``count`` frames are on disk: they may be evicted from now on."""
        self._written += count
        ends = self._ends_bytes
        evict_to = ends[self._written] - self._capacity_bytes
        if evict_to > ends[self._first]:
            self._first = min(bisect_left(ends, evict_to, self._first), self._written)
            if 2 * self._first > len(self._frames):
                self._compact()

    def read(self, start: Offset, end: Offset, max_bytes: int) -> tuple[Offset, list[Buffer]]:
        """Read frames like :meth:`Segment.read <stretto.replog.segment.Segment.read>`, from memory."""
        first = self.index(start)
        ends = self._ends_bytes
        fitting = bisect_right(ends, ends[first] + max_bytes, first + 1) - 1
        stop = min(max(fitting, first + 1), bisect_left(self._offsets, end, first))
        frames = self._frames[first:stop]
        if frames and frames[-1].header.end_offset > end:
            frames.pop()
        if not frames:
            return start, []
        return frames[-1].header.end_offset, [part for frame in frames for part in frame.parts]

    def index(self, start: Offset) -> int:
        """Index of the frame that begins at ``start``."""
        at = bisect_left(self._offsets, start, self._first)
        if at == len(self._offsets) or self._offsets[at] != start:
            raise UsageError(f"offset {start} is not the first offset of a frame")
        return at

    def frames_from(self, start: Offset) -> list[Frame]:
        """Frames from the one that holds ``start`` on."""
        return self._frames[bisect_right(self._offsets, start, self._first) - 1 :]

    def truncate(self, end: Offset) -> None:
        """Drop frames from ``end`` on, a frame boundary."""
        keep = bisect_left(self._offsets, end, self._first)
        del self._frames[keep:]
        del self._offsets[keep:]
        del self._ends_bytes[keep + 1 :]
        self._written = min(self._written, keep)

    def clear(self) -> None:
        self._frames.clear()
        self._offsets.clear()
        self._ends_bytes = [0]
        self._first = self._written = 0

    def _compact(self) -> None:
        first = self._first
        # Evicted frames must really go: they pin the buffers they were received in.
        del self._frames[:first]
        del self._offsets[:first]
        del self._ends_bytes[:first]
        self._written -= first
        self._first = 0
