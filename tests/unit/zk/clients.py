"""A kazoo client that writes down what it is asked, and whose answers the test gives."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any


class Answer:
    """What kazoo returns for a call."""

    def __init__(self) -> None:
        self.value: Any = None
        self.exception: Exception | None = None
        self._callbacks: list[Callable[[Any], None]] = []

    def successful(self) -> bool:
        return self.exception is None

    def rawlink(self, callback: Callable[[Any], None]) -> None:
        self._callbacks.append(callback)

    def give(self, value: Any = None, exception: Exception | None = None) -> None:
        self.value, self.exception = value, exception
        for callback in self._callbacks:
            callback(self)


class FakeClient:
    """Every call in the order of sending; a transaction of one check is called ``write``, by its only use."""

    negotiated_timeout_ms = 6_000

    def __init__(self, registration_path: str) -> None:
        self.registration_path = registration_path
        self.calls: list[tuple[str, Answer]] = []

    def call(self, name: str) -> Answer:
        answer = Answer()
        self.calls.append((name, answer))
        return answer

    def transaction(self) -> FakeTransaction:
        return FakeTransaction(self)

    def create_async(self, *_: object, **__: object) -> Answer:
        return self.call("create")

    def get_async(self, path: str, **_: object) -> Answer:
        return self.call(f"get {path}")

    def get_children_async(self, path: str, **_: object) -> Answer:
        return self.call(f"list {path}")

    def exists_async(self, path: str, **_: object) -> Answer:
        return self.call(f"test {path}")

    @property
    def names(self) -> list[str]:
        return [name for name, _ in self.calls]

    def sent_from(self, number: int) -> Iterator[tuple[str, Answer]]:
        """Also what is sent while this goes on."""
        while number < len(self.calls):
            yield self.calls[number]
            number += 1


class FakeTransaction:
    def __init__(self, client: FakeClient) -> None:
        self._client = client
        self._checked: list[tuple[str, int]] = []

    def check(self, path: str, version: int) -> None:
        self._checked.append((path, version))

    def commit_async(self) -> Answer:
        assert self._checked == [(self._client.registration_path, -1)]
        return self._client.call("write")
