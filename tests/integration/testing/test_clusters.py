"""What users have to test their modules on a real cluster: faults happen, are undone, and leave nothing."""

from __future__ import annotations

import os
from collections.abc import Callable
from itertools import islice
from pathlib import Path

import pytest

import stretto.testing
from stretto.errors import UsageError
from stretto.examples.bank.bank import Bank
from stretto.examples.bank.orders import orders
from stretto.examples.wordcount.wordcount import WordCount
from stretto.testing import ClusterUnderTest, eventually


def processes_in(folder: Path) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                if str(folder).encode() in (entry / "cmdline").read_bytes():
                    found.append(int(entry.name))
            except OSError:
                continue
    return found


@pytest.mark.soak
@pytest.mark.timeout(300)
def test_words_are_counted_although_leaders_are_killed_and_nothing_is_left_behind() -> None:
    with stretto.testing.cluster(replication_factor=2) as cluster:
        words = cluster.launch(WordCount, tasks=2, threads=1)
        words.append("sentences", {"user": "ann", "text": "the cat and the dog"})
        assert words.counts.get("the") == 2
        words.settle()
        killed = words.kill_leader()
        words.append("sentences", {"user": "bob", "text": "the end"})
        words.settle()
        assert words.counts.get("the") == 3
        assert words.query("top", 1) == [[3, "the"]]
        cluster.heal()
        words.check_replicas_agree()
        assert set(words.groups()[0].isr) == {killed, *words.followers(), words.leader()}
        with pytest.raises(UsageError, match="did you mean sentences"):
            words.append("sentence", "x")
        with pytest.raises(UsageError, match="did you mean node-1"):
            cluster.partition("nod-1")
        folder = cluster.folder
        assert processes_in(folder)
    eventually(lambda: not processes_in(folder), what="every process is gone")
    assert not folder.exists()


@pytest.mark.soak
@pytest.mark.timeout(300)
def test_a_client_outlives_a_module_that_is_launched_anew_with_other_tasks() -> None:
    sentence = b'{"user": "ann", "text": "%s"}'
    with stretto.testing.cluster(replication_factor=1) as cluster:
        client = cluster.connect()
        with cluster.launch(WordCount, tasks=4, threads=2):
            producer = client.producer("WordCount", "sentences", ack="all")
            counts = client.pstate("WordCount", "counts")
            producer.append(sentence % b"old", task=0).result(60)
            assert counts.get("old") == 1
            assert client.query("WordCount", "top", 1) == [[1, "old"]]
        with cluster.launch(WordCount, tasks=2, threads=1):
            with pytest.raises(UsageError, match="launched anew with 2 tasks, where it had 4"):
                producer.append(sentence % b"lost", task=3).result(60)
            with pytest.raises(UsageError, match="begin anew with another producer or reader"):
                counts.get("old")
            with client.producer("WordCount", "sentences", ack="all") as fresh:
                for ack in [fresh.append(sentence % b"new", task=task) for task in (0, 1)]:
                    ack.result(60)
            assert client.pstate("WordCount", "counts").get("new") == 2
            assert client.query("WordCount", "top", 1) == [[2, "new"]]
            assert {group.module_tasks for group in client.groups()} == {2}


@pytest.mark.soak
@pytest.mark.timeout(590)
def test_a_leader_that_is_cut_off_is_replaced_and_takes_back_what_nobody_else_has(
    stretto_cluster: ClusterUnderTest,
) -> None:
    words = stretto_cluster.launch(WordCount, tasks=2, threads=1)
    words.append("sentences", {"user": "ann", "text": "one"})
    cut_off = words.leader()
    stretto_cluster.partition(stretto_cluster.workers[cut_off])
    words.append("sentences", *[{"user": f"user-{number}", "text": "two"} for number in range(50)])
    words.settle()
    assert words.leader() != cut_off
    assert words.counts.get("two") == 50
    stretto_cluster.heal()
    assert cut_off in words.groups()[0].isr
    words.check_replicas_agree()


@pytest.mark.soak
@pytest.mark.timeout(590)
def test_followers_that_are_cut_from_their_leader_leave_the_isr_and_return(
    stretto_cluster: ClusterUnderTest,
) -> None:
    words = stretto_cluster.launch(
        WordCount, tasks=2, threads=1, options={"replication.max.time.lag.millis": 1_000}
    )
    leader, [follower, _] = words.leader(), words.followers()
    nodes = stretto_cluster.workers
    stretto_cluster.partition(nodes[leader], nodes[follower])
    words.append("sentences", {"user": "ann", "text": "alone"})
    eventually(lambda: follower not in words.groups()[0].isr, what="the follower has left the ISR")
    assert words.leader() == leader
    stretto_cluster.heal()
    assert follower in words.groups()[0].isr


@pytest.mark.soak
@pytest.mark.timeout(590)
def test_a_healed_cluster_has_every_process_back_although_the_isr_never_lost_one(
    stretto_cluster: ClusterUnderTest,
) -> None:
    """A follower that is back before its session has expired is in the ISR all the time."""
    words = stretto_cluster.launch(WordCount, tasks=2, threads=1)
    words.wait_in_sync()
    follower = words.followers()[0]
    stretto_cluster.kill_node(stretto_cluster.workers[follower])
    stretto_cluster.heal()
    [group] = words.groups()
    assert group.is_whole
    assert sorted(each.role for each in group.replicas) == ["follower", "follower", "leader"]


@pytest.mark.soak
@pytest.mark.timeout(590)
def test_money_is_neither_made_nor_lost_whatever_happens_to_workers_and_nodes(
    stretto_cluster: ClusterUnderTest,
) -> None:
    bank = stretto_cluster.launch(Bank, tasks=4, threads=2)
    given = list(islice(orders(accounts=50), 1_200))
    paid_in = sum(order["amount"] for order in given if order["type"] == "deposit")

    faults: list[Callable[[], object]] = [
        lambda: stretto_cluster.restart(bank.leader(0)),
        lambda: bank.kill_leader(0),
        lambda: stretto_cluster.pause(bank.leader(1)),
        lambda: stretto_cluster.kill_node("node-1"),
        lambda: stretto_cluster.partition("node-2"),
    ]
    for number, fault in enumerate(faults):
        fault()
        bank.append("orders", *given[number * 240 : (number + 1) * 240], ack="append", timeout=120)
        stretto_cluster.heal()
    bank.settle()
    assert bank.query("totals") == [paid_in, paid_in]
    bank.check_replicas_agree()
