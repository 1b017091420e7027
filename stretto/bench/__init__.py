"""Measuring stretto next to what the machine itself can do.

A number alone says little: disks and processors differ. So every measure also runs its *floor*, the
least work that could possibly have the same effect, in the same run and interleaved with it; what
counts is the ratio, and the target is one too. A measure that is a plain deadline has no floor: its
value is compared with its target directly.

A measure is a :class:`Measure` in :data:`MEASURES`. To add one: write a function that takes a folder to
work in and returns a :class:`Result`, and list it there.
"""

from __future__ import annotations

import importlib
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What a measure found. More is better, unless ``at_most``."""

    value: float
    unit: str
    target: float
    """The target: of the ratio if there is a floor, else of the value."""
    floor: float | None = None
    at_most: bool = False
    """Whether the target is an upper bound."""
    detail: str = ""

    @property
    def ratio(self) -> float | None:
        """The value divided by the floor; None without a floor."""
        return self.value / self.floor if self.floor else None

    @property
    def met(self) -> bool:
        """Whether the target is reached."""
        reached = self.value if self.ratio is None else self.ratio
        return reached <= self.target if self.at_most else reached >= self.target


@dataclass(frozen=True, slots=True, kw_only=True)
class Measure:
    """A named measure; its function is imported only when it runs."""

    name: str
    summary: str
    function: str
    """Where the function is, as ``module:function``; it takes a folder and returns a :class:`Result`."""
    needs_java: bool = True
    """Whether it runs a ZooKeeper or Spark."""

    def run(self, folder: Path) -> Result:
        module, _, name = self.function.partition(":")
        function: Callable[[Path], Result] = getattr(importlib.import_module(module), name)
        return function(folder)


MEASURES: tuple[Measure, ...] = (
    Measure(
        name="append",
        summary="replog append, batches of 1,000 x 100 bytes, 64 in flight / writev + fdatasync",
        function="stretto.bench.replog:append",
        needs_java=False,
    ),
    Measure(
        name="recovery",
        summary="recovery scan of 100 KB frames / reading the file with CRC32C",
        function="stretto.bench.replog:recovery",
        needs_java=False,
    ),
    Measure(
        name="apply",
        summary="applied state, 16 batches of 1,000 x 100 bytes per transaction / bare LMDB puts",
        function="stretto.bench.state:apply",
        needs_java=False,
    ),
    Measure(
        name="replicate",
        summary="factor 3, one producer, batches of 1,000 x 100 bytes / the same sockets, syncs and commits",
        function="stretto.bench.replication:replicate",
    ),
    Measure(
        name="one-by-one",
        summary="the same records appended one by one / in batches",
        function="stretto.bench.replication:one_by_one",
    ),
    Measure(
        name="latency",
        summary="p50 of appends of one record, one at a time / the same sockets, syncs and commits",
        function="stretto.bench.replication:latency",
    ),
    Measure(
        name="reads",
        summary="point reads of a PState, one at a time / an echo over bare ZeroMQ",
        function="stretto.bench.reads:one_at_a_time",
    ),
    Measure(
        name="reads-at-once",
        summary="point reads by 64 coroutines / as many echoes under way",
        function="stretto.bench.reads:at_once",
    ),
    Measure(
        name="reads-batch",
        summary="reads of 100 keys at a time / echoes of the same sizes",
        function="stretto.bench.reads:batched",
    ),
    Measure(
        name="wordcount",
        summary="a word count as a stream, one replica / its function and LMDB puts in one process",
        function="stretto.bench.wordcount:stream",
    ),
    Measure(
        name="transfer",
        summary="far horizon, a task of 2 GB, no load / copy to a spool, socket, file with fdatasync",
        function="stretto.bench.catchup:transfer",
    ),
    Measure(
        name="rounds",
        summary="far horizon, bytes that later rounds send under load / pages of 4 KiB that differ",
        function="stretto.bench.catchup:later_rounds",
    ),
    Measure(
        name="serving",
        summary="appends during a transfer without limit / beside the same load made by others",
        function="stretto.bench.catchup:serving",
    ),
    Measure(
        name="replay",
        summary="near horizon, records of a missed log / the rate of their live appends",
        function="stretto.bench.catchup:replay",
    ),
    Measure(
        name="streaming",
        summary="appends while a follower catches up from the log / while another cluster's does",
        function="stretto.bench.catchup:streaming",
    ),
    Measure(
        name="spark-rows",
        summary="2 million rows of a PState into an aggregate of Spark / ready-made batches of them",
        function="stretto.bench.spark:rows",
    ),
    Measure(
        name="spark-serving",
        summary="appends while Spark reads from followers / while it reads ready-made batches",
        function="stretto.bench.spark:serving",
    ),
    Measure(
        name="balance",
        summary="leadership plan for 10,000 groups x 3 replicas on 100 nodes, in seconds",
        function="stretto.bench.leadership:planning",
        needs_java=False,
    ),
    Measure(
        name="sim",
        summary="300 seeds of the simulator, in seconds",
        function="stretto.bench.sim:seeds",
        needs_java=False,
    ),
    Measure(
        name="failover",
        summary="kill -9 of the leading worker: longest gap between acknowledgements, median of 10",
        function="stretto.bench.cluster:failover",
    ),
    Measure(
        name="node-loss",
        summary="kill -9 of the leading worker and its supervisor at once: longest gap",
        function="stretto.bench.cluster:node_loss",
    ),
    Measure(
        name="hand-over",
        summary="planned hand-over: longest gap between acknowledgements, median of 10",
        function="stretto.bench.cluster:hand_over",
    ),
    Measure(
        name="idle",
        summary="CPU of an idle cluster: three nodes, a conductor and ZooKeeper",
        function="stretto.bench.cluster:idle",
    ),
    Measure(
        name="memory",
        summary="resident memory of an idle worker",
        function="stretto.bench.cluster:memory",
    ),
    Measure(
        name="telemetry",
        summary="CPU of measuring a batch of 1,000 x 100 bytes / of a worker for the batch",
        function="stretto.bench.telemetry:per_batch",
    ),
    Measure(
        name="launch",
        summary="256 groups on three nodes: from launch until all are led",
        function="stretto.bench.cluster:launch",
    ),
)


def run(measures: tuple[Measure, ...], parent: Path | None = None) -> Iterator[tuple[Measure, Result]]:
    """Run measures one after the other, each in a temporary folder under ``parent``."""
    for measure in measures:
        with tempfile.TemporaryDirectory(prefix="stretto-bench-", dir=parent) as folder:
            yield measure, measure.run(Path(folder))
