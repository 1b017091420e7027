"""The Cluster UI: an ASGI application, and the process that serves it.

It holds nothing that cannot be lost: what it shows is asked of the cluster, and what it keeps is the history
of measures. Any number of them may run beside one another.
"""

from __future__ import annotations

import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

import structlog
import uvicorn
from litestar import Litestar, MediaType, Request, Response, get
from litestar.di import Provide
from litestar.exceptions import HTTPException
from litestar.openapi import OpenAPIConfig
from litestar.openapi.spec import Components, SecurityScheme
from litestar.plugins.problem_details import (
    ProblemDetailsException,
)
from litestar.response import File
from litestar.static_files import create_static_files_router

from stretto.client.cluster import Cluster
from stretto.errors import QueryFailed, RetriableError, StrettoError, UsageError
from stretto.ui.api import ROUTES
from stretto.ui.collector import Collector
from stretto.ui.desk import Desk
from stretto.ui.document import document_of
from stretto.ui.history import History
from stretto.ui.metrics import Metrics
from stretto.ui.security import Gate, check_listening
from stretto.ui.store import Store

log = structlog.get_logger()

STATIC = Path(__file__).parent / "static"
HEADERS = {
    "Content-Security-Policy": "default-src 'self'; style-src 'self' 'unsafe-inline'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}
EXPOSITION = "text/plain; version=0.0.4; charset=utf-8"


def application(desk: Desk, history: History, metrics: Metrics, token: str | None) -> Litestar:
    @get("/", include_in_schema=False, sync_to_thread=False)
    def index() -> File:
        return File(STATIC / "index.html", media_type=MediaType.HTML, content_disposition_type="inline")

    @get("/openapi.json", include_in_schema=False, sync_to_thread=True)
    def openapi(request: Request[Any, Any, Any]) -> dict[str, Any]:
        return document_of(request.app, needs_token=token is not None)

    @get("/metrics", include_in_schema=False, sync_to_thread=True)
    def exposition() -> Response[str]:
        return Response(metrics.exposition(), media_type=EXPOSITION)

    return Litestar(
        [ROUTES, index, openapi, exposition, create_static_files_router("/static", [STATIC])],
        dependencies={
            "desk": Provide(lambda: desk, sync_to_thread=False),
            "history": Provide(lambda: history, sync_to_thread=False),
        },
        guards=[Gate(token)],
        exception_handlers={StrettoError: _refused, HTTPException: _wrong},
        response_headers=HEADERS,
        openapi_config=OpenAPIConfig(
            title="stretto",
            version=version("stretto"),
            description="What runs in a cluster, and how to change it.",
            path="/api/schema",
            render_plugins=[],
            components=Components(security_schemes={"token": SecurityScheme(type="http", scheme="bearer")}),
        ),
        logging_config=None,
    )


def _refused(request: Request[Any, Any, Any], error: StrettoError) -> Response[Any]:
    status = 503 if isinstance(error, RetriableError) else 400 if isinstance(error, UsageError) else 409
    extra = {"traceback": error.traceback} if isinstance(error, QueryFailed) else None
    return ProblemDetailsException(status_code=status, detail=str(error), extra=extra).to_response(request)


def _wrong(request: Request[Any, Any, Any], error: HTTPException) -> Response[Any]:
    """A request that no handler takes, or that one of them refused."""
    return ProblemDetailsException(
        status_code=error.status_code, detail=error.detail, extra=error.extra, headers=error.headers
    ).to_response(request)


class _Server(uvicorn.Server):
    """Says where it listens and for whom, and leaves signals alone: raised again, they cut its end short."""

    def __init__(self, config: uvicorn.Config, token: str | None) -> None:
        super().__init__(config)
        self._serves = (
            "all, and lets who has the token change things" if token else "this machine only: no token"
        )

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        for server in self.servers:
            for each in server.sockets:
                host, port = each.getsockname()[:2]
                log.info("ui_started", address=f"http://{host}:{port}", serves=self._serves)


def serve(cluster: Cluster, *, host: str, port: int, data_dir: Path, token: str | None) -> None:
    """Until SIGINT or SIGTERM."""
    check_listening(host, token)
    store = Store(data_dir / "telemetry.sqlite")
    metrics = Metrics()
    history = History(store)
    collector = Collector(cluster, store, metrics, history)
    desk = Desk(cluster, metrics.parked)
    config = uvicorn.Config(
        application(desk, history, metrics, token),
        host=host,
        port=port,
        log_config=None,
        access_log=False,
        server_header=False,
    )
    server = _Server(config, token)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, server.handle_exit)
    collector.start()
    try:
        server.run()
    finally:
        collector.stop()
        store.close()
