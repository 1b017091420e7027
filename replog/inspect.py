"""Looking inside a replog without touching it.

Reads what recovery would read and judges it by the same scan, but repairs nothing: a torn tail, or a
change that a crash interrupted, is reported as what the next open would do about it. Every segment is
verified by itself, so that one corrupt segment does not hide the state of the others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import msgspec

from stretto.errors import StorageCorrupt, StrettoError
from stretto.replog.frame import Header
from stretto.replog.intent import INTENT_NAME, Change, Intent, read_intent
from stretto.replog.scan import Scan
from stretto.replog.segment import SEGMENT_HEADER_BYTES, Segment, bases, segment_name
from stretto.replog.storage import EpochStart, Folder
from stretto.vocabulary.types import Epoch, Offset

_INDEX_NOTHING_BYTES = 1 << 62


class Corruption(msgspec.Struct, frozen=True):
    """Where a log is corrupt, and why."""

    segment: str
    offset: Offset
    position: int
    why: str


class SegmentReport(msgspec.Struct, kw_only=True):
    """What a scan of one segment found."""

    name: str
    base: Offset
    end: Offset
    frames: int = 0
    entries: int = 0
    bytes: int = 0
    epochs: list[EpochStart] = []
    torn_bytes: int = 0
    corruption: Corruption | None = None


class LogReport(msgspec.Struct, kw_only=True):
    """What a verification of a whole log found."""

    ok: bool = True
    start_offset: Offset = Offset(0)
    end_offset: Offset = Offset(0)
    frames: int = 0
    entries: int = 0
    bytes: int = 0
    segments: list[SegmentReport] = []
    notes: list[str] = []
    corruptions: list[Corruption] = []


class FramePlace(msgspec.Struct, frozen=True):
    """A frame and where it lies."""

    segment: str
    position: int
    size_bytes: int
    header: Header


def verify(folder: Folder, progress: Callable[[int], None] = lambda _: None) -> LogReport:
    """Scan the whole log; ``progress`` is called with the bytes verified since its last call."""
    report = LogReport()
    intent = _interrupted_change(folder, report)
    found = _live_bases(folder, intent)
    for base in found:
        segment_report = _verify_segment(folder, base, intent, last=base == found[-1], progress=progress)
        _join(report, segment_report)
    report.ok = not report.corruptions
    return report


def size_bytes(folder: Folder) -> int:
    """Number of bytes that :func:`verify` will read."""
    total = 0
    for base in bases(folder.names(), "replog"):
        file = folder.open(segment_name(base))
        total += file.size()
        file.close()
    return total


def frames(folder: Folder, start: Offset = Offset(0)) -> Iterator[FramePlace]:
    """Yield verified frames from the one that holds ``start`` on. Raises StorageCorrupt."""
    intent = read_intent(folder) if INTENT_NAME in folder.names() else None
    found = _live_bases(folder, intent)
    for base, following in zip(found, [*found[1:], None], strict=True):
        if following is not None and following <= start:
            continue
        segment = Segment.open(folder, base, _INDEX_NOTHING_BYTES)
        try:
            yield from _places(segment, intent, start, last=following is None)
        finally:
            segment.file.close()


def _places(segment: Segment, intent: Intent | None, start: Offset, *, last: bool) -> Iterator[FramePlace]:
    for header, position, size in _kept(_scan(segment, last=last), intent):
        if header.end_offset > start:
            yield FramePlace(segment.name, position, size, header)


def _scan(segment: Segment, *, last: bool) -> Scan:
    epoch = segment.before.epoch if segment.before else Epoch(0)
    return Scan(
        segment.file,
        segment.name,
        position=SEGMENT_HEADER_BYTES,
        offset=segment.base,
        epoch=epoch,
        last=last,
    )


def _kept(scan: Scan, intent: Intent | None) -> Iterator[tuple[Header, int, int]]:
    """The frames of a scan, without those that an interrupted truncation has dropped already."""
    if intent is None or intent.change is not Change.TRUNCATE:
        yield from scan
        return
    for header, position, size in scan:
        if header.offset >= intent.offset:
            return
        yield header, position, size


def _interrupted_change(folder: Folder, report: LogReport) -> Intent | None:
    if INTENT_NAME not in folder.names():
        return None
    try:
        intent = read_intent(folder)
    except StorageCorrupt as error:
        report.corruptions.append(_corruption(error))
        return None
    report.notes.append(
        f"a {intent.change.name.lower()} at offset {intent.offset} was interrupted; the next open finishes it"
    )
    return intent


def _live_bases(folder: Folder, intent: Intent | None) -> list[Offset]:
    """Bases of the segments that an interrupted change leaves."""
    found = bases(folder.names(), "replog")
    if not found and intent is None:
        raise StrettoError("there is no replog in that folder; name the folder of one replica")
    match intent:
        case Intent(change=Change.TRUNCATE, offset=end):
            return [base for base in found if base <= end]
        case Intent(change=Change.CUT, offset=start):
            return [base for base in found if base >= start]
        case Intent(change=Change.RESET):
            return []
        case _:
            return found


def _verify_segment(
    folder: Folder, base: Offset, intent: Intent | None, *, last: bool, progress: Callable[[int], None]
) -> SegmentReport:
    report = SegmentReport(name=segment_name(base), base=base, end=base)
    try:
        segment = Segment.open(folder, base, _INDEX_NOTHING_BYTES)
    except StorageCorrupt as error:
        report.corruption = _corruption(error)
        return report
    scan = _scan(segment, last=last)
    reported = 0
    epoch = segment.before.epoch if segment.before else None
    try:
        for header, position, size in _kept(scan, intent):
            report.frames += 1
            report.entries += header.count
            report.end = header.end_offset
            if header.epoch != epoch:
                epoch = header.epoch
                report.epochs.append(EpochStart(epoch, header.offset))
            progress(position + size - reported)
            reported = position + size
    except StorageCorrupt as error:
        report.corruption = _corruption(error)
    report.bytes = scan.position
    report.torn_bytes = scan.torn_bytes
    progress(segment.file.size() - reported)
    segment.file.close()
    return report


def _join(report: LogReport, segment: SegmentReport) -> None:
    """Add a segment to the report of the log, which it must continue."""
    if not report.segments:
        report.start_offset = segment.base
    elif (previous := report.segments[-1]).end != segment.base and previous.corruption is None:
        why = f"the next segment begins at offset {segment.base}"
        previous.corruption = Corruption(previous.name, previous.end, previous.bytes, why)
        report.corruptions.append(previous.corruption)
    report.segments.append(segment)
    report.end_offset = segment.end
    report.frames += segment.frames
    report.entries += segment.entries
    report.bytes += segment.bytes
    if segment.torn_bytes:
        report.notes.append(
            f"segment {segment.name} ends with {segment.torn_bytes} bytes of an unfinished write at byte "
            f"{segment.bytes}; the next open cuts them"
        )
    if segment.corruption is not None:
        report.corruptions.append(segment.corruption)


def _corruption(error: StorageCorrupt) -> Corruption:
    return Corruption(error.segment, Offset(error.offset), error.position, error.why)
