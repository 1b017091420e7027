"""``stretto sim --microbatch``: seeds and mutants of the other world."""

from __future__ import annotations

import time
from pathlib import Path

import msgspec
import typer

from stretto.errors import UsageError
from stretto.sim.campaign import Summary
from stretto.sim.microbatch.campaign import catch_all, guards_of, run_seeds
from stretto.sim.microbatch.mutants import MUTANTS
from stretto.sim.microbatch.plan import Plan
from stretto.sim.microbatch.simulation import run_seed
from stretto.sim.simulation import Verdict


def run(
    first: int, count: int, *, mutants: bool, mutant: str | None, trace: Path | None, as_json: bool
) -> int:
    if mutant is not None and mutant not in [each.name for each in MUTANTS]:
        raise UsageError(
            f"there is no mutant {mutant!r}; 'stretto sim --microbatch --mutants' lists them all"
        )
    if mutants:
        return _mutants(as_json=as_json)
    if trace is not None:
        if count != 1:
            raise UsageError("--trace writes the story of one seed; add --seeds 1")
        return _traced(first, mutant, trace)
    return _campaign(first, count, mutant, as_json=as_json)


def _campaign(first: int, count: int, mutant: str | None, *, as_json: bool) -> int:
    if not as_json:
        typer.echo(f"seeds {first} to {first + count - 1}; each draws its own faults, for example")
        typer.echo(Plan.draw(first).describe())
    began = time.monotonic()
    summary = Summary()
    for verdict in run_seeds(first, count, mutant=mutant):
        summary.add(verdict)
        if verdict.violation is not None and not as_json:
            typer.echo(_failure(verdict, mutant))
    seconds = time.monotonic() - began
    if as_json:
        row = {
            "seeds": summary.seeds,
            "steps": summary.steps,
            "seconds": round(seconds, 3),
            "totals": dict(sorted(summary.totals.items())),
            "violations": [
                {"seed": each.seed, "violation": each.violation, "reproduce": _command(each.seed, mutant)}
                for each in summary.violations
            ],
        }
        typer.echo(msgspec.json.encode(row).decode())
    else:
        for name, total in sorted(summary.totals.items()):
            typer.echo(f"  {name:<22} {total:>9,}")
        typer.echo(f"  {'messages':<22} {summary.steps:>9,} in {seconds:.1f} s")
        typer.echo(f"{summary.seeds} seeds, {len(summary.violations)} violations")
    return 1 if summary.violations else 0


def _failure(verdict: Verdict, mutant: str | None) -> str:
    plan = Plan.draw(verdict.seed).describe()
    return f"{plan}\nviolation: {verdict.violation}\nreproduce with: {_command(verdict.seed, mutant)}"


def _command(seed: int, mutant: str | None) -> str:
    return f"stretto sim --microbatch --seeds 1 --seed {seed}" + (f" --mutant {mutant}" if mutant else "")


def _traced(seed: int, mutant: str | None, path: Path) -> int:
    with path.open("w", encoding="utf-8") as file:
        verdict = run_seed(seed, guards_of(mutant), trace=lambda line: print(line, file=file))
    typer.echo(Plan.draw(seed).describe() if verdict.violation is None else _failure(verdict, mutant))
    typer.echo(f"trace in {path}")
    return 1 if verdict.violation is not None else 0


def _mutants(*, as_json: bool) -> int:
    rows = []
    for mutant, caught in zip(MUTANTS, catch_all(), strict=True):
        what = caught.violation[:200]
        rows.append({"mutant": mutant.name, "by": caught.by, "violation": what})
        if not as_json:
            end = f"{caught.by}: {what}" if caught.by else "SURVIVED"
            typer.echo(f"without '{mutant.without}' ({mutant.name})\n    {end}")
    caught_count = sum(row["by"] is not None for row in rows)
    if as_json:
        typer.echo(msgspec.json.encode(rows).decode())
    else:
        typer.echo(f"{caught_count} of {len(MUTANTS)} mutants caught")
    return 0 if caught_count == len(MUTANTS) else 1
