"""Catching up: how fast a state travels, what later rounds send, what it costs those who append meanwhile.

The cluster is :class:`stretto.bench.replicas.Replicas`. Floors are files of the same size that are copied,
sent over a socket and written by processes that have nothing to do with the cluster
(:mod:`stretto.bench.loads`).
"""

from __future__ import annotations

import os
import resource
import statistics
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from stretto.bench import Result
from stretto.bench.loads import busy, command_of_load, pipeline
from stretto.bench.replicas import DEPOT, RECORD_BYTES, RECORDS, Cost, Replicas, moment
from stretto.bench.state import RECORDS as STATE_RECORDS
from stretto.bench.state import _frame, _life
from stretto.catchup.images import SpooledImage, make_image
from stretto.catchup.machines import blocks
from stretto.state.applied import AppliedState
from stretto.vocabulary.records import pack
from stretto.vocabulary.types import Epoch, Incarnation, Offset, TaskId
from stretto.wire import catchup

PAGE_BYTES = 4_096
TRANSFER_BYTES = 2_000_000_000
TRANSFERS = 3
SERVINGS = 3
STREAMINGS = 3
SERVED_BYTES = 1_000_000_000
REPLAYED_BATCHES = 2_000
STREAMED_BATCHES = 2_000
ROUNDS = 8

TRANSFER_TARGET = 0.60
LATER_ROUNDS_TARGET = 3.0
SERVING_TARGET = 0.80
REPLAY_TARGET = 0.50
STREAMING_TARGET = 0.80


def transfer(folder: Path) -> Result:
    """Measure a far-horizon transfer, from its first question to the installed state, on an idle machine.

    It and its floor begin alike: after a pass of the floor that does not count, when the disk has nothing
    left to do. What came before decides otherwise: files that are removed and pages that wait to be written
    cost whoever comes next; and memory that a pass has just freed is, on a virtual machine, worth three times
    the speed to a floor that goes through the page cache.
    """
    ours, floors = [], []
    with Replicas(folder) as cluster:
        cluster.leave_behind(TRANSFER_BYTES)
        source = cluster.state_file(cluster.leader)
        size_bytes = source.stat().st_size

        def floor() -> float:
            return size_bytes / pipeline(source, folder / "floor") / 1e6

        def measure_ours(number: int) -> None:
            cluster.wipe(cluster.follower)
            floor()
            os.sync()
            cluster.start(cluster.follower)
            ours.append(size_bytes * 1_000 / cluster.ended(number)["took_ms"] / 1e6)
            cluster.whole()
            cluster.kill(cluster.follower)
            cluster.without_follower()

        def measure_floor(_: int) -> None:
            floor()
            os.sync()
            floors.append(floor())

        for number in range(1, TRANSFERS + 1):
            for measure in (measure_ours, measure_floor) if number % 2 else (measure_floor, measure_ours):
                measure(number)
    ratios = sorted(our / floor for our, floor in zip(ours, floors, strict=True))
    return Result(
        value=statistics.median(ours),
        floor=statistics.median(floors),
        unit="MB/s",
        target=TRANSFER_TARGET,
        detail=f"{size_bytes / 1e9:.1f} GB, medians of {TRANSFERS}, with ratios from {ratios[0]:.2f} to "
        f"{ratios[-1]:.2f}; transfers {_rates(ours)}, floors {_rates(floors)} MB/s",
    )


def _rates(rates: list[float]) -> str:
    return ", ".join(f"{rate:.0f}" for rate in rates)


def later_rounds(folder: Path) -> Result:
    """Measure what later rounds send under a steady load, by the pages that differ between images."""
    task = TaskId(0)
    payload = pack(DEPOT, [os.urandom(RECORD_BYTES) for _ in range(STATE_RECORDS)])
    numbers = iter(range(1 << 30))
    with ThreadPoolExecutor(2) as pool:
        state = AppliedState.open(folder / "state", [task], pool=pool)
        state.apply([_life(Offset(0))])
        _apply(state, numbers, payload, 1_500)
        previous: SpooledImage | None = None
        sent = differing = 0
        for number in range(1, ROUNDS + 1):
            ask = catchup.AskImage(Epoch(1), Incarnation("x"), 1, task=task, round=number, base=number - 1)
            image = make_image(state, folder, ask, previous)
            if previous is not None:
                runs = blocks.missing_runs(previous.hashes, image.hashes)
                described = image.described
                sent += len(image.listed) + sum(
                    blocks.length_of(run, described.size_bytes, described.block_bytes) for run in runs
                )
                differing += _differing_pages(previous, image) * PAGE_BYTES
            previous = image
            _apply(state, numbers, payload, 20)
        state.close()
    return Result(
        value=sent / 1e6,
        floor=differing / 1e6,
        unit="MB",
        target=LATER_ROUNDS_TARGET,
        at_most=True,
        detail=f"hashes and blocks of {ROUNDS - 1} rounds, 20 batches of {STATE_RECORDS} records between",
    )


def serving(folder: Path) -> Result:
    """Measure appends while a state is sent as fast as possible, against the same load made by others.

    What the load costs is measured first, without appends: it must be the same for the comparison to be fair.
    Beside the appends, the others move no more bytes in a second than the transfer did.
    """
    ours, controls, rates, control_rates = [], [], [], []
    with Replicas(folder) as cluster:
        cluster.leave_behind(SERVED_BYTES)
        source = cluster.state_file(cluster.leader)
        size_bytes = source.stat().st_size
        of_control = _cost_of_control(source, folder / "control")
        of_transfer = _cost_of_transfer(cluster)
        for number in range(2, SERVINGS + 2):
            cluster.wipe(cluster.follower)
            rounds = cluster.count(cluster.follower, "round_begins")
            cluster.start(cluster.follower)
            cluster.said(cluster.follower, "round_begins", rounds + 1)
            started = time.perf_counter()
            # The first round; with appends as fast as can be there would be no last one.
            ours.append(
                cluster.append_until(lambda: cluster.count(cluster.follower, "round_ends") > rounds)  # noqa: B023
            )
            seconds = time.perf_counter() - started
            rates.append(source.stat().st_size / seconds / 1e6)
            cluster.ended(number)
            cluster.whole()
            cluster.kill(cluster.follower)
            cluster.without_follower()
            with busy(source, folder / "control", rates[-1] * 1e6) as moved_bytes:
                before = moved_bytes()
                deadline = time.perf_counter() + seconds
                controls.append(cluster.append_until(lambda: time.perf_counter() > deadline))  # noqa: B023
                control_rates.append((moved_bytes() - before) / seconds / 1e6)
    return Result(
        value=statistics.median(ours),
        floor=statistics.median(controls),
        unit="rec/s",
        target=SERVING_TARGET,
        detail=f"medians of {SERVINGS}; {size_bytes / 1e9:.1f} GB cost the transfer {of_transfer}, "
        f"others {of_control}; beside the appends it went at {statistics.median(rates):.0f} MB/s, others at "
        f"{statistics.median(control_rates):.0f}",
    )


def _cost_of_control(source: Path, folder: Path) -> Cost:
    """Return the cost of one pass: what two cost more than one, without the start of processes."""
    one, two = (_cost_of_passes(source, folder, passes) for passes in (1, 2))
    return Cost(two.cpu_seconds - one.cpu_seconds, two.written_bytes - one.written_bytes)


def _cost_of_passes(source: Path, folder: Path, passes: int) -> Cost:
    """Return the cost of so many passes; child processes that were waited for count."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command_of_load(source, folder, passes), check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Cost(cpu_seconds, (after.ru_oublock - before.ru_oublock) * 512)


def _cost_of_transfer(cluster: Replicas) -> Cost:
    """Return what both workers spend from the start of one until it has taken the other's state."""
    cluster.wipe(cluster.follower)
    before = cluster.spent(cluster.leader)
    cluster.start(cluster.follower)
    cluster.said(cluster.follower, "round_begins")
    idle = cluster.spent(cluster.follower)
    cluster.ended()
    spent = [cluster.spent(name) for name in (cluster.leader, cluster.follower)]
    cluster.whole()
    cluster.kill(cluster.follower)
    cluster.without_follower()
    return Cost(
        sum(each.cpu_seconds for each in spent) - before.cpu_seconds - idle.cpu_seconds,
        sum(each.written_bytes for each in spent) - before.written_bytes - idle.written_bytes,
    )


def replay(folder: Path) -> Result:
    """Measure a follower that catches up from the log, against the live appends that it missed."""
    with Replicas(folder) as cluster:
        before = cluster.count(cluster.leader, "options_in_force")
        cluster.options({"replication.max.near.sync.message.lag": 1_000_000_000})
        cluster.said(cluster.leader, "options_in_force", before + 1)
        cluster.kill(cluster.follower)
        cluster.without_follower()
        started = time.perf_counter()
        cluster.append(REPLAYED_BATCHES)
        live = REPLAYED_BATCHES * RECORDS / (time.perf_counter() - started)
        cluster.start(cluster.follower)
        cluster.whole()
        # By their own clocks: a person who looks every now and then would see both at once.
        expanded = cluster.said(cluster.leader, "isr", 2)
        agreed = cluster.said(cluster.follower, "reconciled", 2)
        replayed = REPLAYED_BATCHES * RECORDS / (moment(expanded) - moment(agreed))
    return Result(
        value=replayed,
        floor=live,
        unit="rec/s",
        target=REPLAY_TARGET,
        detail=f"{REPLAYED_BATCHES} batches, from its agreement with the leader until the ISR lists it",
    )


def streaming(folder: Path) -> Result:
    """Measure appends to a leader and a live follower while another follower catches up from the log.

    The comparison is appends while a follower of another cluster catches up: the same load, made by others.
    """
    ours: list[float] = []
    controls: list[float] = []
    with Replicas(folder / "one", 3) as one, Replicas(folder / "other", 3) as other:
        for cluster in (one, other):
            before = cluster.count(cluster.leader, "options_in_force")
            cluster.options({"replication.max.near.sync.message.lag": 1_000_000_000})
            cluster.said(cluster.leader, "options_in_force", before + 1)

        def appends_while_catching_up(cluster: Replicas) -> float:
            cluster.kill(cluster.follower)
            cluster.without_follower()
            cluster.append(STREAMED_BATCHES)
            agreed = cluster.count(cluster.follower, "reconciled")
            cluster.start(cluster.follower)
            cluster.said(cluster.follower, "reconciled", agreed + 1)
            return one.append_until(lambda: cluster.is_whole)

        for number in range(STREAMINGS):
            turns = [(one, ours), (other, controls)]
            for cluster, rates in turns if number % 2 else reversed(turns):
                rates.append(appends_while_catching_up(cluster))
    ratios = sorted(our / control for our, control in zip(ours, controls, strict=True))
    return Result(
        value=statistics.median(ours),
        floor=statistics.median(controls),
        unit="rec/s",
        target=STREAMING_TARGET,
        detail=f"{STREAMED_BATCHES} batches behind, medians of {STREAMINGS}, with ratios from "
        f"{ratios[0]:.2f} to {ratios[-1]:.2f}",
    )


def _apply(state: AppliedState, numbers: Iterator[int], payload: bytes, count: int) -> None:
    for _ in range(count):
        state.apply([_frame(next(numbers), payload)])


def _differing_pages(before: SpooledImage, after: SpooledImage) -> int:
    size_bytes = after.described.size_bytes
    return sum(
        os.pread(before.spool.fd, PAGE_BYTES, at) != os.pread(after.spool.fd, PAGE_BYTES, at)
        for at in range(0, size_bytes, PAGE_BYTES)
    )
