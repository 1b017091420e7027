"""A view of the metastore in which znodes are told when the test says so."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class Followed:
    def __init__(self) -> None:
        self.is_stopped = False
        self.asked_again = 0

    def stop(self) -> None:
        self.is_stopped = True

    def again(self) -> None:
        self.asked_again += 1


class ToldView:
    """Znodes that the test tells of."""

    def __init__(self) -> None:
        self.told: dict[str, Callable[[Any], None]] = {}
        self.followed: dict[str, Followed] = {}
        self.deleting: dict[str, list[Callable[[], None]]] = {}

    def follow_data(self, path: str, told: Callable[[Any], None]) -> Followed:
        self.told[path] = told
        self.followed[path] = Followed()
        return self.followed[path]

    follow_children = follow_data

    def delete(self, path: str, gone: Callable[[], None]) -> None:
        self.deleting.setdefault(path, []).append(gone)
