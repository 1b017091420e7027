"""``/metrics``: the cluster's measures for Prometheus, by its conventions of names, units and labels.

Counters go on from window to window while the server runs; a scrape that misses windows misses nothing.
Gauges are of the last window of each worker, and gone once it has been silent for a while: what was true of a
dead leader must not go on to say that its group is led. Who leads and who runs is told for every group and
worker that the cluster names, also for those that can tell nothing themselves.
"""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any

from stretto.telemetry.histogram import Distribution, counts_up_to, merged
from stretto.telemetry.windows import REFUSED_TRANSFERS, WINDOW_MS, GroupWindow, Window
from stretto.wire import messages as wire

Labels = tuple[tuple[str, str], ...]

BOUNDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""Upper bounds of the buckets of histograms, in seconds."""
STALE_SECONDS = 3.5 * WINDOW_MS / 1_000
"""Age at which a worker's report no longer counts: three windows are missing, and it may have changed."""
COUNTED_KEPT = 100
"""How many windows of a worker are known again if they come twice: more than a worker remembers."""
FORGOTTEN_SECONDS = 3_600.0
"""Silence after which the counters of a worker go too, so that their number is bounded."""

COUNTERS = {
    "stretto_replicated_entries_total": "Entries that leaders created and all of the ISR held, by kind.",
    "stretto_replicated_bytes_total": "Bytes of these entries in the log.",
    "stretto_replicate_failures_total": "Appends that did not succeed, by kind and reason.",
    "stretto_isr_shrinks_total": "Changes of the ISR that lost a member.",
    "stretto_isr_expands_total": "Changes of the ISR that gained a member.",
    "stretto_elections_total": "Times that a replica became leader.",
    "stretto_stalls_total": "Times that a group began to refuse appends for lack of replicas.",
    "stretto_catchup_transfers_total": "States that a replica received and installed.",
    "stretto_catchup_failures_total": "Transfers of state that failed or were refused, and began again.",
    "stretto_catchup_refusals_total": "Transfers of state that a leader refused or broke off, by reason.",
    "stretto_catchup_damaged_blocks_total": "Blocks of a state that came damaged and were asked for again.",
    "stretto_task_thread_busy_seconds_total": "Time that the worker's loop spent on a group.",
    "stretto_topology_batches_total": "Batches of records that a topology ran on the tasks of a group.",
    "stretto_topology_records_total": "Records in these; one that is tried again counts again.",
}
GAUGES = {
    "stretto_group_led": "1 if the worker that leads the group by its record is registered.",
    "stretto_worker_up": "1 if the worker told its measures when it was last asked.",
    "stretto_replog_entries": "Entries in the log of a replica, on average over the last window.",
    "stretto_replog_max_entries": "Entries in the log of a replica, at most in the last window.",
    "stretto_replog_unapplied_entries": "Entries that are not applied, on average over the last window.",
    "stretto_replog_unapplied_max_entries": "Entries that are not applied, at most in the last window.",
    "stretto_isr_members": "Fewest members of the ISR in the last window, as its leader knows them.",
    "stretto_min_isr": "Members that must hold an entry before it is applied.",
    "stretto_stalled": "1 if appends were refused for lack of replicas in the last window.",
    "stretto_lease_left_seconds": "Shortest time that a leader's lease had left.",
    "stretto_replica_in_isr": "1 if the replica is a member of the ISR.",
    "stretto_replica_leads": "1 if the replica leads its group.",
    "stretto_replica_catching_up": "1 if it catches up, by mode: near, from the log; far, from the state.",
    "stretto_catchup_left_bytes": "Bytes of the round under way that a replica has not received.",
    "stretto_catchup_lag_entries": "Entries that replicas outside the ISR lack, as their leader knows them.",
    "stretto_topology_lag_records": "Records that are visible and that a topology has not processed.",
    "stretto_topology_retrying_records": "Records that a topology failed to process and tries again.",
    "stretto_topology_parked_records": "Records that a topology gave up, until a person decides.",
}
HISTOGRAMS = {
    "stretto_replicate_duration_seconds": "From creating an entry until all of the ISR holds it, by kind.",
    "stretto_apply_duration_seconds": "Of transactions with entries of a kind.",
    "stretto_function_duration_seconds": "Of calls of a module's functions: topologies, steps and queries.",
}
_EVENTS = {
    "shrinks": "stretto_isr_shrinks_total",
    "expands": "stretto_isr_expands_total",
    "elections": "stretto_elections_total",
    "stalls": "stretto_stalls_total",
    "received_states": "stretto_catchup_transfers_total",
    "failed_transfers": "stretto_catchup_failures_total",
    "damaged_blocks": "stretto_catchup_damaged_blocks_total",
}


class Metrics:
    """The cluster's measures for Prometheus, fed by the collector and read by scrapes."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._counters: dict[str, dict[Labels, float]] = {name: {} for name in COUNTERS}
        self._histograms: dict[str, dict[Labels, Distribution]] = {name: {} for name in HISTOGRAMS}
        self._latest: dict[str, Window] = {}
        self._heard_at: dict[str, float] = {}
        #: Starts of the latest windows of each worker, none of which is counted twice.
        self._counted: dict[str, deque[int]] = {}
        self._standing: list[tuple[str, Labels, float]] = []
        self._stood_at = float("-inf")

    def add(self, windows: Iterable[Window]) -> None:
        """Count windows, except those that were counted before."""
        with self._lock:
            for window in windows:
                # Not all that is before the latest: where a clock was ahead, what is new begins earlier.
                counted = self._counted.setdefault(window.worker, deque(maxlen=COUNTED_KEPT))
                if window.start_ms in counted:
                    continue
                counted.append(window.start_ms)
                self._latest[window.worker] = window
                self._heard_at[window.worker] = self._clock()
                for group in window.groups:
                    self._count(window.worker, group)

    def saw(
        self, groups: Iterable[wire.GroupView], registered: Collection[str], told: Collection[str]
    ) -> None:
        """Note which groups and workers the metastore has, and which workers reported their measures."""
        newest = {(each.key.module, each.key.group): each for each in sorted(groups, key=lambda g: g.key)}
        led = [
            ("stretto_group_led", _group_labels(each), float(each.leader in registered))
            for each in newest.values()
        ]
        places = {worker: each.key.module for each in newest.values() for worker in each.replicas}
        up = [
            ("stretto_worker_up", (("module", module), ("worker", worker)), float(worker in told))
            for worker, module in sorted(places.items())
        ]
        with self._lock:
            self._standing = [*led, *up]
            self._stood_at = self._clock()
            self._forget()

    def _forget(self) -> None:
        now = self._clock()
        silent = [worker for worker, at in self._heard_at.items() if now - at > FORGOTTEN_SECONDS]
        for worker in silent:
            del self._latest[worker], self._heard_at[worker], self._counted[worker]
        if silent:
            gone = {("worker", worker) for worker in silent}
            tables: list[dict[Labels, Any]] = [*self._counters.values(), *self._histograms.values()]
            for table in tables:
                for labels in [each for each in table if gone.intersection(each)]:
                    del table[labels]

    def parked(self) -> dict[tuple[str, str], int]:
        """How many records are parked, by module and topology."""
        found: Counter[tuple[str, str]] = Counter()
        with self._lock:
            for _, group in self._fresh():
                for topology, progress in group.topologies.items():
                    if group.role == "leader" and progress.parked.count:
                        found[group.group.module, topology] += int(progress.parked.max)
        return {key: count for key, count in found.items() if count}

    def _fresh(self) -> Iterator[tuple[str, GroupWindow]]:
        """Groups of workers that reported lately, each in its newest grouping only."""
        now = self._clock()
        for worker, window in self._latest.items():
            if now - self._heard_at[worker] <= STALE_SECONDS:
                ordered = sorted(window.groups, key=lambda each: each.group)
                newest = {(each.group.module, each.group.group): each for each in ordered}
                for each in newest.values():
                    yield worker, each

    def _count(self, worker: str, group: GroupWindow) -> None:
        labels = _labels(worker, group)
        for kind, measured in group.kinds.items():
            of_kind = (*labels, ("kind", kind))
            self._up("stretto_replicated_entries_total", of_kind, measured.entries)
            self._up("stretto_replicated_bytes_total", of_kind, measured.bytes)
            for reason, count in measured.failures.items():
                self._up("stretto_replicate_failures_total", (*of_kind, ("reason", reason)), count)
            self._merge("stretto_replicate_duration_seconds", of_kind, measured.replicate)
            self._merge("stretto_apply_duration_seconds", of_kind, measured.apply)
        for event, name in _EVENTS.items():
            self._up(name, labels, group.events.get(event, 0))
        for event, times in group.events.items():
            if event.startswith(REFUSED_TRANSFERS):
                reason = event.removeprefix(REFUSED_TRANSFERS)
                self._up("stretto_catchup_refusals_total", (*labels, ("reason", reason)), times)
        for topology, progress in group.topologies.items():
            of_topology = (*labels, ("topology", topology))
            self._up("stretto_topology_batches_total", of_topology, progress.batches)
            self._up("stretto_topology_records_total", of_topology, progress.records)
        for function, told in group.functions.items():
            self._merge("stretto_function_duration_seconds", (*labels, ("function", function)), told)
        self._up("stretto_task_thread_busy_seconds_total", labels, group.busy_ms / 1_000)

    def _up(self, name: str, labels: Labels, by: float) -> None:
        self._counters[name][labels] = self._counters[name].get(labels, 0) + by

    def _merge(self, name: str, labels: Labels, part: Distribution | None) -> None:
        if part is not None:
            before = self._histograms[name].get(labels)
            self._histograms[name][labels] = part if before is None else merged((before, part))

    def exposition(self) -> str:
        """All measures, as text in the format of Prometheus."""
        with self._lock:
            return "\n".join([*self._lines(), ""])

    def _lines(self) -> Iterator[str]:
        for name, doc in COUNTERS.items():
            yield from (f"# HELP {name} {doc}", f"# TYPE {name} counter")
            for labels, value in self._counters[name].items():
                yield f"{name}{_shown(labels)} {value:.15g}"
        gauges = [
            each for worker, group in self._fresh() for each in _all_gauges(_labels(worker, group), group)
        ]
        if self._clock() - self._stood_at <= STALE_SECONDS:
            gauges += [(labels, {name: value}) for name, labels, value in self._standing]
        for name, doc in GAUGES.items():
            yield from (f"# HELP {name} {doc}", f"# TYPE {name} gauge")
            for labels, values in gauges:
                if name in values:
                    yield f"{name}{_shown(labels)} {values[name]:.15g}"
        for name, doc in HISTOGRAMS.items():
            yield from (f"# HELP {name} {doc}", f"# TYPE {name} histogram")
            for labels, histogram in self._histograms[name].items():
                yield from _histogram(name, labels, histogram)


def _histogram(name: str, labels: Labels, histogram: Distribution) -> Iterator[str]:
    for bound, count in zip(BOUNDS, counts_up_to(histogram, BOUNDS), strict=True):
        yield f"{name}_bucket{_shown((*labels, ('le', f'{bound:g}')))} {count}"
    yield f"{name}_bucket{_shown((*labels, ('le', '+Inf')))} {histogram.count}"
    yield f"{name}_sum{_shown(labels)} {histogram.sum:.15g}"
    yield f"{name}_count{_shown(labels)} {histogram.count}"


def _labels(worker: str, group: GroupWindow) -> Labels:
    return (("module", group.group.module), ("group", str(group.group.group)), ("worker", worker))


def _group_labels(group: wire.GroupView) -> Labels:
    return (("module", group.key.module), ("group", str(group.key.group)))


def _all_gauges(labels: Labels, group: GroupWindow) -> Iterator[tuple[Labels, dict[str, float]]]:
    yield labels, _gauges(group)
    for mode in ("near", "far"):
        yield (*labels, ("mode", mode)), {"stretto_replica_catching_up": float(group.role == mode)}
    # Who led before in this window has looked at the same records.
    for topology, progress in group.topologies.items() if group.role == "leader" else ():
        looks = {"lag": progress.lag, "retrying": progress.retrying, "parked": progress.parked}
        yield (
            (*labels, ("topology", topology)),
            {f"stretto_topology_{name}_records": each.max for name, each in looks.items() if each.count},
        )


def _gauges(group: GroupWindow) -> dict[str, float]:
    replog = group.replog
    found: dict[str, float] = {
        "stretto_replog_entries": replog.size.average,
        "stretto_replog_max_entries": replog.size.max,
        "stretto_replog_unapplied_entries": replog.unapplied.average,
        "stretto_min_isr": group.min_isr,
        "stretto_replica_in_isr": group.in_isr,
        "stretto_replica_leads": group.role == "leader",
        "stretto_replog_unapplied_max_entries": replog.unapplied.max,
        "stretto_catchup_left_bytes": group.catchup_left_bytes,
    }
    if group.isr.count:
        found["stretto_isr_members"] = group.isr.min
        found["stretto_stalled"] = group.stalled.max
        found["stretto_catchup_lag_entries"] = group.catchup_lag.max
        found["stretto_lease_left_seconds"] = group.lease_left_ms.min / 1_000
    return found


def _shown(labels: Labels) -> str:
    return "{" + ",".join(f'{name}="{_escaped(value)}"' for name, value in labels) + "}"


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
