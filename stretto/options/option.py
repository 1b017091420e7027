"""One option: what it means, what it may be, where it may be set; and how it refuses all else."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeAlias

import msgspec

from stretto.errors import OptionError
from stretto.options.levels import Scope

Value: TypeAlias = bool | int | float | str
GROUP = (Scope.CLUSTER, Scope.MODULE)
"""What concerns a whole task group, which holds parts of all depots and PStates of its module."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    name: str
    kind: type[int | float | bool | str]
    default: Value | None
    """None: its meaning depends on the group, and ``default_means`` tells it."""
    doc: str
    scopes: tuple[Scope, ...] = GROUP
    unit: str = ""
    low: float | None = None
    high: float | None = None
    choices: tuple[str, ...] = ()
    default_means: str = ""
    setting: str | None = None
    """The field of the core's Settings that it becomes."""

    def parse(self, text: str) -> Value:
        """A value as a person writes it; raises OptionError."""
        text = text.strip()
        if self.kind is str:
            return self.checked(text)
        try:
            return self.checked(msgspec.json.decode(text.lower() if self.kind is bool else text))
        except msgspec.DecodeError:
            raise self._refusal(text) from None

    def checked(self, value: object) -> Value:
        """The value, if the option may have it; raises OptionError."""
        if self.kind is float and isinstance(value, int) and not isinstance(value, bool):
            value = float(value)
        if type(value) is not self.kind or not isinstance(value, bool | int | float | str):
            raise self._refusal(value)
        if isinstance(value, str):
            is_good = value in self.choices
        else:
            is_good = (self.low is None or self.low <= value) and (self.high is None or value <= self.high)
        if not is_good:
            raise self._refusal(value)
        return value

    def check_scope(self, scope: Scope) -> None:
        if scope not in self.scopes:
            raise OptionError(
                f"{self.name} cannot be set for a single {scope}; set it for a {_any_of(self.scopes[::-1])}"
                if len(self.scopes) > 1
                else f"{self.name} can be set for the whole cluster only"
            )

    @property
    def takes(self) -> str:
        """What it may be, in words."""
        if self.kind is bool:
            return "true or false"
        if self.kind is str:
            return _any_of(self.choices)
        noun = "a whole number" if self.kind is int else "a number"
        if self.low is None or self.high is None:
            return noun
        return f"{noun} from {self.low} to {self.high}"

    def _refusal(self, value: object) -> OptionError:
        unit = f" ({self.unit})" if self.unit else ""
        return OptionError(f"{self.name} is {self.takes}{unit}, not {shown(value)}")


def _any_of(words: Iterable[str]) -> str:
    *others, last = words
    return f"{', '.join(others)} or {last}" if others else last


def shown(value: object) -> str:
    """A value as a person writes it."""
    return value if isinstance(value, str) else msgspec.json.encode(value, enc_hook=repr).decode()
