"""Health of the console and the cluster, for /healthz, /readyz and the page header.

If `penstock serve` started the console, it reports the progress of recovery through a pipe, the console's standard
input. When the pipe closes, the broker has exited, cleanly or by a crash.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable
from dataclasses import dataclass

from penstock.console.cluster_summary import BrokerAvailability
from penstock.console.cluster_view import ClusterView
from penstock.errors import PenstockError


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

    async def listen(self, descriptor: int, on_exit: Callable[[], object]) -> None:
        """Reads reports until the parent exits, then calls `on_exit`."""
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
        on_exit()

    def update(self, line: bytes) -> None:
        """Applies one report, a line of JSON."""
        report = json.loads(line)
        phase, done, total = str(report.get("phase", "")), int(report.get("done", 0)), int(report.get("total", 0))
        self.phase = f"{phase}: {done * 100 // total} %" if phase and total > 0 else phase


async def check_health(view: ClusterView, parent: Parent) -> Health:
    """Returns the current health. Never raises a PenstockError: an unreachable cluster is a state."""
    if parent.phase:
        return Health(state=BrokerAvailability.RECOVERING, ready=False, why=parent.phase, brokers=[])
    try:
        figures = await view.brokers()
    except PenstockError as error:
        return Health(state=BrokerAvailability.UNREACHABLE, ready=False, why=str(error), brokers=[])
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
