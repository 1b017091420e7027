"""What is wrong with a command line, in words of our own.

The libraries that parse it speak of parameters, inputs and values. A person wrote a command, and reads here
which part of it is wrong and what would be right. What is not known here is told as the library says it.
"""

from __future__ import annotations

import re
from typing import Any

import typer

#: type of pydantic's error -> what the value has to be, of what its context holds
_MUST_BE = {
    "int_parsing": "a whole number",
    "int_from_float": "a whole number",
    "float_parsing": "a number",
    "bool_parsing": "true or false",
    "greater_than_equal": "{ge} or more",
    "greater_than": "more than {gt}",
    "less_than_equal": "{le} or less",
    "less_than": "less than {lt}",
}
_NO_COMMAND = re.compile(r"No such command (?P<name>'.*?')\.?(?: Did you mean (?P<near>.*)\?)?")
_EXTRA = re.compile(r"Got unexpected extra argument(?:s|\(s\))? \((?P<words>.*)\)\.?")


def sentence_of(error: typer.TyperException) -> str:
    """Return what a person reads of a command line that is refused."""
    # The classes are not public; their names are as old as the library.
    match type(error).__name__:
        case "MissingParameter":
            return _missing(error)
        case "BadParameter":
            return _bad_value(error)
        case "NoSuchOption":
            return _no_option(error)
        case "BadOptionUsage":
            return _usage(error)
        case _:
            return _other(error)


def _missing(error: Any) -> str:
    context, parameter = error.ctx, error.param
    if context is None or parameter is None:
        return _plain(error.format_message())
    what = (getattr(parameter, "help", None) or "").strip().rstrip(".")
    told = f": {what[:1].lower()}{what[1:]}" if what else ""
    return f"'{context.command_path}' needs {_name(parameter, context)}{told}"


def _bad_value(error: Any) -> str:
    parameter = error.param
    if parameter is None:
        return _plain(error.message)
    name = _name(parameter, None)
    [found] = error.__cause__.errors()[:1] if hasattr(error.__cause__, "errors") else [None]
    if found is None:
        return f"{name}: {_plain(error.message)}"
    must = _MUST_BE.get(found["type"])
    if must is None:
        # What a converter raised stands behind the library's name for it.
        raised = found.get("ctx", {}).get("error")
        return f"{name}: {_plain(str(raised or found['msg']))}"
    return f"{name} has to be {must.format_map(found.get('ctx', {}))}, not {found['input']}"


def _no_option(error: Any) -> str:
    command = f"'{error.ctx.command_path}' has" if error.ctx is not None else "there is"
    near = sorted(error.possibilities or ())
    return f"{command} no option {error.option_name}" + (
        f"; did you mean {' or '.join(near)}?" if near else ""
    )


def _usage(error: Any) -> str:
    if "requires an argument" in error.message:
        return f"{error.option_name} needs a value behind it"
    return _plain(error.format_message())


def _other(error: Any) -> str:
    if found := _NO_COMMAND.fullmatch(error.message):
        near = f"; did you mean {found['near'].replace(', ', ' or ')}?" if found["near"] else ""
        return f"there is no command {found['name']}{near}"
    if found := _EXTRA.fullmatch(error.message):
        command = f"'{error.ctx.command_path}'" if error.ctx is not None else "the command"
        return f"{command} does not know what to do with {found['words']}"
    return _plain(error.format_message())


def _name(parameter: Any, context: Any) -> str:
    """Return how the person writes it: ``--to DIR``, or the place of an argument."""
    metavar = parameter.metavar or ""
    if parameter.param_type_name == "argument":
        return str(metavar or parameter.name.upper())
    option = max(parameter.opts, key=len)
    return f"{option} {metavar}".rstrip() if context is not None else str(option)


def _plain(message: str) -> str:
    """Return a library's sentence as the middle of one of ours."""
    message = message.rstrip(".")
    return message[:1].lower() + message[1:] if message[1:2].islower() else message
