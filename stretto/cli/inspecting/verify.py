"""``stretto verify``: whether all replicas of a module hold the same."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Annotated

import typer
from rich.console import Console, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.text import Text

from stretto.cli.cluster import DEFAULT_BOOTSTRAP, Bootstrap, Json, Key, ModuleName, reach
from stretto.cli.output import console, paragraphs, print_json, sentences, table
from stretto.client.api import Client
from stretto.client.operating.status import newest_groups
from stretto.client.operating.verify import Verdict, all_equal
from stretto.client.operating.verify import verify as verify_all

DIGITS = 12
TIMEOUT_SECONDS = 300.0


def verify(
    module: ModuleName,
    timeout: Annotated[float, typer.Option(min=1, help="Seconds to wait for each group.")] = TIMEOUT_SECONDS,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    key: Key = None,
    as_json: Json = False,
) -> int:
    """Compare what the replicas of every task group hold, at one entry of its log.

    The module goes on working meanwhile. Exits 1 if any two differ, or if one did not get there in time.

    Example: stretto verify WordCount
    """
    with reach(bootstrap, key) as cluster:
        metadata = cluster.metadata()
        groups = len(newest_groups(metadata, module))
        Client(cluster.network).refresh()
        with Progress(
            TextColumn("comparing replicas"),
            BarColumn(),
            MofNCompleteColumn(),
            console=Console(stderr=True),
            disable=as_json or not sys.stderr.isatty(),
            transient=True,
        ) as progress:
            bar = progress.add_task("groups", total=groups)
            verdicts = verify_all(
                cluster.network, metadata, module, timeout=timeout, progress=lambda _: progress.advance(bar)
            )
    if as_json:
        print_json(verdicts)
    else:
        console().print(render(module, verdicts))
    return 0 if all_equal(verdicts) else 1


def render(module: str, verdicts: Sequence[Verdict]) -> RenderableType:
    made = table(("group", "right"), ("at entry", "right"), ("task", "right"), "digest", "replicas")
    for verdict in verdicts:
        for task, found in verdict.digests.items():
            for digest in sorted(set(found.values())):
                made.add_row(
                    str(verdict.group.group),
                    "-" if verdict.offset is None else str(verdict.offset),
                    str(task),
                    digest[:DIGITS],
                    " ".join(worker for worker, each in found.items() if each == digest),
                )
    problems = [problem for verdict in verdicts for problem in _problems(verdict)]
    compared = sum(len(verdict.digests) for verdict in verdicts)
    summary = (
        Text(f"{module}: all replicas of {compared} tasks hold the same", style="green")
        if all_equal(verdicts)
        else sentences(problems)
    )
    return paragraphs(made, summary)


def _problems(verdict: Verdict) -> list[str]:
    number = verdict.group.group
    problems = [
        f"replicas of task {task} in group {number} DIFFER: keep all of them, and report this"
        for task in verdict.different
    ]
    if verdict.offset is None:
        problems.append(f"group {number} could not be compared: {verdict.why}")
    elif verdict.missing:
        workers = ", ".join(verdict.missing)
        problems.append(f"{workers} did not get there with group {number}; see 'stretto catchup', try again")
    return problems
