"""The exposition for Prometheus."""

from __future__ import annotations

import re

from stretto.telemetry.windows import TopologyWindow
from stretto.ui.metrics import BOUNDS, COUNTERS, GAUGES, HISTOGRAMS, Metrics
from tests.unit.ui.windows import distribution, group, kind, looks, window

LINE = re.compile(r'[a-z_]+(\{([a-z]+="([^"\\]|\\.)*",?)*\})? [-+.e0-9a-zA-Z]+')


def exposed(metrics: Metrics) -> dict[str, float]:
    lines = [line for line in metrics.exposition().splitlines() if not line.startswith("#")]
    assert all(LINE.fullmatch(line) for line in lines)
    return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines)}


LABELS = 'module="M",group="0",worker="w0"'


def test_counters_add_up_over_windows_and_count_none_twice() -> None:
    metrics = Metrics()
    first = window(
        0,
        group(kinds={"depot": kind(10, failures={"stalled": 2})}, events={"shrinks": 1, "damaged_blocks": 3}),
    )
    metrics.add([first, first, window(10_000, group(kinds={"depot": kind(5)}))])
    found = exposed(metrics)
    assert found[f'stretto_replicated_entries_total{{{LABELS},kind="depot"}}'] == 15
    assert found[f'stretto_replicate_failures_total{{{LABELS},kind="depot",reason="stalled"}}'] == 2
    assert found[f"stretto_isr_shrinks_total{{{LABELS}}}"] == 1
    assert found[f"stretto_catchup_damaged_blocks_total{{{LABELS}}}"] == 3


def test_gauges_are_of_the_last_window() -> None:
    metrics = Metrics()
    metrics.add([window(0, group(isr=looks(3))), window(10_000, group(isr=looks(3, 2), stalled=looks(0, 1)))])
    found = exposed(metrics)
    assert found[f"stretto_isr_members{{{LABELS}}}"] == 2
    assert found[f"stretto_stalled{{{LABELS}}}"] == 1
    assert found[f"stretto_replica_leads{{{LABELS}}}"] == 1


def test_buckets_rise_to_the_count() -> None:
    metrics = Metrics()
    metrics.add([window(0, group(kinds={"depot": kind(3, 0.002, 0.02, 20.0)}))])
    found = exposed(metrics)
    name = "stretto_replicate_duration_seconds"
    buckets = [found[f'{name}_bucket{{{LABELS},kind="depot",le="{bound:g}"}}'] for bound in BOUNDS]
    assert buckets == sorted(buckets)
    assert buckets[-1] == 2
    assert found[f'{name}_bucket{{{LABELS},kind="depot",le="+Inf"}}'] == 3
    assert found[f'{name}_count{{{LABELS},kind="depot"}}'] == 3


def test_labels_are_escaped() -> None:
    metrics = Metrics()
    metrics.add([window(0, worker='a"b\\c')])
    assert 'worker="a\\"b\\\\c"' in metrics.exposition()


def test_every_metric_has_help_and_type() -> None:
    text = Metrics().exposition()
    for name in (*COUNTERS, *GAUGES, *HISTOGRAMS):
        assert f"# HELP {name} " in text
        assert f"# TYPE {name} " in text
    assert all(name.endswith("_total") for name in COUNTERS)


def test_topologies_and_functions_have_labels_of_their_own() -> None:
    metrics = Metrics()
    progress = TopologyWindow(batches=2, records=30, lag=looks(5, 7), parked=looks(1))
    functions = {"split": distribution(0.002, 4.0)}
    metrics.add([window(0, group(topologies={"split": progress}, functions=functions))])
    found = exposed(metrics)
    of = f'{LABELS},topology="split"'
    assert found[f"stretto_topology_lag_records{{{of}}}"] == 7
    assert found[f"stretto_topology_parked_records{{{of}}}"] == 1
    assert f"stretto_topology_retrying_records{{{of}}}" not in found
    assert found[f"stretto_topology_batches_total{{{of}}}"] == 2
    assert found[f"stretto_topology_records_total{{{of}}}"] == 30
    assert found[f'stretto_function_duration_seconds_bucket{{{LABELS},function="split",le="1"}}'] == 1
    assert found[f'stretto_function_duration_seconds_count{{{LABELS},function="split"}}'] == 2
