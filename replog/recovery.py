"""Opening what a crash, or a clean close, has left in a folder.

In this order:

1. A change that was written down and not finished is carried out (:mod:`stretto.replog.intent`).
2. Index files of sealed segments are believed, or replaced by a scan. The active segment has none: it
   may still change, so one found there is stale, and goes durably before anything is appended.
3. The active segment is scanned; a torn tail is cut (:mod:`stretto.replog.scan`).
4. What was found is made durable before anyone may claim it: after a crash of the process alone, the
   newest frames, and even names of files, may exist in memory only.

Corruption is raised, and nothing in the folder is changed on account of it.
"""

from __future__ import annotations

import itertools

from stretto.errors import StorageCorrupt
from stretto.replog.intent import INTENT_NAME, remove_temporaries, resume
from stretto.replog.segment import TEMPORARY, Segment, bases, index_name, segment_name
from stretto.replog.storage import Folder
from stretto.vocabulary.types import Offset


def recover(folder: Folder, index_interval_bytes: int, *, create: bool) -> list[Segment]:
    """Open the segments of the log in ``folder``, durable and contiguous; a new one if there is none."""
    names = folder.names()
    if any(name.endswith(TEMPORARY) for name in names):
        remove_temporaries(folder, names)
    if INTENT_NAME in names:
        resume(folder)
        names = folder.names()
    found = bases(names, "replog")
    if not found:
        if not create:
            raise StorageCorrupt(segment_name(Offset(0)), Offset(0), 0, "all segments of the log are gone")
        return [Segment.create(folder, Offset(0), None, index_interval_bytes)]
    _drop_stale_indexes(folder, names, found)
    segments: list[Segment] = []
    try:
        for base in found:
            segments.append(Segment.open(folder, base, index_interval_bytes))  # noqa: PERF401 - for the except
        _recover_sealed(folder, segments, index_interval_bytes)
        _recover_active(segments[-1])
    except BaseException:
        for segment in segments:
            segment.file.close()
        raise
    folder.sync()
    return segments


def _drop_stale_indexes(folder: Folder, names: list[str], found: list[Offset]) -> None:
    stale = set(bases(names, "index")) - set(found[:-1])
    for base in stale:
        folder.remove(index_name(base))


def _recover_sealed(folder: Folder, segments: list[Segment], index_interval_bytes: int) -> None:
    for segment, following in itertools.pairwise(segments):
        sealed = segment.load_index(folder, index_interval_bytes)
        if sealed is not None:
            segment.trust(sealed)
        else:
            segment.scan(last=False)
            segment.store_index(folder)
        if segment.end != following.base:
            why = f"the next segment begins at offset {following.base}"
            raise StorageCorrupt(segment.name, segment.end, segment.size, why)


def _recover_active(active: Segment) -> None:
    scan = active.scan(last=True)
    if scan.torn_bytes:
        active.file.truncate(active.size)
    active.file.fdatasync()
