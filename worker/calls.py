"""The calls that a worker answers, for people: what its replicas do, and where the conductor is.

None of them waits: what is not at hand on the loop is asked of the metastore, whose answer is passed on.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol, assert_never

from stretto import control
from stretto.errors import StrettoError
from stretto.vocabulary.decoding import MALFORMED
from stretto.vocabulary.groups import GroupKey
from stretto.wire import messages as wire
from stretto.worker.topology.settling import Tally, not_led

if TYPE_CHECKING:
    from stretto.network.loop import Loop
    from stretto.network.transport import Connection, Transport
    from stretto.vocabulary.types import WorkerId
    from stretto.worker.hosting.replicas import Replicas
    from stretto.worker.microbatch.microbatches import Microbatches
    from stretto.worker.replica.digests import Digests
    from stretto.worker.replica.group import Group
    from stretto.worker.scans.moments import MomentCalls
    from stretto.worker.scans.scans import Scans
    from stretto.worker.snapshots import Snapshots
    from stretto.worker.telemetry import Telemetry
    from stretto.worker.topology.hold import Holding
    from stretto.worker.topology.streams import Streams
    from stretto.zk.metastore import Metastore


class Config(Protocol):
    """What calls need of a worker's configuration."""

    @property
    def module(self) -> str: ...

    @property
    def worker(self) -> WorkerId: ...


class Host(Protocol):
    """The worker, as the calls to it see it."""

    @property
    def config(self) -> Config: ...

    @property
    def worker(self) -> WorkerId: ...

    @property
    def description(self) -> control.ModuleDescription: ...

    @property
    def loop(self) -> Loop: ...

    @property
    def transport(self) -> Transport: ...

    @property
    def metastore(self) -> Metastore: ...

    @property
    def groups(self) -> Mapping[GroupKey, Group]: ...

    @property
    def replicas(self) -> Replicas: ...

    @property
    def digests(self) -> Digests: ...

    @property
    def snapshots(self) -> Snapshots: ...

    @property
    def telemetry(self) -> Telemetry: ...

    @property
    def holding(self) -> Holding: ...

    @property
    def streams(self) -> Streams: ...

    @property
    def microbatches(self) -> Microbatches: ...

    @property
    def scans(self) -> Scans: ...

    @property
    def moments(self) -> MomentCalls: ...


class Calls:
    """Answers the calls of the control plane. The loop owns it."""

    def __init__(self, worker: Host) -> None:
        self._worker = worker

    def asked(self, sender: Connection, message: wire.Ask) -> None:
        """Carry out a call and answer it, now or once its result is known."""
        name = f"worker {self._worker.worker}"
        try:
            call = control.decode_call(message.call)
        except MALFORMED as error:
            self._refuse(sender, message, f"{name}: no such call ({error})")
            return
        if not isinstance(call, control.WorkerCall):
            why = f"{name} does not answer {type(call).__name__}; ask the conductor"
            self._refuse(sender, message, why)
            return
        match call:
            case control.Replicas(module=module):
                self._answer(sender, message, self._replicas(module))
            case control.Microbatches():
                self._answer(sender, message, self._worker.microbatches.views())
            case control.Digests(group=group, marker=marker):
                self._answer(sender, message, self._worker.digests.found(group, marker))
            case control.HoldTopologies():
                self._answer(sender, message, self._worker.holding.asked(call))
            case control.Cut():
                self._answer(sender, message, self._worker.snapshots.cut(call))
            case control.CopyCut():
                self._answer(sender, message, self._worker.snapshots.copy(call))
            case control.DropCut():
                self._worker.snapshots.drop(call)
                self._answer(sender, message, None)
            case control.Windows(since_ms=since_ms):
                self._answer(sender, message, self._worker.telemetry.since(since_ms))
            case control.Story(group=group):
                self._answer(sender, message, self._worker.telemetry.story(group))
            case control.Epochs(group=group):
                self._answer(sender, message, self._epochs(group))
            case control.Failures() as asked:
                self._failures(sender, message, asked)
            case control.SettleFailures():
                self._settle(sender, message, call)
            case control.PinGroup():
                self._worker.scans.pin(call, lambda pinned: self._settled(sender, message, pinned))
            case control.Pins():
                self._worker.scans.views(lambda views: self._settled(sender, message, views))
            case (
                control.AnnounceMoment()
                | control.FindMoment()
                | control.FindMoments()
                | control.DecideMoment()
            ):
                self._worker.moments.asked(call, lambda found: self._settled(sender, message, found))
            case control.Describe(module=module):
                self._describe(sender, message, module)
            case control.FindConductor():
                self._find_conductor(sender, message)
            case _:
                assert_never(call)

    def _answer(self, sender: Connection, asked: wire.Ask, result: object) -> None:
        self._worker.transport.reply(sender, wire.Answer(asked.request, control.encode(result)))

    def _refuse(self, sender: Connection, asked: wire.Ask, why: str) -> None:
        self._worker.transport.reply(sender, wire.Failed(asked.request, why))

    def _settled(self, sender: Connection, asked: wire.Ask, result: object) -> None:
        if isinstance(result, StrettoError):
            reply = wire.Failed(asked.request, str(result), wire.Fault.of(result))
            self._worker.transport.reply(sender, reply)
        else:
            self._answer(sender, asked, result)

    def _replicas(self, module: str | None) -> list[control.ReplicaView]:
        views = [group.view() for group in self._worker.groups.values()]
        views += [stopped.view(self._worker.loop.now) for stopped in self._worker.replicas.stopped.values()]
        return sorted((each for each in views if module in (None, each.group.module)), key=lambda v: v.group)

    def _epochs(self, key: GroupKey) -> list[control.EpochView]:
        group = self._worker.groups.get(key)
        history = group.replica.history if group is not None else ()
        return [control.EpochView(epoch=each.epoch, start=each.start) for each in history]

    def _failures(self, sender: Connection, message: wire.Ask, call: control.Failures) -> None:
        def found(view: control.FailuresView | Exception) -> None:
            if isinstance(view, Exception):
                self._refuse(sender, message, str(view))
            else:
                self._answer(sender, message, view)

        if not self._worker.streams.find_failures(call, found):
            self._settled(sender, message, not_led(self._worker.worker, call.group))

    def _settle(self, sender: Connection, message: wire.Ask, call: control.SettleFailures) -> None:
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
            """Pass on what was found. Runs on a thread of the metastore."""
            if error is None:
                worker.loop.call_soon(self._answer, sender, message, address)
            else:
                why = f"worker {worker.worker} cannot ask ZooKeeper for the conductor; try again"
                worker.loop.call_soon(self._refuse, sender, message, why)

        worker.metastore.find_conductor(found)
