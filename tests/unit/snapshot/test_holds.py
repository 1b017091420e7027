"""A cut waits until every leader says of itself, held, that nothing is under way."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from stretto import control
from stretto.errors import RetriableError
from stretto.snapshot import creating
from stretto.vocabulary.groups import GroupKey
from stretto.vocabulary.types import Epoch, TaskId, WorkerId
from stretto.wire import messages as wire

GROUPS = [GroupKey("bank", 1, number) for number in range(2)]


class Workers:
    """Each leads a group. One misses some of what it is asked; what it begins is known a moment later."""

    def __init__(self, missed: dict[str, set[int]], lapsed: dict[str, set[int]]) -> None:
        self.missed = missed
        self.lapsed = lapsed
        self.asked = dict.fromkeys(("w0", "w1"), 0)
        #: Since which time each is held; what was in its inbox then is told of from the next time on.
        self.held: dict[str, int] = {}
        self.quiet: set[str] = set()

    def ask(self, _network: object, address: str, call: Any, *, timeout: float) -> Any:
        assert timeout
        assert isinstance(call, control.HoldTopologies)
        if not call.hold_ms:
            self.held.pop(address, None)
            return control.HoldView(led=(), waits="")
        self.asked[address] += 1
        number = self.asked[address]
        if number in self.missed.get(address, ()):
            raise RetriableError("nothing was answered")
        if number in self.lapsed.get(address, ()):
            self.held.pop(address, None)
        was_held = address in self.held
        self.held.setdefault(address, number)
        # The batch that was in the inbox is done by the third time that it is asked while it is held.
        is_done = number - self.held[address] >= 2
        waits = "a stream is at work" if was_held and not is_done else ""
        if is_done:
            self.quiet.add(address)
        else:
            self.quiet.discard(address)
        group = GROUPS[int(address[1:])]
        return control.HoldView(led=((group, Epoch(3)),), waits=waits, was_held=was_held)


@pytest.mark.parametrize("missed", [{}, {"w1": {1, 2, 3, 4}}, {"w0": {2, 3}, "w1": {1}}])
@pytest.mark.parametrize("lapsed", [{}, {"w1": {3}}])
def test_who_missed_the_first_call_or_lost_its_hold_does_not_count_at_once(
    missed: dict[str, set[int]],
    lapsed: dict[str, set[int]],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    workers = Workers(missed, lapsed)
    monkeypatch.setattr(creating, "ask", workers.ask)
    monkeypatch.setattr(creating, "POLL_SECONDS", 0.0)
    making = creating._Making(
        cast(Any, SimpleNamespace(network=None)),
        "bank",
        tmp_path,
        token="t",
        timeout=1.0,
        progress=lambda *_: None,
    )
    making._addresses = {WorkerId("w0"): "w0", WorkerId("w1"): "w1"}
    views = [
        cast(wire.GroupView, SimpleNamespace(key=key, replicas=(WorkerId(f"w{number}"),), tasks=(TaskId(0),)))
        for number, key in enumerate(GROUPS)
    ]
    with ExitStack() as closing:
        making._pool = closing.enter_context(ThreadPoolExecutor(2))
        epochs, _ = closing.enter_context(making._held(views, "marker"))
        assert epochs == dict.fromkeys(GROUPS, Epoch(3))
        assert workers.quiet == {"w0", "w1"}, "it was cut while something was under way"
