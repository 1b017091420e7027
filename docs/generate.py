"""The pages of ``docs/reference/``, made from the code: ``make reference`` writes them.

Three tables of the code say all that these pages tell: the commands of ``stretto/cli``, the options of
``stretto/options/table.py``, and the OpenAPI document of ``ui/document.py``. A test makes the pages again and
compares, so a page is never older than the code.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from enum import Enum
from pathlib import Path
from typing import Any

from litestar.di import Provide
from typer.core import TyperGroup, TyperOption

from stretto import cli
from stretto.options import TABLE, shown
from stretto.ui.document import document_of
from stretto.ui.security import SAFE_METHODS
from stretto.ui.server import _described

REFERENCE = Path(__file__).parent / "reference"
MADE = "<!-- Made by `make reference` from the code: change the code, not this page. -->"
_SUCCESS = "2"
_EXAMPLE = "Example: "

_COMMANDS_LEAD = """\
Every option can be given as a flag, in the environment or in a file. [Configure
commands](../operate/configure.md) tells how. `stretto VERB --help` shows what this page tells.
"""
_EVERY_VERB = """\
Every verb takes `--config FILE.toml`, settings from a file, and `--help`. Exit codes: 0 done, 1 refused or
failed, 2 bad usage, 130 interrupted.
"""
_REST_LEAD = """\
`/openapi.json` of a running UI tells the same, and [Monitoring](../operate/monitoring.md#rest) shows how to
ask. A refusal is `application/problem+json` with one sentence in `detail`. Where the server has a token, a
request that changes something needs it: `Authorization: Bearer TOKEN`.
"""


def _page(*parts: str) -> str:
    return "\n".join(parts).rstrip("\n") + "\n"


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """A table of Markdown; what would end a cell is escaped."""
    cells = [tuple(head)]
    cells.append(("---",) * len(cells[0]))
    cells += [tuple(cell.replace("|", "\\|").replace("\n", " ") for cell in row) for row in rows]
    return "".join("| " + " | ".join(row) + " |\n" for row in cells)


def commands_page() -> str:
    """Every verb of the ``stretto`` command with its arguments and options."""
    parts = [
        "# Commands\n",
        f"{MADE}\n",
        _COMMANDS_LEAD,
        table(
            ("verb", "does"),
            ((f"[`stretto {v}`](#stretto-{v})", help_) for v, (_, help_) in cli.COMMANDS.items()),
        ),
        _EVERY_VERB,
    ]
    for verb in cli.COMMANDS:
        parts += _command(cli._load(verb), f"stretto {verb}", depth=2)
    return _page(*parts)


def _command(command: Any, name: str, depth: int) -> Iterator[str]:
    text, examples = _help(command.help)
    yield f"{'#' * depth} {name}\n"
    yield text
    if isinstance(command, TyperGroup):
        for verb, below in command.commands.items():
            yield from _command(below, f"{name} {verb}", depth + 1)
        return
    arguments = [each for each in command.params if not isinstance(each, TyperOption)]
    options = [
        each
        for each in command.params
        if isinstance(each, TyperOption) and not each.hidden and "--config" not in each.opts
    ]
    words = [_argument(each) for each in arguments]
    yield f"    {' '.join([name, *words])}{' [OPTIONS]' if options else ''}\n"
    if arguments:
        rows = ((f"`{_argument(each)}`", each.help or "") for each in arguments)
        yield table(("argument", "what it is"), rows)
    if options:
        rows_of_options = (
            (_flag(each), _default(each), each.help or "", _variable(each)) for each in options
        )
        yield table(("option", "default", "what it does", "environment"), rows_of_options)
    if examples:
        yield f"For example:\n\n{examples}"


def _help(text: str | None) -> tuple[str, str]:
    """The help of a verb, and as code its lines that begin with *Example*."""
    paragraphs = [" ".join(each.split()) for each in (text or "").split("\n\n")]
    examples = [each.removeprefix(_EXAMPLE) for each in paragraphs if each.startswith(_EXAMPLE)]
    told = [f"{each}\n" for each in paragraphs if not each.startswith(_EXAMPLE)]
    return "\n".join(told), "".join(f"    {each}\n" for each in examples)


def _argument(parameter: Any) -> str:
    name = parameter.metavar or parameter.name.upper()
    many = "..." if parameter.nargs == -1 else ""
    return f"{name}{many}" if parameter.required else f"[{name}]{many}"


def _flag(option: Any) -> str:
    names = ", ".join(f"`{each}`" for each in (*option.opts, *option.secondary_opts))
    if option.is_flag:
        return names
    value = option.metavar or option.bare_type().upper()
    return f"{names} `{value}`" + (" (repeatable)" if option.multiple else "")


def _default(option: Any) -> str:
    """The default as a person writes it; nothing for what is not there unless it is given."""
    if option.required:
        return "required"
    if isinstance(option.show_default, str):
        return option.show_default
    value = option.default
    if value is None or value == "" or not option.show_default:
        return ""
    if option.is_flag:
        return (
            f"`{option.opts[0] if value else (option.secondary_opts or [''])[0]}`"
            if option.secondary_opts
            else ""
        )
    return f"`{value.value if isinstance(value, Enum) else value}`"


def _variable(option: Any) -> str:
    names = option.envvar if isinstance(option.envvar, list) else [option.envvar]
    return ", ".join(f"`{each}`" for each in names if each)


def options_page() -> str:
    """Every option that can be tuned while a cluster runs."""
    rows = []
    for option in TABLE:
        default = option.default_means if option.default is None else shown(option.default)
        unit = f" {option.unit}" if option.unit else ""
        rows.append(
            (f"`{option.name}`", f"{default}{unit}", option.takes, ", ".join(option.scopes), option.doc)
        )
    return _page(
        "# Options of a cluster\n",
        f"{MADE}\n",
        "These are tuned while a cluster runs; [Options](../operate/options.md) tells how.\n",
        table(("option", "default", "may be", "set for", "what it does"), rows),
    )


def rest_page() -> str:
    """Every request of the REST interface, and what its bodies hold."""
    nothing = {name: Provide(lambda: None, sync_to_thread=False) for name in ("backend", "history")}
    document = document_of(_described(nothing), needs_token=True)
    parts = [
        "# REST\n",
        f"{MADE}\n",
        _REST_LEAD,
        f"A request may be refused with {', '.join(_refusals(document))}.\n",
    ]
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            parts += _request(method.upper(), path, operation)
    parts.append("## What bodies hold\n")
    for name, schema in sorted(document["components"]["schemas"].items()):
        parts += _schema(name, schema)
    return _page(*parts)


def _refusals(document: Mapping[str, Any]) -> list[str]:
    answers = (each["responses"] for path in document["paths"].values() for each in path.values())
    return sorted({status for each in answers for status in each if not status.startswith(_SUCCESS)})


def _request(method: str, path: str, operation: Mapping[str, Any]) -> Iterator[str]:
    yield f"## {method} {path}\n"
    yield f"{operation['summary']}." + ("" if method in SAFE_METHODS else " It changes something.") + "\n"
    parameters = operation.get("parameters", [])
    if parameters:
        rows = (
            (
                f"`{each['name']}`",
                each["in"],
                _type(each["schema"]),
                "required" if each.get("required") else _json(each["schema"].get("default")),
                each.get("description", ""),
            )
            for each in parameters
        )
        yield table(("parameter", "in", "type", "default", "what it is"), rows)
    if "requestBody" in operation:
        yield f"Body: {_content(operation['requestBody'])}.\n"
    for status, answer in operation["responses"].items():
        if status.startswith(_SUCCESS):
            body = _content(answer) if answer.get("content") else "nothing"
            yield f"Answer {status}: {body}.\n"


def _content(holder: Mapping[str, Any]) -> str:
    [(_, media)] = holder["content"].items()
    return _type(media["schema"])


def _schema(name: str, schema: Mapping[str, Any]) -> Iterator[str]:
    yield f"### {name}\n"
    if schema.get("description"):
        yield " ".join(schema["description"].split()) + "\n"
    properties = schema.get("properties")
    if not properties:
        yield f"{_type(schema)}.\n"
        return
    required = schema.get("required", [])
    rows = (
        (
            f"`{field}`",
            _type(each),
            "always there" if field in required else _json(each.get("default")),
            " ".join(each.get("description", "").split()),
        )
        for field, each in properties.items()
    )
    yield table(("field", "type", "default", "what it is"), rows)


def _type(schema: Mapping[str, Any]) -> str:
    """A schema in a few words; a named one is a link."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    for choice in ("anyOf", "oneOf", "allOf"):
        if choice in schema:
            return " or ".join(_type(each) for each in schema[choice])
    if "const" in schema:
        return _json(schema["const"])
    if "enum" in schema:
        return ", ".join(_json(each) for each in schema["enum"])
    if "prefixItems" in schema:
        return f"list of ({', '.join(_type(each) for each in schema['prefixItems'])})"
    match schema.get("type"):
        case "array":
            return f"list of {_type(schema['items'])}" if schema.get("items") else "list"
        case "object":
            inner = schema.get("additionalProperties")
            return f"object of {_type(inner)}" if isinstance(inner, dict) and inner else "object"
        case list() as several:
            return " or ".join(several)
        case str() as one:
            return one + _bounds(schema)
        case _:
            return "any JSON"


def _bounds(schema: Mapping[str, Any]) -> str:
    low, high = schema.get("minimum"), schema.get("maximum")
    if low is None and high is None:
        return ""
    return f" from {low:g}" + ("" if high is None else f" to {high:g}")


def _json(value: object) -> str:
    return "" if value is None else f"`{shown(value)}`"


PAGES = {"cli.md": commands_page, "options.md": options_page, "rest.md": rest_page}


def write() -> None:
    """Write all pages anew."""
    REFERENCE.mkdir(exist_ok=True)
    for name, page in PAGES.items():
        (REFERENCE / name).write_text(page(), "utf-8")


if __name__ == "__main__":
    write()
