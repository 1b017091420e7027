"""The calls that a worker answers, for people: what its replicas do, and where the conductor is.

None of them waits: what is not at hand on the loop is asked of the metastore, whose answer is passed on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from stretto import admin, wire
from stretto.decoding import MALFORMED
from stretto.errors import StrettoError
from stretto.worker.topology.settling import Tally, not_led
from stretto.zk.paths import GroupKey

if TYPE_CHECKING:
    from stretto.worker.process import Worker
    from stretto.worker.transport import Connection


class CallDesk:
    """Owned by the loop."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker

    def asked(self, sender: Connection, message: wire.Ask) -> None:
        name = f"worker {self._worker.worker}"
        try:
            call = admin.decode_call(message.call)
        except MALFORMED as error:
            self._refuse(sender, message, f"{name}: no such call ({error})")
            return
        match call:
            case admin.Replicas(module=module):
                self._answer(sender, message, self._replicas(module))
            case admin.Microbatches():
                self._answer(sender, message, self._worker.microbatches.views())
            case admin.Digests(group=group, marker=marker):
                self._answer(sender, message, self._worker.digests.found(group, marker))
            case admin.HoldTopologies():
                self._answer(sender, message, self._worker.holding.asked(call))
            case admin.Cut():
                self._answer(sender, message, self._worker.snapshots.cut(call))
            case admin.CopyCut():
                self._answer(sender, message, self._worker.snapshots.copy(call))
            case admin.DropCut():
                self._worker.snapshots.drop(call)
                self._answer(sender, message, None)
            case admin.Windows(since_ms=since_ms):
                self._answer(sender, message, self._worker.telemetry.since(since_ms))
            case admin.Story(group=group):
                self._answer(sender, message, self._worker.telemetry.story(group))
            case admin.Epochs(group=group):
                self._answer(sender, message, self._epochs(group))
            case admin.Failures() as asked:
                self._failures(sender, message, asked)
            case admin.SettleFailures():
                self._settle(sender, message, call)
            case admin.PinGroup():
                self._worker.scans.pin(call, lambda pinned: self._settled(sender, message, pinned))
            case admin.Pins():
                self._worker.scans.views(lambda views: self._settled(sender, message, views))
            case admin.AnnounceMoment() | admin.FindMoment() | admin.FindMoments() | admin.DecideMoment():
                self._worker.moments.asked(call, lambda found: self._settled(sender, message, found))
            case admin.Describe(module=module):
                self._describe(sender, message, module)
            case admin.FindConductor():
                self._find_conductor(sender, message)
            case _:
                why = f"{name} does not answer {type(call).__name__}; ask the conductor"
                self._refuse(sender, message, why)

    def _answer(self, sender: Connection, asked: wire.Ask, result: object) -> None:
        self._worker.transport.reply(sender, wire.Answer(asked.request, admin.encode(result)))

    def _refuse(self, sender: Connection, asked: wire.Ask, why: str) -> None:
        self._worker.transport.reply(sender, wire.Failed(asked.request, why))

    def _settled(self, sender: Connection, asked: wire.Ask, result: object) -> None:
        if isinstance(result, StrettoError):
            reply = wire.Failed(asked.request, str(result), wire.Fault.of(result))
            self._worker.transport.reply(sender, reply)
        else:
            self._answer(sender, asked, result)

    def _replicas(self, module: str | None) -> list[admin.ReplicaView]:
        views = [group.view() for group in self._worker.groups.values()]
        views += [stopped.view(self._worker.loop.now) for stopped in self._worker.replicas.stopped.values()]
        return sorted((each for each in views if module in (None, each.group.module)), key=lambda v: v.group)

    def _epochs(self, key: GroupKey) -> list[admin.EpochView]:
        group = self._worker.groups.get(key)
        history = group.replica.history if group is not None else ()
        return [admin.EpochView(epoch=each.epoch, start=each.start) for each in history]

    def _failures(self, sender: Connection, message: wire.Ask, call: admin.Failures) -> None:
        def found(view: admin.FailuresView | Exception) -> None:
            if isinstance(view, Exception):
                self._refuse(sender, message, str(view))
            else:
                self._answer(sender, message, view)

        if not self._worker.streams.find_failures(call, found):
            self._settled(sender, message, not_led(self._worker.worker, call.group))

    def _settle(self, sender: Connection, message: wire.Ask, call: admin.SettleFailures) -> None:
        microbatches = self._worker.microbatches
        left_out = [each for each in call.keys if microbatches.is_mine(each.topology)]
        if left_out and call.again:
            self._refuse(
                sender,
                message,
                f"{left_out[0].topology} is a microbatch, which went on without these records for good; "
                "append them again and --forget them, or choose others with --topology",
            )
            return
        group = self._worker.groups.get(call.group)
        if group is None or group.leader is None:
            self._settled(sender, message, not_led(self._worker.worker, call.group))
            return
        tally = Tally(2, lambda settled: self._settled(sender, message, settled))
        microbatches.forget(group, left_out, tally.add)
        self._worker.streams.settle(call, tally.add)

    def _describe(self, sender: Connection, message: wire.Ask, module: str) -> None:
        config = self._worker.config
        if config.module == module:
            self._answer(sender, message, self._worker.description)
        else:
            why = f"worker {config.worker} serves module {config.module}, not {module}"
            self._refuse(sender, message, why)

    def _find_conductor(self, sender: Connection, message: wire.Ask) -> None:
        worker = self._worker

        def found(address: str | None, error: Exception | None) -> None:
            """On a thread of the metastore."""
            if error is None:
                worker.loop.call_soon(self._answer, sender, message, address)
            else:
                why = f"worker {worker.worker} cannot ask ZooKeeper for the conductor; try again"
                worker.loop.call_soon(self._refuse, sender, message, why)

        worker.metastore.find_conductor(found)
