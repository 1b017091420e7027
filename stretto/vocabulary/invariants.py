"""Invariants that stay on in production.

A broken invariant means that this process must not go on: it is deliberately outside the
:class:`stretto.errors.StrettoError` tree, so that no handler for ordinary errors swallows it.
"""

from __future__ import annotations

from typing import Any, TypeVar

T = TypeVar("T")


class InvariantViolation(BaseException):
    """Something that can never be, is. Carries the values and the entity's recent story."""

    def __init__(self, what: str, values: dict[str, Any], story: tuple[str, ...] = ()) -> None:
        detail = ", ".join(f"{name}={value!r}" for name, value in values.items())
        lines = [f"{what} ({detail})" if detail else what, *story]
        super().__init__("\n  ".join(lines))
        self.what = what
        self.values = values
        self.story = story


def check(condition: bool, what: str, **values: Any) -> None:
    """Raise InvariantViolation if a condition is false; unlike ``assert``, ``python -O`` keeps it."""
    if not condition:
        raise InvariantViolation(what, values)


def present(value: T | None, what: str) -> T:
    """Return a value that cannot be None here; raises InvariantViolation if it is."""
    if value is None:
        raise InvariantViolation(f"{what} is absent", {})
    return value
