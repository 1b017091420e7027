"""Entries that a worker appends by itself: what becomes of them is measured like what becomes of clients'."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from stretto.control import ModuleDescription
from stretto.options import OptionSet
from stretto.replog.core import effects
from stretto.replog.core.effects import Refusal
from stretto.replog.frame import Kind
from stretto.vocabulary.groups import GroupKey
from stretto.vocabulary.types import Epoch, Offset, TaskId
from stretto.worker.clients import Clients
from stretto.worker.replica.group import Group
from stretto.worker.replica.meter import Meter
from stretto.worker.replica.tickets import Tickets
from stretto.worker.topology.entries import Entries

KEY = GroupKey("M", 1, 0)
REFUSED = effects.Refused(reason=Refusal.STALLED, leader=None, epoch=Epoch(1))


def group_that(result: effects.Result, tickets: Tickets) -> Group:
    """Answers every append with this."""
    found = SimpleNamespace(
        key=KEY,
        closed=False,
        meter=Meter(),
        leader=SimpleNamespace(epoch=Epoch(1)),
        replica=SimpleNamespace(log_end=Offset(1)),
        step=lambda event: tickets.deliver(event.request, result),
    )
    return cast(Group, found)


def failures(group: Group) -> dict[str, dict[str, int]]:
    told = group.meter.take(group=KEY, role="leader")
    return {kind: each.failures for kind, each in told.kinds.items()}


@pytest.mark.parametrize("kind", [Kind.STATE, Kind.MICROBATCH])
def test_an_entry_of_a_topology_that_is_refused_is_a_failure_of_its_kind(kind: Kind) -> None:
    tickets = Tickets()
    entries = Entries(tickets)
    group = group_that(REFUSED, tickets)
    assert not entries.append(group, TaskId(0), b"", lambda: None, kind=kind)
    assert failures(group) == {kind.name.lower(): {"stalled": 1}}


def test_an_entry_of_a_topology_whose_outcome_nobody_knows_is_a_failure() -> None:
    tickets = Tickets()
    entries = Entries(tickets)
    group = group_that(effects.Unknown(), tickets)
    assert entries.append(group, TaskId(0), b"", lambda: None)
    assert failures(group) == {"state": {"unknown": 1}}


def test_an_entry_that_is_applied_is_none() -> None:
    tickets = Tickets()
    entries = Entries(tickets)
    group = group_that(effects.Acked(offset=Offset(0)), tickets)
    assert entries.append(group, TaskId(0), b"", lambda: None)
    assert failures(group) == {}


def test_a_trim_that_is_refused_is_a_failure_of_its_kind() -> None:
    worker: Any = SimpleNamespace(
        description=ModuleDescription(tasks=1, depots=None),
        options=OptionSet(),
        config=SimpleNamespace(module="M"),
        loop=None,
        tickets=Tickets(),
    )
    clients = Clients(worker)
    group = group_that(REFUSED, worker.tickets)
    heard: list[effects.Result] = []
    clients.append_own(group, Kind.TRIM, TaskId(0), b"", heard.append)
    assert heard == [REFUSED]
    assert failures(group) == {"trim": {"stalled": 1}}
