from __future__ import annotations

from stretto.replog.core.effects import ReadServed, Refusal, Refused
from stretto.sim.replication.workload import CLIENT_TIMEOUT_MS, Session
from stretto.vocabulary.types import Epoch, WorkerId
from tests.unit.sim.replication.calm import Calm, replica_of


def test_batches_of_a_task_have_contiguous_sequences_and_payloads_of_their_own() -> None:
    calm = Calm()
    batches = [calm.workload.submit_new(calm.producer, count) for count in (2, 1, 3, 2, 1, 3)]
    assert len({batch.payload for batch in batches}) == 6
    for task in {batch.task for batch in batches}:
        expected = 0
        for batch in batches:
            if batch.task == task:
                assert batch.sequence == expected
                expected += batch.count


def test_a_batch_is_retried_with_its_sequence_until_acknowledged_and_visible_once() -> None:
    calm = Calm()
    calm.leader.pause()
    batch = calm.workload.submit_new(calm.producer, 1, b"a")
    calm.run_for(CLIENT_TIMEOUT_MS + 100)
    assert batch.attempt > 1
    calm.leader.resume()
    calm.run_until(lambda: batch.acked)
    assert calm.checkers.visible_payloads() == [b"a"]


def test_a_producer_that_asks_a_follower_is_sent_to_the_leader() -> None:
    calm = Calm()
    calm.producer.leader = WorkerId("w1")
    batch = calm.workload.submit_new(calm.producer, 1, b"a")
    calm.run_until(lambda: batch.acked)
    assert calm.producer.leader == "w0"


def test_a_producer_told_that_it_is_unknown_gives_up_its_batches_and_takes_another_id() -> None:
    calm = Calm()
    before = calm.producer.id
    calm.workload.submit_new(calm.producer, 1, b"a")
    calm.workload.reopen(calm.producer)
    assert calm.producer.id != before
    assert calm.workload.is_settled
    assert calm.workload.given_up == 1


def test_a_sleeping_producer_neither_sends_nor_hears() -> None:
    calm = Calm()
    batch = calm.workload.submit_new(calm.producer, 1, b"a")
    calm.producer.asleep_until = calm.world.now + 2_000
    calm.run_for(1_900)
    assert calm.checkers.visible_payloads() == [b"a"]
    assert not batch.acked
    calm.run_until(lambda: batch.acked)
    assert calm.checkers.visible_payloads() == [b"a"]


def test_a_reader_is_served_by_the_leader_and_refused_by_a_follower() -> None:
    calm = Calm()
    calm.append(b"a")
    served = calm.workload.read_at(calm.leader)
    refused = calm.workload.read_at(calm.follower)
    calm.run_for(10)
    assert calm.workload.read_results[served] == ReadServed(epoch=Epoch(1))
    result = calm.workload.read_results[refused]
    assert isinstance(result, Refused)
    assert result.reason is Refusal.NOT_LEADER


def test_a_reader_who_accepts_old_answers_is_served_by_a_follower_and_remembers_what_it_saw() -> None:
    calm = Calm()
    calm.append(b"a")
    session = Session(500)
    calm.run_until(lambda: replica_of(calm.follower).applied == replica_of(calm.leader).applied)
    request = calm.workload.read_stale_at(calm.follower, session)
    calm.run_until(lambda: request in calm.workload.read_results)
    assert calm.workload.read_results[request] == ReadServed(epoch=Epoch(1))
    assert session.token == (1, replica_of(calm.follower).applied)
    assert calm.totals["reads at followers"] == 1


def test_a_read_after_the_lease_counts_as_a_stale_lease_refusal() -> None:
    calm = Calm()
    replica = replica_of(calm.leader)
    replica.lease_end = calm.leader.clock()
    calm.workload.read_at(calm.leader)
    calm.run_for(1)
    assert calm.totals["stale-lease refusals"] == 1
