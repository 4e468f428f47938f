"""The console's server: access control in front of pages, API and metrics, and the background tasks.

Callers must bind the socket first, so that a port in use is reported before anything starts. Time, size and number of
what strangers send before they show a token are limited.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
from collections.abc import AsyncIterator, Iterator
from functools import partial

import uvicorn
from fastapi import FastAPI
from nicegui import ui
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from penstock import __version__
from penstock.console.api import add_api
from penstock.console.chart_samples import SAMPLE_S
from penstock.console.console import Console, ConsoleOptions
from penstock.console.console_login import AccessMiddleware, AccessPolicy
from penstock.console.metrics import add_metrics
from penstock.console.pages import add_pages
from penstock.task_supervision import OnDeath

_RECONNECT_S = 30.0
_STOP_S = 3
MAX_CONNECTIONS = 512
HEADERS_S = 10.0
"""Limit from the accept, or from the first byte of a later request, to the end of the request's headers."""
MAX_HEADERS = 64 << 10
"""Limit of a request's headers in bytes."""


async def serve(
    options: ConsoleOptions, policy: AccessPolicy, listener: socket.socket, parent: int | None = None
) -> bool:
    """Serves until SIGTERM or SIGINT. Returns False if a failure ended it. If `parent`, the pipe of the broker that
    started the console, is closed, it serves on until the broker is started again.
    """
    console = Console(options)
    app = make_app(console)
    # Proxy headers are ignored, because the middleware needs the browser's own Host and Origin.
    config = uvicorn.Config(
        AccessMiddleware(app, policy),
        log_config=None,  # the process's own log, one format for all
        log_level="warning",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_graceful_shutdown=_STOP_S,
        http=LimitedHttp,
        limit_concurrency=MAX_CONNECTIONS,
        ws="websockets-sansio",
        ws_max_size=1 << 20,
    )
    server = _Server(config)

    def stop() -> None:
        server.should_exit = True

    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop)
    tasks = console.tasks
    tasks.on_leave.append(stop)
    tasks.every(SAMPLE_S, "samples of the cluster", console.chart_samples.sample)
    if parent is not None:  # without the pipe the console would not know of its broker's end
        listen = partial(console.parent.listen, parent, options.store, stop)
        tasks.run("reports of the broker", listen, OnDeath.LEAVE)
    try:
        await server.serve(sockets=[listener])
    finally:
        await console.close()
    return not tasks.has_left


class LimitedHttp(HttpToolsProtocol):
    """uvicorn's protocol with limits of a request's headers, which uvicorn does not have. Over one, it hangs up."""

    _header_bytes: int | None = 0
    """The bytes of the headers so far; None while no headers are expected."""
    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._expect_headers()

    def data_received(self, data: bytes) -> None:
        if self._header_bytes is not None:
            self._header_bytes += len(data)
        super().data_received(data)
        if self._header_bytes is not None and self._header_bytes > MAX_HEADERS:
            self.transport.abort()

    def on_message_begin(self) -> None:
        if self._header_bytes is None:
            self._expect_headers()
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._stop_expecting()
        super().on_headers_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_expecting()
        super().connection_lost(exc)

    def _expect_headers(self) -> None:
        self._header_bytes = 0
        self._deadline = self.loop.call_later(HEADERS_S, self.transport.abort)

    def _stop_expecting(self) -> None:
        self._header_bytes = None
        if self._deadline is not None:
            self._deadline.cancel()


class _Server(uvicorn.Server):
    """A uvicorn server that leaves signals to `serve`. uvicorn would raise a signal again after its shutdown and change
    the exit status.
    """

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def make_app(console: Console) -> FastAPI:
    """Creates the application behind `AccessMiddleware`. Call it once: NiceGUI allows one application per process."""

    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        yield

    app = FastAPI(
        title="Penstock console",
        version=__version__,
        description="Reads and changes a RocketMQ cluster.",
        openapi_url="/api/openapi.json",
        docs_url=None,
        redoc_url=None,
        lifespan=lifespan,
    )
    add_api(app, console)
    add_metrics(app, console)
    add_pages(console, app)
    ui.run_with(
        app,
        title="Penstock",
        favicon="💧",
        dark=None,
        binding_refresh_interval=None,
        reconnect_timeout=_RECONNECT_S,
        tailwind=False,
        show_welcome_message=False,
    )
    return app
