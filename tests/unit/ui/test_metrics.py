"""The exposition for Prometheus."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec.json
import msgspec.yaml
from msgspec.structs import replace

from stretto.telemetry.windows import TopologyWindow
from stretto.ui.telemetry.metrics import (
    BOUNDS,
    COUNTERS,
    FORGOTTEN_SECONDS,
    GAUGES,
    HISTOGRAMS,
    STALE_SECONDS,
    Metrics,
)
from stretto.vocabulary.groups import GroupKey
from stretto.vocabulary.types import Epoch, TaskId, WorkerId
from stretto.wire import messages as wire
from tests.unit.ui.windows import distribution, group, kind, looks, window

GRAFANA = Path(__file__).parents[3] / "docs" / "grafana"
LINE = re.compile(r'[a-z_]+(\{([a-z]+="([^"\\]|\\.)*",?)*\})? [-+.e0-9a-zA-Z]+')


def exposed(metrics: Metrics) -> dict[str, float]:
    lines = [line for line in metrics.exposition().splitlines() if not line.startswith("#")]
    assert all(LINE.fullmatch(line) for line in lines)
    found = {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines)}
    assert len(found) == len(lines), "a series is exposed twice, for which Prometheus refuses all of them"
    return found


class Clock:
    now = 1_000.0

    def __call__(self) -> float:
        return self.now


def record(leader: str | None = "w0", generation: int = 1) -> wire.GroupView:
    workers = (WorkerId("w0"), WorkerId("w1"))
    led_by = None if leader is None else WorkerId(leader)
    return wire.GroupView(GroupKey("M", generation, 0), (TaskId(0),), workers, Epoch(1), led_by, workers, 1)


LABELS = 'module="M",group="0",worker="w0"'


def test_counters_add_up_over_windows_and_count_none_twice() -> None:
    metrics = Metrics()
    first = window(
        0,
        group(
            kinds={"depot": kind(10, failures={"stalled": 2})},
            events={"shrinks": 1, "damaged_blocks": 3, "refused_transfers_format": 2},
        ),
    )
    metrics.add([first, first, window(10_000, group(kinds={"depot": kind(5)}))])
    found = exposed(metrics)
    assert found[f'stretto_replicated_entries_total{{{LABELS},kind="depot"}}'] == 15
    assert found[f'stretto_replicate_failures_total{{{LABELS},kind="depot",reason="stalled"}}'] == 2
    assert found[f"stretto_isr_shrinks_total{{{LABELS}}}"] == 1
    assert found[f"stretto_catchup_damaged_blocks_total{{{LABELS}}}"] == 3
    assert found[f'stretto_catchup_refusals_total{{{LABELS},reason="format"}}'] == 2


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


def test_what_a_silent_worker_told_last_is_not_told_for_ever() -> None:
    clock = Clock()
    metrics = Metrics(clock)
    metrics.add(
        [window(0, group(kinds={"depot": kind(10, 0.1)})), window(0, group(0, "follower"), worker="w1")]
    )
    clock.now += STALE_SECONDS
    metrics.add([window(10_000, group(0, "follower"), worker="w1")])
    assert exposed(metrics)[f"stretto_replica_leads{{{LABELS}}}"] == 1
    clock.now += 1
    found = exposed(metrics)
    assert not any(f"{LABELS}}}" in name for name in found if name.split("{")[0] in GAUGES)
    assert found['stretto_replica_leads{module="M",group="0",worker="w1"}'] == 0
    assert found[f'stretto_replicated_entries_total{{{LABELS},kind="depot"}}'] == 10


def test_a_worker_that_is_gone_for_long_is_forgotten() -> None:
    clock = Clock()
    metrics = Metrics(clock)
    metrics.add([window(0, group(kinds={"depot": kind(10, 0.1)}))])
    clock.now += FORGOTTEN_SECONDS + 1
    metrics.saw([], (), ())
    assert exposed(metrics) == {}


def test_a_group_without_leader_and_a_worker_that_is_down_are_told_by_nobody_but_the_record() -> None:
    clock = Clock()
    metrics = Metrics(clock)
    metrics.saw([record()], {"w0": "a:1", "w1": "a:2"}, {"w0"})
    found = exposed(metrics)
    assert found['stretto_group_led{module="M",group="0"}'] == 1
    assert found['stretto_worker_up{module="M",worker="w0"}'] == 1
    assert found['stretto_worker_up{module="M",worker="w1"}'] == 0
    metrics.saw([record()], {"w1": "a:2"}, {"w1"})
    assert exposed(metrics)['stretto_group_led{module="M",group="0"}'] == 0
    metrics.saw([record(None)], {"w1": "a:2"}, {"w1"})
    assert exposed(metrics)['stretto_group_led{module="M",group="0"}'] == 0
    clock.now += STALE_SECONDS + 1
    assert exposed(metrics) == {}


def test_two_groupings_of_a_worker_are_one_series() -> None:
    metrics = Metrics()
    old, new = group(isr=looks(1)), replace(group(isr=looks(3)), group=GroupKey("M", 2, 0))
    metrics.add([window(0, new, old)])
    metrics.saw([record(None, 1), record("w0", 2)], {"w0": "a:1"}, {"w0"})
    found = exposed(metrics)
    assert found[f"stretto_isr_members{{{LABELS}}}"] == 3
    assert found['stretto_group_led{module="M",group="0"}'] == 1


def test_the_mode_of_catching_up_is_told() -> None:
    metrics = Metrics()
    metrics.add([window(0, group(0, "far", in_isr=False, catchup_left_bytes=5))])
    found = exposed(metrics)
    assert found[f'stretto_replica_catching_up{{{LABELS},mode="far"}}'] == 1
    assert found[f'stretto_replica_catching_up{{{LABELS},mode="near"}}'] == 0


def test_parked_records_are_counted_by_topology_where_they_are_led() -> None:
    metrics = Metrics()
    parked = {"split": TopologyWindow(parked=looks(2)), "join": TopologyWindow(parked=looks(0))}
    metrics.add([window(0, group(0, topologies=parked), group(1, topologies=parked))])
    metrics.add([window(0, group(0, "follower", topologies=parked), worker="w1")])
    assert metrics.parked() == {("M", "split"): 4}


def test_names_end_in_units_that_prometheus_knows() -> None:
    for name in HISTOGRAMS:
        assert name.endswith("_seconds")
    for name in (*COUNTERS, *GAUGES):
        assert not re.search("millis|_ms(_|$)|kilo|_kb", name)


def _names(expression: str) -> set[str]:
    return set(re.findall(r"stretto_[a-z_]+", expression))


def _is_exposed(name: str) -> bool:
    bare = re.sub("_(bucket|sum|count)$", "", name)
    return name in COUNTERS or name in GAUGES or (bare in HISTOGRAMS and bare != name)


def test_alert_rules_refer_to_what_is_exposed() -> None:
    rules = msgspec.yaml.decode((GRAFANA / "alerts.yaml").read_bytes())["groups"][0]["rules"]
    assert {"StrettoUnderMinIsr", "StrettoNoLeader", "StrettoStalled", "StrettoCatchingUpLong"} <= {
        rule["alert"] for rule in rules
    }
    for rule in rules:
        assert _names(rule["expr"]), rule
        assert all(map(_is_exposed, _names(rule["expr"]))), rule
        assert {"summary", "description"} == set(rule["annotations"])


def test_the_dashboard_refers_to_what_is_exposed_and_shows_all_of_it() -> None:
    dashboard = msgspec.json.decode((GRAFANA / "dashboard.json").read_bytes())
    expressions = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    used = {name for each in expressions for name in _names(each)}
    assert [name for name in used if not _is_exposed(name)] == []
    assert all(_is_exposed(name) for name in _names(dashboard["templating"]["list"][1]["query"]))
    for panel in dashboard["panels"]:
        assert panel["fieldConfig"]["defaults"]["unit"], panel["title"]
    six = {"Replog entries", "Replicate duration", "Replicate throughput", "Replicate failures"}
    assert six | {"Apply duration", "ISR count"} <= {panel["title"] for panel in dashboard["panels"]}
