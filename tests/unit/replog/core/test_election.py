from __future__ import annotations

import pytest

from stretto.replog.core import effects, events, messages
from stretto.replog.core.events import CasOutcome
from stretto.replog.core.following.election import CANDIDACY, EMPTY_PATIENCE
from stretto.replog.core.following.follower import Follower
from stretto.replog.core.leading.leader import Leader
from stretto.replog.core.replica import RoleName
from stretto.vocabulary.types import Epoch, Offset, WorkerId
from tests.support.core_group import (
    ALL,
    SETTINGS,
    W0,
    W1,
    W2,
    FollowerSubject,
    Subject,
    entries,
    every,
    incarnation_of,
    member,
    noted,
    only,
    record,
    registration,
    sent,
    settings,
)

RETRY_MS = SETTINGS.retry_ms
UNCLEAN = settings(unclean_election=True)


def member_of_orphans(worker: WorkerId = W1, **details: object) -> Subject:
    """Its leader's registration was tested and is gone."""
    subject = Subject(worker, **details)  # type: ignore[arg-type]
    subject.see(record(1, W0))
    subject.gone(registration(W0))
    return subject


def standing(worker: WorkerId = W1) -> tuple[Subject, effects.CompareAndSet]:
    subject = member_of_orphans(worker)
    return subject, only(subject.tick_at_deadline(), effects.CompareAndSet)


def outsider(**details: object) -> tuple[Subject, list[effects.Effect]]:
    """Not in the ISR, and the leader is gone."""
    subject = Subject(W1, **{"log": entries(0, 2), **details})  # type: ignore[arg-type]
    subject.see(record(1, W0, (W0, W2)))
    return subject, subject.gone(registration(W0))


def candidate(**details: object) -> tuple[Subject, list[effects.Effect]]:
    """The same, allowed to stand, and no word of a longer log has come for as long as it waits for that."""
    subject, _ = outsider(**{"options": UNCLEAN, **details})
    return subject, subject.tick(after=CANDIDACY * RETRY_MS)


def reach(end: int, *, last_epoch: int = 1, of: WorkerId = W0, epoch: int = 1) -> messages.Reach:
    return messages.Reach(Epoch(epoch), incarnation_of(of), last_epoch=Epoch(last_epoch), end=Offset(end))


# Who may stand.


def test_a_listed_member_stands_with_one_compare_and_set() -> None:
    subject, cas = standing()
    assert (cas.record.leader, cas.record.leader_incarnation) == (W1, incarnation_of(W1))
    assert cas.record.epoch == 2
    assert cas.record.isr == record(1, W0).isr
    assert cas.version == subject.version
    assert subject.replica.role_name is RoleName.CANDIDATE


def test_nobody_stands_before_the_registration_was_tested() -> None:
    subject = Subject(W1)
    happened = subject.see(record(1, W0))
    assert only(happened, effects.CheckRegistration).registration == registration(W0)
    assert every(subject.tick(after=10_000), effects.CompareAndSet) == []


def test_nobody_stands_while_the_leader_is_registered() -> None:
    subject = Subject(W1)
    subject.see(record(1, W0))
    subject.step(events.RegistrationSeen(registration=registration(W0), exists=True))
    assert every(subject.tick(after=10_000), effects.CompareAndSet) == []


def test_the_registration_of_another_incarnation_or_worker_says_nothing() -> None:
    subject = Subject(W1)
    subject.see(record(1, W0))
    subject.gone(registration(W0, life=2))
    subject.gone(registration(W2))
    assert every(subject.tick(after=10_000), effects.CompareAndSet) == []


def test_the_registration_is_tested_again_after_every_change_of_the_record() -> None:
    subject = Subject(W1)
    subject.see(record(1, W0))
    happened = subject.see(record(1, W0, (W0, W1)))
    assert only(happened, effects.CheckRegistration).registration == registration(W0)


def test_a_replica_outside_the_isr_does_not_stand() -> None:
    subject, happened = outsider()
    assert every(happened, effects.LookForMembers) == []
    assert every(subject.tick(after=10_000), effects.CompareAndSet) == []


def test_a_worker_whose_listed_disk_is_another_does_not_stand() -> None:
    subject = Subject(W1)
    subject.see(record(1, W0, (W0, member(W1, disk=2))))
    subject.gone(registration(W0))
    assert every(subject.tick(after=10_000), effects.CompareAndSet) == []


def test_a_member_that_left_the_isr_while_it_waited_its_turn_does_not_stand() -> None:
    subject = member_of_orphans(W1)
    subject.see(record(1, W0, (W0, W2)))
    assert every(subject.tick(after=10_000), effects.CompareAndSet) == []


def test_a_group_without_a_leader_elects_its_first_one() -> None:
    subject = Subject(W0)
    subject.see(record(0, None))
    assert only(subject.tick_at_deadline(), effects.CompareAndSet).record.epoch == 1


# Courtesy.


def test_members_stand_one_after_the_other() -> None:
    delays = []
    for worker in (W1, W2):
        subject = member_of_orphans(worker)
        deadline = subject.replica.next_deadline()
        assert deadline is not None
        delays.append(deadline - subject.now)
    assert delays == [0, RETRY_MS // 8], "nobody waits for the leader that is gone"


def test_a_member_that_lacks_what_the_leader_had_sent_stands_last() -> None:
    subject = FollowerSubject(W1, log=entries(0, 3))
    subject.see(record(1, W0))
    subject.lineage((1, 0), end=3)
    subject.entries(log_end=9)
    subject.gone(registration(W0))
    deadline = subject.replica.next_deadline()
    assert deadline == subject.now + len(ALL) * RETRY_MS // 8


# Answers.


def test_the_winner_leads() -> None:
    subject, cas = standing()
    happened = subject.cas(cas)
    assert isinstance(subject.replica.role, Leader)
    assert only(happened, effects.Persist).frames[0].header.epoch == 2


def test_a_lost_race_reads_the_record_and_follows_the_winner() -> None:
    subject, cas = standing()
    happened = subject.cas(cas, CasOutcome.BAD_VERSION)
    assert every(happened, effects.CompareAndSet) == []
    read = only(happened, effects.ReadRecord)
    assert read.sync
    subject.see(record(2, W2), token=read.token)
    role = subject.replica.role
    assert isinstance(role, Follower)
    assert role.leader == W2


def test_a_race_lost_to_a_change_of_the_isr_is_run_again() -> None:
    subject, cas = standing()
    read = only(subject.cas(cas, CasOutcome.BAD_VERSION), effects.ReadRecord)
    subject.see(record(1, W0, (W0, W1)), token=read.token)
    again = only(subject.tick_at_deadline(), effects.CompareAndSet)
    assert again.version == subject.version
    assert again.record.isr == record(1, W0, (W0, W1)).isr


def test_a_winner_whose_reply_was_lost_leads_when_it_reads_the_record() -> None:
    subject, cas = standing()
    read = only(subject.cas(cas, CasOutcome.UNKNOWN), effects.ReadRecord)
    assert subject.replica.role_name is RoleName.CANDIDATE
    subject.see(cas.record, token=read.token)
    assert isinstance(subject.replica.role, Leader)


def test_a_candidacy_that_never_arrived_is_repeated_after_the_read() -> None:
    subject, cas = standing()
    read = only(subject.cas(cas, CasOutcome.UNKNOWN), effects.ReadRecord)
    subject.see_again(token=read.token)
    again = only(subject.tick_at_deadline(), effects.CompareAndSet)
    assert (again.record, again.version) == (cas.record, cas.version)
    assert again.token > cas.token


def test_a_settling_read_that_is_lost_is_repeated() -> None:
    subject, cas = standing()
    read = only(subject.cas(cas, CasOutcome.UNKNOWN), effects.ReadRecord)
    subject.step(events.ReadFailed(token=read.token))
    assert read.token not in [each.token for each in every(subject.tick(after=RETRY_MS), effects.ReadRecord)]
    assert subject.replica.role_name is RoleName.CANDIDATE


def test_the_winners_record_seen_by_watch_ends_a_candidacy() -> None:
    subject, cas = standing()
    subject.see(record(2, W2))
    assert subject.cas(cas, CasOutcome.BAD_VERSION) == []
    assert subject.replica.role_name is RoleName.FOLLOWER


# Unclean.


def test_an_unclean_election_first_looks_for_members() -> None:
    subject, happened = candidate()
    look = only(happened, effects.LookForMembers)
    assert every(happened, effects.CompareAndSet) == []
    assert subject.replica.next_deadline() is not None
    assert look.token


def test_a_member_never_looks_it_stands() -> None:
    subject = member_of_orphans(W1, options=UNCLEAN)
    assert only(subject.tick_at_deadline(), effects.CompareAndSet).record.unclean_epoch == 0


@pytest.mark.parametrize("alive", [W0, W2])
def test_an_unclean_election_waits_while_a_member_is_alive(alive: WorkerId) -> None:
    subject, happened = candidate()
    look = only(happened, effects.LookForMembers)
    seen = events.MembersSeen(token=look.token, alive=frozenset([member(alive), member(W1)]))
    assert every(subject.step(seen), effects.CompareAndSet) == []
    again = only(subject.tick(after=RETRY_MS), effects.LookForMembers)
    assert again.token > look.token


def test_a_replica_that_has_nothing_leaves_an_unclean_election_to_others_for_a_while() -> None:
    subject, happened = outsider(options=UNCLEAN, log=())
    assert every(happened, effects.LookForMembers) == []
    patience_ms = EMPTY_PATIENCE * UNCLEAN.retry_ms
    assert every(subject.tick(after=patience_ms - 1), effects.LookForMembers) == []
    only(subject.tick(after=1), effects.LookForMembers)


def test_an_unclean_leader_is_recorded_as_such_and_alone() -> None:
    subject, happened = candidate(log=entries(0, 3))
    look = only(happened, effects.LookForMembers)
    wiped = frozenset([member(W2, disk=2)])
    happened = subject.step(events.MembersSeen(token=look.token, alive=wiped))
    cas = only(happened, effects.CompareAndSet)
    assert cas.record.isr == (member(W1),)
    assert (cas.record.epoch, cas.record.unclean_epoch) == (2, 2)
    assert set(cas.record.osr) == {W0, W2}
    assert "stands_uncleanly" in noted(happened)
    subject.cas(cas)
    assert isinstance(subject.replica.role, Leader)


def test_an_answer_to_an_earlier_look_is_ignored() -> None:
    subject, happened = candidate()
    token = only(happened, effects.LookForMembers).token
    assert subject.step(events.MembersSeen(token=token - 1, alive=frozenset())) == []


def test_a_look_that_is_not_answered_is_repeated() -> None:
    subject, happened = candidate()
    token = only(happened, effects.LookForMembers).token
    assert only(subject.tick(after=RETRY_MS), effects.LookForMembers).token > token


def test_the_option_takes_effect_on_a_group_that_is_already_offline() -> None:
    subject, _ = outsider()
    assert every(subject.tick(after=CANDIDACY * RETRY_MS), effects.LookForMembers) == []
    subject.step(events.OptionsChanged(settings=UNCLEAN))
    assert len(every(subject.tick(after=CANDIDACY * RETRY_MS), effects.LookForMembers)) == 1


def test_the_option_taken_back_stops_an_unclean_election() -> None:
    subject, happened = candidate()
    look = only(happened, effects.LookForMembers)
    subject.step(events.OptionsChanged(settings=SETTINGS))
    assert (
        every(subject.step(events.MembersSeen(token=look.token, alive=frozenset())), effects.CompareAndSet)
        == []
    )


def test_an_unclean_candidate_tells_the_others_how_far_its_log_reaches_until_it_stands() -> None:
    subject, happened = outsider(options=UNCLEAN, log=entries(0, 3, epoch=1))
    for worker in (W0, W2):
        (told,) = sent(happened, messages.Reach, to=worker)
        assert (told.epoch, told.last_epoch, told.end) == (1, 1, 3)
    assert sent(subject.tick(after=RETRY_MS - 1), messages.Reach) == []
    assert len(sent(subject.tick(after=1), messages.Reach)) == 2
    assert sent(subject.tick(after=CANDIDACY * RETRY_MS), messages.Reach) == []


@pytest.mark.parametrize("longer", [reach(3), reach(1, last_epoch=2)])
def test_who_hears_of_a_longer_log_lets_it_stand_uncleanly_first(longer: messages.Reach) -> None:
    subject, _ = outsider(options=UNCLEAN)
    subject.tick(after=CANDIDACY * RETRY_MS - 1)
    assert subject.receive(longer, W0) == []
    assert every(subject.tick(after=CANDIDACY * RETRY_MS - 1), effects.LookForMembers) == []
    only(subject.tick(after=1), effects.LookForMembers)


def test_word_of_a_longer_log_that_comes_while_members_are_looked_for_counts() -> None:
    subject, happened = candidate()
    token = only(happened, effects.LookForMembers).token
    subject.receive(reach(3), W0)
    seen = events.MembersSeen(token=token, alive=frozenset())
    assert every(subject.step(seen), effects.CompareAndSet) == []
    only(subject.tick(after=CANDIDACY * RETRY_MS), effects.LookForMembers)


@pytest.mark.parametrize("other", [reach(1), reach(2)])
def test_who_has_the_longest_log_waits_for_nobody_and_says_so(other: messages.Reach) -> None:
    subject, _ = outsider(options=UNCLEAN)
    subject.tick(after=CANDIDACY * RETRY_MS - 1)
    told = sent(subject.receive(other, W0), messages.Reach, to=W0)
    assert [each.end for each in told] == [2] * (other.end < 2), "who is as long needs no word"
    only(subject.tick(after=1), effects.LookForMembers)


def test_a_longer_log_that_never_stands_does_not_put_off_an_unclean_election_for_ever() -> None:
    subject, _ = outsider(options=UNCLEAN)
    looks: list[effects.LookForMembers] = []
    for _ in range(EMPTY_PATIENCE):
        subject.receive(reach(3), W0)
        looks += every(subject.tick(after=RETRY_MS), effects.LookForMembers)
    assert len(looks) == 1


def test_word_of_another_epoch_or_to_who_does_not_stand_changes_nothing() -> None:
    subject, _ = outsider(options=UNCLEAN)
    (answer,) = sent(subject.receive(reach(3, epoch=0), W0), messages.Reject, to=W0)
    assert answer.epoch == 1
    only(subject.tick(after=CANDIDACY * RETRY_MS), effects.LookForMembers)
    assert member_of_orphans(W1, options=UNCLEAN).receive(reach(3), W2) == []
