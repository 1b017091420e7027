"""``stretto snapshot``: named, consistent copies of a module's state, made, listed, checked, restored."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console, RenderableType
from rich.progress import BarColumn, Progress, TextColumn
from rich.text import Text

from stretto import control
from stretto.artifact.archive import Artifact
from stretto.cli.cluster import DEFAULT_BOOTSTRAP, Bootstrap, Json, Key, ModuleName, Watch, reach
from stretto.cli.deploying.deploy import (
    await_led,
    bar,
    check_name,
    check_shape,
    next_steps,
    parsed_options,
    running_nodes,
)
from stretto.cli.deploying.sizing import Shape
from stretto.cli.output import console, paragraphs, print_json, sentences, show, table
from stretto.client.operating.cluster import Cluster
from stretto.client.operating.upload import upload
from stretto.errors import StrettoError, UsageError
from stretto.module.module import check_module_name
from stretto.snapshot.checking import Verdict, check
from stretto.snapshot.creating import TIMEOUT_SECONDS, default_name
from stretto.snapshot.creating import create as create_snapshot
from stretto.snapshot.keeping import delete_files, too_many
from stretto.snapshot.manifest import ARTIFACT, MANIFEST, Manifest, read_manifest
from stretto.snapshot.options import lines_of, options_to_restore
from stretto.specs.modules import RestoredFrom
from stretto.vocabulary.suggest import did_you_mean

DIGITS = 12

app = typer.Typer(no_args_is_help=True, help="Make, list, verify, restore and delete snapshots of modules.")


@app.command()
def create(
    module: ModuleName,
    to: Annotated[
        Path,
        typer.Option(
            metavar="DIR", help="A folder that all nodes and this machine share.", show_default=False
        ),
    ],
    name: Annotated[str | None, typer.Option(help="What to call it.", show_default="the time")] = None,
    retain: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=1,
            help="Keep the N newest of the module, and delete the others.",
            show_default="snapshot.retain",
        ),
    ] = None,
    timeout: Annotated[
        float, typer.Option(min=1, help="Seconds in which nothing may come forward.")
    ] = TIMEOUT_SECONDS,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    key: Key = None,
    as_json: Json = False,
) -> int:
    """Copy the state of a module that runs to DIR/M/NAME, all tasks between the same two microbatches.

    Followers make the copies. Topologies wait for a moment, records are taken all the while.

    Example: stretto snapshot create Bank --to /backup
    """
    with reach(bootstrap, key) as cluster:
        with _telling() as tell:
            folder, manifest, kept = create_snapshot(
                cluster, module, name or default_name(), to, timeout=timeout, progress=tell
            )
        gone = _retire(cluster, module, kept if retain is None else retain)
    if as_json:
        print_json(manifest)
    else:
        typer.echo(f"{folder}: {len(manifest.tasks)} tasks, {manifest.size_bytes:,} bytes")
        for each in gone:
            typer.echo(f"  deleted {each}, of which there were too many")
    return 0


@app.command("list")
def list_(
    module: Annotated[
        str | None, typer.Argument(metavar="[M]", help="Only of this module.", show_default=False)
    ] = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    key: Key = None,
    as_json: Json = False,
    watch: Watch = False,
) -> int:
    """Show the snapshots that the cluster knows of, oldest first.

    Example: stretto snapshot list Bank
    """
    with reach(bootstrap, key) as cluster:
        show(lambda: cluster.ask(control.Snapshots(module=module)), render, json=as_json, watch=watch)
    return 0


@app.command()
def verify(
    snapshot: Annotated[
        str, typer.Argument(metavar="SNAPSHOT", help="Its folder, M/NAME or NAME.", show_default=False)
    ],
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    key: Key = None,
    as_json: Json = False,
) -> int:
    """Read a snapshot again: hashes, what its tasks hold, and that all are between the same microbatches.

    A folder needs no cluster. Exits 1 if anything is not as the manifest says.

    Example: stretto snapshot verify /backup/Bank/20260131T120000Z
    """
    folder = _folder_of(snapshot, bootstrap, key)
    size = read_manifest(folder).size_bytes
    with _telling() as tell:
        done = 0

        def checked(count: int) -> None:
            nonlocal done
            done += count
            tell("checking", done, size)

        verdict = check(folder, checked)
    print_json(verdict) if as_json else console().print(render_verdict(verdict))
    return 0 if verdict.is_good else 1


@app.command()
def restore(
    snapshot: Annotated[
        str, typer.Argument(metavar="SNAPSHOT", help="Its folder, M/NAME or NAME.", show_default=False)
    ],
    module: Annotated[
        str | None, typer.Option(metavar="M", help="Call it this.", show_default="as it was")
    ] = None,
    tasks: Annotated[int | None, typer.Option(hidden=True)] = None,
    threads: Annotated[
        int | None, typer.Option(metavar="N", help="Task groups.", show_default="as it had")
    ] = None,
    workers: Annotated[
        int | None, typer.Option(metavar="N", help="Processes for each replica.", show_default="as it had")
    ] = None,
    replication_factor: Annotated[
        int | None, typer.Option(metavar="N", help="Replicas of each group.", show_default="as it had")
    ] = None,
    option: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="Of the module; may be repeated.", show_default=False),
    ] = None,
    no_options: Annotated[
        bool, typer.Option("--no-options", help="Leave out what was set for it when the snapshot was made.")
    ] = False,
    no_wait: Annotated[bool, typer.Option("--no-wait", help="Return once it is decided.")] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    key: Key = None,
) -> int:
    """Launch a module anew, in any cluster, with the code, the state and the options of a snapshot.

    All nodes have to see its folder. It is verified first.

    Example: stretto snapshot restore /backup/Bank/20260131T120000Z --module Bank
    """
    folder = _folder_of(snapshot, bootstrap, key).absolute()
    manifest = read_manifest(folder)
    called = check_module_name(module or manifest.module)
    count = len(manifest.tasks)
    if tasks is not None and tasks != count:
        raise UsageError(f"the snapshot has {count} tasks, for good; leave --tasks out, not {tasks}")
    shape = Shape(
        tasks=count,
        threads=threads or len(manifest.groups),
        workers=workers or manifest.workers,
        factor=replication_factor or manifest.replication_factor,
    )
    given = parsed_options(option or (), called)
    options, of_objects = (given, ()) if no_options else options_to_restore(manifest, called, given)
    with reach(bootstrap, key) as cluster:
        supervisors = check_shape(running_nodes(cluster), shape)
        check_name(cluster, called, "--module")
        _require_good(folder)
        _require_seen(cluster, folder, manifest)
        _upload(cluster, supervisors, folder, manifest, shape.factor)
        cluster.ask(
            control.Launch(
                module=called,
                artifact=manifest.artifact,
                manifest=manifest.module_manifest,
                tasks=count,
                threads=shape.threads,
                workers=shape.workers,
                replication_factor=shape.factor,
                options=options,
                object_options=of_objects,
                restored=RestoredFrom(folder=str(folder), checksum=manifest.checksum),
                version=manifest.version,
                deleted=manifest.deleted,
                writers=manifest.writers or {},
                origin=manifest.origin or "",
            )
        )
        for line in lines_of(options, of_objects, called):
            typer.echo(f"  option {line}")
        if no_wait:
            typer.echo(f"{called} is being restored; 'stretto module-status {called}' tells how far it is")
        else:
            typer.echo(next_steps(await_led(cluster, called)))
    return 0


@app.command()
def delete(
    module: ModuleName,
    name: Annotated[str, typer.Argument(metavar="NAME", help="The snapshot.", show_default=False)],
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    forget: Annotated[
        bool, typer.Option("--forget", help="Strike it off the list, and leave its files alone.")
    ] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    key: Key = None,
) -> int:
    """Delete a snapshot and its files, for good.

    Example: stretto snapshot delete Bank 20260131T120000Z
    """
    with reach(bootstrap, key) as cluster:
        known = cluster.ask(control.Snapshots(module=module))
        found = _named(known, module, name)
        if not yes and not forget:
            _confirm(found)
        if not forget:
            delete_files(found)
        cluster.ask(control.ForgetSnapshot(module=module, name=name))
    typer.echo(f"{module}/{name} is {'forgotten' if forget else 'gone'}")
    return 0


# What people name.


def _folder_of(snapshot: str, bootstrap: str, key: Path | None) -> Path:
    path = Path(snapshot)
    if path.is_dir() or (path / MANIFEST).exists():
        return path
    module, slash, name = snapshot.rpartition("/")
    if path.is_absolute() or "/" in module:
        raise UsageError(f"there is no folder {snapshot}; check the path")
    with reach(bootstrap, key) as cluster:
        found = cluster.ask(control.Snapshots(module=module if slash else None))
    if slash:
        return Path(_named(found, module, name).folder)
    same = [each for each in found if each.name == snapshot]
    if len(same) > 1:
        choice = " or ".join(f"{each.module}/{each.name}" for each in same)
        raise UsageError(f"several modules have a snapshot {snapshot}; write {choice}")
    if not same:
        near = did_you_mean(snapshot, [each.name for each in found])
        raise UsageError(f"there is no folder and no snapshot {snapshot}; {near}")
    return Path(same[0].folder)


def _named(snapshots: Sequence[control.SnapshotView], module: str, name: str) -> control.SnapshotView:
    found = next((each for each in snapshots if each.name == name), None)
    if found is None:
        near = did_you_mean(name, [each.name for each in snapshots])
        raise UsageError(f"there is no snapshot {name} of {module}; {near}")
    return found


def _confirm(snapshot: control.SnapshotView) -> None:
    if not sys.stdin.isatty():
        raise UsageError(
            f"nobody is there to be asked; add --yes to delete {snapshot.name} and all its files"
        )
    typer.confirm(f"Delete {snapshot.folder}, for good?", abort=True)


def _retire(cluster: Cluster, module: str, keep: int) -> list[str]:
    """Delete the snapshots that are too many; one that cannot be deleted from here stays, with a message."""
    gone = []
    known = cluster.ask(control.Snapshots(module=module))
    for each in too_many(known, keep):
        try:
            delete_files(each)
            cluster.ask(control.ForgetSnapshot(module=module, name=each.name))
            gone.append(each.folder)
        except StrettoError as error:
            typer.echo(f"! {each.name} was not deleted: {error}", err=True)
    return gone


# Restoring.


def _require_good(folder: Path) -> None:
    with _telling() as tell:
        tell("checking", 0, None)
        verdict = check(folder)
    if not verdict.is_good:
        raise StrettoError(f"{folder} is damaged: {'; '.join(verdict.all_problems)}; use another snapshot")


def _require_seen(cluster: Cluster, folder: Path, manifest: Manifest) -> None:
    call = control.SeesSnapshot(folder=str(folder), checksum=manifest.checksum)
    for node in cluster.ask(control.Nodes()):
        why = "" if node.address is None else cluster.ask_worker(node.address, call)
        if why:
            raise StrettoError(
                f"node {node.node} cannot use the snapshot: {why}; put it where all nodes see it under the "
                "same path"
            )


def _upload(
    cluster: Cluster, supervisors: Sequence[str], folder: Path, manifest: Manifest, copies: int
) -> None:
    path = folder / ARTIFACT
    packed = Artifact(path=path, digest=manifest.artifact, size=path.stat().st_size)
    with bar("uploading") as tell:
        upload(
            cluster.network,
            supervisors,
            packed,
            copies=copies,
            progress=lambda address, held, size: tell(held, size, f"to {address}"),
        )


# What people see.


@contextmanager
def _telling() -> Iterator[Telling]:
    told = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:>3.0f}%"))
    with Progress(*columns, console=told, transient=True, disable=not told.is_terminal) as shown:
        yield Telling(shown)


class Telling:
    """A progress bar on a terminal, and nothing elsewhere."""

    def __init__(self, shown: Progress) -> None:
        self._shown = shown
        self._task = shown.add_task("", total=None)

    def __call__(self, what: str, done: int, of: int | None) -> None:
        self._shown.update(self._task, description=what, completed=done, total=of)


def render(snapshots: Sequence[control.SnapshotView]) -> RenderableType:
    if not snapshots:
        return Text("no snapshots; make one with 'stretto snapshot create M --to DIR'")
    made = table("module", "name", "made at", "state", ("tasks", "right"), ("bytes", "right"), "folder")
    for each in snapshots:
        made.add_row(
            each.module,
            each.name,
            time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(each.at_ms / 1_000)),
            each.state,
            str(each.tasks),
            f"{each.size_bytes:,}" if each.state == "complete" else "-",
            each.folder,
        )
    return made


def render_verdict(verdict: Verdict) -> RenderableType:
    made = table(("task", "right"), ("at entry", "right"), ("bytes", "right"), "digest", "")
    for task in verdict.tasks:
        made.add_row(
            str(task.task),
            str(task.offset),
            f"{task.size_bytes:,}",
            task.digest[:DIGITS],
            "DAMAGED" if task.why else "good",
        )
    summary = (
        Text(
            f"{verdict.module}/{verdict.name}: all {len(verdict.tasks)} tasks are as they were cut",
            style="green",
        )
        if verdict.is_good
        else sentences(verdict.all_problems)
    )
    return paragraphs(made, summary)
