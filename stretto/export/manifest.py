"""What an export tells of itself: ``NAME.manifest.json``, beside its folder ``NAME``.

In the folder there are files of data and nothing else, because there is no name that all tools pass over:
Spark and Arrow do so if it begins with an underscore, DuckDB and Polars take whatever fits a pattern, and
Polars refuses a folder that has anything else. Exports of before have theirs in the folder, as
``_manifest.json``; it is understood, and goes out of there with the next export.

An export has one part for every time that it was written to: one, unless a depot was exported on with
``--since``. The offsets of parts join: each begins where the one before it ended.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from stretto.control import is_same_module
from stretto.errors import StrettoError, UsageError
from stretto.vocabulary.decoding import MALFORMED

SUFFIX = ".manifest.json"
INSIDE = "_manifest.json"
"""In the folder, as exports of before have it."""
VERSION = 1


class TaskRead(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What was read of one task."""

    task: int
    group: str | None = None
    epoch: int | None = None
    apply_offset: int
    """Of its group: everything below it was applied in what was read, and nothing else."""
    start: int | None = None
    """First offset of a depot that was read."""
    end: int | None = None
    """One beyond the last."""


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """What one run wrote."""

    id: str
    time: str
    rows: int
    bytes: int
    files: tuple[str, ...]
    """Relative to the folder."""
    sizes: dict[str, int] = {}
    """Bytes of each file. Exports of before do not tell."""
    tasks: tuple[TaskRead, ...]
    at: str | None = None
    """The snapshot that was read, if it was not the state of then."""


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    version: int = VERSION
    module: str
    object: str
    kind: Literal["pstate", "depot"]
    origin: str = ""
    """Of the module, or the depot: offsets of a later namesake are of other records. Empty: not known."""
    format: str
    where: str | None = None
    columns: tuple[str, ...] = ()
    """Those that were asked for; none for all."""
    partition_by: tuple[str, ...] = ()
    as_json: tuple[str, ...] = ()
    """Columns that are JSON text, because the format has no nested ones."""
    as_microseconds: tuple[str, ...] = ()
    """Columns with durations, which are whole numbers of microseconds."""
    schema: dict[str, Any]
    """Of the rows, as Spark writes it."""
    rows: int
    parts: tuple[Part, ...]

    @property
    def files(self) -> set[str]:
        return {file for part in self.parts for file in part.files}

    @property
    def ends(self) -> dict[int, int]:
        """Of a depot: where the next part begins."""
        return {each.task: each.end for each in self.parts[-1].tasks if each.end is not None}

    def continued(self, part: Manifest) -> Manifest:
        """With the only part of an export that joins this one. Raises UsageError if it has other columns, or
        is of another module of that name."""
        check_origin(self, part.origin, part.parts[0].at)
        if part.schema != self.schema:
            raise UsageError(
                f"the export that is there has the columns {_columns(self)}, and this part would have "
                f"{_columns(part)}; give the same --schema, or export all of it anew, without --since"
            )
        return msgspec.structs.replace(
            self,
            origin=self.origin or part.origin,
            rows=self.rows + part.rows,
            parts=(*self.parts, *part.parts),
        )


def encode(manifest: Manifest) -> bytes:
    return msgspec.json.format(msgspec.json.encode(manifest), indent=2) + b"\n"


def decode(data: bytes, where: str) -> Manifest:
    try:
        version = msgspec.json.decode(data, type=_Version).version
        if version != VERSION:
            raise StrettoError(
                f"{where} is of format {version}, and this release knows {VERSION}; export elsewhere"
            )
        return msgspec.json.decode(data, type=Manifest)
    except MALFORMED as error:
        raise StrettoError(
            f"{where} is damaged ({error}); export to another folder, or delete this one first"
        ) from None


class _Version(msgspec.Struct):
    version: int


def check_origin(before: Manifest, origin: str, at: str | None) -> None:
    """Whether offsets go on there: the module, or its snapshot ``at``, has the records that were exported.
    Raises UsageError."""
    if before.origin and origin and before.origin != origin:
        what, end = f"a module {before.module}", "destroyed"
        if is_same_module(before.origin, origin):
            what, end = f"a depot {before.object} of {before.module}", "deleted"
        raise UsageError(
            f"the export that is there is of {what} that was {end}, and the one of that name has other "
            "records; export it to another folder"
        )
    was = before.parts[-1].at
    if was != at and not (before.origin and origin):
        raise UsageError(
            f"the export that is there ends with {_state(was)}, and whether {_state(at)} has the same "
            "records is not known; export it to another folder"
        )


def _state(at: str | None) -> str:
    return "the live state" if at is None else f"snapshot {at}"


def check_joins(before: Manifest, after: Manifest) -> None:
    """Whether a part of ``after`` may be added to ``before``. Raises UsageError with what differs."""
    for name in ("module", "object", "format", "where", "columns", "partition_by"):
        was, now = getattr(before, name), getattr(after, name)
        if was != now:
            raise UsageError(
                f"the export that is there was made with {name.replace('_', ' ')} {_shown(was)}, not "
                f"{_shown(now)}; ask for the same, or export all of it anew, without --since"
            )


def _columns(manifest: Manifest) -> str:
    """Also of what Spark does not describe by name alone."""
    fields = manifest.schema.get("fields", [])
    return ", ".join(f"{field['name']} {field['type']}" for field in fields) or "none"


def _shown(value: object) -> str:
    if isinstance(value, tuple):
        return ", ".join(value) or "none"
    return "none" if value is None else str(value)
