"""What functions write as if a PState were a dict, or a query a topology: a sentence says what to write."""

from __future__ import annotations

from typing import Any

import pytest

import stretto.testing
from stretto import Depot, Module, PState, query, stream
from stretto.errors import UsageError
from stretto.module.partition import owner_of

TASKS = 4


class Counts(Module):
    words = Depot(partition_by="word")
    counts = PState(dict[str, int])

    @stream(words)
    def take(self, record: dict[str, Any]) -> None:
        word, how = record["word"], record["how"]
        if how == "+=":
            self.counts[word] += 1  # type: ignore[index]
        if how == "=":
            self.counts[word] = 1  # type: ignore[index]
        if how == "del":
            del self.counts[word]  # type: ignore[attr-defined]
        if how == "in":
            assert word in self.counts  # type: ignore[operator]
        if how == "for":
            assert not list(self.counts)  # type: ignore[call-overload]
        if how == "if":
            assert self.counts  # type: ignore[truthy-bool]

    @query(key="word")
    def other_than(self, word: str) -> int:
        return int(self.counts.get(foreign_to(word), default=0))

    @query
    def everywhere(self, word: str) -> int:
        return int(self.counts.get(word, default=0))

    @query
    def subscripted(self) -> int:
        return int(self.counts["the"])  # type: ignore[index]


def foreign_to(word: str) -> str:
    candidates = (f"{word}{number}" for number in range(100))
    return next(each for each in candidates if owner_of(each, TASKS) != owner_of(word, TASKS))


@pytest.mark.parametrize(
    ("how", "sentence"),
    [
        (
            "+=",
            r"no \[\]: write self.counts.get\('the'\) .* and self.counts.increment\('the'\) or self.counts",
        ),
        ("=", r"no \[\]: write self.counts.set\('the', value=...\)"),
        ("del", r"no \[\]: write self.counts.delete\('the'\)"),
        ("in", r"write self.counts.contains\('the'\)"),
        ("for", r"write self.counts.keys\(\), or self.counts.items\(\)"),
        ("if", r"write self.counts.count\(\)"),
    ],
)
def test_a_pstate_that_is_used_like_a_dict_is_told_its_methods(how: str, sentence: str) -> None:
    """It used to be a bare TypeError: 'TaskEditor' object is not subscriptable."""
    with stretto.testing.module(Counts, tasks=TASKS) as m:
        m.append("words", {"word": "the", "how": how})
        with pytest.raises(UsageError, match=sentence):
            m.run()


def test_readers_are_told_theirs() -> None:
    with stretto.testing.module(Counts, tasks=TASKS) as m:
        with pytest.raises(UsageError, match=r"write counts.get\('the'\) to read what is under a key$"):
            m.counts["the"]  # type: ignore[index]
        with pytest.raises(UsageError, match="changed by a topology of its module, and only read elsewhere"):
            m.counts["the"] = 1  # type: ignore[index]
        with pytest.raises(UsageError, match=r"write self.counts.get\('the'\) to read what is under a key$"):
            m.query("subscripted")


def test_a_query_that_touches_a_foreign_key_is_told_what_a_query_can_do() -> None:
    """It used to be told to hop, which queries cannot."""
    with stretto.testing.module(Counts, tasks=TASKS) as m:
        with pytest.raises(
            UsageError, match=r"query other_than runs where its word is .* leave out key="
        ) as keyed:
            m.query("other_than", "the")
        with pytest.raises(
            UsageError, match=r"query everywhere runs on every task .* @query\(key=...\)"
        ) as all_:
            m.query("everywhere", "the")
    assert "hop" not in f"{keyed.value}{all_.value}"
