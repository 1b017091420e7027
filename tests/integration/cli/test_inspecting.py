"""Inspecting and tuning verbs on a whole cluster: what they show is so, and what they change holds."""

from __future__ import annotations

import json
import os
import signal
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from stretto import cli, control
from stretto.artifact import load as load_artifact
from stretto.cli.cluster import reach
from stretto.client.operating.upload import upload
from stretto.local.cluster import LocalCluster
from stretto.supervisor.children import RunFile
from tests.support.commands import Done, start
from tests.support.waiting import wait_until

MODULE = "Inspected"
SOURCE = """
from stretto import Depot, Module

class Inspected(Module):
    events = Depot(partition_by="user")
"""
GROUPS = 6
DEADLINE_SECONDS = 90.0

Run = Callable[..., Done]


@pytest.fixture(scope="module")
def launched(whole_cluster: LocalCluster) -> Iterator[LocalCluster]:
    with reach(",".join(whole_cluster.bootstrap), None) as cluster, tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "inspected.py"
        source.write_text(SOURCE)
        artifact, manifest = load_artifact(f"{source}:{MODULE}", Path(folder))
        nodes = [node.address for node in cluster.ask(control.Nodes()) if node.address]
        upload(cluster.network, nodes, artifact, copies=3)
        cluster.ask(
            control.Launch(
                module=MODULE,
                artifact=artifact.digest,
                manifest=manifest,
                tasks=8,
                threads=GROUPS,
                workers=1,
                replication_factor=3,
            )
        )

        def is_calm() -> bool:
            [view] = cluster.ask(control.Modules(module=MODULE))
            leadership = cluster.ask(control.Leadership(module=MODULE))
            return view.state == "running" and not view.problems and not leadership.switches

        wait_until("the module runs and is balanced", is_calm, DEADLINE_SECONDS)
        yield whole_cluster
        cluster.ask(control.Destroy(module=MODULE))


@pytest.fixture
def run(launched: LocalCluster, capsys: pytest.CaptureFixture[str]) -> Run:
    """A command in this process, which saves the start of one; --bootstrap is given unless the test does."""

    def run(*args: str) -> Done:
        where = () if "--bootstrap" in args else ("--bootstrap", launched.bootstrap[0])
        with pytest.raises(SystemExit) as ended:
            cli.main([*args, *where])
        out, err = capsys.readouterr()
        assert isinstance(ended.value.code, int)
        return Done(ended.value.code, out, err)

    return run


def told(done: Done) -> Any:
    assert (done.code, done.err) == (0, "")
    return json.loads(done.out)


def groups(run: Run, *args: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = told(run("task-groups-status", MODULE, "--json", *args))
    return found


# Showing.


def test_a_module_is_shown_with_its_processes(run: Run) -> None:
    [view] = told(run("module-status", MODULE, "--json"))
    assert (view["state"], view["groups"], view["led"], view["problems"]) == ("running", GROUPS, GROUPS, [])
    assert {process["node"] for process in view["processes"]} == {"node-1", "node-2", "node-3"}
    assert all(process["address"] for process in view["processes"])

    shown = run("module-status")
    assert shown.code == 0
    [line] = [line for line in shown.lines if line.startswith(MODULE)]
    assert line.split() == [MODULE, "running", "8", "6", "1", "3", "6", "of", "6", "3", "of", "3", "events"]


def test_groups_are_shown_with_the_nodes_of_their_replicas(run: Run) -> None:
    found = groups(run)
    assert [status["group"][2] for status in found] == list(range(GROUPS))
    for status in found:
        assert (status["state"], len(status["isr"]), status["osr"]) == ("running", 3, [])
        assert {replica["node"] for replica in status["replicas"]} == {"node-1", "node-2", "node-3"}
        assert {replica["lag"] for replica in status["replicas"]} == {0}


@pytest.mark.parametrize("position", [1, 2, 3])
def test_groups_are_found_through_any_supervisor(run: Run, launched: LocalCluster, position: int) -> None:
    found = groups(run, "--bootstrap", launched.bootstrap[position])
    assert [status["state"] for status in found] == ["running"] * GROUPS


def test_nodes_are_shown_with_what_they_run_and_lead(run: Run) -> None:
    nodes = told(run("nodes", "--json"))
    assert [node["node"] for node in nodes] == ["node-1", "node-2", "node-3"]
    assert all(node["address"] and node["leadership_allowed"] for node in nodes)
    assert all(node["running"] == node["workers"] >= 1 for node in nodes)
    assert sum(node["leaders"] for node in nodes) >= GROUPS


def test_watching_prints_one_line_of_json_each_time_until_ctrl_c(launched: LocalCluster) -> None:
    watching = start("nodes", "--json", "--watch", "--bootstrap", launched.bootstrap[0])
    try:
        assert watching.stdout is not None
        for _ in range(2):
            assert len(json.loads(watching.stdout.readline())) == 3
        watching.send_signal(signal.SIGINT)
        _, err = watching.communicate(timeout=30)
    finally:
        watching.kill()
        watching.communicate()
    assert (watching.returncode, err) == (0, "")


def test_a_killed_worker_is_missed_at_once_and_shown_again_when_it_is_back(
    run: Run, launched: LocalCluster
) -> None:
    worker = groups(run)[0]["leader"]
    [path] = launched.folder.glob(f"*/run/{worker}.json")
    before = msgspec.json.decode(path.read_bytes(), type=RunFile)
    os.kill(before.pid, signal.SIGKILL)
    for status in groups(run):
        [replica] = [each for each in status["replicas"] if each["worker"] == worker]
        if replica["role"] in ("silent", "absent"):
            assert status["state"] != "running" or status["leader"] != worker, status
        else:
            # It was restarted before the command asked: then it has won nothing, or an epoch of its own.
            after = msgspec.json.decode(path.read_bytes(), type=RunFile)
            assert after.launch != before.launch

    def whole() -> bool:
        return all(status["state"] == "running" and status["is_whole"] for status in groups(run))

    wait_until("every group is whole again", whole, DEADLINE_SECONDS)


# Options.


def test_an_option_that_is_set_for_a_module_is_in_force_in_its_groups(run: Run) -> None:
    name = "replication.min.isr"
    assert run("options", "get", name, "--module", MODULE).out == "factor - 1\n"
    done = run("options", "set", name, "1", "--module", MODULE)
    assert (done.code, done.out) == (0, f"{name} is 1 for module {MODULE}\n")
    wait_until("it is in force", lambda: {each["min_isr"] for each in groups(run)} == {1}, DEADLINE_SECONDS)
    listed = told(run("options", "list", "--module", MODULE, "--json"))
    [view] = [each for each in listed if each["name"] == name]
    assert (view["value"], view["origin"], view["default"]) == (1, f"module {MODULE}", "factor - 1")
    assert run("options", "get", name).out == "factor - 1\n"

    done = run("options", "unset", name, "--module", MODULE)
    assert (done.code, done.out) == (0, f"{name} is factor - 1 for module {MODULE}, its default\n")
    wait_until(
        "it is the default again", lambda: {each["min_isr"] for each in groups(run)} == {2}, DEADLINE_SECONDS
    )


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        (("options", "set", "replication.min.irs", "1"), "the nearest is replication.min.isr"),
        (("options", "get", "replication.min.irs"), "the nearest is replication.min.isr"),
        (("options", "set", "replication.fsync", "maybe"), "always or interval, not maybe"),
        (("options", "list", "--module", "Inspekted"), "did you mean Inspected?"),
        (("options", "list", "--module", MODULE, "--depot", "event"), "did you mean events?"),
        (("options", "list", "--depot", "events"), "name the module that depot events belongs to"),
        (("module-status", "Inspekted"), "did you mean Inspected?"),
        (("task-groups-status", "Inspekted"), "did you mean Inspected?"),
        (("leadership", "show", "Inspekted"), "did you mean Inspected?"),
        (("leadership", "disallow", "node1"), "did you mean node-1?"),
        (("leadership", "resign", MODULE, "99", "--to", f"{MODULE}-0"), "groups 0 to 5"),
        (("operations", "--limit", "0"), "--limit"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_what_does_not_exist_is_bad_usage_told_in_one_sentence(
    run: Run, args: tuple[str, ...], sentence: str
) -> None:
    done = run(*args)
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith("stretto: ")
    assert done.err.count("\n") == 1
    assert sentence in done.err


# Leadership.


@pytest.fixture
def by_hand(run: Run) -> Iterator[None]:
    """The conductor moves no leader by itself."""
    threshold = ("leadership.balance.threshold", "--module", MODULE)

    def is_balanced() -> bool:
        view = told(run("leadership", "show", MODULE, "--json"))
        return bool(view["state"] == "running" and not view["switches"])

    wait_until("nothing is left to balance", is_balanced, DEADLINE_SECONDS)
    assert run("options", "set", *threshold, "10").code == 0
    yield
    assert run("options", "unset", *threshold).code == 0


@pytest.mark.usefixtures("by_hand")
def test_a_leader_hands_over_and_balancing_puts_it_right(run: Run) -> None:
    status = groups(run)[0]
    target = next(worker for worker in status["isr"] if worker != status["leader"])
    done = run("leadership", "resign", MODULE, "0", "--to", target)
    assert (done.code, done.err) == (0, "")
    assert done.out == f"{target} leads group 0 of {MODULE} in epoch {status['epoch'] + 1}\n"
    view = told(run("leadership", "show", MODULE, "--json"))
    assert sorted(node["leaders"] for node in view["nodes"]) == [1, 2, 3]
    assert len(view["switches"]) == 1

    done = run("leadership", "balance", MODULE)
    assert (done.code, done.err) == (0, "")
    assert done.out == f"the leaders of {MODULE} are balanced: 1 group led from elsewhere\n"
    view = told(run("leadership", "show", MODULE, "--json"))
    assert (view["switches"], view["leaderless"]) == ([], [])
    assert [(node["leaders"], node["ideal"]) for node in view["nodes"]] == [(2, 2.0)] * 3
    assert run("leadership", "balance", MODULE).out == f"the leaders of {MODULE} are balanced already\n"


def test_a_drained_node_leads_nothing_until_it_is_allowed_again(run: Run) -> None:
    done = run("leadership", "disallow", "node-2")
    assert (done.code, done.err) == (0, "")
    try:
        view = told(run("leadership", "show", MODULE, "--json"))
        drained = {node["node"]: (node["leaders"], node["allowed"]) for node in view["nodes"]}
        assert drained["node-2"] == (0, False)
        shown = run("leadership", "show", MODULE)
        [line] = [line for line in shown.lines if line.startswith("node-2")]
        assert line.split()[1:] == ["0", "0", "leadership", "disallowed"]
    finally:
        assert run("leadership", "allow", "node-2").code == 0

    def is_back() -> bool:
        view = told(run("leadership", "show", MODULE, "--json"))
        return bool([node["leaders"] for node in view["nodes"]] == [2, 2, 2])

    wait_until("leaders come back", is_back, DEADLINE_SECONDS)


def test_what_was_done_is_in_the_log_of_operations(run: Run) -> None:
    assert run("options", "set", "replication.retry.millis", "400", "--module", MODULE).code == 0
    assert run("options", "unset", "replication.retry.millis", "--module", MODULE).code == 0
    done = told(run("operations", "--module", MODULE, "--limit", "2", "--json"))
    assert [operation["what"] for operation in done] == [
        f"options set replication.retry.millis = 400 for module {MODULE}",
        f"options unset replication.retry.millis for module {MODULE}",
    ]
    assert "replication.retry.millis" in run("operations", "--limit", "2").out


def test_nobody_at_the_address_is_told_with_what_to_do(run: Run) -> None:
    done = run("nodes", "--bootstrap", "127.0.0.1:9")
    assert (done.code, done.out) == (1, "")
    assert done.err.startswith("stretto: nothing answers at 127.0.0.1:9; start a cluster with 'stretto up'")
