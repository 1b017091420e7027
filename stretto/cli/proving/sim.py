"""``stretto sim``: seeds, scenarios and mutants, with the command that reproduces a failure."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer
from rich.console import Console
from rich.progress import Progress

from stretto.cli.proving import sim_worlds
from stretto.errors import UsageError
from stretto.sim.campaigns.replication import Summary, catch_all, cores, guards_of, run_seeds
from stretto.sim.replication.faults import Plan
from stretto.sim.replication.mutants import MUTANTS
from stretto.sim.replication.scenario import ExpectationFailed, run_script, scripts
from stretto.sim.replication.simulation import STEPS, TOTALS, Verdict, run_seed


def sim(
    seeds: Annotated[int, typer.Option(min=1, metavar="N", help="How many seeds to run.")] = 100,
    seed: Annotated[int, typer.Option(min=0, metavar="FIRST", help="The first seed.")] = 0,
    steps: Annotated[int, typer.Option(min=1, help="Steps of replicas before healing, per seed.")] = STEPS,
    mutants: Annotated[
        bool, typer.Option("--mutants", help="Remove each rule in turn; every removal must be caught.")
    ] = False,
    mutant: Annotated[
        str | None, typer.Option(metavar="NAME", help="Run the seeds without the rule of this mutant.")
    ] = None,
    scenario: Annotated[
        str | None, typer.Option(metavar="NAME", help="Run the scenarios whose names contain this, no seeds.")
    ] = None,
    trace: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write every event and effect of one seed here.")
    ] = None,
    microbatch: Annotated[
        bool, typer.Option("--microbatch", help="The world of microbatches: many tasks, exactly once.")
    ] = False,
    stream: Annotated[
        bool, typer.Option("--stream", help="The world of streams that hop: many tasks, exactly once.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Machine-readable output.")] = False,
) -> int:
    """Run the replication core in a simulated world full of faults. Exits 1 if a rule was violated.

    Example: stretto sim --seeds 1000
    """
    if microbatch or stream:
        if scenario is not None or steps != STEPS or (microbatch and stream):
            raise UsageError(
                "--microbatch and --stream have seeds and mutants; take one of the two, and leave out "
                "--scenario and --steps"
            )
        name = "microbatch" if microbatch else "stream"
        return sim_worlds.run(name, seed, seeds, mutants=mutants, mutant=mutant, trace=trace, as_json=as_json)
    if mutant is not None and mutant not in [each.name for each in MUTANTS]:
        raise UsageError(f"there is no mutant {mutant!r}; 'stretto sim --mutants' lists them all")
    if mutants:
        return _mutants(as_json=as_json)
    if scenario is not None:
        return _scenarios(scenario, mutant, trace, as_json=as_json)
    if trace is not None:
        if seeds != 1:
            raise UsageError("--trace writes the story of one seed; add --seeds 1")
        return _traced(seed, steps, mutant, trace)
    return _campaign(seed, seeds, steps, mutant, as_json=as_json)


# Seeds.


def _campaign(first: int, count: int, steps: int, mutant: str | None, *, as_json: bool) -> int:
    say = _quiet if as_json else typer.echo
    if count == 1:
        say(Plan.draw(first, steps).describe())
    else:
        say(
            f"seeds {first} to {first + count - 1} on {cores()} cores, at least {steps} steps each; "
            "each seed draws its own faults, for example"
        )
        say(Plan.draw(first, steps).describe())
    began = time.monotonic()
    summary = Summary()
    with _progress(count, shown=not as_json) as advance:
        for verdict in run_seeds(first, count, steps=steps, mutant=mutant):
            summary.add(verdict)
            advance()
            if verdict.violation is not None:
                say(_failure(verdict, steps, mutant))
    seconds = time.monotonic() - began
    if as_json:
        typer.echo(msgspec.json.encode(_as_row(summary, seconds, steps, mutant)).decode())
    else:
        _print_summary(summary, seconds)
    return 1 if summary.violations or summary.untried else 0


def _print_summary(summary: Summary, seconds: float) -> None:
    others = [name for name in sorted(summary.totals) if name not in TOTALS]
    for name in (*TOTALS, *others):
        typer.echo(f"  {name:<22} {summary.totals[name]:>9,}")
    typer.echo(f"  {'steps':<22} {summary.steps:>9,} in {seconds:.1f} s")
    if summary.untried:
        typer.echo(f"never tried: {', '.join(summary.untried)}; the simulator is too weak", err=True)
    typer.echo(f"{summary.seeds} seeds, {len(summary.violations)} violations")


def _failure(verdict: Verdict, steps: int, mutant: str | None) -> str:
    plan = Plan.draw(verdict.seed, steps).describe()
    story = "\n".join(verdict.story)
    return (
        f"{plan}\n{story}\nviolation at step {verdict.steps}: {verdict.violation}\n"
        f"reproduce with: {_command(verdict.seed, steps, mutant)}"
    )


def _command(seed: int, steps: int, mutant: str | None) -> str:
    words = ["stretto sim --seeds 1", f"--seed {seed}"]
    if steps != STEPS:
        words.append(f"--steps {steps}")
    if mutant is not None:
        words.append(f"--mutant {mutant}")
    return " ".join(words)


def _as_row(summary: Summary, seconds: float, steps: int, mutant: str | None) -> dict[str, Any]:
    return {
        "seeds": summary.seeds,
        "steps": summary.steps,
        "seconds": round(seconds, 3),
        "totals": dict(sorted(summary.totals.items())),
        "untried": summary.untried,
        "violations": [
            {
                "seed": verdict.seed,
                "step": verdict.steps,
                "violation": verdict.violation,
                "story": verdict.story,
                "reproduce": _command(verdict.seed, steps, mutant),
            }
            for verdict in summary.violations
        ],
    }


def _traced(seed: int, steps: int, mutant: str | None, path: Path) -> int:
    typer.echo(Plan.draw(seed, steps).describe())
    with path.open("w", encoding="utf-8") as file:
        verdict = run_seed(seed, guards_of(mutant), steps, trace=lambda line: print(line, file=file))
    summary = Summary()
    summary.add(verdict)
    if verdict.violation is not None:
        typer.echo(_failure(verdict, steps, mutant))
    typer.echo(f"trace in {path}")
    typer.echo(f"1 seeds, {len(summary.violations)} violations")
    return 1 if summary.violations else 0


# Scenarios.


def _scenarios(part: str, mutant: str | None, trace: Path | None, *, as_json: bool) -> int:
    chosen = [script for script in scripts() if part in script.name]
    if not chosen:
        names = ", ".join(script.name for script in scripts())
        raise UsageError(f"no scenario is called {part!r}; there are {names}")
    rows = []
    lines: list[str] = []
    for script in chosen:
        try:
            verdict = run_script(script, guards_of(mutant), lines.append if trace is not None else None)
            wrong = verdict.violation
        except ExpectationFailed as failed:
            wrong = str(failed)
        rows.append({"scenario": script.name, "story": script.story, "wrong": wrong})
        if not as_json:
            typer.echo(f"ok   {script.name}" if wrong is None else f"FAIL {script.name}: {wrong}")
    if trace is not None:
        trace.write_text("\n".join(lines) + "\n", encoding="utf-8")
    failed_count = sum(row["wrong"] is not None for row in rows)
    if as_json:
        typer.echo(msgspec.json.encode(rows).decode())
    else:
        typer.echo(f"{len(rows)} scenarios, {failed_count} failed")
    return 1 if failed_count else 0


# Mutants.


def _mutants(*, as_json: bool) -> int:
    rows = []
    caught_count = 0
    with _progress(len(MUTANTS), shown=not as_json) as advance:
        for mutant, caught in zip(MUTANTS, catch_all(), strict=True):
            advance()
            caught_count += caught.by is not None
            what = caught.violation.splitlines()[0] if caught.violation else ""
            rows.append({"mutant": mutant.name, "rule": mutant.rule, "by": caught.by, "violation": what})
            if not as_json:
                end = f"{caught.by}: {what}" if caught.by else "SURVIVED"
                typer.echo(f"rule {mutant.rule:<9} without '{mutant.without}' ({mutant.name})\n    {end}")
    if as_json:
        typer.echo(msgspec.json.encode(rows).decode())
    else:
        typer.echo(f"{caught_count} of {len(MUTANTS)} mutants caught")
    return 0 if caught_count == len(MUTANTS) else 1


# Telling.


def _quiet(_text: str) -> None:
    """Print nothing: JSON goes out as one object at the end."""


class _progress:  # noqa: N801 - reads as a verb where it is used
    """A progress bar on a terminal, and nothing elsewhere."""

    def __init__(self, total: int, *, shown: bool) -> None:
        console = Console(stderr=True)
        self._bar = Progress(console=console, transient=True, disable=not (shown and console.is_terminal))
        self._task = self._bar.add_task("simulating", total=total)

    def __enter__(self) -> Any:
        self._bar.start()
        return lambda: self._bar.advance(self._task)

    def __exit__(self, *_: object) -> None:
        self._bar.stop()
