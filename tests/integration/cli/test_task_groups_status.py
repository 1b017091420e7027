"""``stretto task-groups-status`` with workers and no conductor: the truth, from those who know it."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

from tests.support.cluster import DEPOT, MODULE, SESSION_TIMEOUT_MS, Cluster
from tests.support.waiting import wait_until


def stretto(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "stretto", *arguments], capture_output=True, text=True, timeout=60, check=False
    )


def statuses(cluster: Cluster, *names: str) -> list[dict[str, Any]]:
    bootstrap = ",".join(cluster.addresses(names or None))
    done = stretto("task-groups-status", MODULE, "--json", "--bootstrap", bootstrap)
    assert done.returncode == 0, done.stderr
    found: list[dict[str, Any]] = json.loads(done.stdout)
    return found


def test_every_replica_is_shown_with_its_offsets(calm: Cluster) -> None:
    calm.connect().producer(MODULE, DEPOT, linger_ms=0).append(b"one", task=0).result(30)
    for number, status in enumerate(statuses(calm)):
        assert status["group"] == [MODULE, 1, number]
        assert (status["state"], status["leader"]) == ("running", calm.record(number).leader)
        assert (set(status["isr"]), status["osr"], status["min_isr"]) == (set(calm.workers), [], 2)
        assert status["since_ms"] > 0
        roles = {each["worker"]: each["role"] for each in status["replicas"]}
        assert sorted(roles.values()) == ["follower", "follower", "leader"]
        assert roles[status["leader"]] == "leader"
        assert {each["end"] for each in status["replicas"]} == {status["replicas"][0]["end"]}
        assert {each["lag"] for each in status["replicas"]} == {0}


def test_people_see_tables_without_colour_when_piped(calm: Cluster) -> None:
    done = stretto("task-groups-status", MODULE, "--group", "1", "--bootstrap", calm.workers["w2"].address)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"{MODULE}: 1 group, 1 running\n")
    assert "\x1b" not in done.stdout
    assert "follower" in done.stdout


def test_unknown_modules_and_groups_are_refused_with_what_there_is(calm: Cluster) -> None:
    address = calm.workers["w0"].address
    done = stretto("task-groups-status", "cuonts", "--bootstrap", address)
    assert done.returncode == 2
    assert done.stderr == "stretto: there is no module cuonts; did you mean counts?\n"
    done = stretto("task-groups-status", MODULE, "--group", "7", "--bootstrap", address)
    assert (done.returncode, done.stderr) == (2, "stretto: counts has no group 7; its groups are 0 to 1\n")


def test_a_silent_leader_is_told_from_one_that_runs_and_its_successor_is_shown(cluster: Cluster) -> None:
    leader = cluster.leader()
    others = sorted(set(cluster.workers) - {leader.name})
    leader.pause()
    status = statuses(cluster, *others)[0]
    # With a short session the successor may be there before the command has started.
    assert status["state"] != "running" or status["leader"] in others, status
    silent = [each for each in status["replicas"] if each["worker"] == leader.name]
    assert [each["role"] for each in silent] in (["silent"], ["absent"])

    def led_anew() -> bool:
        status = statuses(cluster, *others)[0]
        return status["state"] == "running" and status["leader"] in others

    wait_until("another leads and runs", led_anew, 40 + SESSION_TIMEOUT_MS / 1_000)
    leader.resume()
    cluster.wait_healed()

    def whole() -> bool:
        status = statuses(cluster)[0]
        return status["state"] == "running" and set(status["isr"]) == set(cluster.workers)

    wait_until("all are in sync again", whole)


def test_a_group_with_too_few_replicas_is_stalled_and_says_whom_it_lacks(cluster: Cluster) -> None:
    """One member left alone stays in the ISR of three, cannot apply, and says so."""
    survivor = cluster.workers["w0"]
    for name in ("w1", "w2"):
        cluster.workers[name].kill()

    def told() -> dict[str, Any]:
        return statuses(cluster, survivor.name)[0]

    cluster.wait_led_by({survivor.name}, above_epoch=0)
    client = cluster.connect([survivor.name])
    stuck = client.producer(MODULE, DEPOT, linger_ms=0).append(b"stuck", task=0)
    wait_until("the group is stalled", lambda: told()["state"] == "stalled", 60)
    status = told()
    assert not stuck.done()
    assert "cannot take entries" in status["why"]
    assert {each["worker"]: each["role"] for each in status["replicas"]} == {
        "w0": "leader",
        "w1": "absent",
        "w2": "absent",
    }
