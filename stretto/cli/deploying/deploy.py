"""``stretto deploy``: a module's life. Launch it, update, move and scale it, pause and resume it, destroy it.

A launch is refused before any code is uploaded where that is possible: a shape that this cluster cannot run,
code that does not load, a name that is taken. The conductor decides all of it again.
"""

from __future__ import annotations

import shlex
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from stretto import artifact, control
from stretto.cli.cluster import DEFAULT_BOOTSTRAP, Bootstrap, Key, ModuleName, reach
from stretto.cli.deploying import scaling
from stretto.cli.deploying.sizing import Shape, shape_for
from stretto.client.operating.cluster import Cluster
from stretto.client.operating.upload import upload
from stretto.conductor.planning.assignment import assign
from stretto.errors import RetriableError, StrettoError, UpdateFailed, UsageError
from stretto.module.module import check_module_name
from stretto.options import Level, parse
from stretto.specs.modules import ModuleState

LOOK_SECONDS = 0.2
"""How often the conductor is asked how far it is; another one may have taken over meanwhile."""
WAIT_SECONDS = 300.0
STEP_SECONDS = 60.0
"""How long a later step of several may be refused for reasons that pass."""
PATIENCE_SECONDS = 10.0
"""Wait after which a person reads what the command waits for."""

BY_SIZE = "by the number of nodes"

app = typer.Typer(no_args_is_help=True, help="Launch, update, move, scale, pause and destroy modules.")


@app.command()
def launch(
    source: Annotated[
        str | None,
        typer.Argument(
            metavar="FILE.py",
            help="Its code: FILE.py:Name if there are several modules in it; also pkg.mod, or x.whl:pkg.mod.",
            show_default=False,
        ),
    ] = None,
    module: Annotated[
        str | None,
        typer.Option(metavar="FILE.py:Name", help="The same, as an option.", show_default=False),
    ] = None,
    tasks: Annotated[
        int | None,
        typer.Option(metavar="N", help="Partitions; a power of two, for good.", show_default=BY_SIZE),
    ] = None,
    threads: Annotated[
        int | None, typer.Option(metavar="N", help="Task groups: at most tasks.", show_default=BY_SIZE)
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option(metavar="N", help="Processes for each replica: at most threads.", show_default=BY_SIZE),
    ] = None,
    replication_factor: Annotated[
        int | None,
        typer.Option(metavar="N", help="Replicas of each group, on different nodes.", show_default=BY_SIZE),
    ] = None,
    option: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="Of the module; may be repeated.", show_default=False),
    ] = None,
    name: Annotated[
        str | None, typer.Option(help="Call it this, not as its class does.", show_default=False)
    ] = None,
    no_wait: Annotated[bool, typer.Option("--no-wait", help="Return once it is decided.")] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    key: Key = None,
) -> int:
    """Launch a module: upload its code, start its workers, and wait until every task group is led.

    What is not given is chosen by the number of nodes, and told.

    Example: stretto deploy launch wordcount.py

    Example: stretto deploy launch --module wordcount.py:WordCount --tasks 8 --threads 4 --workers 2
    --replication-factor 3
    """
    if name is not None:
        check_module_name(name)
    code = _given_code(source, module)
    with tempfile.TemporaryDirectory(prefix="stretto-") as folder, reach(bootstrap, key) as cluster:
        nodes = running_nodes(cluster)
        given = {"tasks": tasks, "threads": threads, "workers": workers, "factor": replication_factor}
        shape = shape_for(len(nodes), **given)
        supervisors = check_shape(nodes, shape)
        packed, manifest = artifact.load(code, Path(folder))
        called = name or manifest.name
        options = parsed_options(option or (), called)
        check_name(cluster, called)
        if None in given.values():
            typer.echo(_chosen(len(nodes), given, shape))
        with bar("uploading") as tell:
            upload(
                cluster.network,
                supervisors,
                packed,
                copies=shape.factor,
                progress=lambda address, held, size: tell(held, size, f"to {address}"),
            )
        cluster.ask(
            control.Launch(
                module=called,
                artifact=packed.digest,
                manifest=manifest,
                tasks=shape.tasks,
                threads=shape.threads,
                workers=shape.workers,
                replication_factor=shape.factor,
                options=options,
            )
        )
        if no_wait:
            typer.echo(f"{called} is being launched; 'stretto module-status {called}' tells how far it is")
        else:
            typer.echo(next_steps(await_led(cluster, called), manifest.samples))
    return 0


@app.command()
def destroy(
    module: ModuleName,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    no_wait: Annotated[bool, typer.Option("--no-wait", help="Return once it is decided.")] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    key: Key = None,
) -> int:
    """Stop a module's workers and take it away, with all its records, for good.

    Example: stretto deploy destroy WordCount
    """
    with reach(bootstrap, key) as cluster:
        [view] = cluster.ask(control.Modules(module=module))
        if not yes:
            _confirm(view)
        cluster.ask(control.Destroy(module=module))
        if no_wait:
            typer.echo(
                f"{module} is being destroyed; it is gone when 'stretto module-status' lists it no more"
            )
        else:
            _await_gone(cluster, module, len(view.processes))
            typer.echo(f"{module} is gone{_kept(cluster, module)}")
    return 0


@app.command()
def update(
    module: ModuleName,
    source: Annotated[
        str,
        typer.Option(
            "--module",
            metavar="FILE.py:Name",
            help="Its new class: also pkg.mod:Name, or x.whl:pkg.mod:Name.",
            show_default=False,
        ),
    ],
    delete: Annotated[
        list[str] | None,
        typer.Option(
            metavar="OBJECT",
            help="Delete this depot, PState or topology, which the new code declares no more; repeatable.",
            show_default=False,
        ),
    ] = None,
    no_wait: Annotated[bool, typer.Option("--no-wait", help="Return once it is decided.")] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    key: Key = None,
) -> int:
    """Give a module that runs new code; its data stays, and it goes on being read and appended to.

    The code is tried on every node that runs the module before any worker takes it up. If it does not load on
    one of them, nothing has changed.

    Example: stretto deploy update WordCount --module WordCount.py:WordCount
    """
    with tempfile.TemporaryDirectory(prefix="stretto-") as folder, reach(bootstrap, key) as cluster:
        [before] = cluster.ask(control.Modules(module=module))
        packed, manifest = artifact.load(source, Path(folder))
        supervisors = [node.address for node in cluster.ask(control.Nodes()) if node.address is not None]
        with bar("uploading") as tell:
            upload(
                cluster.network,
                supervisors,
                packed,
                copies=before.replication_factor,
                progress=lambda address, held, size: tell(held, size, f"to {address}"),
            )
        cluster.ask(
            control.Update(
                module=module, artifact=packed.digest, manifest=manifest, delete=tuple(delete or ())
            )
        )
        if no_wait:
            typer.echo(f"{module} is being updated; 'stretto module-status {module}' tells how far it is")
        else:
            view = _await_updated(cluster, module, packed.digest)
            typer.echo(f"{module} runs version {view.version} of its code")
    return 0


@app.command()
def reassign(
    module: ModuleName,
    node: Annotated[str, typer.Option("--from", metavar="NODE", help="The node to leave.")],
    force: Annotated[bool, typer.Option("--force", help="Also if only it has replicas in sync.")] = False,
    no_wait: Annotated[bool, typer.Option("--no-wait", help="Return once it is decided.")] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    key: Key = None,
) -> int:
    """Move a module's replicas from a node to others, while it serves.

    Refused if the node has the only replica in sync of a group; --force says what that would lose.

    Example: stretto deploy reassign WordCount --from node-1
    """
    with reach(bootstrap, key) as cluster:
        typer.echo(cluster.ask(control.Reassign(module=module, node=node, force=force)))
        _finish_move(cluster, module, no_wait=no_wait)
    return 0


@app.command("scale-executors")
def scale_executors(
    module: ModuleName,
    threads: Annotated[
        int | None,
        typer.Option(metavar="N", help="Task groups: at most tasks.", show_default=False),
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option(metavar="N", help="Processes for each replica: at most threads.", show_default=False),
    ] = None,
    replication_factor: Annotated[
        int | None,
        typer.Option(metavar="N", help="Replicas of each group, on different nodes.", show_default=False),
    ] = None,
    abandon: Annotated[
        bool, typer.Option("--abandon", help="Give up a change of threads that is under way.")
    ] = False,
    no_wait: Annotated[bool, typer.Option("--no-wait", help="Return once it is decided.")] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    key: Key = None,
) -> int:
    """Give a module more or fewer threads, worker processes or replicas, while it serves.

    Other threads regroup its tasks: for a moment it takes no records, and clients try again by themselves. If
    that is not done within a minute it is abandoned, and nothing has changed. What cannot be done at once is
    done in steps, each of which leaves a module that serves.

    Example: stretto deploy scale-executors WordCount --workers 2 --replication-factor 3

    Example: stretto deploy scale-executors WordCount --threads 8 --workers 4
    """
    given = (threads, workers, replication_factor)
    if abandon and given != (None, None, None):
        raise UsageError("--abandon gives up what is under way; say nothing else with it")
    if not abandon and given == (None, None, None):
        raise UsageError("nothing to scale; say --threads, --workers or --replication-factor")
    with reach(bootstrap, key) as cluster:
        if abandon:
            typer.echo(cluster.ask(control.AbandonScaling(module=module)))
            return 0
        [view] = cluster.ask(control.Modules(module=module))
        now = scaling.Shape(threads=view.threads, workers=view.workers, factor=view.replication_factor)
        wanted = now.or_else(*given)
        possible = cluster.ask(control.PossibleThreads(module=module))
        _take_steps(cluster, module, scaling.plan(view.tasks, now, wanted, possible), wanted, no_wait=no_wait)
    return 0


@app.command()
def pause(module: ModuleName, bootstrap: Bootstrap = DEFAULT_BOOTSTRAP, key: Key = None) -> int:
    """Let a module take no more records and run no more topologies, until it is resumed. Reads go on.

    Whoever appends is refused at once. It survives restarts.

    Example: stretto deploy pause WordCount
    """
    with reach(bootstrap, key) as cluster:
        cluster.ask(control.Pause(module=module))
        _await_workers(cluster, module, paused=True)
    typer.echo(f"{module} is paused; 'stretto deploy resume {module}' lets it go on")
    return 0


@app.command()
def resume(module: ModuleName, bootstrap: Bootstrap = DEFAULT_BOOTSTRAP, key: Key = None) -> int:
    """Let a module that was paused go on.

    Example: stretto deploy resume WordCount
    """
    with reach(bootstrap, key) as cluster:
        cluster.ask(control.Resume(module=module))
        _await_workers(cluster, module, paused=False)
    typer.echo(f"{module} runs")
    return 0


# Before.


def parsed_options(given: Sequence[str], module: str) -> dict[str, Any]:
    options = {}
    for each in given:
        option, equals, value = each.partition("=")
        if not equals:
            raise UsageError(f"an option is NAME=VALUE, not {each!r}")
        options[option] = parse(option, value, Level.of(module))
    return options


def _given_code(source: str | None, module: str | None) -> str:
    given = source or module
    if not given:
        raise UsageError("say which code to launch: stretto deploy launch FILE.py")
    if source and module:
        raise UsageError(f"say {source}, or --module {module}, and not both")
    return given


def _chosen(nodes: int, given: Mapping[str, int | None], shape: Shape) -> str:
    """Return the sizes that this command chose, as the options that a person would have given."""
    flags = {
        "tasks": f"--tasks {shape.tasks} (for good)",
        "threads": f"--threads {shape.threads}",
        "workers": f"--workers {shape.workers}",
        "factor": f"--replication-factor {shape.factor}",
    }
    told = " ".join(flag for size, flag in flags.items() if given[size] is None)
    return f"chosen for {nodes} {'node' if nodes == 1 else 'nodes'}: {told}"


def running_nodes(cluster: Cluster) -> list[control.NodeView]:
    """Return the nodes whose supervisors are registered."""
    return [node for node in cluster.ask(control.Nodes()) if node.address is not None]


def check_shape(nodes: Sequence[control.NodeView], shape: Shape) -> list[str]:
    """Check a shape with the planner that the conductor uses; returns the addresses of the supervisors."""
    assign(
        "module",
        generation=0,
        tasks=shape.tasks,
        threads=shape.threads,
        workers=shape.workers,
        factor=shape.factor,
        processes={node.node: node.workers for node in nodes},
    )
    return [node.address for node in nodes if node.address is not None]


def check_name(cluster: Cluster, module: str, option: str = "--name") -> None:
    """Raise UsageError if a module of this name exists."""
    if module in {each.module for each in cluster.ask(control.Modules())}:
        raise UsageError(
            f"there is a module {module} already; choose another {option}, or destroy that one first"
        )


def _confirm(view: control.ModuleView) -> None:
    if not sys.stdin.isatty():
        raise UsageError(f"nobody is there to be asked; add --yes to destroy {view.module} and all its data")
    names = [*(depot.name for depot in view.depots), *(pstate.name for pstate in view.pstates)]
    objects = ", ".join(names)
    typer.confirm(f"Destroy {view.module} and all data of {objects or 'it'}, for good?", abort=True)


# While it lasts.


@contextmanager
def bar(what: str) -> Iterator[Callable[[int, int, str], None]]:
    """Show a progress bar on a terminal, and nothing elsewhere.

    The function that it yields takes how much of how much is done, and a word on it.
    """
    console = Console(stderr=True)
    columns = (TextColumn(what), BarColumn(), TextColumn("{task.percentage:>3.0f}% {task.description}"))
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as shown:
        task = shown.add_task("", total=None)
        yield lambda done, total, word: shown.update(task, completed=done, total=total, description=word)


def await_led(cluster: Cluster, module: str) -> control.ModuleView:
    why = said = "no conductor answers"
    patience = time.monotonic() + PATIENCE_SECONDS
    with bar("launching") as tell:
        for modules in _looks(cluster):
            view = modules.get(module)
            if view is None:
                raise StrettoError(f"module {module} was destroyed while it was being launched")
            if view.state != ModuleState.LAUNCHING:
                return view
            up, processes = _running(view), len(view.processes)
            far = f"{up} of {processes} workers run, {view.led} of {view.groups} groups are led"
            tell(up + view.led, processes + view.groups, far)
            why = "; ".join([far, *view.problems])
            if why != said and time.monotonic() > patience:
                typer.echo(f"still launching: {why}", err=True)
                said = why
    raise StrettoError(
        f"{module} is still being launched after {WAIT_SECONDS:.0f} s: {why}; the launch goes on, "
        f"and 'stretto module-status {module}' shows it"
    )


def _take_steps(
    cluster: Cluster, module: str, steps: Sequence[scaling.Step], wanted: scaling.Shape, *, no_wait: bool
) -> None:
    if no_wait and len(steps) > 1:
        raise UsageError(f"this takes {len(steps)} steps, each after the other is done; leave out --no-wait")
    for number, step in enumerate(steps, 1):
        far = f"step {number} of {len(steps)}"
        try:
            said = cluster.ask(step.call(module)) if number == 1 else _begin_step(cluster, module, step)
            typer.echo(f"{far}: {said}" if len(steps) > 1 else said)
            if isinstance(step, scaling.Regroup):
                _finish_regrouping(cluster, module, step.threads, no_wait=no_wait)
            else:
                _finish_move(cluster, module, no_wait=no_wait)
        except StrettoError as error:
            if len(steps) == 1 or (number == 1 and isinstance(error, UsageError)):
                raise
            again = scaling.command(module, wanted)
            raise StrettoError(f"{far} is not done: {error}; then go on with '{again}'") from None


def _begin_step(cluster: Cluster, module: str, step: scaling.Step) -> str:
    """Begin a step after another one; it is repeated while leaders or a conductor are on their way."""
    deadline = time.monotonic() + STEP_SECONDS
    while True:
        try:
            [view] = cluster.ask(control.Modules(module=module))
            # An answer may have been lost, and what was asked for is begun.
            return "it goes on" if step.is_begun(view) else cluster.ask(step.call(module))
        except RetriableError:
            if time.monotonic() > deadline:
                raise
        time.sleep(LOOK_SECONDS)


def _finish_move(cluster: Cluster, module: str, *, no_wait: bool) -> None:
    if no_wait:
        typer.echo(f"it goes on by itself; 'stretto module-status {module}' tells how far it is")
        return
    view = _await_moved(cluster, module)
    nodes = len({process.node for process in view.processes})
    typer.echo(
        f"{module} has {view.replication_factor} replicas of {view.groups} groups, "
        f"{len(view.processes)} workers on {nodes} nodes"
    )


def _finish_regrouping(cluster: Cluster, module: str, threads: int, *, no_wait: bool) -> None:
    if no_wait:
        typer.echo(f"it goes on by itself; 'stretto module-status {module}' tells how far it is")
        return
    why = said = "no conductor answers"
    patience = time.monotonic() + PATIENCE_SECONDS
    for modules in _looks(cluster):
        view = modules.get(module)
        if view is None:
            raise StrettoError(f"module {module} was destroyed meanwhile")
        if view.state != ModuleState.SCALING and view.threads != threads:
            raise StrettoError(
                f"scaling to {threads} threads was abandoned, {module} still has {view.threads}; "
                f"'stretto operations' tells why"
            )
        if view.state != ModuleState.SCALING and view.led == view.groups:
            typer.echo(f"{module} has {view.tasks} tasks in {view.groups} groups")
            return
        why = "; ".join(view.problems)
        if why and why != said and time.monotonic() > patience:
            typer.echo(f"still scaling: {why}", err=True)
            said = why
    raise StrettoError(
        f"{module} is still being scaled after {WAIT_SECONDS:.0f} s: {why}; it goes on by itself, "
        f"'stretto module-status {module}' shows it"
    )


def _await_moved(cluster: Cluster, module: str) -> control.ModuleView:
    why = said = "no conductor answers"
    patience = time.monotonic() + PATIENCE_SECONDS
    with bar("moving") as tell:
        for modules in _looks(cluster):
            view = modules.get(module)
            if view is None:
                raise StrettoError(f"module {module} was destroyed meanwhile")
            if view.state != ModuleState.SCALING:
                return view
            far = f"{view.moved} of {view.groups} groups have their new replicas in sync"
            tell(view.moved, view.groups, far)
            why = "; ".join([far, *view.problems])
            if why != said and time.monotonic() > patience:
                typer.echo(f"still moving: {why}", err=True)
                said = why
    raise StrettoError(
        f"{module} has not moved after {WAIT_SECONDS:.0f} s: {why}; it goes on by itself, "
        f"'stretto catchup {module}' and 'stretto module-status {module}' show it"
    )


def _await_gone(cluster: Cluster, module: str, processes: int) -> None:
    why = said = "no conductor answers"
    patience = time.monotonic() + PATIENCE_SECONDS
    with bar("destroying") as tell:
        for modules in _looks(cluster):
            view = modules.get(module)
            if view is None:
                return
            running = _running(view)
            far = f"{running} of {processes} workers are left"
            tell(processes - running, processes, far)
            why = "; ".join([far, *view.problems])
            if why != said and time.monotonic() > patience:
                typer.echo(f"still being destroyed: {why}", err=True)
                said = why
    raise StrettoError(
        f"{module} is not gone after {WAIT_SECONDS:.0f} s: {why}; it goes on, "
        f"and 'stretto module-status {module}' shows it"
    )


def _await_updated(cluster: Cluster, module: str, digest: str) -> control.ModuleView:
    why = said = "no conductor answers"
    patience = time.monotonic() + PATIENCE_SECONDS
    for modules in _looks(cluster):
        view = modules.get(module)
        if view is None or view.state == ModuleState.DESTROYING:
            raise StrettoError(f"module {module} was destroyed while it was being updated")
        if view.state != ModuleState.UPDATING:
            if view.artifact == digest:
                return view
            failed = view.failed_update
            if failed is None:
                raise StrettoError(f"somebody else has updated {module} meanwhile; see 'stretto operations'")
            raise UpdateFailed(
                f"version {failed.version} does not load on node {failed.node}: {failed.why}; "
                f"{module} still runs version {view.version}",
                failed.traceback,
            )
        why = "; ".join(view.problems)
        if why and why != said and time.monotonic() > patience:
            typer.echo(f"still updating: {why}", err=True)
            said = why
    raise StrettoError(
        f"{module} is still being updated after {WAIT_SECONDS:.0f} s: {why}; the update goes on, "
        f"and 'stretto module-status {module}' shows it"
    )


def _await_workers(cluster: Cluster, module: str, *, paused: bool) -> None:
    """Wait until all registered workers have paused, or resumed."""
    late: list[str] = []
    for modules in _looks(cluster):
        view = modules.get(module)
        if view is None:
            raise StrettoError(f"module {module} was destroyed meanwhile")
        late = [each.worker for each in view.processes if each.address is not None and each.paused != paused]
        if not late:
            return
    raise StrettoError(
        f"workers {', '.join(late)} of {module} have not heard of it after {WAIT_SECONDS:.0f} s; "
        "they do when they reach ZooKeeper again"
    )


def _kept(cluster: Cluster, module: str) -> str:
    """Return what the destruction left behind; empty if nothing."""
    with suppress(RetriableError):
        for operation in cluster.ask(control.Operations(module=module, limit=1)):
            return operation.outcome.removeprefix("done")
    return ""


def _running(view: control.ModuleView) -> int:
    return sum(process.address is not None for process in view.processes)


def _looks(cluster: Cluster) -> Iterator[dict[str, control.ModuleView]]:
    """Yield all modules again and again for a while, through moments in which no conductor answers."""
    deadline = time.monotonic() + WAIT_SECONDS
    while time.monotonic() < deadline:
        with suppress(RetriableError):
            yield {view.module: view for view in cluster.ask(control.Modules())}
        time.sleep(LOOK_SECONDS)


# After.


def next_steps(view: control.ModuleView, samples: Mapping[str, str] | None = None) -> str:
    """Return what to try with a module that runs; ``samples`` are records of its depots, as JSON."""
    nodes = len({process.node for process in view.processes})
    shape = f"{view.tasks} tasks in {view.groups} groups, {len(view.processes)} workers on {nodes} nodes"
    lines = [f"{view.module} runs: {shape}.", *(f"! {problem}" for problem in view.problems)]
    known = samples or {}
    # Only Python has the function that chooses tasks.
    open_ = [depot.name for depot in view.depots if depot.rule != "custom"]
    for name in sorted(open_, key=lambda name: name not in known)[:1]:
        given = shlex.quote(known[name]) if name in known else "--file RECORDS.ndjson"
        lines.append(f"  append:  stretto append {view.module} {name} {given}")
        lines.append(f"  follow:  stretto tail {view.module} {name}")
    lines.append(f"  look:    stretto task-groups-status {view.module}")
    return "\n".join(lines)
