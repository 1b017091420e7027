"""A worker's transfers of state: those that it serves as a leader and those that it receives as a follower.

A replica tells :attr:`Transfers.serving` and :attr:`Transfers.receiving` what its core wants. What comes from
other workers is dispatched here: questions to the one, answers to the other. Messages travel on the
connections that replication uses, except blocks (:mod:`stretto.catchup.sender`).
"""

from __future__ import annotations

from pathlib import Path
from typing import assert_never

from stretto.catchup.hosts import Host
from stretto.catchup.receiving import StateReceiving
from stretto.catchup.serving import StateServing
from stretto.catchup.threads import CatchupThreads
from stretto.network.keys import ClusterKey
from stretto.vocabulary.groups import GroupKey
from stretto.vocabulary.types import WorkerId
from stretto.wire import catchup
from stretto.wire import messages as wire


class Transfers:
    """Both sides of a worker's transfers, and the threads they share. Only the loop calls its methods."""

    def __init__(self, host: Host, *, node_dir: Path | None, key: ClusterKey | None) -> None:
        """Set up both sides; ``node_dir`` is shared by the node's workers, ``key`` is for connections."""
        self._host = host
        self.threads = CatchupThreads(host.loop)
        self.serving = StateServing(host, self.threads, node_dir=node_dir, key=key)
        self.receiving = StateReceiving(host, self.threads)

    def on_message(self, sender: WorkerId, wrapped: wire.Catchup, bodies: list[memoryview]) -> None:
        """Take in a message of a transfer, unless its replica is not here."""
        group = self._host.groups.get(wrapped.group)
        if group is None:
            return
        message = wrapped.message
        match message:
            case (
                catchup.AskImage()
                | catchup.AskHashes()
                | catchup.AskBlocks()
                | catchup.AskEntries()
                | catchup.Working()
                | catchup.NoRoom()
                | catchup.Finished()
            ):
                self.serving.on_ask(group, sender, message)
            case (
                catchup.Image()
                | catchup.Growing()
                | catchup.Hashes()
                | catchup.Blocks()
                | catchup.Entries()
                | catchup.Waiting()
                | catchup.Refused()
            ):
                body = bodies[0] if bodies else memoryview(b"")
                self.receiving.on_answer(group, sender, message, body)
            case _:
                assert_never(message)

    def on_group_closed(self, key: GroupKey) -> None:
        """End the transfers of a replica that stopped or is here no more."""
        self.receiving.on_group_closed(key)
        self.serving.on_group_closed(key)

    def close(self) -> None:
        """Give up what is being made, sent and written, and return when no thread works any more."""
        self.threads.end()
        self.serving.end()
        self.threads.close()
        self.receiving.close()
        self.serving.close()
