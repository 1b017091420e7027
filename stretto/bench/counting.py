"""The module that the word count of the bench runs: that of the examples, many sentences at a time."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from stretto import Depot, Module, PState, step, stream


@dataclass
class Sentence:
    user: str
    text: str


def counted(sentences: list[Sentence]) -> Counter[str]:
    """Count the words of sentences; the stream and its floor both call this."""
    counts: Counter[str] = Counter()
    for sentence in sentences:
        counts.update(sentence.text.split())
    return counts


class Counting(Module):
    sentences = Depot(partition_by="user")
    counts = PState(dict[str, int])

    @stream(sentences, batch=True)
    def split(self, sentences: list[Sentence]) -> None:
        for word, count in counted(sentences).items():
            self.add.at(word)(word, count)

    @step
    def add(self, word: str, count: int) -> None:
        self.counts.increment(word, by=count)
