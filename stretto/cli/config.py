"""Settings of commands: by flag, environment, file or default, the first of these that has one.

Click keeps that order; this module tells it the names. The option ``--address`` of ``stretto worker`` is
``STRETTO_WORKER_ADDRESS`` in the environment and ``address`` in the table ``[worker]`` of the file; ``stretto
replog dump`` has ``REPLOG_DUMP`` and ``[replog.dump]``. What the processes of a cluster have in common can be
said once: in ``[cluster]``, or without the verb in the environment; what is said for one verb wins.
"""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import typer
from typer.core import TyperGroup

from stretto.errors import UsageError

#: key of [cluster] -> the option that it stands for
SHARED = {
    "zookeeper": "zookeeper",
    "zookeeper-credentials": "zookeeper-credentials",
    "root": "root",
    "name": "cluster",
    "key": "key",
    "bootstrap": "bootstrap",
}

_FILE = "stretto.config"


def prepare(command: Any, verbs: tuple[str, ...], config: Any) -> None:
    """Give a verb, or the verbs of a group, ``--config``, and their options names in the environment."""
    if isinstance(command, TyperGroup):
        for verb, below in command.commands.items():
            prepare(below, (*verbs, verb), config)
        return
    for name, option in _options(command):
        option.envvar = [_variable(*verbs, name)] + ([_variable(name)] if name in SHARED.values() else [])
        option.show_envvar = False
    command.params.append(config)


def read(context: typer.Context, parameter: Any, path: Path | None) -> Path | None:
    """Callback of ``--config``, which may stand before the verb or after it, where it wins."""
    if context.resilient_parsing:
        return path
    if _FILE not in context.meta or _source(context, parameter) == "COMMANDLINE":
        context.meta[_FILE] = path
    file: Path | None = context.meta[_FILE]
    if file is not None and not isinstance(context.command, TyperGroup):
        context.default_map = _defaults(file, context)
    return path


def file_of(context: typer.Context) -> Path | None:
    """Return the configuration file that a command was given, for the commands that it starts."""
    file: Path | None = context.meta.get(_FILE)
    return file


def origin(error: typer.TyperException) -> str:
    """Return where a refused value comes from, as words for a person; empty if from the command line."""
    context, parameter = getattr(error, "ctx", None), getattr(error, "param", None)
    if context is None or parameter is None:
        return ""
    match _source(context, parameter):
        case "ENVIRONMENT":
            return " (it comes from the environment)"
        case "DEFAULT_MAP":
            return f" (it comes from {context.meta[_FILE]})"
        case _:
            return ""


def _defaults(file: Path, context: Any) -> dict[str, Any]:
    """Return what the file says for the verb of ``context``, by the names of its parameters."""
    from stretto.cli import COMMANDS  # noqa: PLC0415 - it imports this module

    try:
        tables = tomllib.loads(file.read_text("utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{file} is not TOML: {error}") from None
    _refuse_unknown(file, "", tables, [*COMMANDS, "cluster"])
    shared = _table(file, tables, ("cluster",))
    _refuse_unknown(file, "cluster", shared, SHARED)
    verbs = _verbs(context)
    own = _table(file, tables, verbs)
    options = {name: option for name, option in _options(context.command) if name != "config"}
    _refuse_unknown(file, ".".join(verbs), own, options)
    said = {SHARED[key]: value for key, value in shared.items()} | own
    return {options[name].name: value for name, value in said.items() if name in options}


def _table(file: Path, tables: dict[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    found: Any = tables
    for depth, name in enumerate(names, 1):
        found = found.get(name, {})
        if not isinstance(found, dict):
            raise UsageError(
                f"{file}: {'.'.join(names[:depth])} is a table; write [{'.'.join(names[:depth])}]"
            )
    return dict(found)


def _refuse_unknown(file: Path, table: str, said: Iterable[str], known: Iterable[str]) -> None:
    names = list(known)
    for key in said:
        if key not in names:
            [nearest] = difflib.get_close_matches(key.replace("_", "-"), names, n=1, cutoff=0.0) or [""]
            where = f"[{table}] has no key {key!r}" if table else f"there is no table [{key}]"
            raise UsageError(f"{file}: {where}; did you mean {nearest!r}?")


def _options(command: Any) -> Iterator[tuple[str, Any]]:
    """Yield the options of a command by their long names, without dashes in front."""
    for parameter in command.params:
        for spelled in parameter.opts:
            if spelled.startswith("--"):
                yield spelled.removeprefix("--"), parameter
                break


def _verbs(context: Any) -> tuple[str, ...]:
    verbs: list[str] = []
    while context.parent is not None:
        verbs.insert(0, context.info_name)
        context = context.parent
    return tuple(verbs)


def _variable(*names: str) -> str:
    return "_".join(("stretto", *names)).replace("-", "_").upper()


def _source(context: Any, parameter: Any) -> str:
    source = context.get_parameter_source(parameter.name)
    return "" if source is None else str(source.name)
