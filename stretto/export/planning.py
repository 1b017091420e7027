"""What is asked of an export, checked before Spark is started: that takes seconds, and these are sentences.

What was read is told by the data source itself, in a report; from that, and from what the job counted, comes
the manifest.
"""

from __future__ import annotations

import re
import secrets
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal, TypeAlias

import msgspec

from stretto.control import ModuleDescription
from stretto.errors import StrettoError, UsageError
from stretto.export.destination import files_in
from stretto.export.job import Done, Order
from stretto.export.manifest import Manifest, Part, TaskRead, check_joins, check_origin
from stretto.vocabulary.suggest import did_you_mean

Kind: TypeAlias = Literal["pstate", "depot"]

FORMATS = ("parquet", "json", "csv", "orc")
LAST = "last"
PUSHDOWN = "spark.sql.python.filterPushdown.enabled"

_OFFSETS = re.compile(r"\d+:\d+(,\d+:\d+)*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """An export as a person asked for it."""

    module: str
    object: str
    format: str
    where: str | None = None
    columns: tuple[str, ...] = ()
    partition_by: tuple[str, ...] = ()
    since: str | None = None
    at: str | None = None
    schema: str | None = None
    nested: str | None = None
    source: str | None = None
    overwrite: bool = False


def check_format(name: str) -> str:
    if name not in FORMATS:
        raise UsageError(f"there is no format {name}; {did_you_mean(name, FORMATS)}")
    return name


def kind_of(request: Request, description: ModuleDescription) -> Kind:
    """Whether the object is a PState or a depot.

    Raises UsageError for what the module does not have, or what cannot be asked of it.
    """
    depots = [depot.name for depot in description.depots or ()]
    pstates = [pstate.name for pstate in description.pstates]
    if request.object not in (*depots, *pstates):
        nearest = did_you_mean(request.object, (*depots, *pstates))
        raise UsageError(f"module {request.module} has no PState and no depot {request.object}; {nearest}")
    kind: Kind = "pstate" if request.object in pstates else "depot"
    if kind == "pstate" and request.since is not None:
        raise UsageError(
            f"{request.object} is a PState, which changes everywhere; --since is for depots, "
            "whose records stay what they are"
        )
    if kind == "pstate" and request.schema is not None:
        raise UsageError(f"{request.object} is a PState and has types of its own; --schema is for depots")
    if kind == "depot" and request.nested is not None:
        raise UsageError(f"{request.object} is a depot; --nested is for PStates")
    return kind


def starts_of(request: Request, present: Manifest | None, tasks: int) -> dict[int, int]:
    """Where to begin in a depot, by task; empty for its beginning.

    Raises UsageError for offsets that would leave a gap behind what is there, or repeat some of it.
    """
    since = request.since
    if since is None:
        return {}
    if since == LAST:
        return present.ends if present is not None else {}
    given = _offsets(since, tasks)
    if present is not None:
        ends = present.ends
        for task in range(tasks):
            if given.get(task, 0) != ends.get(task, 0):
                raise UsageError(
                    f"the export that is there ends at offset {ends.get(task, 0):,} of task {task}, and "
                    f"--since begins at {given.get(task, 0):,}: say --since last, or name another folder"
                )
    return given


def _offsets(text: str, tasks: int) -> dict[int, int]:
    if not _OFFSETS.fullmatch(text):
        raise UsageError(f"--since is 'last', or offsets by task such as 0:120,1:95, not {text!r}")
    pairs = [each.partition(":") for each in text.split(",")]
    offsets = {int(task): int(offset) for task, _, offset in pairs}
    if len(offsets) < len(pairs):
        raise UsageError(f"--since names a task twice: {text}")
    strange = [task for task in offsets if task >= tasks]
    if strange:
        raise UsageError(f"--since names task {strange[0]}, and there are tasks 0 to {tasks - 1}")
    return offsets


def check_present(request: Request, present: Manifest | None, origin: str = "") -> Manifest | None:
    """What is kept of the export that is there; raises UsageError if it is one of something else."""
    if present is None:
        return None
    if request.since is not None:
        check_joins(present, planned(request, "depot"))
        check_origin(present, origin, request.at)
        return present
    was, now = (
        (present.module, present.object, present.format),
        (request.module, request.object, request.format),
    )
    if was != now and not request.overwrite:
        raise UsageError(
            f"there is an export of {was[1]} of {was[0]} as {was[2]} in that folder; add --overwrite to "
            "replace it, or name another folder"
        )
    return None


def planned(request: Request, kind: Kind) -> Manifest:
    """The manifest of an export as far as it is known before anything is read."""
    return Manifest(
        module=request.module,
        object=request.object,
        kind=kind,
        format=request.format,
        where=request.where,
        columns=request.columns,
        partition_by=request.partition_by,
        schema={},
        rows=0,
        parts=(),
    )


def order_of(
    request: Request,
    kind: Kind,
    *,
    reach: dict[str, str],
    starts: dict[int, int],
    report: Path,
    into: Path,
    master: str,
    settings: dict[str, str],
) -> Order:
    """The order for the Spark job; ``reach`` says where the cluster is, as options of the data source."""
    options = reach | {"module": request.module, kind: request.object, "report": str(report)}
    if starts:
        options["start"] = msgspec.json.encode(starts).decode()
    for name, value in (("at", request.at), ("nested", request.nested), ("from", request.source)):
        if value is not None:
            options[name] = value
    if kind == "pstate":
        # What is not read of a depot because of a filter would be missing from the offsets that are told.
        options["filters"] = "pushed"
    return Order(
        options=options,
        schema=request.schema,
        format=request.format,
        where=request.where,
        columns=request.columns,
        partition_by=request.partition_by,
        into=str(into),
        master=master,
        settings=settings,
    )


def manifest_of(
    plan: Manifest,
    done: Done,
    tasks: tuple[TaskRead, ...],
    tree: Path,
    *,
    origin: str = "",
    at: str | None = None,
) -> Manifest:
    """The manifest of what a job wrote; raises StrettoError if that is not what was read."""
    if done.rows and not tree.exists():
        raise StrettoError(
            "Spark's executors wrote the rows where this machine does not see them; "
            "export to a folder that all of them share"
        )
    tree.mkdir(exist_ok=True)
    for unseen in [*tree.rglob(".*.crc"), *tree.rglob("_SUCCESS")]:
        unseen.unlink()
    expected = sum(each.end - each.start for each in tasks if each.end is not None and each.start is not None)
    if plan.kind == "depot" and plan.where is None and done.rows != expected:
        raise StrettoError(
            f"{done.rows:,} rows were written of {expected:,} records; nothing is published, report this"
        )
    files = tuple(sorted(files_in(tree)))
    sizes = {file: (tree / file).stat().st_size for file in files}
    part = Part(
        id=secrets.token_hex(8),
        time=datetime.now(UTC).isoformat(timespec="seconds"),
        rows=done.rows,
        bytes=sum(sizes.values()),
        files=files,
        sizes=sizes,
        tasks=tasks,
        at=at,
    )
    return msgspec.structs.replace(
        plan,
        origin=origin,
        as_json=done.as_json,
        as_microseconds=done.as_microseconds,
        schema=done.schema,
        rows=done.rows,
        parts=(part,),
    )


def is_nothing_new(made: Manifest) -> bool:
    """Whether a part of a depot ends where it begins, on all tasks."""
    return all(each.start == each.end for each in made.parts[0].tasks)


def without_files(made: Manifest, tree: Path) -> Manifest:
    """The part without its files, which have no rows: it only says how far the depot was looked through."""
    [part] = made.parts
    for file in part.files:
        (tree / file).unlink()
    return msgspec.structs.replace(made, parts=(msgspec.structs.replace(part, files=(), sizes={}, bytes=0),))
