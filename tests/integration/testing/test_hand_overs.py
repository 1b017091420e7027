"""Leaders change under load: planned hand-overs lose no result, and nothing is counted twice by any."""

from __future__ import annotations

import inspect
import random
import secrets
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

import pytest

import stretto.testing
from stretto.client.appending.producer import AckLevel
from stretto.errors import ResultUnknown
from stretto.testing import LaunchedModule, eventually
from tests.integration.testing.claims import Claim, Claims
from tests.support.commands import stretto as command

WORDS = [f"word-{number}" for number in range(200)]
CONTENDERS = 3


@pytest.fixture(scope="module")
def claims() -> Iterator[LaunchedModule]:
    # A leader ends first what somebody waits for, within half of the first time; so a worker that stops needs
    # more than that. A loaded machine takes its time.
    patient = {"leadership.resign.timeout.millis": 30_000, "leadership.shutdown.timeout.millis": 18_000}
    with (
        stretto.testing.cluster(nodes=3) as cluster,
        cluster.launch(Claims, tasks=4, threads=2, options=patient) as module,
    ):
        yield module


class Contenders:
    """Clients who all want the same names, one after the other, and wait for what they are told."""

    def __init__(self, module: LaunchedModule, prefix: str, ack: AckLevel) -> None:
        self._module = module
        #: Of names that nobody has wanted before, however often a test is run.
        self._prefix = f"{prefix}-{secrets.token_hex(4)}"
        self._ack = ack
        self._stopping = threading.Event()
        self._threads = [threading.Thread(target=self._run, args=(index,)) for index in range(CONTENDERS)]
        self._failures: list[BaseException] = []
        self._lock = threading.Lock()
        #: What each of them was told, by name; None if that is not known.
        self.told: dict[str, list[dict[str, Any] | None]] = {}
        self.words: Counter[str] = Counter()

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        for thread in self._threads:
            thread.join()
        if self._failures:
            raise self._failures[0]

    def _run(self, index: int) -> None:
        chance = random.Random(f"{self._prefix}/{index}")
        number = 0
        try:
            while not self._stopping.is_set():
                name = f"{self._prefix}-{number}"
                words = chance.choices(WORDS, k=6)
                told: dict[str, Any] | None = None
                with suppress(ResultUnknown):
                    claim = Claim(name, f"contender-{index}", words)
                    (told,) = self._module.append("claims", claim, ack=self._ack)
                with self._lock:
                    self.told.setdefault(name, []).append(told)
                    self.words.update(words)
                number += 1
        except BaseException as error:  # noqa: BLE001 - for who stops them
            self._failures.append(error)

    def wait_for_more(self, answers: int = 30) -> None:
        def count() -> int:
            with self._lock:
                return sum(map(len, self.told.values()))

        target = count() + answers
        eventually(lambda: count() >= target or self._failures, what=f"{target} answers are in")

    def check(self, before: Counter[str]) -> None:
        """Nobody was told nothing, each name was won once, and each word was counted once."""
        keys = {"claim", "tally"} if self._ack == "all" else {"claim"}
        answers = [told for tolds in self.told.values() for told in tolds]
        assert [told for told in answers if told is not None and set(told) != keys] == []
        for name, tolds in self.told.items():
            winners = sum(told is not None and told["claim"] for told in tolds)
            unknown = sum(told is None for told in tolds)
            assert winners <= 1 <= winners + unknown, f"{name} was won {winners} times: {tolds}"
        assert counts(self._module) - before == self.words


def counts(module: LaunchedModule) -> Counter[str]:
    module.settle()
    reader = module.pstate("counts")
    return Counter({word: count for word in WORDS if (count := reader.get(word, default=0))})


@pytest.mark.parametrize("ack", ["streams", pytest.param("all", marks=pytest.mark.soak)])
def test_planned_hand_overs_lose_no_result_and_count_no_word_twice(
    claims: LaunchedModule, ack: AckLevel
) -> None:
    before = counts(claims)
    with Contenders(claims, ack, ack) as contenders:
        for turn in range(4):
            contenders.wait_for_more()
            claims.hand_over(turn % len(claims.groups()))
        contenders.wait_for_more()
    assert None not in [told for tolds in contenders.told.values() for told in tolds]
    contenders.check(before)


@pytest.mark.soak
@pytest.mark.timeout(590)
@pytest.mark.parametrize("seed", range(3))
def test_leaders_that_die_count_no_word_twice_and_what_is_lost_is_told(
    claims: LaunchedModule, seed: int
) -> None:
    before = counts(claims)
    chance = random.Random(seed)
    with Contenders(claims, f"killed-{seed}", "all") as contenders:
        for _ in range(6):
            contenders.wait_for_more()
            group = chance.randrange(len(claims.groups()))
            if chance.random() < 0.6:
                claims.kill_leader(group)
            else:
                claims.hand_over(group)
        contenders.wait_for_more()
    claims.cluster.heal()
    contenders.check(before)
    claims.check_replicas_agree()


@pytest.mark.soak
@pytest.mark.timeout(590)
def test_workers_that_are_restarted_for_maintenance_lose_no_result(claims: LaunchedModule) -> None:
    before = counts(claims)
    with Contenders(claims, "restarted", "streams") as contenders:
        for worker in sorted(claims.cluster.workers):
            contenders.wait_for_more()
            claims.cluster.restart(worker)
            claims.wait_in_sync()
        contenders.wait_for_more()
    assert None not in [told for tolds in contenders.told.values() for told in tolds]
    contenders.check(before)


@pytest.mark.soak
@pytest.mark.timeout(590)
def test_updates_and_scaling_count_no_word_twice(claims: LaunchedModule, tmp_path: Path) -> None:
    before = counts(claims)
    source = Path(inspect.getfile(Claims))
    bootstrap = ["--bootstrap", ",".join(claims.cluster.bootstrap)]
    with Contenders(claims, "updated", "streams") as contenders:
        for version in range(2):
            contenders.wait_for_more()
            newer = tmp_path / f"{version}" / source.name
            newer.parent.mkdir()
            newer.write_text(f"{source.read_text()}\nVERSION = {version}\n")
            done = command("deploy", "update", "Claims", "--module", f"{newer}:Claims", *bootstrap)
            assert done.code == 0, done.err
        for threads in ("4", "2"):
            contenders.wait_for_more()
            done = command("deploy", "scale-executors", "Claims", "--threads", threads, *bootstrap)
            assert done.code == 0, done.err
        contenders.wait_for_more()
    contenders.check(before)
