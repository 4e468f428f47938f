"""A name server's own /metrics, /healthz and /readyz, as `penstock namesrv --observe-port` answers them.

`answer` runs in the thread of an `HttpResponder` and asks the name server's loop. /healthz and /readyz are the same: a
name server that answers is healthy and ready.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator
from http import HTTPStatus

from penstock.namesrv.name_server import NameServer
from penstock.observation.http_responder import HttpAnswer
from penstock.observation.metrics import CONTENT_TYPE, Family, render
from penstock.observation.process_metrics import SILENT_LOOP, ask_loop, process_metrics


class NameServerObservation:
    """What a name server answers to those that watch it. Create it on the name server's loop."""

    def __init__(self, server: NameServer) -> None:
        self._server = server
        self._loop = asyncio.get_running_loop()

    async def answer(self, path: str) -> HttpAnswer | None:
        """Returns the answer to a GET; None if there is no such path."""
        if path not in ("/metrics", "/healthz", "/readyz"):
            return None
        try:
            problems, families = await ask_loop(self._loop, self._look)
        except TimeoutError:
            return HttpAnswer.of_json({"status": "failed", "why": SILENT_LOOP}, HTTPStatus.SERVICE_UNAVAILABLE)
        if path == "/metrics":
            return HttpAnswer(HTTPStatus.OK, render(itertools.chain(families, process_metrics())), CONTENT_TYPE)
        return HttpAnswer.of_json({"status": "ok", "why": "; ".join(problems)})

    def _look(self) -> tuple[list[str], list[Family]]:
        return list(self._server.tasks.problems.values()), list(self._families())

    def _families(self) -> Iterator[Family]:
        routes = self._server.routes
        figures = {
            "penstock_namesrv_brokers": ("Brokers that are registered, with slaves.", len(routes.brokers)),
            "penstock_namesrv_topics": ("Topics that brokers have registered.", len(routes.topics())),
            "penstock_connections": ("Open connections of clients.", self._server.connections),
        }
        for name, (about, value) in figures.items():
            family = Family(name, "gauge", about)
            family.add((), value)
            yield family
