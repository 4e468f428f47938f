"""Whether the console and what it watches are well, in the words of /healthz and /readyz.

`penstock serve` tells its console how far recovery is, over the pipe that is the console's standard input; that pipe's
end is also how the console learns that the broker is gone, however it went.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable
from dataclasses import dataclass

from penstock.console.cluster_view import ClusterView
from penstock.console.figures import BrokerAvailability
from penstock.errors import PenstockError


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerHealth:
    """One broker."""

    name: str
    address: str
    state: BrokerAvailability
    why: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """All of them: the worst state, and whether messages can be sent and received everywhere."""

    state: BrokerAvailability
    ready: bool
    why: str
    brokers: list[BrokerHealth]


_WORST = (
    BrokerAvailability.UNREACHABLE,
    BrokerAvailability.RECOVERING,
    BrokerAvailability.FULL,
    BrokerAvailability.READ_ONLY,
)


class Parent:
    """What `penstock serve` says of itself; nothing where the console runs alone."""

    def __init__(self) -> None:
        self.phase = ""
        """What it is doing before it serves; empty when it serves, or when nobody tells."""

    async def listen(self, descriptor: int, gone: Callable[[], object]) -> None:
        """Reads until the other side is gone, and says so then."""
        reader = asyncio.StreamReader()
        pipe = os.fdopen(descriptor, "rb", buffering=0)
        transport, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), pipe
        )
        try:
            while line := await reader.readline():
                self.hear(line)
        finally:
            transport.close()
        gone()

    def hear(self, line: bytes) -> None:
        told = json.loads(line)
        phase, done, total = str(told.get("phase", "")), int(told.get("done", 0)), int(told.get("total", 0))
        self.phase = f"{phase}: {done * 100 // total} %" if phase and total > 0 else phase


async def look(view: ClusterView, parent: Parent) -> Health:
    """How everything is now; a cluster that cannot be asked is an answer, too."""
    if parent.phase:
        return Health(state=BrokerAvailability.RECOVERING, ready=False, why=parent.phase, brokers=[])
    try:
        found = await view.brokers()
    except PenstockError as error:
        return Health(state=BrokerAvailability.UNREACHABLE, ready=False, why=str(error), brokers=[])
    brokers = [BrokerHealth(name=each.name, address=each.address, state=each.state, why=each.why) for each in found]
    if not brokers:
        why = "the name server knows no broker"
        return Health(state=BrokerAvailability.UNREACHABLE, ready=False, why=why, brokers=[])
    for state in _WORST:
        bad = next((each for each in brokers if each.state is state), None)
        if bad is not None:
            return Health(state=state, ready=False, why=f"{bad.name}: {bad.why}", brokers=brokers)
    return Health(state=BrokerAvailability.SERVING, ready=True, why="", brokers=brokers)
