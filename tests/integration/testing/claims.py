"""A module that answers who appends, and counts on other tasks: whatever happens, each name has one owner."""

from __future__ import annotations

from dataclasses import dataclass

from stretto import Depot, Module, PState, microbatch, step, stream


@dataclass
class Claim:
    name: str
    by: str
    words: list[str]


class Claims(Module):
    claims = Depot(partition_by="name")
    owners = PState(dict[str, str])
    counts = PState(dict[str, int])
    batched = PState(dict[str, int])

    @stream(claims)
    def claim(self, claim: Claim) -> bool:
        """Whether the name is free, and its owner's now."""
        for word in claim.words:
            self.count.at(word)(word)
        if self.owners.get(claim.name) is not None:
            return False
        self.owners.set(claim.name, value=claim.by)
        return True

    @step
    def count(self, word: str) -> None:
        self.counts.increment(word)

    @microbatch(claims)
    def tally(self, claim: Claim) -> int:
        self.batched.increment(claim.name)
        return len(claim.words)
