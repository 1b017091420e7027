"""A metastore's listener that writes down what it hears, for tests to wait on."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

from stretto.options import OptionSet
from stretto.replog.core.events import Event
from stretto.specs.modules import ModuleSpec
from stretto.vocabulary.clock import boot_time_ms
from stretto.vocabulary.groups import GroupKey
from stretto.vocabulary.types import Incarnation, Millis
from tests.support.waiting import DEADLINE_SECONDS


@dataclass(frozen=True)
class Started:
    incarnation: Incarnation
    heard_at: int


@dataclass(frozen=True)
class Expired:
    heard_at: int


@dataclass(frozen=True)
class Renewed:
    sent_at: Millis
    heard_at: int


@dataclass(frozen=True)
class Told:
    group: GroupKey
    event: Event


@dataclass(frozen=True)
class Tuned:
    options: OptionSet


@dataclass(frozen=True)
class Specified:
    spec: ModuleSpec | None


Heard: TypeAlias = Started | Expired | Renewed | Told | Tuned | Specified
T = TypeVar("T")


class Recorder:
    """A listener that keeps everything that it hears."""

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self.heard: list[Heard] = []

    def session_started(self, incarnation: Incarnation) -> None:
        self._hear(Started(incarnation, boot_time_ms()))

    def session_expired(self) -> None:
        self._hear(Expired(boot_time_ms()))

    def lease_renewed(self, sent_at_ms: Millis) -> None:
        self._hear(Renewed(sent_at_ms, boot_time_ms()))

    def group_event(self, group: GroupKey, event: Event) -> None:
        self._hear(Told(group, event))

    def options_changed(self, options: OptionSet) -> None:
        self._hear(Tuned(options))

    def spec_changed(self, spec: ModuleSpec | None) -> None:
        self._hear(Specified(spec))

    def _hear(self, what: Heard) -> None:
        with self._condition:
            self.heard.append(what)
            self._condition.notify_all()

    def wait(
        self, what: str, find: Callable[[list[Heard]], T], deadline_seconds: float = DEADLINE_SECONDS
    ) -> T:
        """Wait for the first true answer of ``find`` about what was heard, and return it."""
        deadline = time.monotonic() + deadline_seconds
        with self._condition:
            while not (found := find(self.heard)):
                left = deadline - time.monotonic()
                assert left > 0, f"{what}: not within {deadline_seconds} s; heard {self.heard[-20:]}"
                self._condition.wait(left)
            return found

    def of(self, kind: type[T]) -> list[T]:
        with self._condition:
            return [each for each in self.heard if isinstance(each, kind)]

    def events(self, kind: type[T], group: GroupKey | None = None) -> list[T]:
        return [
            told.event
            for told in self.of(Told)
            if isinstance(told.event, kind) and group in {None, told.group}
        ]

    def wait_event(
        self, kind: type[T], matches: Callable[[T], bool] = lambda _: True, group: GroupKey | None = None
    ) -> T:
        def find(_: list[Heard]) -> T | None:
            return next((event for event in self.events(kind, group) if matches(event)), None)

        found = self.wait(f"a {kind.__name__}", find)
        assert found is not None
        return found

    def wait_options(self, matches: Callable[[OptionSet], bool]) -> OptionSet:
        """Wait for the first options that match, of all that were heard."""

        def find(_: list[Heard]) -> Tuned | None:
            return next((told for told in self.of(Tuned) if matches(told.options)), None)

        found = self.wait("matching options", find)
        assert found is not None
        return found.options

    def wait_started(self, count: int = 1) -> Incarnation:
        """Wait for the ``count``-th session, and return its incarnation."""
        self.wait(f"session {count}", lambda _: len(self.of(Started)) >= count)
        return self.of(Started)[count - 1].incarnation
