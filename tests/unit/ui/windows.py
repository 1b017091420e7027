"""Windows to test with."""

from __future__ import annotations

from typing import Any

from stretto.telemetry.histogram import Distribution, Histogram
from stretto.telemetry.windows import (
    FOLLOWED,
    LED,
    WINDOW_MS,
    GroupWindow,
    KindWindow,
    Looks,
    ReplogLooks,
    Window,
)
from stretto.vocabulary.groups import GroupKey
from stretto.vocabulary.types import Epoch, WorkerId


def looks(*values: float) -> Looks:
    found = Looks()
    for value in values:
        found = found.with_look(value)
    return found


def distribution(*seconds: float) -> Distribution:
    histogram = Histogram()
    for each in seconds:
        histogram.add(each)
    return histogram.told()


def kind(entries: int = 10, *seconds: float, **more: Any) -> KindWindow:
    told = distribution(*seconds) if seconds else None
    return KindWindow(entries=entries, bytes=entries * 100, replicate=told, apply=told, **more)


def group(number: int = 0, role: str = "leader", module: str = "M", **more: Any) -> GroupWindow:
    standing: dict[str, Any] = {
        "in_isr": True,
        "min_isr": 2,
        "replogs": {LED if role == "leader" else FOLLOWED: ReplogLooks(looks(5), looks(1))},
    }
    if role == "leader":
        standing |= {"isr": looks(3), "led_epoch": Epoch(1)}
    return GroupWindow(group=GroupKey(module, 1, number), role=role, **(standing | more))


def window(start_ms: int, *groups: GroupWindow, worker: str = "w0", covered_ms: int = WINDOW_MS) -> Window:
    return Window(
        start_ms=start_ms, worker=WorkerId(worker), groups=groups or (group(),), covered_ms=covered_ms
    )
