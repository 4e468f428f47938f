"""The console's server: the gate in front, behind it pages, API and metrics, and what runs beside them.

`serve` returns when it was told to stop, or when whoever started it is gone. The sockets are bound by the caller, who
so learns first that a port is taken.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
from collections.abc import AsyncIterator, Iterator

import uvicorn
from fastapi import FastAPI
from nicegui import ui

from penstock import __version__
from penstock.console.access import Gate, TokenGate
from penstock.console.api import add_api
from penstock.console.console import Console, ConsoleOptions
from penstock.console.metrics import add_metrics
from penstock.console.pages import add_pages

_RECONNECT_S = 30.0
_STOP_S = 3


async def serve(options: ConsoleOptions, door: TokenGate, listener: socket.socket, parent: int | None = None) -> None:
    """Serves until a signal comes, or until the pipe `parent` ends."""
    console = Console(options)
    app = make_app(console)
    gate = Gate(app, door)
    # The headers of a proxy are not believed: the gate goes by what the browser itself says.
    config = uvicorn.Config(
        gate,
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
    beside = [asyncio.create_task(console.history.run())]
    if parent is not None:
        beside.append(asyncio.create_task(console.parent.listen(parent, stop)))
    try:
        await server.serve(sockets=[listener])
    finally:
        for task in beside:
            task.cancel()
        await asyncio.gather(*beside, return_exceptions=True)
        await console.close()


class _Server(uvicorn.Server):
    """Leaves signals to us: uvicorn would raise them once more when it has stopped, and a clean end would be none."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def make_app(console: Console) -> FastAPI:
    """Everything behind the gate. NiceGUI knows one application in a process, so this is called once."""

    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        yield

    app = FastAPI(
        title="Penstock console",
        version=__version__,
        description="What the console knows of a RocketMQ cluster, and what it can change, for programs.",
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
