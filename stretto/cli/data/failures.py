"""``stretto failures``: records that a module's functions failed on, with what they raised."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Annotated

import typer
from rich.console import RenderableType
from rich.text import Text

from stretto import control
from stretto.cli.cluster import DEFAULT_BOOTSTRAP, Bootstrap, Json, Key, ModuleName, Watch, reach
from stretto.cli.output import duration, paragraphs, sentences, show, table
from stretto.client.operating.failures import ModuleFailures, find_failures, settle_failures
from stretto.errors import StrettoError, UsageError

TRACEBACKS_SHOWN = 3


def failures(
    module: ModuleName,
    topology: Annotated[
        str | None, typer.Option(metavar="NAME", help="Only those of this topology.", show_default=False)
    ] = None,
    depot: Annotated[
        str | None, typer.Option(metavar="NAME", help="Only records of this depot.", show_default=False)
    ] = None,
    task: Annotated[
        int | None, typer.Option(metavar="N", help="Only records of this task.", show_default=False)
    ] = None,
    offset: Annotated[
        int | None,
        typer.Option(
            metavar="N", help="Only records at this offset; each task of a depot has one.", show_default=False
        ),
    ] = None,
    retry: Annotated[bool, typer.Option("--retry", help="Try them again.")] = False,
    forget: Annotated[bool, typer.Option("--forget", help="Forget them.")] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    key: Key = None,
    as_json: Json = False,
    watch: Watch = False,
) -> None:
    """Show the records that a module's functions failed on and that are not tried again.

    Each is shown with what its function raised and how the record begins. Mend the code, update the module
    and have them tried again; or forget them.

    Example: stretto failures WordCount

    Example: stretto failures WordCount --topology split --retry

    Example: stretto failures WordCount --depot sentences --task 3 --offset 5 --forget
    """
    if retry and forget:
        raise UsageError("choose one of --retry and --forget")

    def is_wanted(failure: control.FailureView) -> bool:
        asked = (topology, depot, task, offset)
        told = (failure.topology, failure.depot, failure.task, failure.offset)
        return all(each in (None, found) for each, found in zip(asked, told, strict=True))

    with reach(bootstrap, key) as cluster:
        if retry or forget:
            count = settle_failures(cluster, module, is_wanted, again=retry)
            if not count and offset is not None:
                raise StrettoError(
                    f"{module}: no such record is parked, so nothing was done; "
                    f"'stretto failures {module}' shows those that are"
                )
            typer.echo(_settled(module, count, again=retry))
            return

        def fetch() -> ModuleFailures:
            return find_failures(cluster, module, is_wanted)

        show(fetch, lambda found: render(module, found), json=as_json, watch=watch)


def _settled(module: str, count: int, *, again: bool) -> str:
    if not count:
        return f"{module}: no such record is parked, so nothing was done"
    records = "1 record" if count == 1 else f"{count:,} records"
    return f"{records} of {module} will be tried again" if again else f"forgot {records} of {module}"


def render(module: str, found: ModuleFailures) -> RenderableType:
    parts: list[RenderableType] = []
    if found.problems:
        parts.append(sentences(found.problems))
    lag = sum(stream.lag for stream in found.streams)
    retrying = sum(stream.retrying for stream in found.streams)
    if retrying or lag:
        waiting = f"{retrying:,} failed and are tried again, {lag:,} wait to be processed"
        parts.append(Text(f"{module}: of its records {waiting}"))
    if not found.parked:
        parts.append(Text(f"{module}: no record is parked"))
        return paragraphs(*parts)
    if found.more:
        parts.append(Text(f"{module}: more records are parked than these {len(found.parked):,}"))
    return paragraphs(*parts, _table(found.parked), *_tracebacks(found.parked))


def _table(parked: Sequence[control.FailureView]) -> RenderableType:
    made = table(
        "topology",
        "depot",
        ("task", "right"),
        ("offset", "right"),
        ("since", "right"),
        ("attempts", "right"),
        "error",
    )
    now_ms = time.time() * 1_000
    for each in parked:
        made.add_row(
            each.topology,
            each.depot,
            str(each.task),
            f"{each.offset:,}",
            duration(max(0, now_ms - each.at_ms)),
            str(each.attempts),
            each.error,
        )
    return made


def _tracebacks(parked: Sequence[control.FailureView]) -> list[Text]:
    """Return the tracebacks of the latest failures; the JSON has all of them."""
    latest = sorted(parked, key=lambda each: -each.at_ms)[:TRACEBACKS_SHOWN]
    return [
        Text(
            f"{each.topology}, record {each.offset} of {each.depot} on task {each.task}: {each.record}\n"
            f"{each.traceback.rstrip() or each.error}"
        )
        for each in latest
    ]
