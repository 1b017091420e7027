"""The ``stretto`` command.

Each verb lives in its own module, which is imported only when that verb runs: ``stretto --help`` and a
mistyped verb load nothing but this file. :data:`COMMANDS` is the one place that lists the verbs.

Exit codes: 0 done, 1 refused or failed, 2 bad usage, 130 interrupted. A command may return its exit
code; otherwise it returns ``None`` or raises. What a person can mend (a :class:`.StrettoError`, bad usage,
a file that cannot be used) is told in one sentence on stderr (``stretto/process/exit_codes.py``).
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command, get_group

from stretto import __version__
from stretto.cli import config, usage
from stretto.process.exit_codes import exit_code, refuse
from stretto.process.interrupts import ending_at_once

#: verb -> (where its function or its group of verbs is, one line of help). In the order of need: to begin, to
#: use a module, to look, to tune, to keep, to run daemons, to look inside.
COMMANDS: dict[str, tuple[str, str]] = {
    "up": ("stretto.cli.daemons.up:up", "Run a whole cluster on this machine."),
    "demo": (
        "stretto.cli.demo.demo:demo",
        "Run a cluster with a module under load, to look at and to break.",
    ),
    "deploy": ("stretto.cli.deploying.deploy:app", "Launch, update, move, scale, pause and destroy modules."),
    "append": ("stretto.cli.data.append:append", "Append records to a depot of a module."),
    "tail": ("stretto.cli.data.tail:tail", "Show the records of a depot as they become visible."),
    "select": ("stretto.cli.data.select:select", "Show what a PState of a module holds."),
    "query": ("stretto.cli.data.query:query", "Ask a query of a module."),
    "failures": ("stretto.cli.data.failures:failures", "Show records that a module's functions failed on."),
    "module-status": (
        "stretto.cli.inspecting.module_status:module_status",
        "Show the modules of the cluster.",
    ),
    "task-groups-status": (
        "stretto.cli.inspecting.task_groups_status:task_groups_status",
        "Show the task groups of a module and their replicas.",
    ),
    "catchup": ("stretto.cli.inspecting.catchup:catchup", "Show how replicas that fell behind come back."),
    "nodes": ("stretto.cli.inspecting.nodes:nodes", "Show the machines of the cluster."),
    "operations": ("stretto.cli.inspecting.operations:operations", "Show what was done to the cluster."),
    "options": ("stretto.cli.inspecting.options:app", "Tune the cluster, a module or one of its objects."),
    "leadership": ("stretto.cli.inspecting.leadership:app", "Show and balance who leads."),
    "verify": ("stretto.cli.inspecting.verify:verify", "Compare what the replicas of a module hold."),
    "snapshot": (
        "stretto.cli.deploying.snapshot:app",
        "Make, list, verify, restore and delete snapshots of modules.",
    ),
    "export": ("stretto.cli.data.export:export", "Export a PState or a depot as files, by a Spark job."),
    "keys": ("stretto.cli.daemons.keys:app", "Make the key that the processes of a cluster share."),
    "zookeeper": (
        "stretto.cli.daemons.zookeeper:zookeeper",
        "Run one ZooKeeper server here, for development.",
    ),
    "conductor": ("stretto.cli.daemons.conductor:conductor", "Run one conductor here."),
    "supervisor": ("stretto.cli.daemons.supervisor:supervisor", "Run the supervisor of one node here."),
    "worker": ("stretto.cli.daemons.worker:worker", "Run one worker here."),
    "ui": ("stretto.cli.daemons.ui:ui", "Run the Cluster UI and the REST interface here."),
    "replog": ("stretto.cli.inspecting.replog:app", "Look inside the replog of a replica."),
    "sim": ("stretto.cli.proving.sim:sim", "Run the replication core in a simulated world full of faults."),
    "bench": (
        "stretto.cli.proving.bench:bench",
        "Measure stretto on this machine, next to what the machine can do.",
    ),
}


def _load(verb: str) -> Any:
    target, summary = COMMANDS[verb]
    module, _, attribute = target.partition(":")
    with ending_at_once():
        loaded = getattr(importlib.import_module(module), attribute)
    if isinstance(loaded, typer.Typer):
        # get_command() would turn a group of one verb into that verb.
        command: Any = get_group(loaded)
    else:
        single = typer.Typer(add_completion=False)
        single.command(verb)(loaded)
        command = get_command(single)
    command.help = command.help or summary
    config.prepare(command, (verb,), _config_option())
    return command


class _LazyGroup(TyperGroup):
    """A group of stand-ins that know their help line; the verb that runs replaces its own."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        for verb, (_, summary) in COMMANDS.items():
            self.add_command(TyperCommand(verb, help=summary))

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        verb, command, rest = super().resolve_command(ctx, args)
        if verb in COMMANDS:
            command = _load(verb)
            if isinstance(command, TyperGroup) and not rest:
                rest = ["--help"]
        return verb, command, rest


app = typer.Typer(
    cls=_LazyGroup,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"stretto {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", help="Show the version.", is_eager=True, callback=_print_version)
    ] = False,
    settings: Annotated[
        Path | None,
        typer.Option(
            "--config",
            metavar="FILE.toml",
            envvar="STRETTO_CONFIG",
            help="Settings from a file; flags and the environment win.",
            is_eager=True,
            expose_value=False,
            callback=config.read,
            show_default=False,
        ),
    ] = None,
) -> None:
    """Task groups replicated through ZooKeeper, in Python."""


def _config_option() -> Any:
    """Return the option ``--config`` of the root, which every verb takes too."""
    return next(parameter for parameter in get_group(app).params if "--config" in parameter.opts)


def _run(args: Sequence[str]) -> int:
    try:
        return exit_code(lambda: app(args=args or ["--help"], prog_name="stretto", standalone_mode=False))
    except typer.TyperException as error:
        context = getattr(error, "ctx", None)
        hint = config.origin(error) or (f" (see '{context.command_path} --help')" if context else "")
        return refuse(usage.sentence_of(error) + hint, error.exit_code)
    except typer.Abort:
        return refuse("aborted", 1)


def main(args: Sequence[str] | None = None) -> NoReturn:
    sys.exit(_run(sys.argv[1:] if args is None else args))
