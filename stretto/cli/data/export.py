"""``stretto export``: a PState or a depot as files, written by a Spark job."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, NamedTuple

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
from rich.progress import Progress as Bar

from stretto.cli.cluster import DEFAULT_BOOTSTRAP, Bootstrap, Json, Key, ModuleName, reach
from stretto.cli.data.serving import described
from stretto.cli.output import print_json
from stretto.control import ModuleDescription
from stretto.errors import UsageError
from stretto.export import planning
from stretto.export.destination import Destination
from stretto.export.job import Progress
from stretto.export.manifest import Manifest
from stretto.export.report import read_report
from stretto.export.running import run_job
from stretto.process.java import require_java
from stretto.snapshot.finding import folder_of
from stretto.snapshot.reading import open_snapshot

MASTER = "local[*]"
SAY_SECONDS = 5.0

#: Settings of Spark, unless a person gives others.
SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
    planning.PUSHDOWN: "true",
    # A folder is published as a whole, which says more than an empty file in it.
    "spark.hadoop.mapreduce.fileoutputcommitter.marksuccessfuljobs": "false",
}
#: Settings of a local Spark, which only this machine may reach.
LOCAL_SETTINGS = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}


class _Spark(NamedTuple):
    master: str
    settings: dict[str, str]


def export(
    module: ModuleName,
    object_: Annotated[
        str,
        typer.Argument(metavar="OBJECT", help="One of its PStates or depots.", show_default=False),
    ],
    to: Annotated[
        Path, typer.Option("--to", metavar="DIR", help="The folder of the export.", show_default=False)
    ],
    format_: Annotated[
        str, typer.Option("--format", metavar="FORMAT", help="parquet, json, csv or orc.")
    ] = "parquet",
    where: Annotated[
        str | None,
        typer.Option(metavar="SQL", help="Only rows for which this holds.", show_default=False),
    ] = None,
    columns: Annotated[
        str | None, typer.Option(metavar="NAME,...", help="Only these columns.", show_default=False)
    ] = None,
    partition_by: Annotated[
        str | None,
        typer.Option(metavar="NAME,...", help="A folder for each value of these.", show_default=False),
    ] = None,
    since: Annotated[
        str | None,
        typer.Option(
            metavar="last|OFFSETS",
            help="Of a depot: add what came since the last export, or from offsets such as 0:120,1:95.",
            show_default=False,
        ),
    ] = None,
    at: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="What the snapshot of this name has.", show_default=False),
    ] = None,
    nested: Annotated[
        str | None,
        typer.Option(
            metavar="rows|map", help="Inner dicts: a row for each key, or maps.", show_default=False
        ),
    ] = None,
    schema: Annotated[
        str | None,
        typer.Option(
            metavar="SQL", help="Of a depot's records: 'page STRING, at TIMESTAMP'.", show_default=False
        ),
    ] = None,
    from_: Annotated[
        str | None,
        typer.Option("--from", metavar="follower|leader", help="Who serves it.", show_default=False),
    ] = None,
    master: Annotated[str, typer.Option(metavar="URL", help="Spark's master.")] = MASTER,
    conf: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="A setting of Spark; may be repeated.", show_default=False),
    ] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Also if the folder has an export of something else.")
    ] = False,
    as_json: Json = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    key: Key = None,
) -> int:
    """Export a PState or a depot as files. An export that is there is replaced when the new one is whole.

    Each task group is read at one exact apply offset; the manifest beside the folder tells which. CSV has no
    nested columns: these are written as JSON.

    Example: stretto export WordCount counts --to exports/counts --format parquet

    Example: stretto export PageViews views --to exports/views --format json --since last
    """
    request = planning.Request(
        module=module,
        object=object_,
        format=planning.check_format(format_),
        where=where,
        columns=_names(columns),
        partition_by=_names(partition_by),
        since=since,
        at=at,
        schema=schema,
        nested=nested,
        source=from_,
        overwrite=overwrite,
    )
    spark = _Spark(master, _settings(master, conf or []))
    require_java()
    description = _description(bootstrap, key, module, at)
    kind = planning.kind_of(request, description)
    reach = {"bootstrap": bootstrap} | ({"key": str(key.absolute())} if key is not None else {})
    destination = Destination(to)
    try:
        with destination.locked():
            manifest, is_new = _export(
                request, kind, description, destination, spark=spark, reach=reach, quiet=as_json
            )
    except KeyboardInterrupt:
        typer.echo(f"stretto: interrupted; {destination.folder} is as it was", err=True)
        raise
    if as_json:
        print_json(manifest)
    else:
        typer.echo(_summary(manifest, destination.folder, is_new=is_new))
    return 0


def _description(bootstrap: str, key: Path | None, module: str, at: str | None) -> ModuleDescription:
    """Return what there is to export.

    A snapshot may have other objects than its module, which may be gone.
    """
    if at is None:
        with described(bootstrap, key, module) as (_, description):
            return description
    with reach(bootstrap, key) as cluster:
        folder = folder_of(cluster, module, at)
    with open_snapshot(folder) as snapshot:
        return snapshot.description


def _names(text: str | None) -> tuple[str, ...]:
    names = tuple(each.strip() for each in (text or "").split(",") if each.strip())
    if len(set(names)) < len(names):
        raise UsageError(f"{text} names a column twice")
    return names


def _settings(master: str, conf: list[str]) -> dict[str, str]:
    given = {}
    for each in conf:
        name, equals, value = each.partition("=")
        if not equals:
            raise UsageError(f"a setting of Spark is NAME=VALUE, not {each!r}")
        given[name] = value
    return SETTINGS | (LOCAL_SETTINGS if master.startswith("local") else {}) | given


def _export(
    request: planning.Request,
    kind: planning.Kind,
    description: ModuleDescription,
    destination: Destination,
    *,
    spark: _Spark,
    reach: dict[str, str],
    quiet: bool,
) -> tuple[Manifest, bool]:
    """Export, and return the manifest in force and whether it has changed."""
    present = destination.present()
    kept = planning.check_present(request, present, description.origin_of(request.object))
    starts = planning.starts_of(request, kept, description.tasks)
    with _progress(quiet) as tell:
        order = planning.order_of(
            request,
            kind,
            reach=reach,
            starts=starts,
            report=destination.report,
            into=destination.tree,
            master=spark.master,
            settings=spark.settings,
        )
        done = run_job(order, tell)
        origin, tasks = read_report(destination.report, starts if kind == "depot" else None)
        plan = planning.planned(request, kind)
        made = planning.manifest_of(plan, done, tasks, destination.tree, origin=origin, at=request.at)
    if kept is None:
        destination.publish(made)
        return made, True
    whole = kept.continued(made)
    if planning.is_nothing_new(made):
        return kept, False
    if not made.rows:
        whole = kept.continued(planning.without_files(made, destination.tree))
    destination.publish(whole, kept)
    return whole, True


@contextmanager
def _progress(quiet: bool) -> Iterator[Callable[[Progress], None]]:
    """Show a progress bar on a terminal; elsewhere print a line now and then."""
    console = Console(stderr=True)
    if quiet or not console.is_terminal:
        yield _Lines(quiet).tell
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Bar(*columns, console=console, transient=True) as bar:
        task = bar.add_task("starting Spark", total=None)
        yield lambda now: bar.update(task, description="exporting", completed=now.done, total=now.tasks)


class _Lines:
    def __init__(self, quiet: bool) -> None:
        self._quiet = quiet
        self._said_at = time.monotonic()

    def tell(self, now: Progress) -> None:
        if not self._quiet and time.monotonic() - self._said_at > SAY_SECONDS:
            self._said_at = time.monotonic()
            typer.echo(f"{now.done} of {now.tasks} parts are written", err=True)


def _summary(manifest: Manifest, folder: Path, *, is_new: bool) -> str:
    part = manifest.parts[-1]
    if not is_new:
        return (
            f"{manifest.object} of {manifest.module}: no records came since, {folder} is as it was, with "
            f"{manifest.rows:,} rows"
        )
    files = f"{len(part.files):,} file" + ("" if len(part.files) == 1 else "s")
    rows = f"{part.rows:,} row" + ("" if part.rows == 1 else "s")
    lines = [f"{manifest.object} of {manifest.module}: {rows} in {files} ({part.bytes:,} bytes), {folder}"]
    if len(manifest.parts) > 1:
        lines.append(f"  with the {len(manifest.parts) - 1} parts before it, {manifest.rows:,} rows")
    if manifest.as_json:
        lines.append(
            f"  as JSON text, because {manifest.format} has no nested columns: {', '.join(manifest.as_json)}"
        )
    if manifest.as_microseconds:
        lines.append(
            f"  durations as whole numbers of microseconds, because {manifest.format} has none: "
            f"{', '.join(manifest.as_microseconds)}"
        )
    return "\n".join(lines)
