"""``stretto replog``: what is on the disk of a replica. Never changes anything there."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from stretto.errors import StrettoError
from stretto.replog.folder import OsFolder
from stretto.replog.inspect import FramePlace, LogReport, frames, size_bytes, verify
from stretto.vocabulary.types import Offset

app = typer.Typer(no_args_is_help=True)

_PROGRESS_INTERVAL_SECONDS = 0.2

Directory = Annotated[
    Path, typer.Argument(metavar="DIR", help="The folder of one replica.", show_default=False)
]
Json = Annotated[bool, typer.Option("--json", help="Machine-readable output.")]


@app.command("dump")
def dump(
    directory: Directory,
    start: Annotated[
        int, typer.Option("--from", min=0, metavar="OFFSET", help="Begin with the frame that holds OFFSET.")
    ] = 0,
    limit: Annotated[int | None, typer.Option(min=1, metavar="N", help="Stop after N frames.")] = None,
    as_json: Json = False,
) -> None:
    """List the frames of a replog, one per line.

    Example: stretto replog dump data/groups/counts-1-0/replog --from 1000 --limit 20
    """
    folder = _open(directory)
    segment = ""
    for number, place in enumerate(frames(folder, Offset(start))):
        if number == limit:
            break
        if as_json:
            typer.echo(msgspec.json.encode(_row(place)).decode())
            continue
        if place.segment != segment:
            segment = place.segment
            typer.echo(f"segment {segment}")
            typer.echo(_DUMP_HEADING)
        typer.echo(_line(place))


@app.command("verify")
def verify_command(directory: Directory, as_json: Json = False) -> int:
    """Check every byte of a replog. Exits 1 and says where, if anything is corrupt.

    Example: stretto replog verify data/groups/counts-1-0/replog
    """
    folder = _open(directory)
    report = verify(folder, _progress(size_bytes(folder)))
    if as_json:
        typer.echo(msgspec.json.encode(report).decode())
    else:
        _print_report(report)
    return 0 if report.ok else 1


def _open(directory: Path) -> OsFolder:
    if not directory.is_dir():
        raise StrettoError(f"{directory} is not a folder; name the folder of one replica")
    return OsFolder(directory, read_only=True)


_DUMP_HEADING = (
    f"  {'offsets':<24} {'epoch':>6} {'kind':<15} {'task':>5} {'producer':>20} "
    f"{'sequence':>10} {'bytes':>9}  time"
)


def _line(place: FramePlace) -> str:
    header = place.header
    offsets = f"[{header.offset}, {header.end_offset})"
    return (
        f"  {offsets:<24} {header.epoch:>6} {header.kind.name.lower():<15} {header.task:>5} "
        f"{header.producer:>20} {header.sequence:>10} {place.size_bytes:>9}  {_time(header.timestamp_ms)}"
    )


def _row(place: FramePlace) -> dict[str, object]:
    header = place.header
    return {
        "segment": place.segment,
        "position": place.position,
        "bytes": place.size_bytes,
        "offset": header.offset,
        "end_offset": header.end_offset,
        "epoch": header.epoch,
        "kind": header.kind.name.lower(),
        "task": header.task,
        "producer": header.producer,
        "sequence": header.sequence,
        "timestamp_ms": header.timestamp_ms,
    }


def _time(timestamp_ms: int) -> str:
    try:
        moment = datetime.fromtimestamp(timestamp_ms / 1000, UTC)
    except (OverflowError, ValueError, OSError):
        return f"{timestamp_ms} ms"
    return moment.isoformat(sep=" ", timespec="milliseconds").replace("+00:00", "Z")


def _print_report(report: LogReport) -> None:
    typer.echo(f"{'segment':<28} {'offsets':<24} {'frames':>8} {'entries':>9} {'bytes':>12}  state")
    for segment in report.segments:
        offsets = f"[{segment.base}, {segment.end})"
        state = "corrupt" if segment.corruption else "torn tail" if segment.torn_bytes else "ok"
        typer.echo(
            f"{segment.name:<28} {offsets:<24} {segment.frames:>8} {segment.entries:>9} "
            f"{segment.bytes:>12}  {state}"
        )
    for note in report.notes:
        typer.echo(f"note: {note}")
    for found in report.corruptions:
        typer.echo(
            f"corrupt: segment {found.segment}, offset {found.offset}, byte {found.position}: {found.why}"
        )
    typer.echo(
        f"{report.frames} frames, {report.entries} entries, {report.bytes} bytes in "
        f"[{report.start_offset}, {report.end_offset}): "
        + ("all good" if report.ok else f"{len(report.corruptions)} corrupt")
    )


def _progress(total_bytes: int) -> Callable[[int], None]:
    """Return a function that shows on a terminal how far a long verification is."""
    if not sys.stderr.isatty():
        return lambda _: None
    done_bytes = 0
    next_at = time.monotonic() + _PROGRESS_INTERVAL_SECONDS

    def advance(more_bytes: int) -> None:
        nonlocal done_bytes, next_at
        done_bytes += more_bytes
        if time.monotonic() >= next_at or (done_bytes >= total_bytes and total_bytes):
            next_at = time.monotonic() + _PROGRESS_INTERVAL_SECONDS
            shown = f"{done_bytes / max(total_bytes, 1):4.0%}" if done_bytes < total_bytes else ""
            sys.stderr.write(f"\r{shown:4}\r")
            sys.stderr.flush()

    return advance
