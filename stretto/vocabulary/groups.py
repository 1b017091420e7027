"""The name of a task group, by which every part of the system speaks of it."""

from __future__ import annotations

from typing import NamedTuple


class GroupKey(NamedTuple):
    """A task group: its module, the generation of the module's grouping, its number in that."""

    module: str
    generation: int
    group: int

    def __str__(self) -> str:
        return f"{self.module}/{self.generation}/{self.group}"
