"""Lines over time out of windows."""

from __future__ import annotations

import pytest

from stretto.telemetry.windows import (
    BEHIND,
    FOLLOWED,
    LED,
    NOBODY,
    GroupWindow,
    ReplogLooks,
    TopologyWindow,
    Window,
)
from stretto.ui.telemetry.charts import Charts, charts_of, point_of
from stretto.vocabulary.types import Epoch
from tests.unit.ui.windows import distribution, group, kind, looks, window

STEP = 10_000
NOW = 1_000_000


def drawn(*windows: Window) -> Charts:
    heard: dict[int, list[Window]] = {}
    for each in windows:
        heard.setdefault(each.start_ms, []).append(each)
    return charts_of({start: point_of(told) for start, told in heard.items()}, STEP, NOW)


def replog(standing: str, *sizes: float) -> dict[str, ReplogLooks]:
    return {standing: ReplogLooks(looks(*sizes))}


def test_leaders_and_isr_followers_are_told_apart() -> None:
    charts = drawn(
        window(0, group(0, replogs=replog(LED, 10, 30)), worker="a"),
        window(0, group(0, "follower", replogs=replog(FOLLOWED, 100)), worker="b"),
        window(0, group(0, "far", in_isr=False, replogs=replog(BEHIND, 9_999)), worker="c"),
    )
    leaders, followers = charts.replog_entries["leaders"], charts.replog_entries["isr_followers"]
    assert (*leaders.size.average, *leaders.size.max) == (20, 30)
    assert (*followers.size.average, *followers.size.max) == (100, 100)


def test_the_time_as_leader_and_the_time_as_follower_of_one_replica_are_told_apart() -> None:
    before, after = group(replogs=replog(LED, 10, 20)), group(0, "follower", replogs=replog(FOLLOWED, 500))
    [point] = [point_of([window(0, before).merged(window(STEP, after))])]
    assert point is not None
    assert (point.leaders.size.count, point.leaders.size.max) == (2, 20)
    assert (point.followers.size.count, point.followers.size.min) == (1, 500)


def test_rates_are_per_second_that_was_measured() -> None:
    told = window(0, group(kinds={"depot": kind(2_000)}, busy_ms=5_000), covered_ms=20_000)
    charts = charts_of({0: point_of([told])}, 600_000, NOW)
    assert list(charts.replicate_throughput["depot"]) == [100]
    assert list(charts.busy) == [0.25]


def test_a_worker_that_dies_within_a_step_does_not_shorten_it_for_the_others() -> None:
    died = window(0, group(kinds={"depot": kind(6_000)}), worker="a", covered_ms=60_000)
    took_over = window(0, group(kinds={"depot": kind(54_000)}), worker="b", covered_ms=600_000)
    charts = charts_of({0: point_of([died, took_over])}, 600_000, NOW)
    assert list(charts.replicate_throughput["depot"]) == [100]


def test_load_is_that_of_the_busiest_worker_over_all_its_groups() -> None:
    charts = drawn(
        window(0, *(group(number, busy_ms=1_200) for number in range(8)), worker="a"),
        window(0, group(8, busy_ms=3_000), worker="b"),
    )
    assert list(charts.busy) == [pytest.approx(0.96)]


def test_after_a_change_of_leaders_records_are_not_counted_twice() -> None:
    progress = {"split": TopologyWindow(records=100, lag=looks(50), retrying=looks(1), parked=looks(2))}
    charts = drawn(
        window(0, group(0, "follower", topologies=progress, led_epoch=Epoch(4)), worker="a"),
        window(0, group(0, topologies=progress, led_epoch=Epoch(5)), worker="b"),
    )
    assert list(charts.topology_lag["split"]) == [50]
    assert list(charts.topology_failures["split"]) == [3]
    assert list(charts.topology_records["split"]) == [20]


def test_a_time_without_word_is_a_gap() -> None:
    charts = drawn(window(0, group(kinds={"depot": kind(50)})), window(2 * STEP))
    assert list(charts.start_ms) == [0, STEP, 2 * STEP]
    assert list(charts.replicate_throughput["depot"]) == [5, None, 0]
    assert list(charts.isr) == [3, None, 3]
    assert charts.busy[1] is None


def test_durations_are_of_all_groups_together_and_by_kind() -> None:
    charts = drawn(
        window(0, group(0, kinds={"depot": kind(1, *[0.010] * 98)})),
        window(0, group(1, kinds={"state": kind(1, 1.0, 1.0)}), worker="b"),
    )
    assert charts.replicate_duration["all"].p50[0] == pytest.approx(10, rel=0.03)
    assert list(charts.replicate_duration["all"].max) == [1_000]
    assert list(charts.replicate_duration["depot"].max) == [10]
    assert charts.apply_duration["state"].p99[0] == pytest.approx(1_000, rel=0.03)


def test_the_isr_is_that_of_the_group_with_the_least_to_spare() -> None:
    charts = drawn(window(0, group(0), group(1, isr=looks(3, 1, 3)), group(2, "follower")))
    assert (*charts.isr, *charts.min_isr) == (1, 2)


def test_a_group_that_needs_more_members_has_less_to_spare_than_one_that_has_fewer() -> None:
    charts = drawn(window(0, group(0, isr=looks(2), min_isr=1), group(1, isr=looks(3), min_isr=3)))
    assert (*charts.isr, *charts.min_isr) == (3, 3)


def test_a_group_that_nobody_leads_has_no_isr() -> None:
    unled = group(1, "unled", isr=looks(0), replogs={})
    charts = drawn(
        window(0, group(0)),
        window(0, unled, worker=NOBODY),
        window(STEP, unled, worker=NOBODY),
        window(2 * STEP),
    )
    assert list(charts.isr) == [0, 0, 3]
    assert list(charts.min_isr) == [2, 2, 2]
    assert [*charts.busy, *charts.catchup_left] == [0, None, 0, 0, None, 0], "nobody was heard in between"
    assert list(charts.events["elections"]) == [0, None, 0]


def test_failures_are_counted_by_kind_and_reason() -> None:
    failing = group(
        kinds={"depot": kind(0, failures={"stalled": 2}), "state": kind(0, failures={"stalled": 1})}
    )
    charts = drawn(window(0, failing), window(STEP))
    assert charts.replicate_failures == {
        "all": {"stalled": (3, 0)},
        "depot": {"stalled": (2, 0)},
        "state": {"stalled": (1, 0)},
    }


def test_of_a_module_at_rest_a_throughput_of_nothing_is_measured() -> None:
    charts = drawn(window(0), window(2 * STEP))
    assert charts.replicate_throughput == charts.replicate_bytes == {"depot": (0, None, 0)}


def test_the_time_that_is_shown_ends_when_the_server_looked() -> None:
    assert drawn(window(0)).at_ms == NOW


def test_nothing_makes_empty_charts() -> None:
    charts = drawn()
    assert not charts.start_ms
    assert charts.replicate_duration == {}


def test_topologies_are_summed_over_groups_and_functions_merged() -> None:
    def one(number: int, lag: int, *seconds: float) -> GroupWindow:
        progress = TopologyWindow(batches=1, records=100, lag=looks(lag), retrying=looks(1), parked=looks(2))
        return group(number, topologies={"split": progress}, functions={"split": distribution(*seconds)})

    charts = drawn(window(0, one(0, 5, 0.010), one(1, 7, 1.0)), window(STEP))
    assert list(charts.topology_lag["split"]) == [12, None]
    assert list(charts.topology_records["split"]) == [20, None]
    assert list(charts.topology_batches["split"]) == [0.2, None]
    assert list(charts.topology_failures["split"]) == [6, None]
    assert list(charts.function_duration["split"].max) == [1_000, None]
    assert charts.function_duration["all"].p50[0] == pytest.approx(10, rel=0.05)


def test_what_replicas_outside_the_isr_lack_is_told_by_the_last_leader_of_each_group() -> None:
    charts = drawn(
        window(0, group(0, "follower", catchup_lag=looks(900), led_epoch=Epoch(1)), worker="a"),
        window(0, group(0, catchup_lag=looks(100, 300), led_epoch=Epoch(2)), group(1, catchup_lag=looks(5))),
        window(STEP, group(0, "follower")),
    )
    assert list(charts.catchup_lag) == [205, None]


def test_of_leases_the_shortest_counts_and_of_catchup_the_sum() -> None:
    charts = drawn(
        window(0, group(0, lease_left_ms=looks(4_000, 900)), group(1, lease_left_ms=looks(3_000))),
        window(0, group(0, "far", catchup_left_bytes=700), worker="b"),
    )
    assert list(charts.lease_left) == [900]
    assert list(charts.catchup_left) == [700]
