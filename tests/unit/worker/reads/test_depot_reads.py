"""Reads of a depot against the simplest thing that could be right: a list of batches."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stretto.errors import UsageError
from stretto.state.applied import AppliedState, DepotSlice
from stretto.vocabulary.records import DepotOffset, RecordBatch
from stretto.vocabulary.types import TaskId
from tests.support.entries import TASKS, Log, open_state, quick_folder

TASK = TASKS[1]


@dataclass
class Batch:
    base: int
    timestamp_ms: int
    records: list[bytes]

    @property
    def end(self) -> int:
        return self.base + len(self.records)

    @property
    def size_bytes(self) -> int:
        return 8 + len("events") + 4 * len(self.records) + sum(map(len, self.records))


batches_of = st.lists(
    st.tuples(st.integers(0, 40), st.lists(st.binary(max_size=30), min_size=1, max_size=5)), max_size=20
)


@contextmanager
def depot_of(content: list[tuple[int, list[bytes]]]) -> Iterator[tuple[AppliedState, list[Batch]]]:
    log = Log()
    model: list[Batch] = []
    for timestamp_ms, records in content:
        log.depot(records, task=TASK, timestamp_ms=timestamp_ms)
        # Neighbours that must not be mistaken for it.
        log.depot([b"other"], task=TASK, depot="event", timestamp_ms=99)
        log.depot([b"other"], task=0, timestamp_ms=99)
        model.append(Batch(model[-1].end if model else 0, timestamp_ms, records))
    with quick_folder() as folder:
        state = open_state(folder / "state")
        state.apply(log.frames)
        yield state, model
        state.close()


def model_read(model: list[Batch], offset: int, max_bytes: int, max_records: int) -> list[Batch]:
    taken: list[Batch] = []
    for batch in model:
        if batch.end <= offset:
            continue
        size = sum(each.size_bytes for each in taken) + batch.size_bytes
        if taken and (size > max_bytes or batch.end - offset > max_records):
            break
        taken.append(batch)
    return taken


def as_batches(slice_: DepotSlice) -> list[Batch]:
    return [
        Batch(batch.base, batch.timestamp_ms, RecordBatch.parse(batch.payload).records())
        for batch in slice_.batches
    ]


@settings(max_examples=60, deadline=None)
@given(batches_of, st.data())
def test_a_read_is_of_whole_batches_from_the_one_that_holds_the_offset(
    content: list[tuple[int, list[bytes]]], data: st.DataObject
) -> None:
    with depot_of(content) as (state, model):
        end = model[-1].end if model else 0
        assert state.depot_bounds(TASK, "events") == (0, end)
        for _ in range(10):
            offset = data.draw(st.integers(0, end + 2))
            max_bytes = data.draw(st.sampled_from([0, 1, 50, 200, 1 << 20]))
            max_records = data.draw(st.sampled_from([0, 1, 3, 10, 1 << 20]))
            slice_ = state.read_depot(
                TASK, "events", DepotOffset(offset), max_bytes=max_bytes, max_records=max_records
            )
            expected = model_read(model, offset, max_bytes, max_records)
            assert as_batches(slice_) == expected
            assert slice_.start == offset
            assert slice_.end == (expected[-1].end if expected else offset)


@settings(max_examples=60, deadline=None)
@given(batches_of)
def test_reading_by_time_finds_the_first_batch_that_is_new_enough(
    content: list[tuple[int, list[bytes]]],
) -> None:
    with depot_of(content) as (state, model):
        end = model[-1].end if model else 0
        for timestamp_ms in range(-1, 43):
            expected = next((batch.base for batch in model if batch.timestamp_ms >= timestamp_ms), end)
            assert state.offset_at(TASK, "events", timestamp_ms) == expected


@settings(max_examples=30, deadline=None)
@given(batches_of)
def test_a_consumer_that_follows_the_ends_reads_everything_once(
    content: list[tuple[int, list[bytes]]],
) -> None:
    with depot_of(content) as (state, model):
        at = DepotOffset(0)
        seen: list[Batch] = []
        while True:
            slice_ = state.read_depot(TASK, "events", at, max_bytes=100, max_records=4)
            if not slice_.batches:
                break
            seen += as_batches(slice_)
            at = slice_.end
        assert seen == model


def test_an_offset_that_cannot_be_is_refused(tmp_path: Path) -> None:
    state = open_state(tmp_path)
    log = Log()
    log.depot([b"a"])
    state.apply(log.frames)
    for offset in (-1, 1 << 64):
        with pytest.raises(UsageError, match="is no offset of a depot"):
            state.read_depot(TaskId(0), "events", DepotOffset(offset), max_bytes=1, max_records=1)
    state.close()


def test_what_was_read_stays_valid_after_the_state_is_closed(tmp_path: Path) -> None:
    state = open_state(tmp_path)
    log = Log()
    log.depot([b"a" * 5000, b"b"])
    state.apply(log.frames)
    slice_ = state.read_depot(TaskId(0), "events", DepotOffset(0), max_bytes=1, max_records=1)
    state.close()
    assert RecordBatch.parse(slice_.batches[0].payload).records() == [b"a" * 5000, b"b"]
