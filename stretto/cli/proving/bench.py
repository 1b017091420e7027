"""``stretto bench``: a table of measures, each next to its floor."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec
import typer

from stretto.bench import MEASURES, Measure, Result, run
from stretto.errors import UsageError
from stretto.process.java import require_java


def bench(
    only: Annotated[
        str | None, typer.Option(metavar="NAME", help=f"One of: {', '.join(m.name for m in MEASURES)}.")
    ] = None,
    directory: Annotated[
        Path | None,
        typer.Option("--dir", help="Measure the disk that holds this folder.", show_default=False),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Machine-readable output.")] = False,
) -> int:
    """Measure stretto on this machine, next to what the machine can do. Exits 1 if a target is missed.

    Example: stretto bench --only append --dir data
    """
    measures = _chosen(only)
    if directory is not None and not directory.is_dir():
        raise UsageError(f"--dir must name an existing folder, and {directory} is none")
    if any(measure.needs_java for measure in measures):
        require_java()
    rows: list[dict[str, object]] = []
    met = True
    if not as_json:
        typer.echo(_HEADING)
    for measure, result in run(measures, directory):
        met &= result.met
        rows.append(_row(measure, result))
        if not as_json:
            _print(measure, result)
    if as_json:
        typer.echo(msgspec.json.encode(rows).decode())
    return 0 if met else 1


_HEADING = f"{'measure':<10} {'value':>14} {'floor':>14} {'ratio':>6} {'target':>8}  result"


def _print(measure: Measure, result: Result) -> None:
    floor = "-" if result.floor is None else f"{_figure(result.floor)} {result.unit}"
    ratio = "-" if result.ratio is None else f"{result.ratio:.2f}"
    target = f"{'<=' if result.at_most else '>='} {result.target:.3g}"
    value = f"{_figure(result.value)} {result.unit}"
    typer.echo(
        f"{measure.name:<10} {value:>14} {floor:>14} {ratio:>6} {target:>8}  "
        f"{'met' if result.met else 'MISSED'}\n           {measure.summary}"
        + (f" ({result.detail})" if result.detail else "")
    )


def _figure(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 else f"{value:.2f}"


def _row(measure: Measure, result: Result) -> dict[str, object]:
    return {
        "name": measure.name,
        "summary": measure.summary,
        "value": result.value,
        "floor": result.floor,
        "unit": result.unit,
        "ratio": result.ratio,
        "target": result.target,
        "at_most": result.at_most,
        "met": result.met,
        "detail": result.detail,
    }


def _chosen(only: str | None) -> tuple[Measure, ...]:
    chosen = tuple(measure for measure in MEASURES if only in (None, measure.name))
    if not chosen:
        names = ", ".join(measure.name for measure in MEASURES)
        raise UsageError(f"there is no measure {only}; choose one of {names}")
    return chosen
