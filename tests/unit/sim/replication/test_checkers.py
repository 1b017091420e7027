"""Each checker against a hand-made violation of what it checks: none of them is vacuous."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from stretto.replog.core import events
from stretto.replog.core.effects import Acked, Refusal, Refused
from stretto.replog.core.record import GroupRecord, Member
from stretto.replog.frame import Frame, Kind
from stretto.sim.replication import checkers as checkers_module
from stretto.sim.virtual.world import Violation
from stretto.vocabulary.types import Epoch, Incarnation, Offset, ProducerId, StorageId, WorkerId
from tests.support.core_group import append_event, entry, history
from tests.unit.sim.replication.calm import Calm, replica_of

W0, W1, W2, W9 = (WorkerId(name) for name in ("w0", "w1", "w2", "w9"))


@pytest.fixture
def calm() -> Calm:
    """Three replicas that agree on everything: epoch entry, producer, and the batch "a"."""
    calm = Calm()
    calm.append(b"a")
    calm.checkers.finish()
    return calm


@contextmanager
def violation(what: str) -> Iterator[None]:
    with pytest.raises(Violation, match=what):
        yield


def changed(record: GroupRecord, **changes: object) -> GroupRecord:
    return msgspec.structs.replace(record, **changes)


def member_of(calm: Calm, worker: WorkerId) -> Member:
    return Member(worker, calm.nodes[worker].storage)


# Steps.


def test_an_append_taken_while_stalled(calm: Calm) -> None:
    replica = replica_of(calm.leader)
    calm.leader_role.stalled = True
    calm.checkers.before(replica, append_event())
    replica.log_end = Offset(replica.log_end + 1)
    with violation("took an append while stalled"):
        calm.checkers.after(calm.leader, replica)


def test_an_append_taken_beyond_the_bound(calm: Calm) -> None:
    replica = replica_of(calm.leader)
    replica.settings = replace(replica.settings, max_unapplied=4)
    replica.log_end = Offset(replica.applied + 4)
    calm.checkers.before(replica, append_event())
    replica.log_end = Offset(replica.log_end + 1)
    with violation("beyond the bound of unapplied entries"):
        calm.checkers.after(calm.leader, replica)


def test_an_apply_offset_that_goes_back(calm: Calm) -> None:
    replica = replica_of(calm.follower)
    replica.apply_offset = replica.applied = Offset(replica.apply_offset - 1)
    with violation("apply offset of w1 went back from 3 to 2"):
        calm.checkers.after(calm.follower, replica)


@pytest.mark.parametrize("field", ["applied", "apply_offset"])
def test_offsets_out_of_order(calm: Calm, field: str) -> None:
    replica = replica_of(calm.follower)
    setattr(replica, field, replica.log_end + 1)
    with violation("w1 has applied"):
        calm.checkers.after(calm.follower, replica)


def test_a_resignation_for_another_epochs_request(calm: Calm) -> None:
    calm.checkers.before(replica_of(calm.leader), events.Resign(epoch=Epoch(7), target=W1))
    with violation("resigns epoch 1 for a request meant for 7"):
        calm.checkers.resigning(calm.leader, Epoch(1))


# Disks.


def test_a_listed_replica_that_installs_a_shorter_state(calm: Calm) -> None:
    with violation("is listed and replaced its log by a shorter state"):
        calm.checkers.installed(calm.follower, Offset(2))


# Leaders and the record.


def test_two_leaders_of_one_epoch(calm: Calm) -> None:
    with violation("epoch 1 is led by"):
        calm.checkers.leads(calm.follower, replica_of(calm.follower))


def test_two_incarnations_that_lead_one_epoch(calm: Calm) -> None:
    replica = replica_of(calm.leader)
    replica.incarnation = Incarnation("w0.later")
    with violation("epoch 1 is led by"):
        calm.checkers.leads(calm.leader, replica)


def test_an_epoch_that_goes_back(calm: Calm) -> None:
    record = calm.metastore.record
    with violation("the record's epoch went back from 1 to 0"):
        calm.checkers.committed(record, changed(record, epoch=Epoch(0)), W0)


def test_a_plan_that_goes_back(calm: Calm) -> None:
    record = changed(calm.metastore.record, plan=2)
    with violation("the record's plan went back from 2 to 1"):
        calm.checkers.committed(record, changed(record, plan=1), W0)


def test_a_factor_of_another_plan(calm: Calm) -> None:
    record = calm.metastore.record
    with violation("the record's factor is 2, which is not that of plan 0"):
        calm.checkers.committed(record, changed(record, factor=2), W0)


def test_a_member_that_deletes_its_data(calm: Calm) -> None:
    with violation("w1 deletes its data although the ISR lists it"):
        calm.checkers.retired(calm.follower)


def test_a_member_whose_data_is_deleted(calm: Calm) -> None:
    record = calm.metastore.record
    calm.metastore.create(changed(record, isr=(record.isr[0], record.isr[2])))
    calm.checkers.retired(calm.follower)
    with violation("w1 is listed in the ISR and has deleted its data"):
        calm.checkers.committed(record, record, W0)


def test_a_newcomer_that_would_have_to_leave_at_once(calm: Calm, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calm.leader_role, "overdue_end", lambda: Offset(1))
    record = calm.metastore.record
    entering = changed(record, isr=(*record.isr, Member(W9, StorageId("w9-1"))))
    with violation("lacks an entry that has waited too long and would have to leave at once"):
        calm.checkers.proposed(calm.leader, replica_of(calm.leader), entering)


def test_members_that_go_before_others_have_come(calm: Calm) -> None:
    replica = replica_of(calm.leader)
    replica.replicas = (W0, W9)
    with violation("w0 lets members go before .* have come"):
        calm.checkers.let_go(replica)


def test_a_replica_that_is_left_out_and_stays(calm: Calm) -> None:
    calm.plans.append((W0, W2))
    with violation("not recovered: w1 is not assigned, and still there"):
        calm.checkers.finish()


def test_an_epoch_that_is_skipped(calm: Calm) -> None:
    record = calm.metastore.record
    with violation("leadership changed from epoch 1 to 3"):
        calm.checkers.committed(record, changed(record, epoch=Epoch(3), leader=W1), W1)


def test_a_leader_that_changes_without_a_new_epoch(calm: Calm) -> None:
    record = calm.metastore.record
    with violation("leadership changed from epoch 1 to 1"):
        calm.checkers.committed(record, changed(record, leader=W1), W1)


def test_a_newcomer_that_is_not_registered(calm: Calm) -> None:
    record = calm.metastore.record
    newcomer = Member(W2, StorageId("unheard of"))
    before = changed(record, isr=record.isr[:2])
    with violation("w2 enters the ISR although it is not registered"):
        calm.checkers.committed(before, changed(record, isr=(*record.isr[:2], newcomer)), W0)


def test_a_listed_member_that_lacks_what_is_visible(calm: Calm) -> None:
    record = calm.metastore.record
    calm.checkers.truncated(calm.follower, Offset(2))
    with violation("w1 is listed in the ISR and lacks what is visible"):
        calm.checkers.committed(record, changed(record, isr=record.isr[:2]), W0)


def test_a_leader_outside_the_isr(calm: Calm) -> None:
    record = calm.metastore.record
    with violation("leader w0 is not in the ISR"):
        calm.checkers.committed(record, changed(record, isr=record.isr[1:]), W0)


def test_a_worker_listed_twice(calm: Calm) -> None:
    record = calm.metastore.record
    with violation("lists a worker twice"):
        calm.checkers.committed(record, changed(record, isr=(*record.isr, record.isr[1])), W0)


def test_a_hand_over_with_unapplied_appends(calm: Calm) -> None:
    replica = replica_of(calm.leader)
    replica.log_end = Offset(replica.log_end + 1)
    record = calm.metastore.record
    with violation("handed over with unapplied appends"):
        calm.checkers.committed(record, changed(record, epoch=Epoch(2), leader=W1), W0)


def test_an_unclean_election_without_the_option(calm: Calm) -> None:
    record = calm.metastore.record
    with violation("although the option forbids it"):
        calm.checkers.committed(record, changed(record, epoch=Epoch(2), unclean_epoch=Epoch(2)), W1)


def test_an_unclean_election_while_members_are_alive(calm: Calm) -> None:
    calm.settings = replace(calm.settings, unclean_election=True)
    record = calm.metastore.record
    with violation("although .* could stand"):
        calm.checkers.committed(record, changed(record, epoch=Epoch(2), unclean_epoch=Epoch(2)), W1)


# Applying.


def test_a_decision_in_an_epoch_that_was_never_recorded(calm: Calm) -> None:
    calm.leader_role.epoch = Epoch(9)
    with violation("leads epoch 9, which was never recorded"):
        calm.checkers.decided(calm.leader, replica_of(calm.leader), Offset(3))


def test_a_decision_about_entries_that_a_member_lacks(calm: Calm) -> None:
    calm.checkers.decided(calm.leader, replica_of(calm.leader), Offset(3))
    calm.checkers.truncated(calm.follower, Offset(2))
    with violation(r"although \['w1'\] of the ISR lack it"):
        calm.checkers.decided(calm.leader, replica_of(calm.leader), Offset(3))


def test_a_decision_of_a_deposed_leader_about_entries_that_a_present_member_lacks(calm: Calm) -> None:
    """Who has left the ISR since may have cut off what it confirmed."""
    record = calm.metastore.record
    isr = (member_of(calm, W0), member_of(calm, W2))
    calm.metastore.create(changed(record, epoch=Epoch(2), leader=W2, isr=isr))
    calm.checkers.truncated(calm.follower, Offset(2))
    calm.checkers.decided(calm.leader, replica_of(calm.leader), Offset(3))
    calm.checkers.truncated(calm.nodes[W2], Offset(2))
    with violation(r"although \['w2'\] of the ISR lack it"):
        calm.checkers.decided(calm.leader, replica_of(calm.leader), Offset(3))


def test_a_decision_about_an_entry_that_a_member_holds_of_another_epoch(calm: Calm) -> None:
    replica = replica_of(calm.leader)
    replica.history = history((9, 0))
    with violation("an entry of epoch 9; w0, which is in the ISR, holds one of epoch 1 there"):
        calm.checkers.decided(calm.leader, replica, Offset(3))


def test_a_decision_with_fewer_holders_than_min_isr(calm: Calm) -> None:
    record = calm.metastore.record
    calm.metastore.create(changed(record, isr=record.isr[:1]))
    with violation("applies up to 3 with 1 holders; min-ISR is 2"):
        calm.checkers.decided(calm.leader, replica_of(calm.leader), Offset(3))


def next_frame(payload: bytes, offset: int = 3, epoch: int = 1) -> Frame:
    return entry(offset, epoch=epoch, payload=payload)


def test_an_entry_applied_that_the_disk_does_not_hold(calm: Calm) -> None:
    with violation("which its disk does not hold"):
        calm.checkers.applied(calm.follower, next_frame(b"b"))


@pytest.fixture
def disk_holds_more(calm: Calm) -> Calm:
    calm.checkers.synced(calm.follower, Offset(10))
    return calm


@pytest.mark.usefixtures("disk_holds_more")
@pytest.mark.parametrize(
    "frame",
    [next_frame(b"changed", offset=2), next_frame(b"a", offset=2, epoch=2)],
    ids=["payload", "epoch"],
)
def test_an_entry_that_differs_from_what_was_visible(calm: Calm, frame: Frame) -> None:
    with violation("at 2 where .* was visible"):
        calm.checkers.applied(calm.follower, frame)


@pytest.mark.usefixtures("disk_holds_more")
def test_a_hole_in_what_is_visible(calm: Calm) -> None:
    calm.checkers.submitted(b"b")
    with violation("an entry appears at 5, although 3 were visible"):
        calm.checkers.becomes_visible(calm.follower, next_frame(b"b", offset=5))


@pytest.mark.usefixtures("disk_holds_more")
def test_a_batch_that_is_visible_twice(calm: Calm) -> None:
    with violation("b'a' is visible at 2 and at 3"):
        calm.checkers.becomes_visible(calm.follower, next_frame(b"a"))


@pytest.mark.usefixtures("disk_holds_more")
def test_an_entry_in_a_log_that_is_sealed(calm: Calm) -> None:
    calm.checkers.submitted(b"b")
    calm.checkers.becomes_visible(calm.follower, entry(3, kind=Kind.SEAL, sequence=2))
    with violation("DEPOT appears in a log that is sealed for grouping 2"):
        calm.checkers.becomes_visible(calm.follower, next_frame(b"b", offset=4))


@pytest.mark.usefixtures("disk_holds_more")
def test_a_seal_that_is_taken_back_although_nobody_gave_up(calm: Calm) -> None:
    calm.checkers.becomes_visible(calm.follower, entry(3, kind=Kind.SEAL, sequence=2))
    with violation("the log is unsealed, although grouping 2 was not abandoned"):
        calm.checkers.becomes_visible(calm.follower, entry(4, kind=Kind.UNSEAL, sequence=2))


@pytest.mark.usefixtures("disk_holds_more")
def test_a_round_of_two_computations(calm: Calm) -> None:
    calm.checkers.submitted_in(7, 0, b"b")
    calm.checkers.submitted_in(7, 1, b"c")
    calm.checkers.becomes_visible(calm.follower, next_frame(b"b"))
    with violation("round 7 is visible as computed twice"):
        calm.checkers.becomes_visible(calm.follower, next_frame(b"c", offset=4))


@pytest.mark.usefixtures("disk_holds_more")
def test_a_batch_that_nobody_appended(calm: Calm) -> None:
    with violation("b'b' is visible but was never appended"):
        calm.checkers.becomes_visible(calm.follower, next_frame(b"b"))


@pytest.mark.usefixtures("disk_holds_more")
def test_an_entry_that_is_applied_and_was_not_decided(calm: Calm) -> None:
    calm.checkers.submitted(b"b")
    with violation("w1 applies up to 4, which nobody has decided"):
        calm.checkers.applied(calm.follower, next_frame(b"b"))


def test_a_leader_that_serves_before_it_applied_what_was_visible(calm: Calm) -> None:
    replica = replica_of(calm.leader)
    calm.checkers.began_serving(calm.leader, replica)
    replica.applied = Offset(2)
    with violation("with 2 applied although 3 were visible"):
        calm.checkers.began_serving(calm.leader, replica)


# Clients.


def test_an_acknowledgement_of_what_is_not_decided(calm: Calm) -> None:
    batch = calm.workload.submit_new(calm.producer, 1, b"b")
    with violation("was acknowledged but is not decided"):
        calm.checkers.replied(calm.leader, 1, Acked(offset=Offset(3)), (calm.producer, batch, 1))
    refused = Refused(reason=Refusal.STALLED, leader=W0, epoch=Epoch(1))
    calm.checkers.replied(calm.leader, 1, refused, (calm.producer, batch, 1))


def test_an_acknowledgement_of_what_is_not_applied_to_who_asked_for_that(calm: Calm) -> None:
    batch = calm.append(b"b")
    acked, known = Acked(offset=Offset(3)), (calm.producer, batch, 1)
    calm.leader.state.applied = Offset(3)
    calm.checkers.before(replica_of(calm.leader), append_event(1))
    calm.checkers.replied(calm.leader, 1, acked, known)
    calm.checkers.before(replica_of(calm.leader), append_event(1, until_applied=True))
    with violation("was acknowledged before it was applied"):
        calm.checkers.replied(calm.leader, 1, acked, known)


def test_an_acknowledgement_ahead_of_much_that_is_not_applied(calm: Calm) -> None:
    batch = calm.append(b"b")
    replica = replica_of(calm.leader)
    replica.settings = replace(replica.settings, early_bytes=10)
    calm.leader.state.applied = Offset(3)
    calm.checkers.before(replica, append_event(1))
    with violation("was acknowledged early, with .* bytes not applied"):
        calm.checkers.replied(calm.leader, 1, Acked(offset=Offset(3)), (calm.producer, batch, 1))


@pytest.mark.parametrize("sampled", [None, Offset(2)])
def test_a_stale_read(calm: Calm, sampled: Offset | None) -> None:
    with violation("stale read at w0"):
        calm.checkers.read_served(calm.leader, Offset(3), sampled)


@pytest.mark.parametrize("sampled", [None, Offset(2)])
def test_a_read_that_is_older_than_its_bound(calm: Calm, sampled: Offset | None) -> None:
    calm.run_for(200)
    calm.checkers.stale_read_served(calm.follower, Offset(3), max_staleness_ms=100)
    calm.checkers.stale_read_served(calm.follower, Offset(2), max_staleness_ms=100_000)
    with violation("is older than 100 ms"):
        calm.checkers.stale_read_served(calm.follower, sampled, max_staleness_ms=100)


def test_a_reader_that_goes_back(calm: Calm) -> None:
    with violation("a reader went back at"):
        calm.checkers.session_went_on(calm.follower, Offset(3), after=Offset(4))


def test_what_is_acknowledged_or_read_raises_what_later_reads_must_see(calm: Calm) -> None:
    assert calm.checkers.read_floor == 3
    calm.checkers.read_served(calm.leader, Offset(3), Offset(5))
    assert calm.checkers.read_floor == 5


# At the end.


def test_a_replica_that_is_not_running(calm: Calm) -> None:
    calm.follower.crash()
    with violation("not recovered: w1 is not running"):
        calm.checkers.finish()


def test_a_replica_that_is_not_in_the_isr(calm: Calm) -> None:
    record = calm.metastore.record
    calm.metastore.create(changed(record, isr=(record.isr[0], record.isr[2])))
    with violation("not recovered: w1 .* is not in the ISR"):
        calm.checkers.finish()


def test_a_replica_that_is_dead_for_good_is_not_missed(calm: Calm) -> None:
    calm.follower.crash()
    calm.follower.dead_for_good = True
    calm.checkers.finish()


def test_a_group_that_nobody_leads(calm: Calm) -> None:
    replica_of(calm.leader).follow()
    with violation("not recovered: w0 does not lead"):
        calm.checkers.finish()


def test_appends_that_were_never_answered(calm: Calm) -> None:
    calm.workload.submit_new(calm.producer, 1, b"b")
    with violation(r"appends of \['p0'\] are still unanswered"):
        calm.checkers.finish()


@pytest.mark.parametrize("field", ["log_end", "applied"])
def test_a_replica_that_is_behind(calm: Calm, field: str) -> None:
    setattr(replica_of(calm.follower), field, Offset(2))
    with violation("not recovered: w1 has a log of .*; the leader's log ends at 3"):
        calm.checkers.finish()


def test_a_producer_table_that_differs_from_the_leaders(calm: Calm) -> None:
    calm.follower.state.producers.producers[ProducerId(99)] = {}
    with violation("the producer table of w1 differs from the leader's"):
        calm.checkers.finish()


def test_a_replica_that_remembers_other_producers_than_its_state(calm: Calm) -> None:
    replica_of(calm.follower).producers.table.producers[ProducerId(99)] = {}
    with violation("w1 remembers other producers than its applied state"):
        calm.checkers.finish()


def test_a_log_that_holds_another_entry_than_what_is_visible(calm: Calm) -> None:
    calm.checkers._visible[Offset(0)] = (Epoch(9), Kind.EPOCH, 1, b"")
    with violation("w0 holds .* where .* is visible"):
        calm.checkers.finish()


def test_an_acknowledged_batch_that_is_not_visible(calm: Calm) -> None:
    calm.checkers.acknowledged(b"b")
    with violation(r"acknowledged but not visible: \[b'b'\]"):
        calm.checkers.finish()


# Completeness.


def test_every_violation_that_a_checker_can_raise_is_provoked_here() -> None:
    """By its most telling words, in what some test above expects."""
    expected = re.findall(r"^    with violation\(r?\"(.+)\"\)", read(Path(__file__)), re.MULTILINE)
    pieces = [piece for each in expected for piece in re.split(r"\.\*|\\?[\[\]]", each)]
    missing = [
        words
        for words in telling_words(read(Path(checkers_module.__file__)))
        if not any(words in piece or (len(piece) > 7 and piece.strip() in words) for piece in pieces)
    ]
    assert missing == []


def read(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def telling_words(source: str) -> list[str]:
    """The longest fixed part of each violation's message."""
    raised = [node.exc for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Raise)]
    found = []
    for call in raised:
        assert isinstance(call, ast.Call)
        texts = [
            str(node.value).removeprefix("not recovered: ").strip()
            for node in ast.walk(call.args[0])
            if isinstance(node, ast.Constant) and isinstance(node.value, str)
        ]
        found.append(max(texts, key=len))
    assert len(found) > 20
    return found
