"""Numbers and lists of things, as people read them."""

from __future__ import annotations


def many(count: int, noun: str, nouns: str | None = None) -> str:
    """A number of things: ``1 task``, ``3 tasks``."""
    return f"{count} {noun}" if count == 1 else f"{count} {nouns or noun + 's'}"


def some(numbers: list[int]) -> str:
    """The first eight of some numbers, and how many more there are."""
    shown = ", ".join(map(str, numbers[:8]))
    return shown if len(numbers) <= 8 else f"{shown} and {len(numbers) - 8} more"
