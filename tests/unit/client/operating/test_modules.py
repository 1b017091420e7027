"""What a client has to know of a module is asked again while no worker of it answers."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from stretto import connect, control
from stretto.client import Client
from stretto.errors import RetriableError, UsageError
from stretto.network.routing import Network
from tests.unit.client.workers import MODULE, FakeWorker

DESCRIPTION = control.ModuleDescription(tasks=2, depots=None)


@pytest.fixture
def client() -> Iterator[Client]:
    worker = FakeWorker()
    worker.description = None
    with connect([worker.address], timeout=30) as client:
        yield client
    worker.close()


def test_it_is_asked_again_after_looking_where_the_workers_are(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers: list[control.ModuleDescription | None] = [None, None, DESCRIPTION]
    refreshed: list[float] = []

    def describe(_: Network, module: str) -> control.ModuleDescription:
        answer = answers.pop(0)
        if answer is None:
            raise RetriableError(f"no worker of module {module} answers")
        return answer

    monkeypatch.setattr("stretto.client.api.describe", describe)
    monkeypatch.setattr(client, "refresh", refreshed.append)
    assert client.describe(MODULE) == DESCRIPTION
    assert len(refreshed) == 2
    assert all(0 < each <= 30 for each in refreshed)


def test_in_the_end_it_is_told_that_nobody_answers(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stretto.client.operating.modules.ASK_SECONDS", 0.01)
    with pytest.raises(RetriableError, match="no worker of module m answers; see 'stretto module-status m'"):
        client.describe(MODULE, timeout=0.1)
    with pytest.raises(RetriableError, match="no worker of module m answers"):
        client.query(MODULE, "any", timeout=0.1)


def test_a_module_that_is_not_there_is_told_at_once(client: Client) -> None:
    with pytest.raises(UsageError, match="there is no module n; there is m"):
        client.describe("n", timeout=1_000)
