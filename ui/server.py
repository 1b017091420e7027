"""The Cluster UI: an ASGI application, and the process that serves it.

It holds nothing that cannot be lost: what it shows is asked of the cluster, and what it keeps is the history
of measures. Any number of them may run beside one another.
"""

from __future__ import annotations

import errno
import signal
import socket
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
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

from stretto.client.operating.cluster import Cluster
from stretto.errors import (
    OutcomeUnknown,
    QueryFailed,
    ResultUnknown,
    RetriableError,
    StrettoError,
    UsageError,
)
from stretto.process.interrupts import ending_at_once
from stretto.ui.api import ROUTES
from stretto.ui.cluster.backend import Backend
from stretto.ui.cluster.threads import SCRAPES, on
from stretto.ui.document import document_of
from stretto.ui.security import Gate, check_listening
from stretto.ui.telemetry.collector import Collector
from stretto.ui.telemetry.history import History
from stretto.ui.telemetry.metrics import Metrics
from stretto.ui.telemetry.store import Store

log = structlog.get_logger()

STATIC = Path(__file__).parent / "static"
HEADERS = {
    "Content-Security-Policy": "default-src 'self'; style-src 'self' 'unsafe-inline'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}
EXPOSITION = "text/plain; version=0.0.4; charset=utf-8"


class _Application(Litestar):
    """An application that answers HEAD wherever it answers GET: whoever watches whether it is up asks so."""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http" or scope["method"] != "HEAD":
            await super().__call__(scope, receive, send)
            return

        async def send_head(message: Any) -> None:
            await send(message | {"body": b""} if message["type"] == "http.response.body" else message)

        asked: Any = {**scope, "method": "GET"}
        await super().__call__(asked, receive, send_head)


def application(backend: Backend, history: History, metrics: Metrics, token: str | None) -> Litestar:
    """Make the application that serves the pages, the REST interface and ``/metrics``."""
    dependencies = {
        "backend": Provide(lambda: backend, sync_to_thread=False),
        "history": Provide(lambda: history, sync_to_thread=False),
    }
    document = document_of(_described(dependencies), needs_token=token is not None)

    @get("/", include_in_schema=False, sync_to_thread=False)
    def index() -> File:
        return File(STATIC / "index.html", media_type=MediaType.HTML, content_disposition_type="inline")

    @get("/openapi.json", include_in_schema=False, sync_to_thread=False)
    def openapi() -> dict[str, Any]:
        return document

    def exposed() -> Response[str]:
        return Response(metrics.exposition(), media_type=EXPOSITION)

    exposition = get("/metrics", include_in_schema=False)(on(SCRAPES, exposed))
    return _Application(
        [ROUTES, index, openapi, exposition, create_static_files_router("/static", [STATIC])],
        dependencies=dependencies,
        guards=[Gate(token)],
        exception_handlers={StrettoError: _refused, HTTPException: _wrong, Exception: _failed},
        response_headers=HEADERS,
        openapi_config=None,
        logging_config=None,
    )


def _described(dependencies: Mapping[str, Provide]) -> Litestar:
    """The same routes once more, for the OpenAPI document only.

    An application that has a document serves it itself, under a path of the framework's, beside pages that
    load scripts from elsewhere.
    """
    return Litestar(
        [ROUTES],
        dependencies=dependencies,
        openapi_config=OpenAPIConfig(
            title="stretto",
            version=version("stretto"),
            description="What runs in a cluster, and how to change it.",
            components=Components(security_schemes={"token": SecurityScheme(type="http", scheme="bearer")}),
        ),
        logging_config=None,
    )


def _refused(request: Request[Any, Any, Any], error: StrettoError) -> Response[Any]:
    extra = {"traceback": error.traceback} if isinstance(error, QueryFailed) else None
    return ProblemDetailsException(status_code=_status_of(error), detail=str(error), extra=extra).to_response(
        request
    )


def _status_of(error: StrettoError) -> int:
    match error:
        case OutcomeUnknown() | ResultUnknown():
            return 504
        case RetriableError():
            return 503
        case UsageError():
            return 400
        case _:
            return 409


def _wrong(request: Request[Any, Any, Any], error: HTTPException) -> Response[Any]:
    """Answer a request that no handler takes, or that one of them refused."""
    if error.status_code >= 500:
        return _failed(request, error)
    return ProblemDetailsException(
        status_code=error.status_code, detail=_sentence(error), extra=error.extra, headers=error.headers
    ).to_response(request)


def _sentence(error: HTTPException) -> str:
    """The sentence that says what is wrong with a request, rather than that something is."""
    found = error.extra if isinstance(error.extra, list) else []
    wrong = [
        f"{each['key']}: {each['message']}" if each.get("key") else str(each["message"])
        for each in found
        if isinstance(each, dict) and "message" in each
    ]
    return "; ".join(wrong) or error.detail


def _failed(request: Request[Any, Any, Any], error: Exception) -> Response[Any]:
    """Answer a request on which this server made a mistake, and log it."""
    log.error("request_failed", method=request.method, path=request.url.path, exc_info=error)
    detail = "the server failed on this request; its log tells where"
    return ProblemDetailsException(status_code=500, detail=detail).to_response(request)


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
    """Serve until SIGINT or SIGTERM."""
    check_listening(host, token)
    with ExitStack() as closing:
        with ending_at_once():
            sockets = _listening(host, port)
            for each in sockets:
                closing.callback(each.close)
            store = Store(data_dir / "telemetry.sqlite")
            closing.callback(store.close)
            metrics = Metrics()
            history = History(store)
            collector = Collector(cluster, store, metrics, history)
            backend = Backend(cluster, metrics.parked, store.story)
            config = uvicorn.Config(
                application(backend, history, metrics, token),
                log_config=None,
                access_log=False,
                server_header=False,
            )
            server = _Server(config, token)
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, server.handle_exit)
        collector.start()
        closing.callback(collector.stop)
        server.run(sockets)


def _listening(host: str, port: int) -> list[socket.socket]:
    """Listen on every address of a host, before anything else is begun; a name may have several."""
    found: list[socket.socket] = []
    try:
        for family, kind, protocol, _, address in socket.getaddrinfo(
            host.strip("[]"), port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        ):
            each = socket.socket(family, kind, protocol)
            found.append(each)
            each.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                # Else it would take the place of the other socket.
                each.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            each.bind(address)
            each.listen()
    except OSError as error:
        for each in found:
            each.close()
        if error.errno == errno.EADDRINUSE:
            raise UsageError(f"port {port} of {host} is in use; choose another one with --port") from None
        advice = "name an address of this machine with --host, or another --port"
        raise UsageError(f"cannot listen on {host}:{port} ({error.strerror}); {advice}") from None
    return found
