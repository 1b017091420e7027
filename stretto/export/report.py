"""What the data source tells of a read: the apply offset of each group, and which records of a depot."""

from __future__ import annotations

from pathlib import Path

import msgspec

from stretto.errors import StrettoError
from stretto.export.manifest import TaskRead


class _Group(msgspec.Struct, frozen=True):
    tasks: tuple[int, ...]
    offset: int
    group: str | None = None
    epoch: int | None = None


class _Report(msgspec.Struct, frozen=True):
    groups: tuple[_Group, ...]
    origin: str = ""
    records: dict[int, tuple[int, int]] | None = None
    """Records of a depot that were read, by task: the first offset, and one beyond the last."""


def read_report(path: Path, starts: dict[int, int] | None) -> tuple[str, tuple[TaskRead, ...]]:
    """The module's origin, and what was read, by task.

    A depot comes with ``starts``, for tasks that do not begin at 0.

    A task of a depot that is not in the report had nothing from there on. It ends where it begins: at
    least one batch of a depot stays whatever is trimmed away, so one that has none never had any.
    """
    try:
        report = msgspec.json.decode(path.read_bytes(), type=_Report)
    except (FileNotFoundError, msgspec.MsgspecError) as error:
        raise StrettoError(
            f"the data source did not tell what it has read ({error}); run Spark's driver on this machine"
        ) from None
    found = []
    for group in report.groups:
        for task in group.tasks:
            at = None if starts is None else starts.get(task, 0)
            start, end = (report.records or {}).get(task, (at, at))
            found.append(
                TaskRead(
                    task=task,
                    group=group.group,
                    epoch=group.epoch,
                    apply_offset=group.offset,
                    start=start,
                    end=end,
                )
            )
    return report.origin, tuple(sorted(found, key=lambda each: each.task))
