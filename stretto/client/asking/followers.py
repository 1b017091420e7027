"""Reads that followers may answer: which of them is asked, and what the reader has seen.

A caller that accepts answers of a certain age spreads its reads over the followers of the ISR. One that
refuses or does not answer soon is left alone for a while, and the leader is asked instead. Every answer has
the epoch and the offset it was read at; the highest of each group are the reader's *token*, which every
later read carries: so its reads never go back, whichever replica answers. A token is text, to be passed on to
another reader.
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
"""How long a follower is not asked after it refused or did not answer."""
AVOID_LAGGING_MS = 50
"""How long a follower is not asked after it answered that it is too far behind."""

_TOKEN = re.compile(r"(.+)/(\d+)/(\d+):(\d+)\.(\d+)")


class Seen:
    """The epoch and offset up to which a reader has seen each group. Safe to use from several threads."""

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
        """Note the epoch and offset of an answer; what was seen never goes back."""
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
    """Chooses the follower that is asked next. All methods are called on the client's thread."""

    def __init__(self, network: Network, max_staleness: float, seen: Seen) -> None:
        if not 0 < max_staleness <= 3_600:
            raise UsageError(f"max_staleness is in seconds, above 0 and up to 3600, not {max_staleness}")
        self._network = network
        self._max_staleness_ms = max(1, int(max_staleness * 1_000))
        self._seen = seen
        self._turns = itertools.count()
        self._avoided_until: dict[str, int] = {}

    def stale(self, group: GroupKey) -> wire.Stale:
        """Return the bounds that an answer of a follower must meet, for a request."""
        epoch, after = self._seen.of(group)
        return wire.Stale(self._max_staleness_ms, after, epoch)

    def pick(self, group: GroupKey) -> str | None:
        """Return the address of a follower in the ISR; None if there is none to be asked now."""
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
        """Leave a follower alone for a while: briefly if it lags, longer if it refused or did not answer."""
        lags = isinstance(answer, wire.Refused) and answer.reason is Refusal.TOO_STALE
        self._avoided_until[address] = self._network.loop.now + (AVOID_LAGGING_MS if lags else AVOID_MS)
