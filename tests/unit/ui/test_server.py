"""The application as a whole, in front of a backend that is told what to do."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from litestar import Litestar
from litestar.testing import TestClient
from structlog.testing import capture_logs

from stretto import control
from stretto.client.api import Client
from stretto.specs.modules import DepotSpec, TopologySpec
from stretto.telemetry.windows import StoryLine
from stretto.ui.api import data
from stretto.ui.cluster.backend import Backend
from stretto.ui.cluster.views import ClusterView, Health
from stretto.ui.server import application
from stretto.ui.telemetry.history import History
from stretto.ui.telemetry.metrics import Metrics
from stretto.vocabulary.types import Epoch, Offset, WorkerId
from tests.unit.ui.test_views import module, status

# Handlers declare parameters in the way that all versions of the framework from 2.18 on know.
pytestmark = pytest.mark.filterwarnings("ignore::litestar.exceptions.LitestarDeprecationWarning")

DEADLINE_SECONDS = 30
APPENDS = 12
RECORDS = "/api/v1/modules/M/depots/events/records"


class Ack:
    """Of a group that is stalled."""

    def __init__(self, begun: threading.Semaphore, over: threading.Event) -> None:
        self._begun, self._over = begun, over

    def result(self, timeout: float | None = None) -> None:
        self._begun.release()
        if not self._over.wait(timeout):
            raise TimeoutError


class Fakes(Backend):
    def __init__(self) -> None:
        self.begun, self.over = threading.Semaphore(0), threading.Event()
        topology = TopologySpec(name="count", kind="stream", depots=("events",))
        self.known = (module(depots=(DepotSpec(name="events"),), topologies=(topology,)),)
        ack = Ack(self.begun, self.over)
        producer = SimpleNamespace(append=lambda *_, **__: ack, close=lambda: None)
        self.client = cast(Client, SimpleNamespace(producer=lambda *_, **__: producer))

    def ask(self, call: control.Call[Any]) -> Any:
        return self.known

    def modules(self) -> tuple[control.ModuleView, ...]:
        return self.known

    def cluster_view(self) -> ClusterView:
        return ClusterView(
            health=Health.GOOD,
            sentence="all is well",
            problems=(),
            conductor=None,
            nodes=(),
            modules=self.known,
            planned_at_ms=None,
            at_ms=0,
        )


@pytest.fixture
def fakes() -> Fakes:
    return Fakes()


@pytest.fixture
def served(fakes: Fakes) -> Iterator[TestClient[Litestar]]:
    app = application(fakes, cast(History, None), Metrics(), None)
    with TestClient(app, base_url="http://127.0.0.1:8888", raise_server_exceptions=False) as client:
        yield client


def test_appends_that_hang_leave_health_and_metrics_alone(fakes: Fakes, served: TestClient[Litestar]) -> None:
    body = {"records": [{"user": "ann"}]}
    with ThreadPoolExecutor(APPENDS) as callers:
        appends = [callers.submit(served.post, RECORDS, json=body) for _ in range(APPENDS)]
        try:
            for _ in range(APPENDS):
                assert fakes.begun.acquire(timeout=DEADLINE_SECONDS)
            assert served.get("/api/v1/cluster").status_code == 200
            assert served.get("/api/v1/modules").status_code == 200
            assert served.get("/metrics").status_code == 200
        finally:
            fakes.over.set()
        assert {each.result(DEADLINE_SECONDS).status_code for each in appends} == {201}


def test_an_append_that_nobody_confirms_is_answered_as_one_whose_outcome_is_unknown(
    served: TestClient[Litestar], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(data, "APPEND_SECONDS", 0.01)
    answer = served.post(RECORDS, json={"records": [{"user": "ann"}]})
    assert (answer.status_code, answer.headers["content-type"]) == (504, "application/problem+json")
    assert "look at the depot before you append them again" in answer.json()["detail"]


def test_what_the_server_fails_on_is_in_its_log(
    fakes: Fakes, served: TestClient[Litestar], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(_: Any) -> Any:
        raise ZeroDivisionError("by nothing")

    monkeypatch.setattr(fakes, "ask", fails)
    with capture_logs() as lines:
        answer = served.get("/api/v1/modules")
    assert (answer.status_code, answer.headers["content-type"]) == (500, "application/problem+json")
    [line] = lines
    assert (line["event"], line["path"]) == ("request_failed", "/api/v1/modules")
    assert isinstance(line["exc_info"], ZeroDivisionError)


@pytest.mark.parametrize("path", ["", "/", "/swagger", "/redoc", "/elements", "/rapidoc", "/openapi.json"])
def test_the_framework_serves_no_pages_of_its_own(served: TestClient[Litestar], path: str) -> None:
    for where in (f"/api/schema{path}", f"/schema{path}"):
        answer = served.get(where)
        assert (answer.status_code, answer.headers["content-type"]) == (404, "application/problem+json")
    assert served.get("/openapi.json").json()["info"]["title"] == "stretto"


def test_options_are_asked_for_at_every_level(
    fakes: Fakes, served: TestClient[Litestar], monkeypatch: pytest.MonkeyPatch
) -> None:
    option = control.OptionView(name="a.b", value=1, origin="default", default=1, unit="", doc="")
    asked: list[control.OptionLevel] = []

    def ask(call: control.Call[Any]) -> Any:
        if isinstance(call, control.Options):
            asked.append(call.level)
            return (option,)
        return fakes.known

    monkeypatch.setattr(fakes, "ask", ask)
    monkeypatch.setattr(fakes, "act", lambda call: asked.append(call.level))
    level = {"module": "M", "topology": "count"}
    assert served.get("/api/v1/options", params=level).json()[0]["name"] == "a.b"
    assert served.put("/api/v1/options/a.b", params=level, json={"value": 2}).status_code == 204
    assert served.delete("/api/v1/options/a.b", params=level).status_code == 204
    assert set(asked) == {control.OptionLevel(module="M", topology="count")}
    wrong = served.get("/api/v1/options", params={"module": "M", "pstate": "nothing"})
    assert (wrong.status_code, "M has no PState nothing" in wrong.json()["detail"]) == (404, True)
    several = served.get("/api/v1/options", params={"module": "M", "depot": "events", "topology": "count"})
    assert several.status_code == 400


@pytest.mark.parametrize(
    "path", ["/", "/metrics", "/openapi.json", "/static/app.js", "/api/v1/modules", "/api/v1/nothing"]
)
def test_head_is_answered_as_get_is_without_the_body(served: TestClient[Litestar], path: str) -> None:
    whole, head = served.get(path), served.head(path)
    assert (head.status_code, head.content) == (whole.status_code, b"")
    assert head.headers["content-type"] == whole.headers["content-type"]
    refused = served.head("/api/v1/modules", headers={"host": "elsewhere.example"})
    assert (refused.status_code, refused.content) == (403, b"")


def test_an_epoch_whose_leader_nobody_remembers_has_none(
    fakes: Fakes, served: TestClient[Litestar], monkeypatch: pytest.MonkeyPatch
) -> None:
    story = [
        (WorkerId("w1"), StoryLine(at_ms=1, event="follows", fields={"epoch": 1, "leader": "w0"})),
        (WorkerId("w1"), StoryLine(at_ms=2, event="follows", fields={"epoch": 1, "leader": None})),
        (WorkerId("w1"), StoryLine(at_ms=3, event="follows", fields={"epoch": 2, "leader": None})),
    ]
    epochs = tuple(control.EpochView(epoch=Epoch(each), start=Offset(each)) for each in (1, 2))
    monkeypatch.setattr(fakes, "groups", lambda _: [status()])
    monkeypatch.setattr(fakes, "story", lambda _: story)
    monkeypatch.setattr(fakes, "epochs", lambda _: epochs)
    told = served.get("/api/v1/modules/M/groups/3/epochs").json()
    assert [(each["epoch"], each["leader"]) for each in told] == [(1, "w0"), (2, None)]


@pytest.mark.parametrize(
    ("host", "sentence"),
    [
        ("127.0.0.1", "port {port} of 127.0.0.1 is in use; choose another one with --port"),
        ("localhost", "port {port} of localhost is in use; choose another one with --port"),
        ("127.0.0.1.", "cannot listen on 127.0.0.1.:{port} ("),
    ],
)
def test_a_port_that_is_taken_is_told_in_one_sentence_before_anything_is_begun(
    tmp_path: Path, host: str, sentence: str
) -> None:
    token = tmp_path / "token"
    token.write_text("0123456789abcdef")
    token.chmod(0o600)
    data = tmp_path / "data"
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        command = ["ui", "--host", host, "--port", str(port), "--data-dir", str(data)]
        done = subprocess.run(
            [sys.executable, "-m", "stretto", *command, "--token-file", str(token)],
            capture_output=True,
            text=True,
            timeout=DEADLINE_SECONDS,
            check=False,
        )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"stretto: {sentence.format(port=port)}")
    assert done.stderr.count("\n") == 1
    assert not data.exists()
