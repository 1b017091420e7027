"""How batches are cut at markers."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from stretto.replog.core.producers import NO_PRODUCER
from stretto.replog.frame import Frame, Header, Kind, encode
from stretto.types import Epoch, Offset, TaskId
from stretto.worker.applier import _up_to_markers


def frames(kinds: list[Kind]) -> list[Frame]:
    return [
        encode(
            Header(
                offset=Offset(offset),
                epoch=Epoch(1),
                kind=kind,
                count=1,
                task=TaskId(0),
                producer=NO_PRODUCER,
                sequence=0,
                timestamp_ms=0,
            ),
            b"",
        )
        for offset, kind in enumerate(kinds)
    ]


@given(st.lists(st.sampled_from([Kind.EPOCH, Kind.DEPOT, Kind.MARKER])))
def test_every_marker_ends_a_run_and_nothing_else_does(kinds: list[Kind]) -> None:
    batch = frames(kinds)
    runs = list(_up_to_markers(batch))
    assert [frame for run in runs for frame in run] == batch
    assert all(runs)
    for run in runs[:-1]:
        assert run[-1].header.kind is Kind.MARKER
    assert all(frame.header.kind is not Kind.MARKER for run in runs for frame in run[:-1])


def test_a_batch_without_markers_is_not_copied() -> None:
    batch = frames([Kind.DEPOT, Kind.DEPOT])
    [run] = _up_to_markers(batch)
    assert run is batch
