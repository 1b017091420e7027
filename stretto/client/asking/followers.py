"""Reads that followers may answer: which of them is asked, and what the reader has seen.

A caller who accepts answers of a certain age spreads its reads over the followers of the ISR. Who refuses or
does not answer soon is left alone for a while, and the leader is asked instead. Every answer tells the epoch
and the offset it was read at; the highest of each group are the reader's *token*, which every later read
carries: so its reads never go back, whoever answers them. A token is text, to be passed on to another reader.
"""

from __future__ import annotations

import itertools
import re
import threading

from stretto.errors import UsageError
from stretto.network.routing import Network
from stretto.replog.core.effects import Refusal
from stretto.vocabulary.groups import GroupKey
from stretto.vocabulary.types import Epoch, Offset
from stretto.wire import messages as wire

AVOID_MS = 1_000
AVOID_LAGGING_MS = 50

_TOKEN = re.compile(r"(.+)/(\d+)/(\d+):(\d+)\.(\d+)")


class Seen:
    """Up to where a reader has seen each group. From any thread."""

    def __init__(self, token: str = "") -> None:
        self._writing = threading.Lock()
        self._groups: dict[GroupKey, tuple[Epoch, Offset]] = {}
        for part in token.split():
            found = _TOKEN.fullmatch(part)
            if found is None:
                raise UsageError(f"{part!r} is no part of a token; give what a reader's token was")
            module, generation, group, epoch, offset = found.groups()
            self.saw(GroupKey(module, int(generation), int(group)), Epoch(int(epoch)), Offset(int(offset)))

    def saw(self, group: GroupKey, epoch: Epoch, offset: Offset) -> None:
        with self._writing:
            known = self._groups.get(group)
            if known is not None:
                epoch, offset = max(epoch, known[0]), max(offset, known[1])
            self._groups[group] = (epoch, offset)

    def of(self, group: GroupKey) -> tuple[Epoch, Offset]:
        return self._groups.get(group, (Epoch(0), Offset(0)))

    def __str__(self) -> str:
        return " ".join(
            f"{group.module}/{group.generation}/{group.group}:{epoch}.{offset}"
            for group, (epoch, offset) in sorted(self._groups.copy().items())
        )


class Followers:
    """Whom to ask next. All methods are the client's thread's."""

    def __init__(self, network: Network, max_staleness: float, seen: Seen) -> None:
        if not 0 < max_staleness <= 3_600:
            raise UsageError(f"max_staleness is in seconds, above 0 and up to 3600, not {max_staleness}")
        self._network = network
        self._max_staleness_ms = max(1, int(max_staleness * 1_000))
        self._seen = seen
        self._turns = itertools.count()
        self._avoided_until: dict[str, int] = {}

    def stale(self, group: GroupKey) -> wire.Stale:
        epoch, after = self._seen.of(group)
        return wire.Stale(self._max_staleness_ms, after, epoch)

    def pick(self, group: GroupKey) -> str | None:
        """The address of a follower; None if there is none to be asked now."""
        view = self._network.view.groups.get(group)
        addresses = self._network.view.addresses
        members = [each for each in view.isr if each != view.leader] if view is not None else []
        now = self._network.loop.now
        fit = [
            addresses[each]
            for each in members
            if each in addresses and self._avoided_until.get(addresses[each], 0) <= now
        ]
        return fit[next(self._turns) % len(fit)] if fit else None

    def avoid(self, address: str, answer: wire.ToClient | None) -> None:
        """One that lags catches up soon; the others have no reason to answer the next reads."""
        lags = isinstance(answer, wire.Refused) and answer.reason is Refusal.TOO_STALE
        self._avoided_until[address] = self._network.loop.now + (AVOID_LAGGING_MS if lags else AVOID_MS)
