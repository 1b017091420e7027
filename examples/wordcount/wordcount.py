"""Word count: people say sentences, and every word is counted on the task that owns it."""

from __future__ import annotations

from dataclasses import dataclass
from heapq import nlargest

from stretto import Depot, Module, PState, query, step, stream


@dataclass
class Sentence:
    user: str
    text: str


class WordCount(Module):
    sentences = Depot(Sentence, partition_by="user")
    counts = PState(dict[str, int])

    @stream(sentences)
    def split(self, sentence: Sentence) -> None:
        for word in sentence.text.split():
            self.count.at(word)(word)

    @step
    def count(self, word: str) -> None:
        self.counts.increment(word)

    @query
    def top(self, limit: int = 10) -> list[tuple[int, str]]:
        return nlargest(limit, ((count, word) for word, count in self.counts.items()))

    @top.combine
    def top_of_all(self, parts: list[list[tuple[int, str]]], limit: int) -> list[tuple[int, str]]:
        return nlargest(limit, (each for part in parts for each in part))
