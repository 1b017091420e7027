"""The states that a worker serves as a leader: the driver of :mod:`stretto.catchup.machines.serve`.

Images are copied and hashed on threads, blocks are sent by a process of their own, and what became of them
comes back to the loop as an event of the transfer.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import assert_never

import structlog

from stretto.catchup import sender
from stretto.catchup.hosts import Host, HostedReplica
from stretto.catchup.images import GrowingImage, SpooledImage, make_image
from stretto.catchup.machines import blocks, serve
from stretto.catchup.share import NodeShare
from stretto.catchup.threads import CatchupThreads
from stretto.errors import StorageCorrupt, StorageError, sentence_of
from stretto.network.keys import ClusterKey
from stretto.replog.core import effects, events
from stretto.telemetry.windows import REFUSED_TRANSFERS
from stretto.vocabulary.groups import GroupKey
from stretto.vocabulary.types import Millis, TaskId, WorkerId
from stretto.wire import catchup
from stretto.wire import messages as wire

log = structlog.get_logger()

SHARE = "catchup"
SHARE_MS = 500
"""How often, in milliseconds, a worker looks how many workers of its node send state."""


@dataclass(eq=False)
class Serving:
    """The images of one transfer that this worker serves."""

    attempt: int
    images: dict[TaskId, SpooledImage] = field(default_factory=dict)
    growing: dict[TaskId, GrowingImage] = field(default_factory=dict)
    #: Whether the transfer is over, so that nobody waits for images that are still being made.
    is_over: bool = False


class StateServing:
    """All transfers from the replicas that a worker leads. Only the loop calls its methods."""

    def __init__(
        self, host: Host, threads: CatchupThreads, *, node_dir: Path | None, key: ClusterKey | None
    ) -> None:
        self._host = host
        self._threads = threads
        self._loop = host.loop
        self._share = NodeShare(node_dir / SHARE, host.worker) if node_dir is not None else None
        #: Number of workers of this node that send, and whether that is being looked at.
        self._senders = 1
        self._is_looking = False
        self._serve = serve.Serve(self._limit(), Millis(self._loop.now))
        self._serve_deadline: Millis | None = None
        self._serving: dict[serve.Key, Serving] = {}
        self._sender = sender.Sender(self._loop, key, self._on_unread)

    def end(self) -> None:
        """Give up whatever is being made or sent."""
        for key in list(self._serving):
            self._let_go(key)
        self._sender.close()

    def close(self) -> None:
        """Let go of the node's allowance, once no thread works for it any more."""
        if self._share is not None:
            self._share.close()

    def on_options_changed(self) -> None:
        self._step_serve(self._limit())

    def _limit(self) -> serve.Limit:
        option = self._host.option
        bytes_per_second = int(option("replication.catchup.max.bytes.per.second"))
        return serve.Limit(
            bytes_per_second=-(-bytes_per_second // self._senders),
            patience_ms=Millis(int(option("replication.far.horizon.timeout.millis"))),
        )

    def on_ask(self, group: HostedReplica, follower: WorkerId, message: catchup.Ask) -> None:
        """Take in a question of a follower, or its report of how far it is."""
        leader = group.replica.leading
        leads = leader.epoch if leader is not None else None
        if leads != message.epoch:
            self._step_serve(serve.LeadershipEnded(group=group.key, leads=leads))
        applied = group.replica.applied
        self._step_serve(serve.Heard(key=(group.key, follower), message=message, applied=applied))

    def on_group_closed(self, key: GroupKey) -> None:
        """End the transfers of a replica that stopped or is here no more."""
        self._step_serve(serve.LeadershipEnded(group=key))

    def serve_state(self, group: HostedReplica, effect: effects.ServeState) -> None:
        """Answer the questions of a follower from now on."""
        self._step_serve(
            serve.Begin(
                key=(group.key, effect.to),
                epoch=effect.epoch,
                incarnation=effect.incarnation,
                attempt=effect.attempt,
                tasks=group.plan.tasks,
                pinned=effect.pinned,
            )
        )
        if not self._is_looking:
            self._look_at_node()

    def stop_serving(self, group: HostedReplica, to: WorkerId) -> None:
        """Refuse a follower that the log can no longer be kept for."""
        self._step_serve(serve.PinReleased(key=(group.key, to)))

    def _look_at_node(self) -> None:
        """Take our part of the node's allowance, and look again as long as there are transfers."""

        def then(result: int | Exception) -> None:
            if isinstance(result, OSError):
                log.error("allowance_not_shared", why=str(result))
            elif isinstance(result, Exception):
                raise result
            elif result != self._senders:
                self._senders = result
                log.info("senders_of_state", workers=result)
                self._step_serve(self._limit())
            self._is_looking = bool(self._serve.transfers)
            if self._is_looking:
                self._loop.call_after(SHARE_MS, self._look_at_node)

        share = self._share
        if share is not None:
            self._is_looking = True
            sending = self._serve.is_sending(Millis(self._loop.now))
            self._threads.run(lambda: share.look(sending=sending), then)

    def _step_serve(self, event: serve.Event) -> None:
        for effect in self._serve.step(event, Millis(self._loop.now)):
            self._carry_out_serve(effect)
        deadline = self._serve.next_deadline()
        if deadline is not None and (self._serve_deadline is None or deadline < self._serve_deadline):
            self._serve_deadline = deadline
            self._loop.call_at(deadline, self._tick_serve, deadline)

    def _tick_serve(self, deadline: Millis) -> None:
        if self._serve_deadline == deadline:
            self._serve_deadline = None
            self._step_serve(serve.Tick())

    def _carry_out_serve(self, effect: serve.Effect) -> None:
        group_key, to = effect.key
        match effect:
            case serve.Send(message=message):
                self._send(to, group_key, message)
            case serve.MakeImage(key=key, ask=ask):
                self._make(key, ask)
            case serve.SendHashes(key=key, message=message):
                image = self._image(key, message.task, message)
                if isinstance(image, SpooledImage):
                    end = message.position + blocks.PART_BYTES
                    self._send(to, group_key, message, image.listed[message.position : end])
            case serve.SendBlocks(key=key, message=message, runs=runs):
                image = self._image(key, message.task, message)
                if image is not None:
                    self._send_blocks(key, image, message, runs)
            case serve.SendEntries(key=key, ask=ask):
                self._send_entries(key, ask)
            case serve.Drop(key=key):
                self._let_go(key)
                if not self._serving:
                    self._sender.end()
            case serve.MovePin(epoch=epoch, incarnation=incarnation, start=start):
                group = self._host.groups.get(group_key)
                if group is not None:
                    group.step(events.PinMoved(to=to, epoch=epoch, incarnation=incarnation, start=start))
            case serve.Note(event=event, fields=fields):
                group = self._host.groups.get(group_key)
                if event == "transfer_refused" and group is not None:
                    group.meter.counted(REFUSED_TRANSFERS + fields["reason"])
                log.info(event, group=str(group_key), follower=to, **fields)
            case _:
                assert_never(effect)

    def _send(
        self, to: WorkerId, group: GroupKey, message: catchup.Answer, body: bytes | memoryview = b""
    ) -> None:
        self._host.transport.send(to, wire.Catchup(group, message), (body,) if len(body) else ())

    def _let_go(self, key: serve.Key) -> None:
        serving = self._serving.pop(key, None)
        if serving is not None:
            serving.is_over = True

    def _image(
        self, key: serve.Key, task: TaskId, message: catchup.Hashes | catchup.Blocks
    ) -> SpooledImage | GrowingImage | None:
        serving = self._serving.get(key)
        if serving is None:
            return None
        for image in (serving.images.get(task), serving.growing.get(task)):
            if image is not None:
                described = image.described
                if (described.attempt, described.round) == (message.attempt, message.round):
                    return image
        return None

    def _make(self, key: serve.Key, ask: catchup.AskImage) -> None:
        group = self._host.groups.get(key[0])
        if group is None:
            self._step_serve(serve.ImageFailed(key=key, attempt=ask.attempt, why="the replica stopped"))
            return
        serving = self._serving.get(key)
        if serving is None or serving.attempt != ask.attempt:
            self._let_go(key)
            serving = self._serving[key] = Serving(ask.attempt)
        previous = serving.images.get(ask.task)
        state, folder = group.state, self._host.replicas.path(group.plan)
        log.info("image_begins", group=str(key[0]), follower=key[1], task=ask.task, round=ask.round)

        def on_growth(image: GrowingImage) -> None:
            if serving.is_over:
                raise StorageError("the transfer was given up")
            self._loop.call_soon(self._on_image_grew, key, serving, image)

        self._threads.run(
            lambda: make_image(state, folder, ask, previous, on_growth),
            lambda result: self._on_image_made(key, serving, ask, result),
        )

    def _on_image_grew(self, key: serve.Key, serving: Serving, image: GrowingImage) -> None:
        """Let a follower fetch the part of a large image that can be read.

        Only such an image is worth a process that sends it.
        """
        if self._serving.get(key) is serving:
            self._sender.start()
        serving.growing[image.described.task] = image
        self._step_serve(serve.ImageGrew(key=key, growing=image.described))

    def _on_image_made(
        self, key: serve.Key, serving: Serving, ask: catchup.AskImage, result: SpooledImage | Exception
    ) -> None:
        serving.growing.pop(ask.task, None)
        if serving.is_over:
            self._step_serve(serve.ImageDropped(key=key, attempt=ask.attempt, task=ask.task))
            return
        if isinstance(result, Exception):
            log.error("image_failed", group=str(key[0]), task=ask.task, why=str(result))
            self._step_serve(serve.ImageFailed(key=key, attempt=ask.attempt, why=sentence_of(result)))
            return
        described = result.described
        log.info(
            "image_ends",
            group=str(key[0]),
            follower=key[1],
            task=ask.task,
            round=ask.round,
            offset=described.offset,
            size_bytes=described.size_bytes,
        )
        serving.images[ask.task] = result
        self._step_serve(serve.ImageMade(key=key, image=described))

    def _send_blocks(
        self,
        key: serve.Key,
        image: SpooledImage | GrowingImage,
        message: catchup.Blocks,
        runs: tuple[catchup.Run, ...],
    ) -> None:
        transport, pieces = self._host.transport, image.pieces(runs)
        part = sender.Part(
            to=key[1],
            address=transport.address_of(key[1]) or "",
            hello=transport.hello(),
            message=wire.Catchup(key[0], message),
            pieces=pieces,
            hashes=image.hashes_of(runs),
            block_bytes=image.described.block_bytes,
            seed=blocks.seed_of(message.incarnation),
        )
        spool = image.spool
        if part.address and self._sender.send(part, spool.fd_for(pieces), spool.source):
            return

        def then(result: bytes | Exception) -> None:
            if isinstance(result, Exception):
                self._on_unread(sender.Unread(part.to, part.message, sentence_of(result)))
            else:
                self._send(key[1], key[0], message, result)

        self._threads.run(lambda: spool.read(pieces), then)

    def _on_unread(self, unread: sender.Unread) -> None:
        group, message = unread.message.group, unread.message.message
        log.error("image_cannot_be_read", group=str(group), follower=unread.to, why=unread.why)
        failed = serve.ImageFailed(key=(group, unread.to), attempt=message.attempt, why=unread.why)
        self._step_serve(failed)

    def _send_entries(self, key: serve.Key, ask: catchup.AskEntries, *, fetched: bool = False) -> None:
        """Send entries below the apply offset: they are committed, so a follower may apply them."""
        group = self._host.groups.get(key[0])
        if group is None:
            return
        replica, replog = group.replica, group.log
        if not replog.start_offset <= ask.start <= ask.end <= replica.apply_offset:
            why = "the leader's log does not have the entries between the images"
            self._step_serve(serve.ImageFailed(key=key, attempt=ask.attempt, why=why))
            return
        blob, end = b"", ask.start
        if ask.start < ask.end:
            try:
                absent = None if fetched else replog.absent(ask.start, blocks.PART_BYTES)
                if absent is not None:
                    self._threads.run(absent, lambda _: self._send_entries(key, ask, fetched=True))
                    return
                chunk = replog.read(ask.start, ask.end, blocks.PART_BYTES)
            except (StorageError, StorageCorrupt) as error:
                group.storage_failed(error)
                return
            blob, end = b"".join(chunk.buffers), chunk.end
        answer = catchup.Entries(
            ask.epoch,
            ask.incarnation,
            ask.attempt,
            start=ask.start,
            next=end,
            history=tuple(each for each in replica.history if each.start < ask.end),
        )
        self._send(key[1], key[0], answer, blob)
        self._step_serve(serve.EntriesSent(key=key, size_bytes=len(blob)))
