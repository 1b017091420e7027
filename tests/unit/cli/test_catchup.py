"""What ``stretto catchup`` shows."""

from __future__ import annotations

import io

from rich.console import Console

from stretto import control
from stretto.cli.inspecting.catchup import render, size
from stretto.client.operating.status import ABSENT, GroupState, GroupStatus, ReplicaStatus
from stretto.vocabulary.groups import GroupKey
from stretto.vocabulary.types import Epoch, Offset, TaskId, WorkerId


def shown(statuses: list[GroupStatus]) -> list[list[str]]:
    """The words of each line, bars included."""
    output = io.StringIO()
    Console(file=output, width=200, no_color=True).print(render("m", statuses))
    return [line.split() for line in output.getvalue().splitlines() if line.strip()]


def status(*replicas: ReplicaStatus) -> GroupStatus:
    return GroupStatus(
        group=GroupKey("m", 1, 3),
        tasks=(TaskId(6), TaskId(7)),
        state=GroupState.CATCHING_UP,
        since_ms=1_000,
        why="",
        leader=WorkerId("a"),
        epoch=Epoch(2),
        isr=(WorkerId("a"),),
        osr=tuple(each.worker for each in replicas),
        min_isr=1,
        replicas=(ReplicaStatus(worker=WorkerId("a"), role="leader", in_isr=True), *replicas),
        is_whole=not replicas,
    )


def test_all_in_sync() -> None:
    assert shown([]) == [["m:", "every", "replica", "is", "in", "sync"]]


def test_a_replica_that_reads_the_log() -> None:
    near = ReplicaStatus(worker=WorkerId("b"), role="near", in_isr=False, lag=1_200, since_ms=4_200)
    line = shown([status(near)])[-1]
    assert line[:7] == ["3", "b", "near:", "from", "the", "leader's", "log"]
    assert line[7:10] == ["4.2", "s", "1,200"]


def test_a_replica_that_receives_state_task_by_task() -> None:
    far = ReplicaStatus(
        worker=WorkerId("b"),
        role="far",
        in_isr=False,
        lag=90_000,
        since_ms=60_000,
        catchup=control.CatchupView(
            leader=WorkerId("a"),
            round=1,
            min_rounds=2,
            leader_applied=Offset(90_000),
            received_bytes=1_500_000_000,
            bytes_per_second=50_000_000,
            damaged_blocks=0,
            since_ms=60_000,
            waits="its disk is full; make room",
            tasks=(
                control.TaskCatchup(
                    task=TaskId(6),
                    phase="fetching",
                    round=1,
                    offset=None,
                    size_bytes=2_000_000_000,
                    left_bytes=500_000_000,
                    bytes_per_second=25_000_000,
                ),
                control.TaskCatchup(
                    task=TaskId(7), phase="preparing", round=1, offset=None, size_bytes=None, left_bytes=0
                ),
            ),
        ),
    )
    lines = shown([status(far)])
    replica = next(line for line in lines if "far:" in line)
    assert replica[-11:] == ["1", "of", "2", "1.5", "GB", "500", "MB", "50.0", "MB/s", "10.0", "s"]
    fetching = next(line for line in lines if "fetching" in line)
    assert fetching[:5] == ["3", "b", "6", "1", "fetching"]
    assert fetching[-9:] == ["75%", "2.0", "GB", "500", "MB", "25.0", "MB/s", "20.0", "s"]
    preparing = next(line for line in lines if "preparing" in line)
    assert preparing[-6:] == ["-", "0", "B", "0", "B/s", "-"]
    assert "waits," in replica
    assert " ".join(lines[-1]) == "! b waits with group 3: its disk is full; make room"


def test_a_replica_that_is_not_there() -> None:
    absent = ReplicaStatus(worker=WorkerId("b"), role=ABSENT, in_isr=False)
    assert shown([status(absent)])[-1][:6] == ["3", "b", "absent:", "start", "its", "worker"]


def test_sizes_for_people() -> None:
    assert [size(each) for each in (0, 999, 1_500, 250_000, 3_000_000, 2_500_000_000)] == [
        "0 B",
        "999 B",
        "1.5 KB",
        "250 KB",
        "3.0 MB",
        "2.5 GB",
    ]
