"""The log against the simplest thing that could be right: a list of frames."""

from __future__ import annotations

import contextlib
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from stretto.replog.frame import Frame
from stretto.replog.log import Replog
from stretto.replog.storage import EpochStart
from stretto.vocabulary.types import Epoch, Offset
from tests.support.frames import make_frame, read_all, whole
from tests.support.power import PowerFolder, PowerLoss


class Model:
    """A log as a list."""

    def __init__(self, start: int = 0, before: EpochStart | None = None) -> None:
        self.start = start
        #: The epoch that was running just below ``start``.
        self.before = before
        self.frames: list[Frame] = []

    @property
    def end(self) -> int:
        return self.frames[-1].end_offset if self.frames else self.start

    @property
    def last_epoch(self) -> int:
        if self.frames:
            return self.frames[-1].header.epoch
        return self.before.epoch if self.before else 0

    def history(self) -> tuple[EpochStart, ...]:
        """By definition: the epoch before the log, and each that began in it."""
        starts: dict[Epoch, Offset] = {}
        if self.before is not None:
            starts[self.before.epoch] = self.before.start
        for frame in self.frames:
            starts.setdefault(frame.header.epoch, frame.header.offset)
        return tuple(EpochStart(epoch, start) for epoch, start in starts.items())

    def cut(self, start: int) -> None:
        history = self.history()
        gone = [frame for frame in self.frames if frame.header.offset < start]
        if gone:
            last = gone[-1].header.epoch
            self.before = next(entry for entry in history if entry.epoch == last)
        self.frames = self.frames[len(gone) :]
        self.start = start

    def truncate(self, end: int) -> None:
        self.frames = [frame for frame in self.frames if frame.header.offset < end]


SIZES = st.lists(st.integers(0, 90), min_size=1, max_size=8)

has_frames = precondition(lambda self: len(self.model.frames) > 0)
# What empties the log waits for it to be worth emptying, or most steps would be spent on empty logs.
has_many_frames = precondition(lambda self: len(self.model.frames) > 12)


class LogAgainstModel(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.folder = PowerFolder()
        self.log = self.open()
        self.model = Model()

    def open(self) -> Replog:
        return Replog.open(self.folder, segment_bytes=900, index_interval_bytes=100, tail_bytes=100)

    @rule(sizes=SIZES, count=st.integers(1, 3), new_epochs=st.integers(0, 2))
    def append_and_sync(self, sizes: list[int], count: int, new_epochs: int) -> None:
        for size in sizes:
            self.append([size], count, new_epochs)
            self.sync()

    @rule(sizes=SIZES, count=st.integers(1, 3), new_epochs=st.integers(0, 2))
    def append(self, sizes: list[int], count: int, new_epochs: int) -> None:
        epoch = max(1, self.model.last_epoch + new_epochs)
        for size in sizes:
            content = bytes([size]) * size
            frame = make_frame(self.model.end, epoch=epoch, count=count, content=content)
            self.log.append([frame])
            self.model.frames.append(frame)

    @rule()
    def sync(self) -> None:
        assert self.log.sync() == self.model.end

    @has_frames
    @rule(dropped=st.integers(1, 6))
    def truncate(self, dropped: int) -> None:
        end = self.model.frames[max(-dropped, -len(self.model.frames))].header.offset
        self.log.truncate(end)
        self.model.truncate(end)

    @has_many_frames
    @rule()
    def truncate_everything(self) -> None:
        self.log.truncate(self.log.start_offset)
        self.model.truncate(self.log.start_offset)

    @has_many_frames
    @rule(data=st.data())
    def cut(self, data: Any) -> None:
        start = data.draw(st.integers(self.model.start, self.model.end + 5))
        new_start = self.log.cut(Offset(start))
        assert self.model.start <= new_start <= max(start, self.model.start)
        self.model.cut(new_start)

    @has_many_frames
    @rule(start=st.integers(0, 60), epoch=st.integers(1, 60), below=st.integers(0, 5))
    def reset(self, start: int, epoch: int, below: int) -> None:
        before = EpochStart(Epoch(epoch), Offset(max(0, start - below)))
        self.log.reset(Offset(start), (before,))
        self.model = Model(start, before)

    @rule()
    def reopen(self) -> None:
        self.log.sync()
        self.log.close()
        self.log = self.open()

    @rule(data=st.data(), after=st.integers(0, 6))
    def crash_during_sync(self, data: Any, after: int) -> None:
        durable = self.log.durable_end_offset
        self.folder.crash_before = len(self.folder.operations) + after
        with contextlib.suppress(PowerLoss):
            durable = self.log.sync()
        survivors = list(self.folder.survivors())
        self.folder = data.draw(st.sampled_from(survivors)) if len(survivors) > 1 else survivors[0]
        self.log = self.open()
        assert durable <= self.log.end_offset <= self.model.end
        self.model.truncate(self.log.end_offset)

    @rule()
    def process_exit(self) -> None:
        durable = self.log.durable_end_offset
        self.folder = self.folder.process_exit()
        self.log = self.open()
        assert durable <= self.log.end_offset <= self.model.end
        self.model.truncate(self.log.end_offset)

    @invariant()
    def same_bounds_and_history(self) -> None:
        assert (self.log.start_offset, self.log.end_offset) == (self.model.start, self.model.end)
        assert self.log.history == self.model.history()
        assert self.log.start_offset <= self.log.durable_end_offset <= self.log.end_offset

    @invariant()
    def same_frames(self) -> None:
        assert [header for header, _ in read_all(self.log)] == [f.header for f in self.model.frames]

    @has_frames
    @rule(data=st.data(), max_bytes=st.integers(1, 1000))
    def read(self, data: Any, max_bytes: int) -> None:
        first = data.draw(st.integers(0, len(self.model.frames) - 1))
        stop = data.draw(st.integers(first + 1, len(self.model.frames)))
        wanted = self.model.frames[first:stop]
        fitting = [wanted[0]]
        size = wanted[0].size_bytes
        for frame in wanted[1:]:
            size += frame.size_bytes
            if size > max_bytes:
                break
            fitting.append(frame)
        chunk = self.log.read(wanted[0].header.offset, wanted[-1].end_offset, max_bytes)
        assert b"".join(chunk.buffers) == b"".join(map(whole, fitting))
        assert chunk.end == fitting[-1].end_offset


LogAgainstModel.TestCase.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
TestLogAgainstModel = LogAgainstModel.TestCase
