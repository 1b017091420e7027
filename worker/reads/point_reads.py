"""Point reads of PStates, which take a leader's loop a few microseconds each if it has not to wait.

If their rows are known to be in memory (:mod:`stretto.worker.reads.page_residency`), the loop looks a few of
them up itself, reads the clock, and asks the core: to wake the reading thread and to be woken by it takes
longer. The first of a turn is answered at once; all others of a group are one read to the core, at the end of
the turn. What might have to wait goes the way of any read (:mod:`stretto.worker.reads.reads`).

A process that slept runs cold, each function several times slower than in a loop. So the short way is made of
few.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from time import perf_counter
from typing import TYPE_CHECKING, Protocol, TypeAlias

from stretto.errors import StrettoError
from stretto.replog.core import effects
from stretto.state.environment import WouldWait
from stretto.vocabulary.groups import GroupKey
from stretto.vocabulary.types import Epoch
from stretto.wire import messages as wire
from stretto.worker.reads import row_queries
from stretto.worker.reads.page_residency import Residence

if TYPE_CHECKING:
    from stretto.network.loop import Loop
    from stretto.network.transport import Connection, Transport
    from stretto.worker.replica.group import Group

TOGETHER_KEYS_MAX = 1_000
"""How many keys the point reads of a turn may have to be one read to the core; beyond it they are several."""
LOOP_KEYS_MAX = 200
"""How many keys the loop looks up itself at most: that takes it less than a millisecond."""

Asked: TypeAlias = "tuple[Connection, wire.ReadRows]"
Found: TypeAlias = row_queries.Values | Exception


class Host(Protocol):
    """The worker, as its point reads see it."""

    @property
    def loop(self) -> Loop: ...

    @property
    def transport(self) -> Transport: ...

    @property
    def groups(self) -> Mapping[GroupKey, Group]: ...


class PointReads:
    """The point reads of a worker. The loop owns them. ``begin`` starts ordinary reads, for point reads of
    one group and of one age."""

    def __init__(
        self,
        worker: Host,
        next_number: Callable[[], int],
        begin: Callable[[GroupKey, list[Asked]], None],
    ) -> None:
        self._worker = worker
        self._next_number = next_number
        self._begin = begin
        self.residence = Residence()
        #: The point reads of this turn, by their group and the age that they accept.
        self._gathered: dict[tuple[GroupKey, int | None], list[Asked]] = {}
        self._keys = 0
        #: The turn of the loop in which the latest read came.
        self._turn = -1

    def received(self, sender: Connection, message: wire.ReadRows) -> None:
        """Answer a point read: the first of a turn, which mostly is the only one, at once, others at its
        end."""
        is_first = self._turn != self._worker.loop.turns
        self._turn = self._worker.loop.turns
        if is_first and message.stale is None:
            group = self._worker.groups.get(message.group)
            if group is not None and self._answers(group, [(sender, message)]):
                return
        self._gather(sender, message)

    def _gather(self, sender: Connection, message: wire.ReadRows) -> None:
        if not self._gathered:
            self._worker.loop.at_turn_end(self._answer_gathered)
        stale = message.stale
        alike = message.group, None if stale is None else stale.max_staleness_ms
        asked = self._gathered.get(alike)
        if asked is None:
            self._gathered[alike] = [(sender, message)]
        else:
            asked.append((sender, message))
        self._keys += len(message.keys)
        if self._keys >= TOGETHER_KEYS_MAX:
            self._answer_gathered()

    def _answer_gathered(self) -> None:
        gathered, self._gathered = self._gathered, {}
        self._keys = 0
        for (key, age), asked in gathered.items():
            group = self._worker.groups.get(key)
            if age is not None or group is None or not self._answers(group, asked):
                self._begin(key, asked)

    def _answers(self, group: Group, asked: list[Asked]) -> bool:
        """Answer point reads on the spot; False, and nothing is answered, if one of them would have to
        wait."""
        if not group.answers_at_once:
            return False
        found = self.glance(group, [message for _, message in asked])
        if found is None:
            return False
        loop, reply = self._worker.loop, self._worker.transport.reply
        loop.look_at_clock()
        result = group.answer_sampled(self._next_number())
        for (sender, message), each in zip(asked, found, strict=True):
            if isinstance(result, effects.ReadServed):
                reply(sender, served(message.request, each, result.epoch))
            elif isinstance(result, effects.Refused):
                reply(sender, wire.Refused(message.request, result.reason, result.leader, result.epoch))
            else:
                reply(sender, wire.Unknown(message.request))
        return True

    def glance(self, group: Group, messages: Sequence[wire.ReadRows]) -> list[Found] | None:
        """Look up the rows of point reads on the loop; None if that might have to wait."""
        keys = sum([len(message.keys) for message in messages])
        if keys > LOOP_KEYS_MAX or not self.residence.is_likely:
            return None
        begun = perf_counter()
        try:
            found = [look_up(group, message, wait=False) for message in messages]
        except WouldWait:
            return None
        self.residence.glanced(keys, perf_counter() - begun)
        return found


def look_up(group: Group, message: wire.ReadRows, *, wait: bool = True) -> Found:
    """Look up the rows of one point read. An error is returned, not raised: the others get their answers."""
    try:
        return row_queries.look_up(group.state, message, wait=wait)
    except WouldWait:
        raise
    except Exception as error:  # noqa: BLE001 - the reader is told
        return error


def served(request: int, found: Found, epoch: Epoch) -> wire.RowValues | wire.Failed:
    """Return the reply to a point read that may be answered."""
    if isinstance(found, tuple):
        values, offset = found
        return wire.RowValues(request, values, epoch, offset)
    return failed(request, found)


def failed(request: int, error: Exception) -> wire.Failed:
    """Return the reply to a read that failed."""
    if isinstance(error, StrettoError):
        return wire.Failed(request, str(error), wire.Fault.of(error))
    return wire.Failed(request, str(error))
