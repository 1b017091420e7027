"""``stretto sim --microbatch`` and ``--stream``: seeds and mutants of the worlds beside that of replicas."""

from __future__ import annotations

import time
from pathlib import Path

import msgspec
import typer

from stretto.errors import UsageError
from stretto.sim.campaigns.replication import Summary
from stretto.sim.campaigns.worlds import WORLDS, SmallWorld, catch_all, run_seeds
from stretto.sim.replication.simulation import Verdict


def run(
    name: str, first: int, count: int, *, mutants: bool, mutant: str | None, trace: Path | None, as_json: bool
) -> int:
    world = WORLDS[name]
    if mutant is not None and mutant not in [each.name for each in world.mutants]:
        raise UsageError(f"there is no mutant {mutant!r}; 'stretto sim --{name} --mutants' lists them all")
    if mutants:
        return _mutants(world, as_json=as_json)
    if trace is not None:
        if count != 1:
            raise UsageError("--trace writes the story of one seed; add --seeds 1")
        return _traced(world, first, mutant, trace)
    return _campaign(world, first, count, mutant, as_json=as_json)


def _campaign(world: SmallWorld, first: int, count: int, mutant: str | None, *, as_json: bool) -> int:
    if not as_json:
        typer.echo(f"seeds {first} to {first + count - 1}; each draws its own faults, for example")
        typer.echo(world.describe(first))
    began = time.monotonic()
    summary = Summary()
    for verdict in run_seeds(world.name, first, count, mutant=mutant):
        summary.add(verdict)
        if verdict.violation is not None and not as_json:
            typer.echo(_failure(world, verdict, mutant))
    seconds = time.monotonic() - began
    if as_json:
        row = {
            "seeds": summary.seeds,
            "steps": summary.steps,
            "seconds": round(seconds, 3),
            "totals": dict(sorted(summary.totals.items())),
            "violations": [
                {
                    "seed": each.seed,
                    "violation": each.violation,
                    "reproduce": _command(world, each.seed, mutant),
                }
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


def _failure(world: SmallWorld, verdict: Verdict, mutant: str | None) -> str:
    plan = world.describe(verdict.seed)
    return f"{plan}\nviolation: {verdict.violation}\nreproduce with: {_command(world, verdict.seed, mutant)}"


def _command(world: SmallWorld, seed: int, mutant: str | None) -> str:
    return f"stretto sim --{world.name} --seeds 1 --seed {seed}" + (f" --mutant {mutant}" if mutant else "")


def _traced(world: SmallWorld, seed: int, mutant: str | None, path: Path) -> int:
    with path.open("w", encoding="utf-8") as file:
        verdict = world.run_seed(seed, world.guards_of(mutant), trace=lambda line: print(line, file=file))
    typer.echo(world.describe(seed) if verdict.violation is None else _failure(world, verdict, mutant))
    typer.echo(f"trace in {path}")
    return 1 if verdict.violation is not None else 0


def _mutants(world: SmallWorld, *, as_json: bool) -> int:
    rows = []
    for mutant, caught in zip(world.mutants, catch_all(world.name), strict=True):
        what = caught.violation[:200]
        rows.append({"mutant": mutant.name, "by": caught.by, "violation": what})
        if not as_json:
            end = f"{caught.by}: {what}" if caught.by else "SURVIVED"
            typer.echo(f"without '{mutant.without}' ({mutant.name})\n    {end}")
    caught_count = sum(row["by"] is not None for row in rows)
    if as_json:
        typer.echo(msgspec.json.encode(rows).decode())
    else:
        typer.echo(f"{caught_count} of {len(world.mutants)} mutants caught")
    return 0 if caught_count == len(world.mutants) else 1
