"""A module whose topologies must come to the same, whatever happens: each counts every event once."""

from __future__ import annotations

from typing import Any

from stretto import Depot, Module, PState, microbatch, stream


class Moving(Module):
    events = Depot(partition_by="user")
    streamed = PState(dict[str, int])
    batched = PState(dict[str, int])

    @stream(events)
    def one_by_one(self, event: dict[str, Any]) -> None:
        self.streamed.increment(event["user"])

    @microbatch(events)
    def together(self, event: dict[str, Any]) -> None:
        self.batched.increment(event["user"])
