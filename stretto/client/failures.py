"""What a module's functions did not manage, over all its groups: each leader knows those of its own tasks."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from stretto import admin
from stretto.client.calls import ask
from stretto.client.cluster import Cluster
from stretto.client.status import newest_groups
from stretto.errors import RetriableError
from stretto.zk.paths import GroupKey


class ModuleFailures(msgspec.Struct, frozen=True, kw_only=True):
    parked: tuple[admin.FailureView, ...]
    streams: tuple[admin.TopologyView, ...]
    problems: tuple[str, ...]


def find_failures(
    cluster: Cluster, module: str, is_wanted: Callable[[admin.FailureView], bool]
) -> ModuleFailures:
    found = [
        ask(cluster.network, address, admin.Failures(group=group))
        for group, address in _leaders(cluster, module)
    ]
    return ModuleFailures(
        parked=tuple(each for view in found for each in view.parked if is_wanted(each)),
        streams=tuple(each for view in found for each in view.streams),
        problems=tuple(dict.fromkeys(each for view in found for each in view.problems)),
    )


def settle_failures(
    cluster: Cluster, module: str, is_wanted: Callable[[admin.FailureView], bool], *, again: bool
) -> int:
    """Have parked records tried again, or forget them; how many there were."""
    settled = 0
    for group, address in _leaders(cluster, module):
        view = ask(cluster.network, address, admin.Failures(group=group))
        keys = tuple(
            admin.FailureKey(topology=each.topology, depot=each.depot, task=each.task, offset=each.offset)
            for each in view.parked
            if is_wanted(each)
        )
        if keys:
            call = admin.SettleFailures(group=group, keys=keys, again=again)
            settled += ask(cluster.network, address, call)
    return settled


def _leaders(cluster: Cluster, module: str) -> list[tuple[GroupKey, str]]:
    metadata = cluster.metadata()
    found = []
    for view in newest_groups(metadata, module):
        address = metadata.addresses.get(view.leader) if view.leader is not None else None
        if address is None:
            raise RetriableError(f"nobody leads group {view.key.group} of {module} now; try again")
        found.append((view.key, address))
    return found
