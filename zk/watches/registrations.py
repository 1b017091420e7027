"""Which incarnations of workers are alive, for all groups of this worker together.

Thousands of groups watch few workers: there is one test and one watch per registration, whoever asks. A test
answers those who asked before it was sent; who asks later waits for the next one. A registration that is gone
never returns, so its entry ends with the news.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

import structlog
from kazoo.client import KazooClient
from kazoo.protocol.states import EventType, WatchedEvent

from stretto.replog.core.events import RegistrationSeen
from stretto.replog.core.record import Registration
from stretto.vocabulary.groups import GroupKey
from stretto.zk.sessions.outcomes import LOST_ANSWER
from stretto.zk.sessions.session import Done, Send
from stretto.zk.watches.group import Asker

log = structlog.get_logger()


class SyncedAsker(Asker, Protocol):
    """What the watches of registrations need of their worker's metastore."""

    def ask_synced(self, send: Send, done: Done) -> None: ...


@dataclass(slots=True, eq=False)
class _Watched:
    registration: Registration
    path: str
    watch: Any = None
    interested: dict[GroupKey, None] = field(default_factory=dict)
    """Groups that hear when it is gone, in the order they came, as in the others."""
    unasked: dict[GroupKey, None] = field(default_factory=dict)
    """Groups that asked for a test, and none has been sent since."""
    asked: dict[GroupKey, None] = field(default_factory=dict)
    """Groups that wait for the test under way."""
    is_asking: bool = False
    changed_meanwhile: bool = False
    number: int = 0


class WatchedRegistrations:
    """The registrations that groups of this worker asked about, with one test and one watch for each."""

    def __init__(self, asker: SyncedAsker) -> None:
        self._asker = asker
        self._watched: dict[Registration, _Watched] = {}

    def check(self, group: GroupKey, registration: Registration) -> None:
        """Test a registration for a group, and tell the group when it is gone."""
        watched = self._watched.get(registration)
        if watched is None:
            path = self._asker.paths.registration_of(registration)
            watched = self._watched[registration] = _Watched(registration, path)
            watched.watch = self._asker.watch(partial(self._fired, watched))
        watched.interested[group] = None
        watched.unasked[group] = None
        if not watched.is_asking:
            self._ask(watched)

    def forget(self, group: GroupKey) -> None:
        """Tell a group nothing more of any registration."""
        for watched in list(self._watched.values()):
            for groups in (watched.interested, watched.unasked, watched.asked):
                groups.pop(group, None)
            if not watched.interested:
                del self._watched[watched.registration]

    def restart(self) -> None:
        """Test all registrations again on a new connection: the watches of the one before are gone."""
        for watched in list(self._watched.values()):
            watched.is_asking = False
            self._ask(watched)

    def _ask(self, watched: _Watched) -> None:
        if self._watched.get(watched.registration) is not watched:
            return
        watched.is_asking = True
        watched.changed_meanwhile = False
        watched.number += 1
        number = watched.number
        watched.asked |= watched.unasked
        watched.unasked.clear()

        def send(client: KazooClient) -> Any:
            return client.exists_async(watched.path, watch=watched.watch)

        def answered(stat: Any, error: Exception | None) -> None:
            self._answered(watched, number, stat, error)

        # Only groups that asked are promised the newest state.
        ask = self._asker.ask_synced if watched.asked else self._asker.ask
        ask(send, answered)

    def _answered(self, watched: _Watched, number: int, stat: Any, error: Exception | None) -> None:
        if number != watched.number or self._watched.get(watched.registration) is not watched:
            return
        watched.is_asking = False
        if error is not None:
            if not isinstance(error, LOST_ANSWER):
                log.error("registration_not_tested", path=watched.path, error=repr(error))
                self._asker.again_later(lambda: self._ask(watched))
            return
        if stat is None:
            self._gone(watched)
            return
        asked, watched.asked = watched.asked, {}
        for group in asked:
            self._asker.tell(group, RegistrationSeen(registration=watched.registration, exists=True))
        if watched.unasked or watched.changed_meanwhile:
            self._ask(watched)

    def _fired(self, watched: _Watched, event: WatchedEvent) -> None:
        if self._watched.get(watched.registration) is not watched:
            return
        if event.type == EventType.DELETED:
            self._gone(watched)
        elif watched.is_asking:
            watched.changed_meanwhile = True
        else:
            self._ask(watched)

    def _gone(self, watched: _Watched) -> None:
        del self._watched[watched.registration]
        for group in watched.interested:
            self._asker.tell(group, RegistrationSeen(registration=watched.registration, exists=False))
