"""The console's server: access control in front of pages, API and metrics, and the background tasks.

Callers must bind the socket first, so that a port in use is reported before anything starts.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
from collections.abc import AsyncIterator, Iterator
from functools import partial

import uvicorn
from fastapi import FastAPI
from nicegui import ui

from penstock import __version__
from penstock.console.access import AccessMiddleware, AccessPolicy
from penstock.console.api import add_api
from penstock.console.console import Console, ConsoleOptions
from penstock.console.history import SAMPLE_S
from penstock.console.metrics import add_metrics
from penstock.console.pages import add_pages
from penstock.supervision import OnDeath, Supervisor

log = logging.getLogger("penstock.console")
_RECONNECT_S = 30.0
_STOP_S = 3


async def serve(
    options: ConsoleOptions, policy: AccessPolicy, listener: socket.socket, parent: int | None = None
) -> None:
    """Serves until SIGTERM or SIGINT, or until the pipe `parent` is closed."""
    console = Console(options)
    app = make_app(console)
    # Proxy headers are ignored, because the middleware needs the browser's own Host and Origin.
    config = uvicorn.Config(
        AccessMiddleware(app, policy),
        log_level="warning",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_graceful_shutdown=_STOP_S,
        ws="websockets-sansio",
        ws_max_size=1 << 20,
    )
    server = _Server(config)

    def stop() -> None:
        server.should_exit = True

    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop)
    tasks = Supervisor(log)
    tasks.on_leave.append(stop)
    tasks.every(SAMPLE_S, "samples of the cluster", console.history.sample)
    if parent is not None:  # without the pipe the console would not end with its broker
        listen = partial(console.parent.listen, parent, stop)
        tasks.run("reports of the broker", listen, OnDeath.LEAVE)
    try:
        await server.serve(sockets=[listener])
    finally:
        await tasks.stop()
        await console.close()


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
