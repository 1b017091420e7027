"""Rounds written under a name, on real workers: once, whoever dies in between."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable

import pytest

from stretto.client.appending.rounds import NamedWriter, RoundClaimed
from stretto.errors import StrettoError
from tests.support.cluster import DEPOT, MODULE, Cluster

RECORDS = {0: [b"a", b"b"], 1: [b"c", b"d", b"e"]}
EACH_ONCE = Counter([b"a", b"b", b"c", b"d", b"e"])


class Died(Exception):
    pass


class Dying(NamedWriter):
    """Hears so many answers, and then no more."""

    answers_left = 0

    def _await(self, question: object) -> None:
        if self.answers_left == 0:
            raise Died
        super()._await(question)  # type: ignore[arg-type]
        self.answers_left -= 1


def writer(cluster: Cluster, name: str, kind: type[NamedWriter] = NamedWriter) -> NamedWriter:
    return kind(cluster.connect()._network, MODULE, DEPOT, name, lasting=True)


def visible(cluster: Cluster) -> Counter[bytes]:
    return Counter(record.data for record in cluster.connect().reader(MODULE, DEPOT).read_all())


@pytest.mark.parametrize("answers", [0, 1, 2])
def test_what_a_dead_attempt_began_is_completed_by_the_next(calm: Cluster, answers: int) -> None:
    before = visible(calm)
    dying = writer(calm, f"dying {answers}", Dying)
    assert isinstance(dying, Dying)
    dying.answers_left = answers
    with pytest.raises(Died):
        dying.write(3, RECORDS)
    other_order = {task: records[::-1] for task, records in RECORDS.items()}
    writer(calm, f"dying {answers}").write(3, other_order)
    assert visible(calm) - before == EACH_ONCE
    writer(calm, f"dying {answers}").write(4, {0: [b"f"]})
    assert visible(calm) - before == EACH_ONCE + Counter([b"f"])


def test_other_records_for_a_round_and_rounds_that_are_over_are_refused(calm: Cluster) -> None:
    before = visible(calm)
    writer(calm, "claimed").write(3, RECORDS)
    for round_, records in ((3, {0: [b"other"]}), (3, {}), (2, RECORDS)):
        with pytest.raises(RoundClaimed, match="part 0 of claimed was begun with other records"):
            writer(calm, "claimed").write(round_, records)
    writer(calm, "claimed").write(3, RECORDS)
    assert visible(calm) - before == EACH_ONCE


@pytest.mark.soak
def test_attempts_at_once_over_fail_overs_and_a_restart_of_all_write_each_round_once(
    start: Callable[..., Cluster], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stretto.client.appending.rounds.WHOLE_BYTES", 40)  # several batches for a task
    cluster = start()
    rounds = 6
    failures: list[StrettoError] = []

    def write_all() -> None:
        mine = writer(cluster, "busy")
        for round_ in range(rounds):
            try:
                mine.write(
                    round_, {task: [b"%d-%d-%d" % (round_, task, n) for n in range(20)] for task in (0, 1)}
                )
            except RoundClaimed:
                continue  # the other attempt is further
            except StrettoError as error:
                failures.append(error)
                return

    attempts = [threading.Thread(target=write_all) for _ in range(2)]
    for attempt in attempts:
        attempt.start()
    cluster.leader().restart()
    for attempt in attempts:
        attempt.join(120)
    assert not failures
    expected = Counter(b"%d-%d-%d" % (r, t, n) for r in range(rounds) for t in (0, 1) for n in range(20))
    assert visible(cluster) == expected
    cluster.wait_healed()
    cluster.kill_at_once()
    for worker in cluster.workers.values():
        worker.start()
    cluster.wait_healed()
    write_all()
    assert visible(cluster) == expected
