"""What inspecting verbs print for people, to the letter, without colour."""

from __future__ import annotations

from textwrap import dedent

import msgspec
from rich.console import Console, RenderableType

from stretto import control
from stretto.cli.inspecting import leadership, module_status, nodes, operations, options, task_groups_status
from stretto.client.operating.status import GroupState, GroupStatus, ReplicaStatus
from stretto.pstate.types import describe
from stretto.specs.modules import DepotSpec, PStateSpec, TopologySpec
from stretto.specs.operations import Operation
from stretto.vocabulary.groups import GroupKey
from stretto.vocabulary.types import Epoch, Offset, TaskId, WorkerId

W0, W1, W2 = (WorkerId(f"counts-{number}") for number in range(3))


def shown(what: RenderableType, width: int = 110) -> str:
    console = Console(width=width, color_system=None, force_terminal=False)
    with console.capture() as captured:
        console.print(what)
    return "\n".join(line.rstrip() for line in captured.get().splitlines()).strip("\n")


def expected(text: str) -> str:
    return dedent(text).strip("\n")


# Modules.


def module(**changes: object) -> control.ModuleView:
    facts: dict[str, object] = {
        "module": "counts",
        "state": "running",
        "artifact": "1f3a",
        "tasks": 8,
        "threads": 4,
        "workers": 1,
        "replication_factor": 2,
        "depots": (DepotSpec(name="events", partition_by="user"), DepotSpec(name="clicks")),
        "pstates": (PStateSpec(name="visits", type=describe(dict[str, list[int]])),),
        "topologies": (
            TopologySpec(name="note", kind="stream", depots=("events", "clicks"), pstates=("visits",)),
        ),
        "processes": (
            control.WorkerView(worker=W0, node="node-1", address="127.0.0.1:7001"),
            control.WorkerView(worker=W1, node="node-2", address=None),
        ),
        "groups": 4,
        "led": 3,
        "problems": ("group 2 has no leader",),
    }
    return control.ModuleView(**(facts | changes))  # type: ignore[arg-type]


def test_modules() -> None:
    assert shown(module_status.render((module(),))) == expected("""
        module   state     tasks   threads   workers   factor      led   processes   depots
        ──────────────────────────────────────────────────────────────────────────────────────────
        counts   running       8         4         1        2   3 of 4      1 of 2   events clicks

        ! counts: group 2 has no leader
        """)


def test_one_module() -> None:
    assert shown(module_status.render_one(module())) == expected("""
        module         counts
        ───────────────────────────────────────────────────────────
        state          running
        version        1
        artifact       1f3a
        tasks          8
        task threads   4
        workers        1, 2 processes each
        groups led     3 of 4
        depots         events, by user
                       clicks
        PStates        visits: dict[str, list[int]]
        topologies     note: stream of events clicks, writes visits

        worker     node     address
        ──────────────────────────────────
        counts-0   node-1   127.0.0.1:7001
        counts-1   node-2   not registered

        ! group 2 has no leader
        """)


def test_microbatches_tell_how_far_they_are_and_why_the_latest_version_came_to_nothing() -> None:
    views = (
        control.MicrobatchView(topology="book", id=7, version=0, phase="idle", lag=0, why=""),
        control.MicrobatchView(
            topology="sum", id=9, version=2, phase="waiting", lag=12_345, why="task 1: it died"
        ),
        control.MicrobatchView(topology="new", id=0, version=0, phase="loading", lag=None, why=""),
    )
    lines = shown(module_status.render_one(module(microbatches=views)), 130).splitlines()
    at = next(index for index, line in enumerate(lines) if line.startswith("microbatches"))
    assert [line[15:] for line in lines[at : at + 3]] == [
        "book: idle, microbatch 7, 0 records to go",
        "sum: waiting, microbatch 9, version 2, 12,345 records to go; came to nothing: task 1: it died",
        "new: loading, microbatch 0, lag unknown",
    ]


def test_pins_tell_whose_they_are() -> None:
    pin = control.PinView(
        pin="1f3a",
        group="counts/1/2",
        worker=W0,
        offset=Offset(12_345),
        holder="nightly",
        age_ms=65_000,
        idle_ms=2_000,
        sent_bytes=10,
    )
    lines = shown(module_status.render_one(module(pins=(pin,))), 130).splitlines()
    assert [line[15:] for line in lines if line.startswith("pins")] == [
        "1f3a: group counts/1/2 at offset 12,345 on counts-0, for nightly; 65 s old, read 2 s ago"
    ]


def test_no_module_says_how_to_launch_one() -> None:
    assert shown(module_status.render(())) == (
        "no module is launched; launch one with 'stretto deploy launch'"
    )


# Groups.


def status(**changes: object) -> GroupStatus:
    facts: dict[str, object] = {
        "group": GroupKey("counts", 1, 0),
        "tasks": (TaskId(0),),
        "state": GroupState.RUNNING,
        "since_ms": 4_200,
        "why": "",
        "leader": W0,
        "epoch": Epoch(3),
        "isr": (W0, W1),
        "osr": (),
        "min_isr": 1,
        "replicas": (
            ReplicaStatus(
                worker=W0,
                node="node-1",
                role="leader",
                in_isr=True,
                start=Offset(0),
                end=Offset(120),
                apply=Offset(118),
                lag=0,
                since_ms=4_200,
            ),
            ReplicaStatus(
                worker=W1,
                role="follower",
                in_isr=True,
                start=Offset(20),
                end=Offset(119),
                apply=Offset(110),
                lag=1,
                since_ms=250,
            ),
        ),
        "is_whole": True,
    }
    return GroupStatus(**(facts | changes))  # type: ignore[arg-type]


def test_groups() -> None:
    assert shown(task_groups_status.render([status()])) == expected("""
        counts: 1 group, 1 running

        group   state     since   leader     epoch   ISR                 OSR   min-ISR
        ──────────────────────────────────────────────────────────────────────────────
            0   running   4.2 s   counts-0       3   counts-0 counts-1   -           1

        group   worker     node     role        since   start   end   apply   lag
        ─────────────────────────────────────────────────────────────────────────
            0   counts-0   node-1   leader      4.2 s       0   120     118     0
            0   counts-1   -        follower   250 ms      20   119     110     1
        """)


def test_groups_that_catch_up_tell_what_is_left() -> None:
    task = control.TaskCatchup(
        task=TaskId(0),
        phase="fetching",
        round=1,
        offset=None,
        size_bytes=4_000_000,
        left_bytes=1_000_000,
        bytes_per_second=500_000,
    )
    view = control.CatchupView(
        leader=W0,
        round=1,
        min_rounds=2,
        leader_applied=Offset(120),
        received_bytes=3_000_000,
        bytes_per_second=500_000,
        damaged_blocks=0,
        since_ms=6_000,
        waits="",
        tasks=(task,),
    )
    far = ReplicaStatus(worker=W1, role="far", in_isr=False, lag=120, since_ms=6_000, catchup=view)
    catching_up = status(
        state=GroupState.CATCHING_UP, isr=(W0,), osr=(W1,), replicas=(status().replicas[0], far)
    )
    assert shown(task_groups_status.render([catching_up]), 160).split("\n\n")[3:] == expected("""
        group   worker     mode                                since   entries behind    round   received     left       rate   to go
        ─────────────────────────────────────────────────────────────────────────────────────────────────────────────────────────────
            0   counts-1   far: copies of the leader's state   6.0 s              120   1 of 2     3.0 MB   1.0 MB   500 KB/s   2.0 s

        group   worker     task   round   phase                                    size     left       rate   to go
        ───────────────────────────────────────────────────────────────────────────────────────────────────────────
            0   counts-1      0       1   fetching   ███████████████       75%   4.0 MB   1.0 MB   500 KB/s   2.0 s
        """).split("\n\n")  # noqa: E501 - as wide as people see it


def test_groups_in_trouble() -> None:
    silent = status(
        group=GroupKey("counts", 1, 1),
        state=GroupState.LEADER_SILENT,
        since_ms=None,
        why="worker counts-0 leads by the record and does not answer",
        isr=(W0,),
        osr=(W1,),
        replicas=(
            ReplicaStatus(worker=W0, role="silent", in_isr=True),
            ReplicaStatus(worker=W1, role="stopped", in_isr=False, why="no space left on device"),
        ),
    )
    other = msgspec.structs.replace(silent, group=GroupKey("counts", 1, 2))
    assert shown(task_groups_status.render([status(), silent, other])) == expected("""
        counts: 3 groups, 1 running, 2 leader silent

        group   state           since   leader     epoch   ISR                 OSR        min-ISR
        ─────────────────────────────────────────────────────────────────────────────────────────
            0   running         4.2 s   counts-0       3   counts-0 counts-1   -                1
            1   leader silent       -   counts-0       3   counts-0            counts-1         1
            2   leader silent       -   counts-0       3   counts-0            counts-1         1

        group   worker     node     role        since   start   end   apply   lag
        ─────────────────────────────────────────────────────────────────────────
            0   counts-0   node-1   leader      4.2 s       0   120     118     0
            0   counts-1   -        follower   250 ms      20   119     110     1
            1   counts-0   -        silent          -       -     -       -     -
            1   counts-1   -        stopped         -       -     -       -     -
            2   counts-0   -        silent          -       -     -       -     -
            2   counts-1   -        stopped         -       -     -       -     -

        ! groups 1, 2: worker counts-0 leads by the record and does not answer
        ! groups 1, 2: worker counts-1: no space left on device
        """)


# Nodes and operations.


def test_nodes() -> None:
    views = (
        control.NodeView(
            node="node-1",
            address="127.0.0.1:7500",
            labels={"zone": "b", "disk": "ssd"},
            workers=2,
            running=2,
            leaders=3,
            leadership_allowed=True,
        ),
        control.NodeView(
            node="node-2", address=None, labels={}, workers=2, running=1, leaders=0, leadership_allowed=False
        ),
    )
    assert shown(nodes.render(views)) == expected("""
        node     supervisor       workers   leaders   leadership   labels
        ──────────────────────────────────────────────────────────────────────────
        node-1   127.0.0.1:7500    2 of 2         3   allowed      disk=ssd zone=b
        node-2   down              1 of 2         0   disallowed   -
        """)


def test_operations() -> None:
    done = (
        Operation(at_ms=0, what="launched", module="counts"),
        Operation(at_ms=61_000, what="leadership disallowed on node-2", outcome="2 leaders cannot move"),
    )
    text = shown(operations.render(done))
    lines = text.splitlines()
    assert [line.split()[2:] for line in lines[-2:]] == [
        ["counts", "launched", "done"],
        ["-", "leadership", "disallowed", "on", "node-2", "2", "leaders", "cannot", "move"],
    ]


# Leadership.


def test_leadership_draws_a_bar_for_each_node_and_names_the_switches() -> None:
    view = control.LeadershipView(
        module="counts",
        state="running",
        nodes=(
            control.NodeLeaders(node="node-1", leaders=6, ideal=4.5, allowed=True),
            control.NodeLeaders(node="node-2", leaders=3, ideal=4.5, allowed=True),
            control.NodeLeaders(node="node-3", leaders=0, ideal=0, allowed=False),
        ),
        leaderless=(GroupKey("counts", 1, 9),),
        switches=(control.SwitchView(group=GroupKey("counts", 1, 4), leader=W0, target=W1),),
        imbalance=0.333,
        threshold=0.1,
    )
    assert shown(leadership.render(view)) == expected("""
        counts is running: imbalance 0.33, beyond the threshold of 0.10; a balancing would switch 1 group

        node     leaders   ideal
        ───────────────────────────────────────────────────────────────────────────
        node-1         6     4.5   ████████████████████████
        node-2         3     4.5   ████████████
        node-3         0       0                              leadership disallowed

        group   leader          would be led by
        ───────────────────────────────────────
            4   counts-0   ->   counts-1

        ! nobody leads group 9
        """)


def test_balanced_leadership_says_so() -> None:
    view = control.LeadershipView(
        module="counts",
        state="running",
        nodes=(control.NodeLeaders(node="node-1", leaders=1, ideal=1, allowed=True),),
        leaderless=(),
        switches=(),
        imbalance=0.0,
        threshold=0.1,
    )
    assert shown(leadership.render(view)).splitlines()[0] == (
        "counts is running: imbalance 0.00, within the threshold of 0.10; no switch would make it better"
    )


# Options.


def test_options() -> None:
    views = (
        control.OptionView(
            name="replication.min.isr",
            value=2,
            origin="module counts",
            default="factor - 1",
            unit="replicas",
            doc="Replicas that must hold an entry before it is applied.",
        ),
        control.OptionView(
            name="replication.unclean.election",
            value=False,
            origin="default",
            default=False,
            unit="",
            doc="Lets a replica outside the ISR lead.",
        ),
    )
    assert shown(options.render(views)) == expected("""
        option                                                     value        origin          default
        ──────────────────────────────────────────────────────────────────────────────────────────────────
        replication.min.isr                                        2 replicas   module counts   factor - 1
          Replicas that must hold an entry before it is applied.

        replication.unclean.election                               false        default         false
          Lets a replica outside the ISR lead.
        """)
