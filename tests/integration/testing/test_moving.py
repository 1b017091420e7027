"""Replicas move between nodes while topologies run, and away from a node that will never come back."""

from __future__ import annotations

import threading
from collections import Counter
from typing import Self

import pytest

import stretto.testing
from stretto.testing import ClusterUnderTest, LaunchedModule, eventually
from tests.integration.testing.moving import Moving
from tests.support.commands import Done
from tests.support.commands import stretto as command

pytestmark = [pytest.mark.soak, pytest.mark.timeout(590)]

USERS = 20


class Events:
    """Appended from a thread of its own, until it is stopped."""

    def __init__(self, module: LaunchedModule) -> None:
        self._module = module
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._failure: BaseException | None = None
        self.appended: Counter[str] = Counter()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join()
        if self._failure is not None:
            raise self._failure

    def _run(self) -> None:
        number = 0
        try:
            while not self._stopping.is_set():
                users = [f"user-{(number + each) % USERS}" for each in range(10)]
                self._module.append("events", *[{"user": user} for user in users])
                self.appended.update(users)
                number += 7
        except BaseException as error:  # noqa: BLE001 - for who stops it
            self._failure = error

    def wait_for_more(self, events: int = 100) -> None:
        target = self.appended.total() + events
        eventually(lambda: self.appended.total() >= target or self._failure, what=f"{target} events are in")


def deploy(cluster: ClusterUnderTest, verb: str, *args: str) -> Done:
    return command("deploy", verb, "Moving", *args, "--bootstrap", ",".join(cluster.bootstrap))


def nodes_of(cluster: ClusterUnderTest, module: LaunchedModule) -> set[str]:
    return {cluster.workers[each.worker] for group in module.groups() for each in group.replicas}


def test_replicas_move_while_topologies_run() -> None:
    with stretto.testing.cluster(replication_factor=2, nodes=3) as cluster:
        moving = cluster.launch(Moving, tasks=4, threads=2)
        with Events(moving) as events:
            events.wait_for_more()
            for _ in range(3):
                node = cluster.workers[moving.leader(0)]
                moved = deploy(cluster, "reassign", "--from", node)
                assert moved.code == 0, moved
                assert node not in nodes_of(cluster, moving)
                events.wait_for_more()
        moving.wait_in_sync()
        moving.settle()
        appended = dict(events.appended)
        assert dict(moving.streamed.items()) == appended
        assert dict(moving.batched.items()) == appended
        moving.check_replicas_agree()


def test_what_only_a_dead_node_had_is_given_up_by_force_and_the_rest_goes_on() -> None:
    with stretto.testing.cluster(replication_factor=2, nodes=3, session_timeout=4.0) as cluster:
        moving = cluster.launch(Moving, tasks=2, threads=1)
        moving.append("events", {"user": "kept"})
        moving.settle()
        [behind] = moving.followers()
        dead = cluster.workers[moving.leader()]
        cluster.partition(dead, cluster.workers[behind])
        # Acknowledged without the one that is cut off, so it is out of the ISR.
        moving.append("events", {"user": "lost"})
        cluster.kill_node(dead)

        def refusal() -> str | None:
            refused = deploy(cluster, "reassign", "--from", dead)
            assert refused.code == 1, refused
            return refused.err if "it does not run" in refused.err else None

        told = eventually(refusal, what="it is known to be dead")
        assert "give up what nobody else has with --force" in told
        forced = deploy(cluster, "reassign", "--from", dead, "--force")
        assert forced.code == 0, forced
        assert "what only its replicas of 1 group (0) had is lost" in forced.out
        moving.wait_in_sync()
        assert dead not in nodes_of(cluster, moving)
        moving.append("events", {"user": "new"}, {"user": "new"})
        moving.settle()
        assert dict(moving.streamed.items()) == {"kept": 1, "new": 2}
        assert dict(moving.batched.items()) == {"kept": 1, "new": 2}
        moving.check_replicas_agree()
