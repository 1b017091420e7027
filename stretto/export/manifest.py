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
"""Name of the manifest in the folder, where earlier releases wrote it."""
VERSION = 1


class TaskRead(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What was read of one task."""

    task: int
    group: str | None = None
    epoch: int | None = None
    apply_offset: int
    """Apply offset of the task's group: all below it was applied in what was read, and nothing else."""
    start: int | None = None
    """First offset of the depot that was read."""
    end: int | None = None
    """One beyond the last offset of the depot that was read."""


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """What one run of an export wrote."""

    id: str
    time: str
    rows: int
    bytes: int
    files: tuple[str, ...]
    """Files that the run wrote, relative to the folder."""
    sizes: dict[str, int] = {}
    """Bytes of each file; empty in exports of earlier releases."""
    tasks: tuple[TaskRead, ...]
    at: str | None = None
    """Snapshot that was read; None if it was the state of then."""


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """All that is known of an export, as its manifest file has it."""

    version: int = VERSION
    module: str
    object: str
    kind: Literal["pstate", "depot"]
    origin: str = ""
    """Origin of the module or depot: offsets of a later namesake are of other records. Empty: not known."""
    format: str
    where: str | None = None
    columns: tuple[str, ...] = ()
    """Columns that were asked for; none for all."""
    partition_by: tuple[str, ...] = ()
    as_json: tuple[str, ...] = ()
    """Columns that are JSON text, because the format has no nested ones."""
    as_microseconds: tuple[str, ...] = ()
    """Columns with durations, which are whole numbers of microseconds."""
    schema: dict[str, Any]
    """Schema of the rows, as Spark writes it."""
    rows: int
    parts: tuple[Part, ...]

    @property
    def files(self) -> set[str]:
        return {file for part in self.parts for file in part.files}

    @property
    def ends(self) -> dict[int, int]:
        """Where the next part of a depot begins, by task."""
        return {each.task: each.end for each in self.parts[-1].tasks if each.end is not None}

    def continued(self, part: Manifest) -> Manifest:
        """This export together with the only part of an export that joins it.

        Raises UsageError if that has other columns, or is of another module of that name.
        """
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
    """Check that offsets go on: the module, or its snapshot ``at``, has the records that were exported.

    Raises UsageError if it has not.
    """
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
    """Check that a part of ``after`` may be added to ``before``. Raises UsageError with what differs."""
    for name in ("module", "object", "format", "where", "columns", "partition_by"):
        was, now = getattr(before, name), getattr(after, name)
        if was != now:
            raise UsageError(
                f"the export that is there was made with {name.replace('_', ' ')} {_shown(was)}, not "
                f"{_shown(now)}; ask for the same, or export all of it anew, without --since"
            )


def _columns(manifest: Manifest) -> str:
    """The columns in words, also those that Spark does not describe by name alone."""
    fields = manifest.schema.get("fields", [])
    return ", ".join(f"{field['name']} {field['type']}" for field in fields) or "none"


def _shown(value: object) -> str:
    if isinstance(value, tuple):
        return ", ".join(value) or "none"
    return "none" if value is None else str(value)
