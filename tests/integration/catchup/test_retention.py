"""Depots with a retention, on real workers: what goes is gone everywhere, also for who was far behind."""

from __future__ import annotations

import pytest

from stretto.client import Client
from stretto.errors import OffsetTrimmed
from stretto.options import Level
from stretto.zk.watches.options import set_options
from tests.integration.catchup.behind import (
    DEADLINE_SECONDS,
    append,
    leave_behind,
    wait_said,
    wait_whole,
)
from tests.support.cluster import DEPOT, MODULE, Cluster
from tests.support.waiting import wait_until

KEPT = 500


def bounds(client: Client) -> list[tuple[int, int]]:
    reader = client.reader(MODULE, DEPOT)
    return [reader.bounds(task) for task in reader.tasks]


def retain(cluster: Cluster, **values: int) -> None:
    wanted = {f"depot.retention.{name}": value for name, value in values.items()}
    set_options(cluster.operator, cluster.paths, Level.of(MODULE, depot=DEPOT), wanted)


@pytest.mark.soak
def test_a_depot_is_trimmed_and_a_follower_far_behind_comes_back_to_the_same(cluster: Cluster) -> None:
    append(cluster, 20)
    client = cluster.connect()
    victim = leave_behind(cluster, records=6_000)
    # Now that nothing is appended any more, each task is trimmed once.
    retain(cluster, records=KEPT)
    first = 6_020 - KEPT

    def is_trimmed() -> bool:
        return all(0 < start <= first and end == 6_020 for start, end in bounds(client))

    wait_until("it is trimmed", is_trimmed, DEADLINE_SECONDS)
    reader = client.reader(MODULE, DEPOT)
    starts = [start for start, _ in bounds(client)]
    with pytest.raises(OffsetTrimmed, match=f"begins at offset {starts[0]:,} on task 0") as trimmed:
        reader.read(0, 5)
    assert (trimmed.value.task, trimmed.value.start) == (0, starts[0])
    # Records keep the offsets that they had: each tells its own, 20 after those of before.
    found = {record.task: record for record in reversed(list(reader.read_all()))}
    assert [found[task].offset for task in reader.tasks] == starts
    assert all(int(record.data.split(b"/")[0]) == record.offset - 20 for record in found.values())
    assert next(reader.tail(tasks=[1])).offset == starts[1]
    assert reader.offset_at(0, 0) == starts[0]

    killed = cluster.leader()
    killed.kill()
    victim.start()
    killed.start()
    wait_said(victim, "far_horizon_ends")
    cluster.heal()
    wait_whole(cluster)
    append(cluster, 10)
    retain(cluster, millis=1)
    wait_until(
        "only the newest batch is left",
        lambda: all(start >= 6_020 and end == 6_030 for start, end in bounds(client)),
        DEADLINE_SECONDS,
    )
    cluster.check_replicas_agree()
