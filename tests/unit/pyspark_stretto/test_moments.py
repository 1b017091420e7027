"""How the tasks of a query agree on its moment, with a cluster that only remembers what they say."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from pyspark_stretto import moments, states
from pyspark_stretto.moments import Plan, moment_of
from stretto import control
from stretto.client.reading.scan import PinnedGroup
from stretto.errors import StrettoError

SECONDS = 20.0
OPTIONS: Any = SimpleNamespace(hold_ms=0, object="PState counts", cluster_key=lambda: None)
DESCRIBED: Any = SimpleNamespace(module="m")


def pinned(offset: int) -> tuple[PinnedGroup, ...]:
    return (
        PinnedGroup(
            pin=f"pin at {offset}",
            module="m",
            group="m/1/0",
            worker="w",
            address="a",
            offset=offset,
            epoch=1,
            version=1,
            tasks=(0, 1),
        ),
    )


class Cluster:
    """What workers answer of moments, and the offset that a pin would have now."""

    def __init__(self) -> None:
        self.present = 100
        self.finds = 0
        #: Runs while somebody pins.
        self.while_pinning: Callable[[], None] = lambda: None
        self._lock = threading.Lock()
        self._decided: dict[int, control.ReadMoment] = {}
        self._announced: set[int] = set()

    def answer(self, call: Any) -> Any:
        with self._lock:
            match call:
                case control.AnnounceMoment(query=query):
                    self._announced.add(query)
                    return self._find(query)
                case control.FindMoment(query=query):
                    self.finds += 1
                    return self._find(query)
                case control.FindMoments():
                    return tuple(self._decided[query] for query in sorted(self._decided))
                case control.DecideMoment(offer=offer):
                    return self._decided.setdefault(offer.query, offer)
                case _:
                    raise NotImplementedError(call)

    def _find(self, query: int) -> control.MomentFound:
        if query in self._decided:
            return control.MomentFound(moment=self._decided[query])
        latest = self._decided[max(self._decided)] if self._decided else None
        return control.MomentFound(latest=latest, is_begun=query in self._announced)

    def pin(self, *_: object) -> tuple[PinnedGroup, ...]:
        self.while_pinning()
        return pinned(self.present)


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    cluster = Cluster()

    @contextmanager
    def reached(_: object) -> Iterator[Cluster]:
        yield cluster

    monkeypatch.setattr(states, "reached", reached)
    monkeypatch.setattr(states, "pin", cluster.pin)
    monkeypatch.setattr(moments, "release", lambda *_: None)
    monkeypatch.setattr(moments._Agreeing, "_call", lambda _, call: cluster.answer(call))
    monkeypatch.setattr(moments._Agreeing, "_are_there", lambda *_: True)
    monkeypatch.setattr(moments, "FIRST_PART_SECONDS", 0.05)
    monkeypatch.setattr(moments, "SOON_SECONDS", 0.001)
    monkeypatch.setattr(moments, "LOOK_SECONDS", 0.002)
    monkeypatch.setattr(moments, "_known", _Forgetful())
    return cluster


class _Forgetful(dict[tuple[str, int], control.ReadMoment]):
    """Each task is in a process of its own: what one of them knows is of no use to the next."""

    def __contains__(self, _: object) -> bool:
        return False


FIRST = Plan.of("plan", pinned(100))
OTHER = FIRST.of_others


def offset_of(plan: Plan, query: int) -> int:
    return moment_of(OPTIONS, DESCRIBED, plan, query).pinned[0].offset


def test_a_first_part_that_is_slow_to_pin_is_waited_for_and_all_read_the_present(cluster: Cluster) -> None:
    assert offset_of(FIRST, 1) == 100
    cluster.present = 200
    with ThreadPoolExecutor(1) as pool:
        other = None

        def wait_until_others_are_out_of_patience() -> None:
            nonlocal other
            before, deadline = cluster.finds, time.monotonic() + SECONDS
            other = pool.submit(offset_of, OTHER, 2)
            while cluster.finds < before + 200 and not other.done() and time.monotonic() < deadline:
                time.sleep(0.001)

        cluster.while_pinning = wait_until_others_are_out_of_patience
        assert offset_of(FIRST, 2) == 200
        assert other is not None
        assert other.result(SECONDS) == 200


def test_a_first_part_that_comes_after_it_was_taken_for_cached_fails_its_query(cluster: Cluster) -> None:
    assert offset_of(FIRST, 1) == 100
    cluster.present = 200
    assert offset_of(OTHER, 2) == 100, "as if the first part were cached"
    with pytest.raises(StrettoError, match="run the query again"):
        offset_of(FIRST, 2)
    assert offset_of(FIRST, 3) == 200


def test_a_plan_that_did_not_pin_all_groups_has_no_moment_to_offer(cluster: Cluster) -> None:
    cluster.present = 200
    assert offset_of(Plan.of("plan", ()), 1) == 200
    assert offset_of(OTHER, 1) == 200


def test_a_first_part_that_never_decides_is_not_waited_for_without_end(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(moments, "DECIDE_SECONDS", 0.05)
    monkeypatch.setattr(moments, "GIVE_UP_SECONDS", 0.0)
    assert offset_of(FIRST, 1) == 100
    cluster.answer(control.AnnounceMoment(module="m", plan="plan", query=2))
    with pytest.raises(StrettoError, match="look at the error of its task"):
        offset_of(OTHER, 2)
