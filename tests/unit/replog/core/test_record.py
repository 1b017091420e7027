from __future__ import annotations

import msgspec

from stretto.replog.core.record import GroupRecord
from stretto.vocabulary.types import Epoch
from tests.support.core_group import ALL, W0, W1, W2, incarnation_of, member, record


def test_a_worker_with_another_disk_is_another_member() -> None:
    assert member(W1, disk=1) != member(W1, disk=2)
    assert record(1, W0).member(W1) == member(W1)


def test_a_worker_outside_the_isr_has_no_member() -> None:
    assert record(1, W0, (W0, W2)).member(W1) is None


def test_a_new_isr_is_sorted_and_the_other_replicas_are_the_osr() -> None:
    changed = record(1, W0).with_isr([member(W2), member(W0)], ALL)

    assert changed.isr == (member(W0), member(W2))
    assert changed.osr == (W1,)
    assert (changed.epoch, changed.leader) == (1, W0)


def test_a_new_leader_keeps_the_isr() -> None:
    before = record(4, W0, (W0, W1))
    after = before.with_leader(W1, incarnation_of(W1, 3), Epoch(5))

    assert (after.epoch, after.leader, after.leader_incarnation) == (5, W1, "w1.3")
    assert after.isr == before.isr


def test_a_record_survives_the_metastore() -> None:
    before = record(4, W0, (W0, member(W1, disk=2)), unclean_epoch=3)

    assert msgspec.json.decode(msgspec.json.encode(before), type=GroupRecord) == before
