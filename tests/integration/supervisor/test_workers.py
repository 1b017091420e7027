"""Supervisors that start, restart, stop and adopt real workers."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from kazoo.client import KazooClient

from stretto.process.folder_lock import boot_id
from stretto.specs.modules import ModuleState
from stretto.supervisor.children import RunFile
from stretto.vocabulary.types import Incarnation, WorkerId
from stretto.zk.znodes.paths import Paths
from stretto.zk.znodes.records import DestroyedModules, WorkerRegistration, encode
from tests.integration.supervisor.node import MODULE, Node, Start, is_alive, new_launch
from tests.support.proxy import Proxy
from tests.support.waiting import wait_until

W0, W1 = "counts-0", "counts-1"


def _register(operator: KazooClient, paths: Paths, worker: str, launch: str) -> str:
    """As a worker of that launch does, under a session that does not expire: it goes only if deleted."""
    incarnation = Incarnation(new_launch())
    registration = WorkerRegistration(
        worker=WorkerId(worker),
        incarnation=incarnation,
        node="n1",
        address="127.0.0.1:1",
        launch=launch,
    )
    path = paths.registration(WorkerId(worker), incarnation)
    operator.create(path, encode(registration), ephemeral=True, makepath=True)
    return path


def test_it_registers_and_starts_the_workers_placed_on_its_node(node: Node) -> None:
    node.place(W0)
    node.place("far-0", module="far", elsewhere="n2")
    node.start("--label", "rack=r1")
    (registration,) = wait_until("it is registered", node.registrations).values()
    assert registration.node == "n1"
    assert registration.labels == {"rack": "r1"}
    assert registration.address.startswith("127.0.0.1:")
    _, worker = node.wait_worker(W0)
    assert worker.node == "n1"
    assert worker.address.startswith("127.0.0.1:")
    assert [event["worker"] for event in node.events("worker_started")] == [W0]
    assert (node.data_dir / "logs" / f"{W0}.log").stat().st_size > 0


def test_a_killed_worker_is_unregistered_by_proof_and_comes_back(
    node: Node, record_property: Callable[[str, object], None]
) -> None:
    node.place(W0)
    node.start()
    path, old = node.wait_worker(W0)
    gone: list[float] = []
    assert node.operator.exists(path, watch=lambda _: gone.append(time.monotonic())) is not None
    killed_at = time.monotonic()
    node.kill_worker(W0)
    wait_until("its registration is gone", lambda: gone)
    record_property("ms_from_kill_to_unregistered", round((gone[0] - killed_at) * 1_000, 1))
    new_path, new = node.wait_worker(W0, other_than=old.launch)
    assert new_path != path
    assert new.launch != old.launch
    assert list(node.worker_registrations(W0)) == [new_path]
    (deleted,) = node.events("registration_deleted_for_the_dead")
    assert deleted["path"] == path
    (exited,) = node.events("worker_exited")
    assert exited["how"] == "signal SIGKILL"
    assert exited["log"].endswith(f"{W0}.log")
    wait_until("the run file forgets the dead", lambda: node.run_file(W0).unburied == ())  # type: ignore[union-attr]


@pytest.mark.soak
def test_a_worker_that_ends_at_once_is_started_less_and_less_often(node: Node) -> None:
    node.place(W0)
    folder = node.data_dir / "workers"
    folder.mkdir(parents=True)
    (folder / W0).write_text("in the way of the worker's folder")
    node.start()
    exits = node.wait_said("worker_exited", 4)
    assert [event["again_in_ms"] for event in exits[:4]] == [0, 500, 1_000, 2_000]
    assert all(event["how"] == "exit code 1" for event in exits)
    assert "in the way" not in (node.data_dir / "logs" / f"{W0}.log").read_text()
    (folder / W0).unlink()
    node.wait_worker(W0)


def test_workers_survive_their_supervisor_and_are_adopted_by_the_next(node: Node) -> None:
    node.place(W0)
    node.start()
    path, _ = node.wait_worker(W0)
    pid = node.pid_of(W0)
    before = set(node.registrations())
    node.kill()
    node.start()
    (adopted,) = node.wait_said("worker_adopted")
    assert adopted["pid"] == pid
    wait_until("it is registered again", lambda: set(node.registrations()) - before)
    assert list(node.worker_registrations(W0)) == [path]
    assert len(node.events("worker_started")) == 1
    node.kill_worker(W0)
    wait_until("the adopted one's registration is gone", lambda: path not in node.worker_registrations(W0))
    node.wait_worker(W0)
    assert [event["path"] for event in node.events("registration_deleted_for_the_dead")] == [path]


def test_who_died_while_no_supervisor_ran_is_unregistered_by_the_next(
    node: Node, operator: KazooClient, paths: Paths
) -> None:
    node.place(W0)
    node.start()
    _, old = node.wait_worker(W0)
    node.kill()
    pid = node.kill_worker(W0)
    wait_until("it is dead", lambda: not is_alive(pid, old.launch))
    held = _register(operator, paths, W0, old.launch)
    node.start()
    node.wait_worker(W0, other_than=old.launch)
    wait_until("only the new one is registered", lambda: len(node.worker_registrations(W0)) == 1)
    assert operator.exists(held) is None
    assert held in [event["path"] for event in node.events("registration_deleted_for_the_dead")]


@pytest.mark.parametrize("what", ["another start time", "another boot"])
def test_a_process_that_took_over_the_pid_is_not_mistaken_for_the_worker(
    node: Node, operator: KazooClient, paths: Paths, what: str
) -> None:
    launch = new_launch()
    path = _register(operator, paths, W0, launch)
    other = _register(operator, paths, W0, new_launch())
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as stranger:
        node.write_run_file(
            RunFile(
                worker=WorkerId(W0),
                module=MODULE,
                launch=launch,
                boot=boot_id() if what == "another start time" else "of yesterday",
                namespace=os.readlink("/proc/self/ns/pid"),
                pid=stranger.pid,
                start_time=1,
            )
        )
        node.start()
        wait_until("the dead is unregistered", lambda: operator.exists(path) is None)
        wait_until("it is forgotten", lambda: node.run_file(W0) is None)
        assert stranger.poll() is None
        stranger.communicate(b"\n")
        assert stranger.returncode == 0
    assert operator.exists(other) is not None
    assert node.events("worker_adopted") == []


def test_a_run_file_of_another_pid_namespace_proves_nothing(
    node: Node, operator: KazooClient, paths: Paths
) -> None:
    launch = new_launch()
    path = _register(operator, paths, W0, launch)
    node.write_run_file(
        RunFile(worker=WorkerId(W0), module=MODULE, launch=launch, boot=boot_id(), namespace="pid:[1]", pid=1)
    )
    node.start()
    (event,) = node.wait_said("worker_unaccounted_for")
    assert event["launch"] == launch
    wait_until("it is registered", node.registrations)
    node.place(W1)
    node.wait_worker(W1)
    assert operator.exists(path) is not None


def test_a_worker_whose_supervisor_died_before_it_knew_the_pid_is_found(node: Node) -> None:
    node.place(W0)
    node.start()
    node.wait_worker(W0)
    file = node.run_file(W0)
    assert file is not None
    node.kill()
    node.write_run_file(
        RunFile(
            worker=file.worker, module=MODULE, launch=file.launch, boot=file.boot, namespace=file.namespace
        )
    )
    node.start()
    (adopted,) = node.wait_said("worker_adopted")
    assert adopted["pid"] == file.pid
    wait_until("the run file has the pid", lambda: node.run_file(W0) == file)


def test_a_death_while_zookeeper_is_away_is_told_when_it_is_back(
    nodes: Start, proxy: Proxy, operator: KazooClient, paths: Paths
) -> None:
    node = nodes(hosts=proxy.address)
    node.place(W0)
    node.start()
    _, old = node.wait_worker(W0)
    held = _register(operator, paths, W0, old.launch)
    proxy.cut()
    node.wait_said("metastore_suspended")
    node.kill_worker(W0)
    node.wait_said("worker_exited")
    assert operator.exists(held) is not None
    proxy.heal()
    node.wait_worker(W0, other_than=old.launch)
    wait_until("it is deleted", lambda: operator.exists(held) is None)


def test_after_its_session_expired_it_registers_again(nodes: Start, proxy: Proxy) -> None:
    node = nodes(hosts=proxy.address)
    node.start()
    (first,) = wait_until("it is registered", node.registrations)
    proxy.silence()
    wait_until("its session expired", lambda: not node.registrations())
    proxy.heal()
    (second,) = wait_until("it is registered again", node.registrations)
    assert second != first


@pytest.mark.soak
def test_it_waits_for_zookeeper_and_says_where_it_looks(nodes: Start, proxy: Proxy) -> None:
    proxy.cut()
    node = nodes(hosts=proxy.address)
    node.place(W0)
    node.start()
    said = node.wait_said("metastore_unreachable")
    assert said[0]["hosts"] == proxy.address
    proxy.heal()
    node.wait_worker(W0)


def test_destroying_deletes_the_data_of_the_modules_workers(node: Node) -> None:
    node.place(W0)
    node.place("kept-0", module="kept")
    node.start()
    _, registration = node.wait_worker(W0)
    node.wait_worker("kept-0")
    pid = node.pid_of(W0)
    assert (node.data_dir / "workers" / W0).exists()
    remains = node.paths.remains_of(MODULE, WorkerId(W0))
    node.operator.create(remains, makepath=True)
    node.set_state(ModuleState.DESTROYING)
    wait_until("its data is gone", lambda: not (node.data_dir / "workers" / W0).exists())
    assert not is_alive(pid, registration.launch)
    wait_until("the conductor may know", lambda: node.operator.exists(remains) is None)
    assert (node.data_dir / "workers" / "kept-0").exists()
    wait_until("all of it is gone", lambda: not list((node.data_dir / "deleting").iterdir()))
    wait_until("its process is forgotten", lambda: node.run_file(W0) is None)
    assert [path.name for path in (node.data_dir / "logs").iterdir()] == ["kept-0.log"]
    assert is_alive(node.pid_of("kept-0"), node.wait_worker("kept-0")[1].launch)


def test_what_was_destroyed_while_the_node_was_away_is_deleted_when_it_returns(node: Node) -> None:
    def made(worker: str, *replicas: str) -> Path:
        folder = node.data_dir / "workers" / worker
        for replica in replicas:
            (folder / "groups" / replica).mkdir(parents=True)
        return folder

    gone = made("gone-a-0", "gone-a-4-0", "gone-a-5-1", "deleting-gone-a-5-0-abcd")
    said = node.data_dir / "logs" / "gone-a-0.log"
    said.parent.mkdir()
    said.write_text("its last words")
    kept = [
        made("later-0", "later-6-0"),
        made("unknown-0", "unknown-5-0"),
        made("odd-0", "odd"),
        made("by-hand-0", "by-hand-1-0"),
    ]
    shared = made("shared-0", "gone-a-5-2", "unknown-5-0")
    old = made(W0, f"{MODULE}-0-0") / "groups" / f"{MODULE}-0-0"
    node.place(W0)
    # Made by hand after a namesake was destroyed: its number says nothing.
    node.place("by-hand-0", module="by-hand", elsewhere="n2")
    destroyed = DestroyedModules(groupings={"gone-a": 5, "later": 5, "odd": 5, MODULE: 0, "by-hand": 5})
    node.operator.create(node.paths.destroyed, encode(destroyed), makepath=True)
    node.start()
    wait_until("they are gone", lambda: not any(each.exists() for each in (gone, said, old)), 40)
    wait_until("what was beside others too", lambda: not (shared / "groups" / "gone-a-5-2").exists())
    node.wait_worker(W0)
    assert (node.data_dir / "workers" / W0 / "groups" / f"{MODULE}-1-0").exists()
    assert all(list((each / "groups").iterdir()) for each in (*kept, shared))
    wait_until("all of it is gone", lambda: not list((node.data_dir / "deleting").iterdir()))
    told = {Path(event["folder"]).name for event in node.wait_said("folder_left_alone", times=5)}
    assert told == {"later-0", "unknown-0", "odd-0", "by-hand-0", "shared-0"}


def test_a_missing_assignment_stops_a_worker_and_leaves_its_data_alone(node: Node) -> None:
    node.place(W0)
    node.start()
    _, registration = node.wait_worker(W0)
    pid = node.pid_of(W0)
    node.forget_module()
    node.wait_said("worker_stopped")
    assert not is_alive(pid, registration.launch)
    (left,) = node.wait_said("folder_left_alone")
    assert left["folder"].endswith(W0)
    assert (node.data_dir / "workers" / W0 / "groups").exists()
    assert node.events("worker_exited") == []


def test_stopped_it_leaves_no_process_and_no_registration_behind(node: Node) -> None:
    node.place(W0, W1)
    node.start()
    launches = {name: node.wait_worker(name)[1].launch for name in (W0, W1)}
    processes = [(node.pid_of(name), launch) for name, launch in launches.items()]
    assert node.stop() == 0
    assert not any(is_alive(*process) for process in processes)
    assert node.registrations() == {}
    assert node.worker_registrations(W0) == node.worker_registrations(W1) == {}
    assert list((node.data_dir / "run").iterdir()) == []
    assert {event["how"] for event in node.events("worker_stopped")} == {"exit code 0"}


def test_a_second_signal_does_not_wait_for_a_worker_that_hangs(node: Node) -> None:
    node.place(W0)
    node.start()
    path, registration = node.wait_worker(W0)
    pid = node.pid_of(W0)
    assert node.process is not None
    os.kill(pid, signal.SIGSTOP)
    node.process.terminate()
    node.wait_said("supervisor_stopping")
    assert node.stop() == 0
    assert not is_alive(pid, registration.launch)
    assert path not in node.worker_registrations(W0)


def test_a_second_supervisor_on_the_same_folder_is_refused(node: Node) -> None:
    node.start()
    wait_until("it is registered", node.registrations)
    second = subprocess.run(node.command(), capture_output=True, text=True, timeout=60, check=False)
    assert second.returncode == 2
    assert "is in use by another process" in second.stderr
    assert len(node.registrations()) == 1


def test_of_two_supervisors_with_one_name_the_second_starts_nothing_while_the_first_is_there(
    nodes: Start, tmp_path: Path
) -> None:
    first = nodes()
    (tmp_path / "elsewhere").mkdir()
    second = nodes(folder=tmp_path / "elsewhere")
    first.place(W0)
    first.start()
    first.wait_worker(W0)
    (address,) = [each.address for each in first.registrations().values()]
    second.start()
    (taken,) = second.wait_said("node_name_taken")
    assert taken["address"] == address
    assert first.stop() == 0
    second.wait_worker(W0)
    assert (
        second.events("worker_started")[0]["timestamp"] > first.events("supervisor_stopping")[0]["timestamp"]
    )


@pytest.mark.soak
def test_the_folder_of_another_node_or_cluster_is_refused(node: Node) -> None:
    node.start()
    wait_until("it is registered", node.registrations)
    assert node.stop() == 0
    for flag in ("--node", "--cluster"):
        command = node.command(flag, "other")
        other = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert other.returncode == 2
        assert "belongs to node n1 of cluster stretto" in other.stderr
        assert len(other.stderr.strip().splitlines()) == 1


def test_a_label_without_a_value_is_refused(node: Node) -> None:
    command = node.command("--label", "rack")
    refused = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert refused.returncode == 2
    assert refused.stderr == "stretto: a label is NAME=VALUE, not 'rack'\n"
