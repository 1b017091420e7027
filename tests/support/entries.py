"""Logs of entries for tests of the applied state."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from hypothesis import strategies as st

from stretto.pstate.changes import Changes
from stretto.pstate.changes import pack as pack_changes
from stretto.pstate.ordered import EVERYTHING
from stretto.replog.core.producers import ProducerTable
from stretto.replog.folder import OsFolder
from stretto.replog.frame import Frame, Header, Kind, encode
from stretto.replog.log import Replog
from stretto.state import microbatch_entries as microbatches
from stretto.state import removal as removals
from stretto.state.applied import AppliedState
from stretto.state.microbatch_entries import Batch, Span, Version
from stretto.state.removal import Drop, Removal, Trim
from stretto.vocabulary.records import pack
from stretto.vocabulary.types import Epoch, Offset, ProducerId, TaskId

TASKS = (TaskId(0), TaskId(1), TaskId(2))
MAP_BYTES = 256 * 1024

_MEMORY = "/dev/shm"


@contextmanager
def quick_folder() -> Iterator[Path]:
    """Yield a folder for many examples, in memory if possible, as each commit waits for the disk."""
    parent = _MEMORY if os.access(_MEMORY, os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="stretto-test-", dir=parent) as folder:
        yield Path(folder)


class Log:
    """A log as frames, each beginning where the one before it ended."""

    def __init__(self, *, start: int = 0, epoch: int = 1) -> None:
        self.frames: list[Frame] = []
        self.start = Offset(start)
        self.epoch = epoch

    @property
    def end(self) -> Offset:
        return self.frames[-1].end_offset if self.frames else self.start

    def add(
        self,
        kind: Kind,
        *,
        task: int = 0,
        count: int = 1,
        producer: int = 0,
        sequence: int = 0,
        timestamp_ms: int = 0,
        payload: bytes = b"",
    ) -> Frame:
        header = Header(
            offset=self.end,
            epoch=Epoch(self.epoch),
            kind=kind,
            count=count,
            task=TaskId(task),
            producer=ProducerId(producer),
            sequence=sequence,
            timestamp_ms=timestamp_ms,
        )
        self.frames.append(encode(header, payload))
        return self.frames[-1]

    def depot(
        self,
        records: Sequence[bytes],
        *,
        task: int = 0,
        depot: str = "events",
        producer: int = 0,
        sequence: int = 0,
        timestamp_ms: int = 0,
    ) -> Frame:
        return self.add(
            Kind.DEPOT,
            task=task,
            count=len(records),
            producer=producer,
            sequence=sequence,
            timestamp_ms=timestamp_ms,
            payload=pack(depot, records),
        )

    def state(self, changes: Changes, *, task: int = 0, pstate: str = "counts", producer: int = 0) -> Frame:
        return self.add(Kind.STATE, task=task, producer=producer, payload=pack_changes({pstate: changes}))

    def remove(self, removal: Removal, *, task: int = 0) -> Frame:
        return self.add(Kind.TRIM, task=task, payload=removals.encode(removal))

    def new_epoch(self) -> Frame:
        self.epoch += 1
        return self.add(Kind.EPOCH)

    def producers(self, end: Offset | None = None) -> ProducerTable:
        """Return the core's own producer table after the entries below ``end``."""
        table = ProducerTable({})
        for frame in self.frames:
            if end is None or frame.end_offset <= end:
                table.apply(frame.header)
        return table

    def below(self, end: Offset) -> list[Frame]:
        return [frame for frame in self.frames if frame.end_offset <= end]

    def stored(self, folder: Path) -> Replog:
        """Return the entries as a replog on disk."""
        folder.mkdir()
        replog = Replog.open(OsFolder(folder))
        replog.append(self.frames)
        replog.sync()
        return replog


_row_keys = st.sampled_from([b"a", b"ab", b"b", b"c", b"d"])
changes_of_rows = st.builds(
    Changes,
    st.lists(st.sampled_from([(b"a", b"b"), (b"ab", b"d"), EVERYTHING]), max_size=1).map(tuple),
    st.lists(_row_keys, max_size=2).map(tuple),
    st.dictionaries(_row_keys, st.binary(max_size=3), max_size=3).map(lambda rows: tuple(rows.items())),
)
_versions = st.builds(Version, st.integers(1, 2), st.integers(0, 1))
steps_of_microbatches: st.SearchStrategy[microbatches.Entry] = st.one_of(
    st.builds(
        microbatches.Prime,
        st.just("t"),
        st.builds(Batch, _versions, st.just({}), st.just((Span("events", TASKS[0], 0, 1),))),
    ),
    st.builds(microbatches.Commit, st.just("t"), _versions, st.just((TASKS[0],))),
    st.builds(
        microbatches.Stage,
        st.just("t"),
        _versions,
        changes_of_rows.map(lambda changes: pack_changes({"counts": changes})),
    ),
    st.builds(microbatches.Roll, st.just("t"), _versions),
    st.builds(
        microbatches.Missed,
        st.just("t"),
        _versions,
        changes_of_rows.map(lambda changes: pack_changes({"counts": changes})),
    ),
)


@st.composite
def logs(draw: st.DrawFn, *, max_frames: int = 25) -> Log:
    """Draw any mix of entries, also such as a careful leader would not admit (closed producers, gaps)."""
    log = Log()
    log.add(Kind.EPOCH)
    for number in range(draw(st.integers(0, max_frames))):
        producer = draw(st.integers(0, 3))
        match draw(
            st.sampled_from(
                [
                    *("depot", "depot", "depot", "state", "state", "open", "expire", "epoch", "marker"),
                    *("microbatch", "microbatch", "trim", "drop"),
                ]
            )
        ):
            case "depot":
                log.depot(
                    [b"%d-%d" % (number, index) for index in range(draw(st.integers(1, 4)))],
                    task=draw(st.sampled_from(TASKS)),
                    depot=draw(st.sampled_from(["events", "clicks"])),
                    producer=producer,
                    sequence=draw(st.integers(0, 20)),
                    timestamp_ms=draw(st.integers(0, 30)),
                )
            case "state":
                log.state(
                    draw(changes_of_rows),
                    task=draw(st.sampled_from(TASKS)),
                    pstate=draw(st.sampled_from(["counts", "seen"])),
                )
            case "microbatch":
                entry = draw(steps_of_microbatches)
                log.add(
                    Kind.MICROBATCH, task=draw(st.sampled_from(TASKS)), payload=microbatches.encode(entry)
                )
            case "trim":
                depot = draw(st.sampled_from(["events", "clicks"]))
                log.remove(Trim(depot, draw(st.integers(0, 12))), task=draw(st.sampled_from(TASKS)))
            case "drop":
                names = draw(st.sets(st.sampled_from(["events", "clicks", "counts"]), min_size=1))
                version = draw(st.integers(1, 3))
                log.remove(Drop(version, tuple(sorted(names))), task=draw(st.sampled_from(TASKS)))
            case "open":
                log.add(Kind.PRODUCER_OPEN, producer=producer or 1)
            case "expire":
                log.add(Kind.PRODUCER_EXPIRE, producer=producer or 1)
            case "epoch":
                log.new_epoch()
            case _:
                log.add(Kind.MARKER)
    return log


def batchings(frames: Sequence[Frame]) -> st.SearchStrategy[list[Sequence[Frame]]]:
    """Return the strategy of all ways to cut frames into consecutive groups."""

    def cut(cuts: list[bool]) -> list[Sequence[Frame]]:
        groups: list[list[Frame]] = [[]]
        for frame, here in zip(frames, cuts, strict=True):
            if here and groups[-1]:
                groups.append([])
            groups[-1].append(frame)
        return list(groups)

    return st.lists(st.booleans(), min_size=len(frames), max_size=len(frames)).map(cut)


def open_state(folder: Path, *, map_bytes: int = MAP_BYTES) -> AppliedState:
    return AppliedState.open(folder, TASKS, map_bytes=map_bytes)


def digests(state: AppliedState) -> list[str]:
    return [state.digest(task) for task in TASKS]


def applied_in_one_go(folder: Path, frames: Sequence[Frame]) -> list[str]:
    """Return the digests of a state that these frames are applied to at once."""
    state = open_state(folder)
    state.apply(frames)
    found = digests(state)
    state.close()
    return found
