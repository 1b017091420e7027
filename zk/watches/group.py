"""One group's record as this worker follows it, and the requests to resign that concern it.

What a read of the record finds is passed on if it is newer than what was passed on before.

A request to resign is looked for, and passed on, only while the record names this very incarnation as
leader: whoever else were to take it up would delete it.

Nothing here retries on a lost connection: :meth:`WatchedGroup.restart` is called when there is one again,
and answers to what was asked before it are void.
"""

from __future__ import annotations

from typing import Any, Protocol

import structlog
from kazoo.client import KazooClient
from kazoo.exceptions import BadVersionError, NoNodeError
from kazoo.protocol.states import WatchedEvent

from stretto.replog.core.events import Event, RecordRead, Resign
from stretto.replog.core.record import GroupRecord
from stretto.vocabulary.groups import GroupKey
from stretto.vocabulary.types import Epoch
from stretto.zk.sessions.outcomes import LOST_ANSWER
from stretto.zk.sessions.session import Done, Send
from stretto.zk.watches.znode import WatchedZnode, Watcher
from stretto.zk.znodes.paths import Paths
from stretto.zk.znodes.records import ResignRequest, ZnodeDamaged, decode

log = structlog.get_logger()


class Asker(Watcher, Protocol):
    """What the watches of a worker need of its metastore."""

    paths: Paths

    def ask(self, send: Send, done: Done) -> None: ...

    def tell(self, group: GroupKey, event: Event) -> None: ...

    def leads_here(self, record: GroupRecord) -> bool: ...


class WatchedGroup:
    """A group's record, and the requests to resign that concern this worker, as it follows them."""

    def __init__(self, asker: Asker, group: GroupKey) -> None:
        self.asker = asker
        self.group = group
        self.path = asker.paths.group(group)
        self.resign_path = asker.paths.resign(group)
        self.is_followed = True
        #: Newest version of the record passed on; -1 in a new session, which passes the record on once more.
        self.told_version = -1
        self._leads = False
        self._resign_number = 0
        self._resign_watched = False
        #: mzxid of the newest request passed on.
        self._resign_told = -1
        self._epochs_to_forget: set[Epoch] = set()
        self._record = WatchedZnode(asker, self.path, ask=asker.ask, found=self._found, awaits_creation=True)
        self._resign_watch = asker.watch(self._resign_fired)

    def restart(self, *, new_session: bool) -> None:
        """Read and watch again on a new connection: the watches of the one before are gone."""
        if new_session:
            self.told_version = -1
            self._resign_told = -1
            self._leads = False
        self._resign_watched = False
        self._record.restart()
        if self._leads:
            self._look_for_resign()
        for epoch in list(self._epochs_to_forget):
            self._forget(epoch)

    def stop(self) -> None:
        self.is_followed = False
        self._record.stop()

    # The record.

    def _found(self, value: tuple[bytes, Any]) -> None:
        data, stat = value
        if stat.version <= self.told_version:
            return
        record = decode(data, GroupRecord, self.path)
        self.told_version = stat.version
        self.asker.tell(self.group, RecordRead(record=record, version=stat.version))
        self._leads = self.asker.leads_here(record)
        if self._leads and not self._resign_watched:
            self._look_for_resign()

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
        """Pass a request to resign on.

        Errors need no care: the watch fires with a change, and a new connection begins again.
        """
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
        """Delete the request to resign that was meant for this epoch, sooner or later."""
        self._epochs_to_forget.add(epoch)
        self._forget(epoch)

    def _forget(self, epoch: Epoch) -> None:
        """Delete the request of that epoch, never a newer one that took its place."""

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
