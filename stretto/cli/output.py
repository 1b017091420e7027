"""What inspecting commands print: tables for people, JSON for programs, once or again and again.

Colour only on a terminal (rich sees to that, and to NO_COLOR). With ``--json --watch``: a line each time.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

import msgspec
from rich.box import SIMPLE_HEAD
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from stretto.errors import RetriableError

T = TypeVar("T")

WATCH_SECONDS = 1.0
"""Pause between two looks with ``--watch``: as fast as people read."""

#: Width of output that is no terminal: wide enough not to cut what is piped into another program.
PIPED_WIDTH = 200


def console() -> Console:
    return Console() if sys.stdout.isatty() else Console(width=PIPED_WIDTH)


def show(fetch: Callable[[], T], render: Callable[[T], RenderableType], *, json: bool, watch: bool) -> None:
    """Fetch and print; with ``watch`` until interrupted, through moments in which nobody answers."""
    if not watch:
        value = fetch()
        print_json(value) if json else console().print(render(value))
        return
    try:
        _watch(fetch, render, json=json)
    except KeyboardInterrupt:
        return


def _watch(fetch: Callable[[], T], render: Callable[[T], RenderableType], *, json: bool) -> None:
    if json or not sys.stdout.isatty():
        while True:
            try:
                value = fetch()
                print_json(value, pretty=False) if json else console().print(render(value))
            except RetriableError as error:
                print(f"stretto: {error}", file=sys.stderr, flush=True)
            time.sleep(WATCH_SECONDS)
    with Live(console=console(), auto_refresh=False, screen=False) as live:
        shown: RenderableType = ""
        while True:
            try:
                shown = render(fetch())
                live.update(shown, refresh=True)
            except RetriableError as error:
                live.update(Group(shown, Text(str(error), style="yellow")), refresh=True)
            time.sleep(WATCH_SECONDS)


def print_json(value: object, *, pretty: bool = True) -> None:
    encoded = msgspec.json.encode(value)
    print((msgspec.json.format(encoded, indent=2) if pretty else encoded).decode(), flush=True)


def table(*columns: str | tuple[str, str], title: str | None = None) -> Table:
    """Return an empty table; each column is its heading, or (heading, justification)."""
    made = Table(box=SIMPLE_HEAD, title=title, title_justify="left", pad_edge=False, show_edge=False)
    for column in columns:
        heading, justify = (column, "left") if isinstance(column, str) else column
        made.add_column(heading, justify="right" if justify == "right" else "left")
    return made


def bar(value: float, most: float, width: int = 24) -> str:
    """Return a bar as long as ``value`` is of ``most``; never empty unless the value is nothing."""
    if most <= 0 or value <= 0:
        return ""
    eighths = max(1, round(value / most * width * 8))
    full, rest = divmod(eighths, 8)
    return "█" * full + (" ▏▎▍▌▋▊▉"[rest] if rest else "")


def duration(millis: float) -> str:
    """Return a duration for people: 350 ms, 4.2 s, 3 min, 5 h, 2 d."""
    if millis < 1_000:
        return f"{millis:.0f} ms"
    seconds = millis / 1_000
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:.1f} {unit}" if seconds < 10 * size else f"{seconds / size:.0f} {unit}"
    return f"{seconds:.1f} s"


def paragraphs(*parts: RenderableType) -> Group:
    """Put parts one below the other, with an empty line between."""
    spaced: list[RenderableType] = []
    for part in parts:
        spaced += [Text(), part] if spaced else [part]
    return Group(*spaced)


def sentences(problems: Sequence[str]) -> RenderableType:
    return Text("\n".join(f"! {problem}" for problem in problems), style="yellow")
