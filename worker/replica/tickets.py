"""The requests that wait for the core's answers: one table, from the number of a request to its ticket.

Whoever steps an Append or a Read takes a ticket first, and gives its number as the event's ``request``. The
core names that number when it has the answer, in a Reply; and before that, for a read, when it is time to
look at the applied state, in a Sample. The group's driver hands both to the ticket. A number says no more.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

from stretto.replog.core import effects
from stretto.vocabulary.invariants import InvariantViolation

if TYPE_CHECKING:
    from stretto.worker.replica.group import Group


class Ticket:
    """A request that waits for the core's answer; to be derived from."""

    __slots__ = ()

    def on_reply(self, result: effects.Result) -> None:
        """Take the core's answer. Called once."""
        raise NotImplementedError

    def on_sample(self, group: Group, number: int) -> None:
        """Look at the applied state, then step Sampled. Only the ticket of a read is asked to, and it
        must."""
        raise InvariantViolation("what is no read is sampled", {"group": group.key, "number": number})


class Tickets:
    """The tickets of all requests that a worker's groups have not answered yet. The loop owns them."""

    def __init__(self) -> None:
        #: The source of request numbers, also for what is answered on the spot and needs no ticket.
        self.next_number = itertools.count(1).__next__
        self._taken: dict[int, Ticket] = {}

    def take(self, ticket: Ticket) -> int:
        """Keep a ticket, and return the number by which the core is to know the request."""
        number = self.next_number()
        self._taken[number] = ticket
        return number

    def is_open(self, number: int) -> bool:
        """Whether a request has a ticket and is not answered."""
        return number in self._taken

    def deliver(self, number: int, result: effects.Result) -> None:
        """Give the answer to the ticket with this number; a second answer is not delivered."""
        ticket = self._taken.pop(number, None)
        if ticket is not None:
            ticket.on_reply(result)

    def sample(self, group: Group, number: int) -> None:
        """Let the ticket with this number look at the applied state of the group."""
        self._taken[number].on_sample(group, number)
