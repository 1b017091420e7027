"""Who leads where, and who should. Asked of the conductor."""

from __future__ import annotations

import msgspec

from stretto.control.call import Call
from stretto.vocabulary.groups import GroupKey
from stretto.vocabulary.types import Epoch, WorkerId


class SwitchView(msgspec.Struct, frozen=True, kw_only=True):
    group: GroupKey
    leader: WorkerId
    target: WorkerId


class NodeLeaders(msgspec.Struct, frozen=True, kw_only=True):
    node: str
    leaders: int
    ideal: float
    allowed: bool


class LeadershipView(msgspec.Struct, frozen=True, kw_only=True):
    module: str
    state: str
    nodes: tuple[NodeLeaders, ...]
    leaderless: tuple[GroupKey, ...]
    switches: tuple[SwitchView, ...]
    """The switches that a balancing would make now."""
    imbalance: float
    threshold: float


class Leadership(Call[LeadershipView], frozen=True, kw_only=True):
    """Where the leaders of a module are, and where they should be."""

    module: str


class Balance(Call[LeadershipView], frozen=True, kw_only=True):
    """Balance now, whatever the threshold; returns what is about to be switched."""

    module: str


class AllowLeadership(Call[None], frozen=True, kw_only=True):
    """Let leaders come back to a node."""

    node: str


class DisallowLeadership(Call[None], frozen=True, kw_only=True):
    """Move leaders away from a node, and let none come back, until it is allowed again."""

    node: str


class ResignLeader(Call[Epoch], frozen=True, kw_only=True):
    """Hand a group over to another member; returns the epoch that is asked to end."""

    module: str
    group: int
    to: WorkerId
