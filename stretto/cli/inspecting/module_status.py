"""``stretto module-status``: what is launched, and how it fares."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Annotated

import typer
from msgspec.structs import replace
from rich.console import RenderableType
from rich.text import Text

from stretto import control
from stretto.cli.cluster import DEFAULT_BOOTSTRAP, Bootstrap, Json, Key, Watch, reach
from stretto.cli.output import paragraphs, sentences, show, table
from stretto.client.operating.cluster import Cluster
from stretto.client.operating.status import newest_groups
from stretto.errors import StrettoError
from stretto.specs.modules import DepotSpec, TopologySpec
from stretto.vocabulary.types import TaskId

THREADS = 16
PINS_SHOWN = 20
"""Number of pins that are shown, the oldest ones; --json has all."""


def module_status(
    module: Annotated[
        str | None, typer.Argument(metavar="M", help="Only this module, in detail.", show_default=False)
    ] = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    key: Key = None,
    as_json: Json = False,
    watch: Watch = False,
) -> None:
    """Show the modules of the cluster, or one of them with its processes and what is wrong with it.

    Example: stretto module-status WordCount
    """
    with reach(bootstrap, key) as cluster:

        def fetch() -> tuple[control.ModuleView, ...]:
            views = cluster.ask(control.Modules(module=module))
            if module is None:
                return views
            return tuple(_with_pins(cluster, _with_microbatches(cluster, view)) for view in views)

        show(
            fetch,
            render if module is None else lambda views: render_one(views[0]),
            json=as_json,
            watch=watch,
        )


def _with_microbatches(cluster: Cluster, view: control.ModuleView) -> control.ModuleView:
    """Add the microbatches to a view, as the leader of task 0 reports them; none while there is no leader."""
    if not any(topology.kind == "microbatch" for topology in view.topologies):
        return view
    try:
        metadata = cluster.metadata()
        groups = newest_groups(metadata, view.module)
        leader = next((group.leader for group in groups if TaskId(0) in group.tasks), None)
        address = metadata.addresses.get(leader) if leader is not None else None
        if address is None:
            return view
        told = cluster.ask_worker(address, control.Microbatches(module=view.module))
    except StrettoError:
        return view
    return replace(view, microbatches=tuple(told))


def _with_pins(cluster: Cluster, view: control.ModuleView) -> control.ModuleView:
    """Add the pins that workers keep for bulk reads; a worker that does not answer keeps none for long."""
    addresses = [process.address for process in view.processes if process.address is not None]

    def told(address: str) -> Sequence[control.PinView]:
        try:
            return cluster.ask_worker(address, control.Pins())
        except StrettoError:
            return ()

    if not addresses:
        return view
    with ThreadPoolExecutor(min(len(addresses), THREADS)) as pool:
        pins = [pin for found in pool.map(told, addresses) for pin in found]
    return replace(view, pins=tuple(sorted(pins, key=lambda pin: -pin.age_ms)))


def render(views: Sequence[control.ModuleView]) -> RenderableType:
    if not views:
        return Text("no module is launched; launch one with 'stretto deploy launch'")
    made = table(
        "module",
        "state",
        ("tasks", "right"),
        ("threads", "right"),
        ("workers", "right"),
        ("factor", "right"),
        ("led", "right"),
        ("processes", "right"),
        "depots",
    )
    for view in views:
        made.add_row(
            view.module,
            _state(view),
            str(view.tasks),
            str(view.threads),
            str(view.workers),
            str(view.replication_factor),
            _led(view),
            _running(view),
            " ".join(depot.name for depot in view.depots) or "-",
        )
    problems = [f"{view.module}: {problem}" for view in views for problem in view.problems]
    return paragraphs(made, sentences(problems)) if problems else made


def render_one(view: control.ModuleView) -> RenderableType:
    facts = table("module", view.module)
    facts.add_row("state", _state(view))
    facts.add_row("version", str(view.version))
    facts.add_row("artifact", view.artifact)
    facts.add_row("tasks", str(view.tasks))
    facts.add_row("task threads", str(view.threads))
    facts.add_row("workers", f"{view.workers}, {view.replication_factor} processes each")
    facts.add_row("groups led", _led(view))
    facts.add_row("depots", "\n".join(_depot(depot) for depot in view.depots) or "-")
    pstates = [f"{pstate.name}: {pstate.type}" for pstate in view.pstates]
    facts.add_row("PStates", Text("\n".join(pstates) or "-"))
    facts.add_row("topologies", "\n".join(_topology(topology) for topology in view.topologies) or "-")
    if view.microbatches:
        facts.add_row("microbatches", "\n".join(_microbatch(each) for each in view.microbatches))
    if view.pins:
        facts.add_row("pins", Text("\n".join(_pin(each) for each in view.pins[:PINS_SHOWN])))
    processes = table("worker", "node", "address")
    for process in view.processes:
        where = Text(process.address) if process.address else Text("not registered", style="bold red")
        processes.add_row(process.worker, process.node, where)
    parts: list[RenderableType] = [facts, processes]
    if view.problems:
        parts.append(sentences(view.problems))
    return paragraphs(*parts)


def _state(view: control.ModuleView) -> Text:
    return Text(view.state, style="green" if view.state == "running" and not view.problems else "yellow")


def _led(view: control.ModuleView) -> str:
    return f"{view.led} of {view.groups}"


def _running(view: control.ModuleView) -> str:
    registered = sum(process.address is not None for process in view.processes)
    return f"{registered} of {len(view.processes)}"


def _topology(topology: TopologySpec) -> str:
    writes = f", writes {' '.join(topology.pstates)}" if topology.pstates else ""
    return f"{topology.name}: {topology.kind} of {' '.join(topology.depots)}{writes}"


def _microbatch(view: control.MicrobatchView) -> str:
    which = f"{view.id}" if view.version == 0 else f"{view.id}, version {view.version}"
    lag = "lag unknown" if view.lag is None else f"{view.lag:,} records to go"
    told = f"{view.topology}: {view.phase}, microbatch {which}, {lag}"
    return f"{told}; came to nothing: {view.why}" if view.why else told


def _pin(view: control.PinView) -> str:
    return (
        f"{view.pin}: group {view.group} at offset {view.offset:,} on {view.worker}, for {view.holder}; "
        f"{view.age_ms / 1_000:,.0f} s old, read {view.idle_ms / 1_000:,.0f} s ago"
    )


def _depot(depot: DepotSpec) -> str:
    match depot.rule, depot.partition_by:
        case "global", _:
            return f"{depot.name}, all on task 0"
        case "custom", _:
            return f"{depot.name}, by a function"
        case _, None:
            return depot.name
        case _, str() as field:
            return f"{depot.name}, by {field}"
        case _, fields:
            return f"{depot.name}, by {' and '.join(fields)}"
