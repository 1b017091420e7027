"""Launching, balancing, draining and destroying, against a real ZooKeeper."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

import pytest

from stretto import control
from stretto.conductor.process import Conductor, _host
from stretto.errors import RetriableError, StrettoError
from stretto.options import CLUSTER
from stretto.vocabulary.groups import GroupKey
from stretto.vocabulary.types import Incarnation, WorkerId
from stretto.wire import messages as wire
from stretto.zk.server.embedded import EmbeddedZooKeeper, free_ports
from stretto.zk.znodes.records import ConductorRegistration, DestroyedModules, decode, encode
from tests.integration.conductor.scene import DIGEST, Scene
from tests.support.proxy import Proxy
from tests.support.waiting import wait_until


def test_a_standby_takes_over(scene: Scene) -> None:
    first, stop = scene.conductor()
    scene.active(first)
    second, _ = scene.conductor()
    wait_until(
        "the second knows the first",
        lambda: scene.ask(second, control.FindConductor()) == first.address,
    )
    with pytest.raises(StrettoError, match="stands by"):
        scene.ask(second, control.Nodes())
    stop()
    scene.active(second)
    assert scene.ask(second, control.Nodes()) == ()


def test_a_restarted_one_does_not_wait_for_its_dead_predecessor(scene: Scene) -> None:
    [port] = free_ports(1)
    address = f"127.0.0.1:{port}"
    dead = ConductorRegistration(incarnation=Incarnation("dead"), address=address, host=_host())
    scene.zk.create(scene.paths.conductor_leader, encode(dead), makepath=True)
    conductor, _ = scene.conductor(address)
    wait_until("it is active", lambda: _answers(scene, conductor))
    found = decode(
        scene.zk.get(scene.paths.conductor_leader)[0], ConductorRegistration, scene.paths.conductor_leader
    )
    assert found.incarnation != "dead"


def test_a_conductor_of_another_machine_is_not_taken_for_a_dead_predecessor(scene: Scene) -> None:
    [port] = free_ports(1)
    address = f"127.0.0.1:{port}"
    other = ConductorRegistration(incarnation=Incarnation("other"), address=address, host="another")
    scene.zk.create(scene.paths.conductor_leader, encode(other), makepath=True)
    conductor, _ = scene.conductor(address)
    wait_until("it stands by", lambda: scene.ask(conductor, control.FindConductor()) == address)
    with pytest.raises(RetriableError, match="stands by"):
        scene.ask(conductor, control.Nodes())


def test_without_zookeeper_it_says_so_at_once_and_can_be_stopped(
    scene: Scene, zookeeper: EmbeddedZooKeeper
) -> None:
    with Proxy(zookeeper.port) as proxy:
        conductor, stop = scene.conductor(zookeeper=proxy.address)
        scene.active(conductor)
        proxy.cut()
        wait_until("it says so", lambda: _refusal(scene, conductor).startswith("the conductor cannot reach"))
        proxy.heal()
        wait_until("it goes on", lambda: _answers(scene, conductor))
        proxy.cut()
        wait_until("it says so again", lambda: "cannot reach" in _refusal(scene, conductor))
        stop()


def test_what_was_not_read_yet_is_not_taken_for_missing(scene: Scene) -> None:
    [port] = free_ports(1)
    conductor, _ = scene.conductor(zookeeper=f"127.0.0.1:{port}")
    told: Future[wire.ToClient | None] = Future()

    def send() -> None:
        number = scene.network.next_request()
        scene.network.request(
            conductor.address,
            number,
            wire.GetMetadata(number),
            (),
            lambda reply, _: told.set_result(reply),
            timeout_ms=20_000,
        )

    scene.network.call(send)
    reply = told.result(30)
    assert isinstance(reply, wire.Failed)
    assert reply.fault is wire.Fault.PASSING


def _refusal(scene: Scene, conductor: Conductor) -> str:
    try:
        scene.ask(conductor, control.Nodes())
    except RetriableError as error:
        return str(error)
    return ""


def _answers(scene: Scene, conductor: Conductor) -> bool:
    try:
        return scene.ask(conductor, control.Nodes()) == ()
    except RetriableError:
        return False


def test_a_launch_becomes_running_when_every_group_is_led(scene: Scene) -> None:
    conductor, _ = scene.conductor()
    scene.active(conductor)
    scene.nodes(conductor, "n1", "n2", "n3")
    scene.launch(conductor, options={"replication.min.isr": "1"})
    assert scene.state() == "launching"
    assignment = scene.assignment()
    assert sorted(assignment.nodes.values()) == ["n1", "n2", "n3"]
    assert scene.record(0) is None
    scene.start_workers()
    for number, replicas in enumerate(assignment.replicas):
        scene.lead(number, replicas[0])
        found = scene.record(number)
        assert found is not None
        assert {member.worker for member in found[0].isr} == set(replicas)
    wait_until("it runs", lambda: scene.state() == "running")
    [view] = scene.ask(conductor, control.Modules(module="m"))
    assert (view.led, view.groups, view.problems) == (4, 4, ())
    level = control.OptionLevel(module="m")
    options = {option.name: option for option in scene.ask(conductor, control.Options(level=level))}
    assert (options["replication.min.isr"].value, options["replication.min.isr"].origin) == (1, "module m")
    done = [operation.what for operation in scene.ask(conductor, control.Operations())]
    assert [what.split()[0].rstrip(":") for what in done] == ["launch", "launched"]


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"replication_factor": 4}, "needs 4 nodes, and there are 3"),
        ({"tasks": 6}, "not a power of two"),
        ({"threads": 16}, "at most 8 threads"),
        ({"workers": 5}, "at most 4"),
        ({"artifact": "e" * 64}, "upload it again"),
        ({"options": {"replication.min.irs": "1"}}, "replication.min.isr"),
        ({"options": {"replication.append.timeout.millis": "-1"}}, "from 10"),
    ],
)
def test_a_launch_that_cannot_be_leaves_nothing_behind(
    scene: Scene, changed: dict[str, object], sentence: str
) -> None:
    conductor, _ = scene.conductor()
    scene.active(conductor)
    scene.nodes(conductor, "n1", "n2", "n3")
    with pytest.raises(StrettoError, match=sentence):
        scene.launch(conductor, **changed)
    assert scene.spec() is None
    assert scene.ask(conductor, control.Modules()) == ()


def test_names_that_are_not_there_come_with_the_nearest(scene: Scene) -> None:
    conductor, _ = scene.conductor()
    scene.active(conductor)
    scene.running(conductor)
    with pytest.raises(StrettoError, match="there is a module m already"):
        scene.launch(conductor)
    calls: tuple[tuple[control.Call[Any], str], ...] = (
        (control.Modules(module="mm"), "no module mm; did you mean m"),
        (control.DisallowLeadership(node="n4"), "no node n4; there are n1, n2, n3"),
        (control.Options(level=control.OptionLevel(module="m", depot="sentence")), "did you mean sentences"),
        (control.SetOption(level=control.OptionLevel(), name="replication.min.irs", value="1"), "min.isr"),
        (control.ResignLeader(module="m", group=4, to=WorkerId("m-0")), "groups 0 to 3"),
        (control.ResignLeader(module="m", group=0, to=WorkerId("m-9")), "no replica of this group"),
    )
    for call, sentence in calls:
        with pytest.raises(StrettoError, match=sentence):
            scene.ask(conductor, call)


def test_a_refused_launch_leaves_the_options_of_who_has_the_name(scene: Scene) -> None:
    conductor, _ = scene.conductor()
    scene.active(conductor)
    scene.running(conductor)
    level = control.OptionLevel(module="m")
    scene.ask(conductor, control.SetOption(level=level, name="replication.min.isr", value="3"))
    spec, _ = scene.zk.get(scene.paths.spec("m"))
    scene.zk.set(scene.paths.spec("m"), b"{")
    wait_until("it cannot be seen", lambda: not scene.ask(conductor, control.Modules()))
    with pytest.raises(StrettoError, match="there is a module m already"):
        scene.launch(conductor, options={"replication.min.isr": "1"})
    scene.zk.set(scene.paths.spec("m"), spec)
    wait_until("it can be seen", lambda: scene.ask(conductor, control.Modules()))
    options = {option.name: option for option in scene.ask(conductor, control.Options(level=level))}
    assert options["replication.min.isr"].value == 3


def test_leaders_are_balanced_by_the_fewest_switches(scene: Scene) -> None:
    conductor, _ = scene.conductor()
    scene.active(conductor)
    scene.running(conductor, leader_index=0)
    wait_until("switches are requested", lambda: len(scene.requests()) == 2)
    assert scene.state() == "leadership-balancing"
    assert scene.obey() == 2
    wait_until("it runs again", lambda: scene.state() == "running")
    assert sorted(scene.leaders().values()) == [1, 1, 2]
    view = scene.ask(conductor, control.Leadership(module="m"))
    assert (view.switches, view.imbalance) == ((), 0.0)
    assert [(node.node, node.allowed) for node in view.nodes] == [("n1", True), ("n2", True), ("n3", True)]


def test_a_drained_node_leads_nothing_until_it_is_allowed_again(scene: Scene) -> None:
    conductor, _ = scene.conductor()
    scene.active(conductor)
    scene.running(conductor)
    scene.ask(conductor, control.DisallowLeadership(node="n1"))

    def drained() -> bool:
        scene.obey()
        return scene.leaders()["n1"] == 0 and scene.state() == "running"

    wait_until("n1 leads nothing", drained)
    [node] = [node for node in scene.ask(conductor, control.Nodes()) if node.node == "n1"]
    assert (node.leaders, node.leadership_allowed) == (0, False)
    scene.ask(conductor, control.AllowLeadership(node="n1"))

    def back() -> bool:
        scene.obey()
        return scene.leaders()["n1"] > 0 and scene.state() == "running"

    wait_until("n1 leads again", back)
    assert sorted(scene.leaders().values()) == [1, 1, 2]


def test_a_leader_that_does_not_obey_is_left_alone_in_the_end(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stretto.conductor.balancing.GRACE_SECONDS", 0.5)
    conductor, _ = scene.conductor()
    scene.active(conductor)
    patience = control.SetOption(
        level=control.OptionLevel(), name="leadership.resign.timeout.millis", value="100"
    )
    scene.ask(conductor, patience)
    scene.running(conductor, leader_index=1)
    wait_until("switches are requested", lambda: len(scene.requests()) == 2)
    wait_until("they are withdrawn", lambda: not scene.requests())
    wait_until("it runs again", lambda: scene.state() == "running")
    assert scene.leaders()[scene.assignment().workers[1].node] == 4


def test_a_person_moves_a_leader(scene: Scene) -> None:
    conductor, _ = scene.conductor()
    scene.active(conductor)
    scene.running(conductor)
    target = scene.assignment().replicas[0][1]
    assert scene.ask(conductor, control.ResignLeader(module="m", group=0, to=target)) == 1
    assert scene.requests()[0].target == target
    with pytest.raises(StrettoError, match="leads group 0"):
        scene.ask(conductor, control.ResignLeader(module="m", group=0, to=scene.assignment().replicas[0][0]))
    gone = scene.assignment().replicas[1][1]
    scene.stop_worker(gone)
    wait_until("it is known to be gone", lambda: not scene.has_registered(conductor, gone))
    with pytest.raises(StrettoError, match="not in sync"):
        scene.ask(conductor, control.ResignLeader(module="m", group=1, to=gone))


def test_nobody_hands_over_to_a_node_that_is_drained(scene: Scene) -> None:
    conductor, _ = scene.conductor()
    scene.active(conductor)
    scene.running(conductor)
    target = scene.assignment().replicas[0][1]
    node = scene.assignment().nodes[target]
    scene.ask(conductor, control.DisallowLeadership(node=node))
    with pytest.raises(StrettoError, match=f"disallowed on node {node}"):
        scene.ask(conductor, control.ResignLeader(module="m", group=0, to=target))


def test_the_next_conductor_ends_a_balancing(scene: Scene) -> None:
    first, stop = scene.conductor()
    scene.active(first)
    scene.running(first, leader_index=0)
    wait_until("switches are requested", lambda: len(scene.requests()) == 2)
    stop()
    second, _ = scene.conductor()
    scene.active(second)

    def balanced() -> bool:
        scene.obey()
        return sorted(scene.leaders().values()) == [1, 1, 2] and scene.state() == "running"

    wait_until("it is balanced", balanced)


def test_a_destroyed_module_is_gone_when_its_workers_are(scene: Scene) -> None:
    conductor, _ = scene.conductor()
    scene.active(conductor)
    scene.running(conductor)
    assignment = scene.assignment()
    origin = scene.ask(conductor, control.Specification(module="m")).origin
    scene.ask(conductor, control.Destroy(module="m"))
    assert scene.state() == "destroying"
    for worker in assignment.nodes:
        assert scene.state() == "destroying"
        scene.stop_worker(worker)
    away, *there = assignment.workers
    scene.zk.delete(scene.paths.node(away.node, Incarnation(f"i-{away.node}")))
    for placed in there:
        assert scene.state() == "destroying"
        scene.zk.delete(scene.paths.remains_of("m", placed.worker))
    wait_until("it is gone", lambda: scene.zk.exists(scene.paths.module("m")) is None)
    *_, last = scene.ask(conductor, control.Operations())
    told = f"done; nodes {away.node} were away and delete its files when they return"
    assert (last.what, last.outcome) == ("destroyed", told)
    path = scene.paths.destroyed
    destroyed = decode(scene.zk.get(path)[0], DestroyedModules, path)
    assert destroyed.groupings == {"m": assignment.generation}
    scene.nodes(conductor, away.node)
    assert scene.ask(conductor, control.Modules()) == ()
    # A name may be used again, and its groups are others.
    scene.launch(conductor)
    assert not destroyed.has("m", scene.assignment().generation)
    assert origin
    assert scene.ask(conductor, control.Specification(module="m")).origin not in ("", origin)
    assert scene.assignment().generation > assignment.generation
    assert scene.zk.exists(scene.paths.group(GroupKey("m", assignment.generation, 0))) is None


def test_a_module_is_paused_and_resumed_by_any_conductor(scene: Scene) -> None:
    conductor, stop = scene.conductor()
    scene.active(conductor)
    scene.running(conductor)
    scene.ask(conductor, control.Pause(module="m"))
    scene.ask(conductor, control.Pause(module="m"))
    assert scene.state() == "paused"
    with pytest.raises(StrettoError, match=r"module m is paused, .* 'stretto deploy resume m'"):
        scene.ask(conductor, control.Reassign(module="m", node="n1"))
    with pytest.raises(StrettoError, match="resume it first"):
        scene.ask(conductor, control.Scale(module="m", workers=2))
    stop()
    conductor, _ = scene.conductor()
    scene.active(conductor)
    [view] = scene.ask(conductor, control.Modules(module="m"))
    assert (view.state, view.problems) == (
        "paused",
        ("it takes no records until 'stretto deploy resume m'",),
    )
    scene.ask(conductor, control.Resume(module="m"))
    scene.ask(conductor, control.Resume(module="m"))
    assert scene.state() in ("running", "leadership-balancing")
    what = [operation.what for operation in scene.ask(conductor, control.Operations(module="m"))]
    assert (what.count("pause"), what.count("resume")) == (1, 1)
    scene.ask(conductor, control.Destroy(module="m"))
    for call in (control.Pause(module="m"), control.Resume(module="m")):
        with pytest.raises(RetriableError, match="module m is destroying; wait"):
            scene.ask(conductor, call)


def test_a_paused_module_is_balanced_and_stays_paused(scene: Scene) -> None:
    conductor, _ = scene.conductor()
    scene.active(conductor)
    scene.running(conductor)
    scene.ask(conductor, control.Pause(module="m"))
    [led, *_] = [node for node, count in scene.leaders().items() if count]
    scene.ask(conductor, control.DisallowLeadership(node=led))

    def is_drained() -> bool:
        scene.obey()
        return scene.leaders()[led] == 0

    wait_until("it leads nothing there", is_drained)
    assert scene.state() == "paused"
    scene.ask(conductor, control.AllowLeadership(node=led))
    wait_until("something would move", lambda: scene.ask(conductor, control.Leadership(module="m")).switches)
    scene.ask(conductor, control.Balance(module="m"))

    def is_balanced() -> bool:
        scene.obey()
        return scene.leaders()[led] > 0

    wait_until("it leads something again", is_balanced)
    assert scene.state() == "paused"


def test_a_module_that_cannot_be_destroyed_says_who_keeps_it(scene: Scene) -> None:
    conductor, _ = scene.conductor()
    scene.active(conductor)
    scene.running(conductor)
    worker = scene.assignment().workers[0]
    scene.ask(conductor, control.Destroy(module="m"))
    for other in scene.assignment().workers[1:]:
        scene.stop_worker(other.worker)
    scene.zk.delete(scene.paths.node(worker.node, Incarnation(f"i-{worker.node}")))

    def told() -> bool:
        [view] = scene.ask(conductor, control.Modules(module="m"))
        [problem] = view.problems or [""]
        return problem.startswith(f"1 worker of node {worker.node} cannot be stopped")

    wait_until("it is told", told)


def test_problems_are_told_in_words(scene: Scene) -> None:
    conductor, _ = scene.conductor()
    scene.active(conductor)
    scene.running(conductor)
    worker = scene.assignment().workers[0]
    scene.stop_worker(worker.worker)

    def told() -> bool:
        [view] = scene.ask(conductor, control.Modules(module="m"))
        return any(f"node {worker.node} not registered" in problem for problem in view.problems) and any(
            "no leader registered" in problem for problem in view.problems
        )

    wait_until("both problems are told", told)


def test_a_damaged_znode_is_named_and_stops_nothing_else(scene: Scene) -> None:
    conductor, _ = scene.conductor()
    scene.active(conductor)
    scene.running(conductor)
    path = scene.paths.group(GroupKey("m", scene.assignment().generation, 0))
    scene.zk.set(path, b"{")

    def told() -> bool:
        [view] = scene.ask(conductor, control.Modules(module="m"))
        return any(path in problem for problem in view.problems)

    wait_until("it is named", told)
    scene.nodes(conductor, "n4")


def test_damaged_options_are_told_and_stop_nothing_else(scene: Scene) -> None:
    conductor, _ = scene.conductor()
    scene.active(conductor)
    path = scene.paths.options_of(CLUSTER)
    scene.zk.create(path, b"[", makepath=True)
    scene.zk.set(scene.paths.options, b"")
    with pytest.raises(StrettoError, match=path):
        scene.ask(conductor, control.Options(level=control.OptionLevel()))
    scene.running(conductor)
    scene.zk.set(path, b"{}")
    scene.ask(conductor, control.Options(level=control.OptionLevel()))


def test_who_keeps_the_code_is_asked(scene: Scene) -> None:
    conductor, _ = scene.conductor()
    scene.active(conductor)
    scene.nodes(conductor, "n1", "n2", "n3")
    scene.artifacts.clear()
    with pytest.raises(StrettoError, match="on 0 nodes, of 3 that must keep it; upload it again"):
        scene.launch(conductor)
    # Where nobody answers, it may well be.
    listening, scene.supervisors = scene.supervisors, "127.0.0.1:1"
    scene.nodes(conductor, "silent")
    with pytest.raises(StrettoError, match="on 0 nodes, of 3 that must keep it; 1 did not answer; try again"):
        scene.launch(conductor)
    scene.supervisors = listening
    scene.artifacts.add(DIGEST)
    scene.launch(conductor)
    assert scene.state() == "launching"
