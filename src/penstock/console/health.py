"""Health of the console and the cluster, for /healthz, /readyz and the page header.

If `penstock serve` started the console, it reports the progress of recovery through a pipe, the console's standard
input. A broker that stops ends its console first. So when the pipe closes, the broker has died: the console stays up
and says so, until the broker is started again (`succession`).
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from penstock.console.cached_cluster import ClusterView
from penstock.console.end_previous_console import wait_for_successor
from penstock.errors import PenstockError
from penstock.observation.metrics import BrokerAvailability

_logger = logging.getLogger("penstock.console")


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerHealth:
    """One broker's state."""

    name: str
    address: str
    state: BrokerAvailability
    why: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """The worst state of all brokers, whether all of them serve, and why not, or what fails although they do."""

    state: BrokerAvailability
    ready: bool
    why: str
    brokers: list[BrokerHealth]


_WORST_FIRST = (
    BrokerAvailability.UNREACHABLE,
    BrokerAvailability.RECOVERING,
    BrokerAvailability.FULL,
    BrokerAvailability.READ_ONLY,
)


class Parent:
    """The recovery progress that the parent `penstock serve` reports. `phase` stays empty if the console runs alone."""

    def __init__(self) -> None:
        self.phase = ""
        """The recovery phase; empty once the broker serves."""
        self.died_at = ""
        """When the parent died, in UTC; empty while it runs."""

    async def listen(self, descriptor: int, store: Path | None, on_replaced: Callable[[], object]) -> None:
        """Reads reports until the parent dies, then waits for its successor and calls `on_replaced`."""
        reader = asyncio.StreamReader()
        pipe = os.fdopen(descriptor, "rb", buffering=0)
        transport, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), pipe
        )
        try:
            while line := await reader.readline():
                self.update(line)
        finally:
            transport.close()
        self.phase = ""
        self.died_at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        _logger.error("%s; this console goes on without it", self.obituary)
        _let_go_of_stderr()
        await wait_for_successor(store)
        on_replaced()

    @property
    def obituary(self) -> str:
        return f"the broker that started this console ended unexpectedly at {self.died_at}"

    def update(self, line: bytes) -> None:
        """Applies one report, a line of JSON."""
        report = json.loads(line)
        phase, done, total = str(report.get("phase", "")), int(report.get("done", 0)), int(report.get("total", 0))
        self.phase = f"{phase}: {done * 100 // total} %" if phase and total > 0 else phase


def _let_go_of_stderr() -> None:
    """Closes the log that this process shares with its parent: its reader waits for its end."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 2)
    os.close(null)


async def check_health(view: ClusterView, parent: Parent) -> Health:
    """Returns the current health. Never raises a PenstockError: an unreachable cluster is a state."""
    if parent.phase:
        return Health(state=BrokerAvailability.RECOVERING, ready=False, why=parent.phase, brokers=[])
    try:
        figures = await view.brokers()
    except PenstockError as error:
        why = f"{parent.obituary}; start it again" if parent.died_at else str(error)
        return Health(state=BrokerAvailability.UNREACHABLE, ready=False, why=why, brokers=[])
    brokers = [BrokerHealth(name=each.name, address=each.address, state=each.state, why=each.why) for each in figures]
    if not brokers:
        why = "no broker is registered at the name server"
        return Health(state=BrokerAvailability.UNREACHABLE, ready=False, why=why, brokers=[])
    for state in _WORST_FIRST:
        bad = next((each for each in brokers if each.state is state), None)
        if bad is not None:
            return Health(state=state, ready=False, why=f"{bad.name}: {bad.why}", brokers=brokers)
    why = "; ".join(f"{each.name}: {each.why}" for each in brokers if each.why)
    return Health(state=BrokerAvailability.SERVING, ready=True, why=why, brokers=brokers)
