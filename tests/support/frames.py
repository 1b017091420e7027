"""Frames for tests, and what a log looks like from outside."""

from __future__ import annotations

from typing import NamedTuple

from stretto.replog.frame import Frame, Header, Kind, decode, encode, payload
from stretto.replog.storage import EpochStart, Storage
from stretto.vocabulary.types import Epoch, Offset, ProducerId, TaskId


def make_frame(offset: int, *, epoch: int = 1, count: int = 1, content: bytes = b"payload") -> Frame:
    header = Header(
        offset=Offset(offset),
        epoch=Epoch(epoch),
        kind=Kind.DEPOT,
        count=count,
        task=TaskId(3),
        producer=ProducerId(77),
        sequence=offset,
        timestamp_ms=1_700_000_000_000,
    )
    return encode(header, content)


def make_frames(start: int, count: int, *, epoch: int = 1, content: bytes = b"payload") -> list[Frame]:
    return [make_frame(offset, epoch=epoch, content=content) for offset in range(start, start + count)]


def whole(frame: Frame) -> bytes:
    return b"".join(frame.parts)


def epoch_start(epoch: int, start: int) -> EpochStart:
    return EpochStart(Epoch(epoch), Offset(start))


def history_of(log: Storage) -> list[tuple[int, int]]:
    return [(entry.epoch, entry.start) for entry in log.history]


class Contents(NamedTuple):
    """All that can be asked of a log, except how much of it is durable."""

    start: int
    end: int
    history: tuple[EpochStart, ...]
    frames: tuple[tuple[Header, bytes], ...]


def contents(log: Storage) -> Contents:
    return Contents(log.start_offset, log.end_offset, log.history, read_all(log))


def read_all(log: Storage, *, max_bytes: int = 1 << 20) -> tuple[tuple[Header, bytes], ...]:
    frames: list[tuple[Header, bytes]] = []
    at = log.start_offset
    while at < log.end_offset:
        chunk = log.read(at, log.end_offset, max_bytes)
        got = decode(b"".join(chunk.buffers))
        assert got[0].header.offset == chunk.start == at
        assert got[-1].end_offset == chunk.end
        frames += [(frame.header, bytes(payload(frame))) for frame in got]
        at = chunk.end
    assert list(log.headers(log.start_offset)) == [header for header, _ in frames]
    return tuple(frames)
