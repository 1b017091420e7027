"""One group's record as this worker follows it, and the requests to resign that concern it.

A watch only says *something changed*: each is answered by one read, which sets the next watch; changes that
come while a read is under way cost one more read, however many they are. What a read finds is passed on if
it is newer than what was passed on before.

A request to resign is looked for, and passed on, only while the record names this very incarnation as
leader: whoever else were to take it up would delete it.

Nothing here retries on a lost connection: :meth:`FollowedGroup.restart` is called when there is one again,
and answers to what was asked before it are void.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import structlog
from kazoo.client import KazooClient
from kazoo.exceptions import BadVersionError, NoNodeError
from kazoo.protocol.states import WatchedEvent

from stretto.replog.core.events import Event, RecordRead, Resign
from stretto.replog.core.record import GroupRecord
from stretto.types import Epoch
from stretto.zk.outcomes import LOST_ANSWER
from stretto.zk.paths import GroupKey, Paths
from stretto.zk.records import ResignRequest, ZnodeDamaged, decode
from stretto.zk.session import Done, Send

log = structlog.get_logger()


class Asker(Protocol):
    """What the followers of a worker share."""

    paths: Paths

    def ask(self, send: Send, done: Done) -> None: ...

    def tell(self, group: GroupKey, event: Event) -> None: ...

    def leads_here(self, record: GroupRecord) -> bool: ...

    def watch(self, fired: Callable[[WatchedEvent], None]) -> Callable[[WatchedEvent], None]:
        """A watch function that runs ``fired`` under the lock, unless the connection is the reason."""

    def again_later(self, again: Callable[[], None]) -> None: ...


class FollowedGroup:
    def __init__(self, asker: Asker, group: GroupKey) -> None:
        self.asker = asker
        self.group = group
        self.path = asker.paths.group(group)
        self.resign_path = asker.paths.resign(group)
        self.is_followed = True
        #: Newest version passed on; -1 in a new session, which passes the record on once more.
        self.told_version = -1
        #: Answers to reads with another number are void.
        self._read_number = 0
        self._is_reading = False
        self._changed_meanwhile = False
        self._leads = False
        self._resign_number = 0
        self._resign_watched = False
        #: mzxid of the newest request passed on.
        self._resign_told = -1
        self._epochs_to_forget: set[Epoch] = set()
        #: One object each: a second watch of the same object on the same path is no second watch.
        self._record_watch = asker.watch(self._record_fired)
        self._resign_watch = asker.watch(self._resign_fired)

    def restart(self, *, new_session: bool) -> None:
        """There is a connection (again): the watches of the one before are gone."""
        if new_session:
            self.told_version = -1
            self._resign_told = -1
            self._leads = False
        self._is_reading = False
        self._resign_watched = False
        self._read()
        if self._leads:
            self._look_for_resign()
        for epoch in list(self._epochs_to_forget):
            self._forget(epoch)

    # The record.

    def _record_fired(self, _: WatchedEvent) -> None:
        self._read()

    def _read(self) -> None:
        if not self.is_followed:
            return
        if self._is_reading:
            self._changed_meanwhile = True
            return
        self._is_reading = True
        self._changed_meanwhile = False
        self._read_number += 1
        number = self._read_number

        def send(client: KazooClient) -> Any:
            return client.get_async(self.path, watch=self._record_watch)

        self.asker.ask(send, lambda value, error: self._was_read(number, value, error))

    def _was_read(self, number: int, value: Any, error: Exception | None) -> None:
        if number != self._read_number or not self.is_followed:
            return
        self._is_reading = False
        match error:
            case None:
                self._pass_on(*value)
                if self._changed_meanwhile:
                    self._read()
            case NoNodeError():
                self._await_creation()
            case _ if isinstance(error, LOST_ANSWER):
                pass
            case _:
                log.error("record_not_read", path=self.path, error=repr(error))
                self.asker.again_later(self._read)

    def _pass_on(self, data: bytes, stat: Any) -> None:
        if stat.version <= self.told_version:
            return
        try:
            record = decode(data, GroupRecord, self.path)
        except ZnodeDamaged as damage:
            log.error("znode_damaged", path=damage.path, problem=damage.problem)
            return
        self.told_version = stat.version
        self.asker.tell(self.group, RecordRead(record=record, version=stat.version))
        self._leads = self.asker.leads_here(record)
        if self._leads and not self._resign_watched:
            self._look_for_resign()

    def _await_creation(self) -> None:
        """A read of what is not there leaves no watch; a test does."""
        self._is_reading = True
        self._read_number += 1
        number = self._read_number

        def send(client: KazooClient) -> Any:
            return client.exists_async(self.path, watch=self._record_watch)

        def tested(stat: Any, error: Exception | None) -> None:
            if number == self._read_number:
                self._is_reading = False
                if stat is not None or self._changed_meanwhile:
                    self._read()
                elif error is not None and not isinstance(error, LOST_ANSWER):
                    log.error("record_not_read", path=self.path, error=repr(error))
                    self.asker.again_later(self._read)

        self.asker.ask(send, tested)

    # Requests to resign.

    def _resign_fired(self, _: WatchedEvent) -> None:
        self._resign_watched = False
        if self._leads and self.is_followed:
            self._look_for_resign()

    def _look_for_resign(self) -> None:
        self._resign_watched = True
        self._resign_number += 1
        number = self._resign_number

        def send(client: KazooClient) -> Any:
            return client.exists_async(self.resign_path, watch=self._resign_watch)

        def tested(stat: Any, error: Exception | None) -> None:
            if number != self._resign_number or not self.is_followed:
                return
            if stat is not None:
                self.asker.ask(lambda client: client.get_async(self.resign_path), self._resign_read)
            elif error is not None:
                self._resign_watched = False
                if not isinstance(error, LOST_ANSWER):
                    log.error("resign_not_read", path=self.resign_path, error=repr(error))
                    self.asker.again_later(self._look_for_resign)

        self.asker.ask(send, tested)

    def _resign_read(self, value: Any, error: Exception | None) -> None:
        """Whatever the error: the watch tells of a change, a new connection begins again."""
        if error is not None or not self._leads or not self.is_followed:
            return
        data, stat = value
        if stat.mzxid <= self._resign_told:
            return
        self._resign_told = stat.mzxid
        try:
            request = decode(data, ResignRequest, self.resign_path)
        except ZnodeDamaged as damage:
            log.error("znode_damaged", path=damage.path, problem=damage.problem)
            return
        self.asker.tell(self.group, Resign(epoch=request.epoch, target=request.target))

    def forget_resign(self, epoch: Epoch) -> None:
        self._epochs_to_forget.add(epoch)
        self._forget(epoch)

    def _forget(self, epoch: Epoch) -> None:
        """Deletes the request of that epoch, never a newer one that took its place."""

        def read(value: Any, error: Exception | None) -> None:
            if error is not None:
                settled(None, error)
                return
            data, stat = value
            try:
                request = decode(data, ResignRequest, self.resign_path)
            except ZnodeDamaged as damage:
                log.error("znode_damaged", path=damage.path, problem=damage.problem)
                self._epochs_to_forget.discard(epoch)
                return
            if request.epoch != epoch:
                self._epochs_to_forget.discard(epoch)
                return
            self.asker.ask(lambda client: client.delete_async(self.resign_path, stat.version), settled)

        def settled(_: Any, error: Exception | None) -> None:
            if error is None or isinstance(error, NoNodeError | BadVersionError):
                self._epochs_to_forget.discard(epoch)
            elif not isinstance(error, LOST_ANSWER):
                log.error("resign_not_forgotten", path=self.resign_path, error=repr(error))
                self.asker.again_later(lambda: self._forget(epoch))

        self.asker.ask(lambda client: client.get_async(self.resign_path), read)
