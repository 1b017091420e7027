"""Records that a module's functions failed on, over all its groups: each leader knows those of its tasks."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import msgspec

from stretto import control
from stretto.client.operating.cluster import Cluster
from stretto.client.operating.status import newest_groups
from stretto.errors import RetriableError
from stretto.network.asking import ask
from stretto.vocabulary.groups import GroupKey

SHOWN_MAX = 1_000
"""How many parked records of each group are shown at most."""


class ModuleFailures(msgspec.Struct, frozen=True, kw_only=True):
    parked: tuple[control.FailureView, ...]
    more: bool = False
    """Whether there are others that are not shown: of some group more than :data:`SHOWN_MAX`."""
    streams: tuple[control.TopologyView, ...]
    problems: tuple[str, ...]


def find_failures(
    cluster: Cluster, module: str, is_wanted: Callable[[control.FailureView], bool]
) -> ModuleFailures:
    """Return the wanted parked records of all groups of a module, and its topologies and problems."""
    parked: list[control.FailureView] = []
    streams: list[control.TopologyView] = []
    problems: dict[str, None] = {}
    more = False
    for group, address in _leaders(cluster, module):
        found: list[control.FailureView] = []
        for number, view in enumerate(_pages(cluster, group, address)):
            if number == 0:
                streams += view.streams
                problems |= dict.fromkeys(view.problems)
            found += [each for each in view.parked if is_wanted(each)]
            if len(found) > SHOWN_MAX or (len(found) == SHOWN_MAX and view.more):
                more = True
                break
        parked += found[:SHOWN_MAX]
    return ModuleFailures(parked=tuple(parked), more=more, streams=tuple(streams), problems=tuple(problems))


def settle_failures(
    cluster: Cluster, module: str, is_wanted: Callable[[control.FailureView], bool], *, again: bool
) -> int:
    """Have parked records tried again, or forget them; return how many were parked and are not any more.

    Goes through them once: one that is tried again and fails again is not settled twice.
    """
    settled = 0
    for group, address in _leaders(cluster, module):
        for view in _pages(cluster, group, address):
            keys = tuple(_key_of(each) for each in view.parked if is_wanted(each))
            if keys:
                call = control.SettleFailures(group=group, keys=keys, again=again)
                settled += ask(cluster.network, address, call)
    return settled


def settle_one(cluster: Cluster, module: str, failure: control.FailureKey, *, again: bool) -> int:
    """Have one parked record tried again, or forget it; return 0 if it is not parked."""
    for group, address in _leaders(cluster, module, failure.task):
        call = control.SettleFailures(group=group, keys=(failure,), again=again)
        return ask(cluster.network, address, call)
    return 0


def _pages(cluster: Cluster, group: GroupKey, address: str) -> Iterator[control.FailuresView]:
    after: control.FailureKey | None = None
    while True:
        view = ask(cluster.network, address, control.Failures(group=group, after=after))
        yield view
        if not view.more:
            return
        after = _key_of(view.parked[-1])


def _key_of(each: control.FailureKey) -> control.FailureKey:
    return control.FailureKey(topology=each.topology, depot=each.depot, task=each.task, offset=each.offset)


def _leaders(cluster: Cluster, module: str, task: int | None = None) -> list[tuple[GroupKey, str]]:
    """Return the leaders' addresses of all groups, or of the group that has the task."""
    metadata = cluster.metadata()
    found = []
    for view in newest_groups(metadata, module):
        if task is not None and task not in view.tasks:
            continue
        address = metadata.addresses.get(view.leader) if view.leader is not None else None
        if address is None:
            raise RetriableError(f"nobody leads group {view.key.group} of {module} now; try again")
        found.append((view.key, address))
    return found
