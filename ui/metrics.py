"""``/metrics``: the cluster's measures for Prometheus, by its conventions of names, units and labels.

Counters go on from window to window as long as the server runs; a scrape that misses windows misses nothing.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator

from stretto.telemetry.histogram import Distribution, Histogram, counts_up_to
from stretto.telemetry.windows import GroupWindow, Window

Labels = tuple[tuple[str, str], ...]

BOUNDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""Seconds."""

COUNTERS = {
    "stretto_replicated_entries_total": "Entries that leaders created and applied, by kind.",
    "stretto_replicated_bytes_total": "Bytes of these entries in the log.",
    "stretto_replicate_failures_total": "Appends that did not succeed, by kind and reason.",
    "stretto_isr_shrinks_total": "Changes of the ISR that lost a member.",
    "stretto_isr_expands_total": "Changes of the ISR that gained a member.",
    "stretto_elections_total": "Times that a replica became leader.",
    "stretto_stalls_total": "Times that a group began to refuse appends for lack of replicas.",
    "stretto_catchup_transfers_total": "States that a replica received and installed.",
    "stretto_catchup_failures_total": "Transfers of state that failed or were refused, and began again.",
    "stretto_catchup_damaged_blocks_total": "Blocks of a state that came damaged and were asked for again.",
    "stretto_task_thread_busy_seconds_total": "Time that the worker's loop spent on a group.",
    "stretto_topology_batches_total": "Batches of records that a topology ran on the tasks of a group.",
    "stretto_topology_records_total": "Records in these; one that is tried again counts again.",
}
GAUGES = {
    "stretto_replog_entries": "Entries in the log of a replica, on average over the last window.",
    "stretto_replog_unapplied_entries": "Of these, how many are not applied.",
    "stretto_isr_members": "Fewest members of the ISR in the last window, as its leader knows them.",
    "stretto_min_isr": "Members that must hold an entry before it is applied.",
    "stretto_stalled": "1 if appends were refused for lack of replicas in the last window.",
    "stretto_lease_left_seconds": "Shortest time that a leader's lease had left.",
    "stretto_replica_in_isr": "1 if the replica is a member of the ISR.",
    "stretto_replica_leads": "1 if the replica leads its group.",
    "stretto_catchup_left_bytes": "Bytes of the round under way that a replica has not received.",
    "stretto_topology_lag_records": "Records that are visible and that a topology has not processed.",
    "stretto_topology_retrying_records": "Records that a topology failed to process and tries again.",
    "stretto_topology_parked_records": "Records that a topology gave up, until a person decides.",
}
HISTOGRAMS = {
    "stretto_replicate_duration_seconds": "From creating an entry to its application at the leader, by kind.",
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
    """Fed by the collector, read by scrapes."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counters: dict[str, dict[Labels, float]] = {name: {} for name in COUNTERS}
        self._histograms: dict[str, dict[Labels, Histogram]] = {name: {} for name in HISTOGRAMS}
        self._latest: dict[str, Window] = {}

    def add(self, windows: Iterable[Window]) -> None:
        with self._lock:
            for window in windows:
                latest = self._latest.get(window.worker)
                if latest is not None and latest.start_ms >= window.start_ms:
                    continue
                self._latest[window.worker] = window
                for group in window.groups:
                    self._count(window.worker, group)

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
            self._histograms[name].setdefault(labels, Histogram()).merge(part)

    def exposition(self) -> str:
        with self._lock:
            return "\n".join([*self._lines(), ""])

    def _lines(self) -> Iterator[str]:
        for name, doc in COUNTERS.items():
            yield from (f"# HELP {name} {doc}", f"# TYPE {name} counter")
            for labels, value in self._counters[name].items():
                yield f"{name}{_shown(labels)} {value:.15g}"
        gauges = [
            each
            for window in self._latest.values()
            for group in window.groups
            for each in _all_gauges(_labels(window.worker, group), group)
        ]
        for name, doc in GAUGES.items():
            yield from (f"# HELP {name} {doc}", f"# TYPE {name} gauge")
            for labels, values in gauges:
                if name in values:
                    yield f"{name}{_shown(labels)} {values[name]:.15g}"
        for name, doc in HISTOGRAMS.items():
            yield from (f"# HELP {name} {doc}", f"# TYPE {name} histogram")
            for labels, histogram in self._histograms[name].items():
                yield from _histogram(name, labels, histogram)


def _histogram(name: str, labels: Labels, histogram: Histogram) -> Iterator[str]:
    for bound, count in zip(BOUNDS, counts_up_to(histogram.told(), BOUNDS), strict=True):
        yield f"{name}_bucket{_shown((*labels, ('le', f'{bound:g}')))} {count}"
    yield f"{name}_bucket{_shown((*labels, ('le', '+Inf')))} {histogram.count}"
    yield f"{name}_sum{_shown(labels)} {histogram.sum:.15g}"
    yield f"{name}_count{_shown(labels)} {histogram.count}"


def _labels(worker: str, group: GroupWindow) -> Labels:
    return (("module", group.group.module), ("group", str(group.group.group)), ("worker", worker))


def _all_gauges(labels: Labels, group: GroupWindow) -> Iterator[tuple[Labels, dict[str, float]]]:
    yield labels, _gauges(group)
    for topology, progress in group.topologies.items():
        looks = {"lag": progress.lag, "retrying": progress.retrying, "parked": progress.parked}
        yield (
            (*labels, ("topology", topology)),
            {f"stretto_topology_{name}_records": each.max for name, each in looks.items() if each.count},
        )


def _gauges(group: GroupWindow) -> dict[str, float]:
    found: dict[str, float] = {
        "stretto_replog_entries": group.replog_entries.average,
        "stretto_replog_unapplied_entries": group.unapplied.average,
        "stretto_min_isr": group.min_isr,
        "stretto_replica_in_isr": group.in_isr,
        "stretto_replica_leads": group.role == "leader",
        "stretto_catchup_left_bytes": group.catchup_left_bytes,
    }
    if group.isr.count:
        found["stretto_isr_members"] = group.isr.min
        found["stretto_stalled"] = group.stalled.max
        found["stretto_lease_left_seconds"] = group.lease_left_ms.min / 1_000
    return found


def _shown(labels: Labels) -> str:
    return "{" + ",".join(f'{name}="{_escaped(value)}"' for name, value in labels) + "}"


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
