"""What a worker passes on: whatever happens reaches everybody whom it concerns, and nobody else."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import MagicMock, call

import msgspec
import pytest

from stretto.control import ModuleDescription
from stretto.errors import PeerError
from stretto.options import OptionSet
from stretto.replog.core import events
from stretto.specs.assignments import GroupPlan
from stretto.specs.modules import DepotSpec, ModuleSpec, ModuleState, RestoredFrom
from stretto.vocabulary.groups import GroupKey
from stretto.vocabulary.types import Incarnation, Millis, Offset, StorageId, TaskId
from stretto.wire import messages as wire
from stretto.worker.hosting.replicas import REOPEN_MS
from stretto.worker.process import LEASE_TICK_MS, Worker
from tests.support.core_group import W0, W1, W2, record
from tests.support.frames import make_frame, whole
from tests.support.turns import StillLoop
from tests.support.whatever import some

ONE, TWO = GroupKey("m", 1, 0), GroupKey("m", 1, 1)
REPLICAS = (W0, W1)


class Bare(Worker):
    """A worker whose parts are all pretended, but for its own methods."""

    def __init__(self, folder: Path) -> None:
        parts = (
            "replicas commit digests snapshots applier transport catchup clients metadata calls executors "
            "streams microbatches retention queries scans moments telemetry hosting regrouping metastore "
            "_checkpoints _flushes"
        )
        for name in parts.split():
            setattr(self, name, MagicMock())
        self.loop = cast(Any, StillLoop())
        self.worker = W0
        self.config = cast(
            Any,
            SimpleNamespace(module="m", node="n1", launch="l", advertise=None, artifacts=folder, plans=()),
        )
        self.groups = {key: self.make_group(key) for key in (ONE, TWO)}
        cast(Any, self).hosting.plans = {key: group.plan for key, group in self.groups.items()}
        cast(Any, self).metastore.negotiated_timeout_ms = 10_000
        self.options = OptionSet()
        self.description = ModuleDescription(tasks=2, depots=(DepotSpec(name="d"),))
        self.is_paused = False
        self.restored = None
        self.incarnation = Incarnation("i")
        self._artifact, self._entry = "a", "m:M"
        self._spec = None
        self._registrations = {}
        self._session_ms = Millis(10_000)
        self._stopping_at = None

    @staticmethod
    def make_group(key: GroupKey) -> Any:
        plan = GroupPlan(key, (TaskId(key.group),), REPLICAS)
        return MagicMock(key=key, plan=plan, installing=False, fsync_always=False)


@pytest.fixture
def worker(tmp_path: Path) -> Any:
    return Bare(tmp_path)


def stepped(worker: Any) -> list[list[Any]]:
    return [[each.args[0] for each in group.step.call_args_list] for group in worker.groups.values()]


def spec(**changes: Any) -> ModuleSpec:
    known: dict[str, Any] = {"artifact": "a", "tasks": 2, "threads": 2, "workers": 1, "replication_factor": 1}
    return ModuleSpec(**(known | {"state": ModuleState.RUNNING, "entry": "m:M"} | changes))


def test_the_metastores_threads_only_hand_over(worker: Any) -> None:
    worker.session_expired()
    worker.lease_renewed(Millis(5))
    worker.group_event(ONE, events.Tick())
    worker._on_workers_found({})
    assert stepped(worker) == [[], []]
    worker.loop.run()
    assert stepped(worker) == [
        [events.SessionExpired(), events.LeaseRenewed(sent_at=Millis(5)), events.Tick()],
        [events.SessionExpired(), events.LeaseRenewed(sent_at=Millis(5))],
    ]


def test_a_lost_session_is_told_once_to_all_replicas_and_to_who_waits_at_them(worker: Any) -> None:
    worker.lose_session()
    assert worker.incarnation is None
    assert worker.clients.reads.parked.group_changed.call_args_list == [call(ONE), call(TWO)]
    worker.lose_session()
    assert stepped(worker) == [[events.SessionExpired()]] * 2


def test_a_session_begins_what_has_not_begun_and_is_told_to_the_rest(worker: Any) -> None:
    begun = worker.groups.pop(TWO).plan
    worker.session_started(Incarnation("next"))
    worker.loop.run()
    assert worker.incarnation == worker.transport.incarnation == "next"
    worker.replicas.begin.assert_called_once_with(begun, "next")
    worker.groups[ONE].session_started.assert_called_once_with("next")
    assert stepped(worker) == [[events.OptionsChanged(settings=worker.settings(worker.groups[ONE].plan))]]


def test_options_are_told_to_all_who_go_by_them(worker: Any) -> None:
    options = OptionSet()
    worker.options_changed(options)
    worker.loop.run()
    assert worker.options is options
    worker.clients.options_changed.assert_called_once_with(options, "m")
    for told in (
        worker.catchup.serving.on_options_changed,
        worker.streams.settings_changed,
        worker.microbatches.settings_changed,
        worker.replicas.options_changed,
        worker._checkpoints.retime,
        worker._flushes.retime,
    ):
        told.assert_called_once_with()
    settings = [worker.settings(group.plan) for group in worker.groups.values()]
    assert stepped(worker) == [[events.OptionsChanged(settings=each)] for each in settings]


def test_a_lease_is_shorter_than_the_session_by_a_tick_and_a_margin(worker: Any) -> None:
    plan = worker.groups[ONE].plan
    lease_ms = worker.settings(plan).lease_ms
    assert lease_ms <= 10_000 - LEASE_TICK_MS - 1_000
    worker.metastore.negotiated_timeout_ms = 4_000
    assert worker.settings(plan).lease_ms < lease_ms
    worker.metastore.negotiated_timeout_ms = None
    assert worker.settings(plan).lease_ms < lease_ms, "what was granted last counts until the next grant"
    assert not worker.settings(plan).paused
    worker.is_paused = True
    assert worker.settings(plan).paused
    assert not worker.settings(plan).unclean_election
    given_up = GroupPlan(ONE, (TaskId(0),), REPLICAS, is_given_up=True)
    assert worker.settings(given_up).unclean_election


def test_a_module_is_paused_and_resumed_once_each(worker: Any) -> None:
    paused = spec(state=ModuleState.PAUSED)
    for each in (spec(), paused, paused, spec()):
        worker.spec_changed(each)
        worker.loop.run()
    told = [[event.settings.paused for event in told] for told in stepped(worker)]
    assert told == [[True, False]] * 2
    assert worker.streams.settings_changed.call_count == 2
    assert worker.microbatches.settings_changed.call_count == 2
    assert worker.metastore.update_registration.call_count == 2
    assert worker.retention.on_deleted.call_count == 4


def test_an_empty_replica_begins_with_what_the_spec_says_as_long_as_it_does(worker: Any) -> None:
    restored = RestoredFrom(**dict.fromkeys(RestoredFrom.__struct_fields__, cast(Any, "x")))
    worker._spec_changed(spec(restored=restored))
    assert worker.restored is restored
    worker._spec_changed(spec())
    assert worker.restored is None


@pytest.mark.parametrize("seen", [None, spec(state=ModuleState.DESTROYING, artifact="b")])
def test_a_module_that_is_gone_or_goes_changes_nothing(worker: Any, seen: ModuleSpec | None) -> None:
    worker._spec_changed(seen)
    assert worker.artifact == "a"
    worker.retention.on_deleted.assert_not_called()
    worker.executors.start.assert_not_called()


def test_new_code_is_taken_up_when_it_is_there(worker: Any, tmp_path: Path) -> None:
    topology = SimpleNamespace(name="t", depots=("d",))
    updated = spec(artifact="b", entry="m:N", version=2, deleted={"old": 2}, topologies=(topology,))
    worker._spec_changed(updated)
    assert worker.artifact == "a"
    assert worker.description.version == 1, "what runs is the code of before"
    worker.executors.start.assert_not_called()
    worker.retention.on_deleted.assert_called_once_with({"old": 2})
    (tmp_path / "b").mkdir()
    worker.loop.pass_ms(REOPEN_MS)
    assert worker.artifact == "b"
    [started] = worker.executors.start.call_args_list
    code = started.args[0]
    assert (code.folder, code.entry, code.tasks) == (tmp_path / "b", "m:N", 2)
    assert (code.has_topologies, code.has_queries) == (True, False)
    worker.clients.described.assert_called_once_with(worker.description)
    worker.streams.restart.assert_called_once_with()
    worker.microbatches.restart.assert_called_once_with()
    for group in worker.groups.values():
        group.reconsider.assert_called_once_with()
    worker.metastore.update_registration.assert_called_once_with()
    worker._spec_changed(msgspec.structs.replace(updated, threads=3))
    assert worker.executors.start.call_count == 1, "it is the same code"


def test_code_that_was_replaced_before_it_came_is_not_taken_up(worker: Any, tmp_path: Path) -> None:
    topology = SimpleNamespace(name="t", depots=("d",))
    worker._spec_changed(spec(artifact="b", topologies=(topology,)))
    worker._spec_changed(spec(artifact="a", topologies=(topology,)))
    (tmp_path / "b").mkdir()
    worker.loop.pass_ms(10 * REOPEN_MS)
    assert worker.artifact == "a"
    worker.executors.start.assert_not_called()


def test_a_module_without_functions_needs_no_executors(worker: Any) -> None:
    assert worker._code("a", "m:M", worker.description) is None
    query = SimpleNamespace(name="q")
    worker.description = ModuleDescription(tasks=2, depots=None, queries=cast(Any, (query,)))
    code = worker._code("a", "m:M", worker.description)
    assert (code.has_topologies, code.has_queries) == (False, True)
    assert worker._code("", "m:M", worker.description) is None
    worker.config.artifacts = None
    assert worker._code("a", "m:M", worker.description) is None


def test_after_a_regrouping_there_are_as_many_executors_as_groups_want(worker: Any) -> None:
    for count, wanted, restarts in ((0, 2, 0), (2, 2, 0), (2, 3, 1)):
        worker.executors.count, worker.executors.wanted = count, wanted
        worker.on_regrouped()
        assert worker.executors.start.call_count == restarts
    assert worker.metastore.update_registration.call_count == 3


def test_a_registration_says_what_the_worker_is_and_has(worker: Any) -> None:
    worker.transport.address = "10.0.0.1:7"
    worker.regrouping.prepared = {GroupKey("m", 2, 0): StorageId("next")}
    worker.replicas.storage_ids.return_value = {ONE: StorageId("disk")}
    worker.retention.dropped, worker.regrouping.closed = 4, 2
    worker.is_paused = True
    found = worker._registration(Incarnation("i"))
    assert found.members == {"m/2/0": "next", "m/1/0": "disk"}
    assert (found.worker, found.incarnation, found.node, found.launch) == (W0, "i", "n1", "l")
    assert (found.address, found.artifact, found.paused) == ("10.0.0.1:7", "a", True)
    assert (found.dropped, found.closed) == (4, 2)
    worker.config.advertise = "far"
    assert worker._registration(Incarnation("i")).address == "far:7"


def test_news_of_a_record_reach_all_who_wait_for_them(worker: Any) -> None:
    worker.hosting.peers_of.return_value = {W1, W2}
    registration = SimpleNamespace(address="there:1", incarnation=Incarnation("x"))
    worker._registrations = {W1: registration}
    worker._group_event(ONE, events.Tick())
    worker.metadata.record_changed.assert_not_called()
    for event in (
        events.RecordRead(record=record(1, W1), version=1),
        events.CasReply(token=1, outcome=events.CasOutcome.OK, version=1),
    ):
        worker.metadata.record_changed.reset_mock()
        worker._group_event(ONE, event)
        worker.metadata.record_changed.assert_called_once_with(worker.groups[ONE])
        worker.clients.reads.parked.group_changed.assert_called_with(ONE)
        worker.hosting.consider.assert_called_with(ONE)
        worker.transport.know.assert_called_with(W1, "there:1", "x")
        worker.transport.forget.assert_called_with(W2)
    worker._group_event(GroupKey("m", 1, 9), events.Tick())
    assert [len(each) for each in stepped(worker)] == [3, 0]


def test_workers_that_come_and_go_are_met(worker: Any) -> None:
    worker.hosting.peers_of.side_effect = {ONE: {W1}, TWO: {W2}}.__getitem__
    registration = SimpleNamespace(address="there:1", incarnation=Incarnation("x"))
    worker._meet({W1: registration})
    assert worker.metadata.addresses == {W1: "there:1"}
    worker.transport.know.assert_called_once_with(W1, "there:1", "x")
    worker.transport.forget.assert_called_once_with(W2)


def test_an_assignment_is_taken_up_unless_the_worker_stops(worker: Any) -> None:
    assignment = object()
    worker._on_assignment_read(assignment)
    worker.loop.run()
    worker.hosting.on_assignment.assert_called_once_with(assignment)
    worker._stopping_at = 5
    worker._on_assignment(assignment)
    worker.hosting.on_assignment.assert_called_once_with(assignment)


def test_what_peers_say_is_not_taken_from_clients(worker: Any) -> None:
    for kind in (wire.Replicate, wire.Catchup, wire.RunSteps, wire.Microbatch):
        with pytest.raises(PeerError, match="a client sent a"):
            worker._on_message(b"x", None, some(kind, group=ONE), [])
    assert stepped(worker) == [[], []]


def test_entries_of_a_peer_reach_their_replica(worker: Any) -> None:
    message = cast(Any, object())
    frame = make_frame(3)
    worker._on_message(b"x", W1, wire.Replicate(ONE, message), [memoryview(whole(frame))])
    worker._on_message(b"x", W1, wire.Replicate(ONE, message), [])
    worker._on_message(b"x", W1, wire.Replicate(ONE, message), [memoryview(b"")])
    worker._on_message(b"x", W1, wire.Replicate(GroupKey("m", 1, 9), message), [])
    first, *others = (event for event in stepped(worker)[0])
    assert (first.sender, first.message, first.frames[0].header) == (W1, message, frame.header)
    assert others == [events.Received(sender=W1, message=message, frames=())] * 2
    assert stepped(worker)[1] == []


def test_requests_go_to_whom_they_concern(worker: Any) -> None:
    catchup = wire.Catchup(ONE, cast(Any, None))
    worker._on_message(b"x", W1, catchup, [])
    worker.catchup.on_message.assert_called_once_with(W1, catchup, [])
    steps = some(wire.RunSteps)
    worker._on_message(b"x", W1, steps, [])
    worker.streams.hops.received.assert_called_once_with(b"x", steps, [])
    microbatch = some(wire.Microbatch)
    worker._on_message(b"x", W1, microbatch, [])
    worker.microbatches.received.assert_called_once_with(b"x", microbatch, [])
    for sender, is_worker in ((W1, True), (None, False)):
        for message in (wire.GetMetadata(1), wire.ReadRows(1, ONE, "p", (), ())):
            worker._on_message(b"x", sender, message, [])
            worker.clients.received.assert_called_with(b"x", message, [], is_worker=is_worker)


def test_growth_is_waited_for_by_topologies_seals_and_readers(worker: Any) -> None:
    group = worker.groups[ONE]
    worker.regrouping.awaits_seals = False
    worker.clients.reads.parked.holds.return_value = False
    assert not worker.awaits_growth(group)
    worker.clients.reads.parked.holds.side_effect = lambda key: key == ONE
    assert worker.awaits_growth(group)
    assert not worker.awaits_growth(worker.groups[TWO])
    worker.regrouping.awaits_seals = True
    assert worker.awaits_growth(worker.groups[TWO])
    worker.regrouping.awaits_seals = False
    worker.description = ModuleDescription(tasks=2, depots=None, topologies=cast(Any, (object(),)))
    assert worker.awaits_growth(worker.groups[TWO])
    worker.groups[TWO].replica.leading = None
    assert not worker.awaits_growth(worker.groups[TWO]), "only leaders run topologies"


@pytest.mark.parametrize("awaits_seals", [False, True])
def test_growth_is_told_to_readers_topologies_and_who_awaits_seals(worker: Any, awaits_seals: bool) -> None:
    group, tasks, depots = worker.groups[ONE], {TaskId(0)}, {(TaskId(0), "d"): 5}
    worker.regrouping.awaits_seals = awaits_seals
    worker.on_growth(group, tasks, depots, Offset(9))
    worker.clients.reads.parked.grown.assert_called_once_with(ONE, tasks)
    worker.streams.grown.assert_called_once_with(group, depots, Offset(9))
    worker.microbatches.grown.assert_called_once_with(group, depots)
    assert worker.regrouping.consider.call_count == awaits_seals
    worker.on_role_change(group)
    changed = worker.catchup.receiving.on_replica_changed
    for told in (worker.streams.looked, worker.microbatches.looked, changed):
        told.assert_called_once_with(group)


def test_whoever_has_to_do_with_a_replica_that_is_closed_is_told_so(worker: Any) -> None:
    worker.on_replica_closed(ONE, "it moved")
    worker.scans.forget.assert_called_once_with(ONE, "it moved")
    for told in (
        worker.catchup.on_group_closed,
        worker.streams.closed,
        worker.microbatches.closed,
        worker.clients.reads.parked.group_changed,
    ):
        assert told.call_args_list == [call(ONE)]


def test_states_are_checkpointed_and_logs_flushed_but_for_those_being_replaced(worker: Any) -> None:
    one, two = worker.groups.values()
    worker._checkpoint()
    assert worker.applier.checkpoint.call_args_list == [call(one), call(two)]
    worker._flush()
    assert worker.commit.submit.call_args_list == [call(one.log), call(two.log)]
    one.installing, two.fsync_always = True, True
    worker._checkpoint()
    assert worker.applier.checkpoint.call_args_list[2:] == [call(two)]
    worker._flush()
    assert worker.commit.submit.call_count == 2, "what is synced with every write needs no flush"
    worker.clear_readers()
    assert [each.args[0] for each in worker.applier.read.call_args_list] == [
        one.state.clear_readers,
        two.state.clear_readers,
    ]


def test_everything_is_closed_in_the_order_in_which_it_is_needed(
    worker: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    order = MagicMock()
    writers = ["metastore", "microbatches", "streams", "executors", "catchup", "scans", "applier"]
    names = [*writers, "digests", "snapshots", "commit", "disk", "replicas", "pool", "transport", "loop"]
    for name in names:
        setattr(worker, name, getattr(order, name))
    closed: list[int] = []
    monkeypatch.setattr("os.close", closed.append)
    worker._lock = 77
    worker._close()
    told = [str(each).removeprefix("call.").split(".")[0] for each in order.mock_calls]
    assert told == names, "what writes is closed before what it writes to"
    assert closed == [77]
