"""Where hostile peers meet a real broker, and a client beside them.

The client sends, pulls and asks for routes, and nothing of that may fail. It runs on a loop in a thread of its own, so
that a test that keeps its own loop busy does not keep it from asking.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Self

from support.brokers import RawClient, Served, bodies, ok
from support.loopback import Raw

from penstock.protocol.codes import RequestCode, ResponseCode
from penstock.remoting.connection import Address, connect
from penstock.remoting.event_loop import run

TOPIC = "neighbour"
DECOY = "escape/kept"
"""A file in the store's folder, where the topic `../escape` would lead from the folder of the queues."""
Act = Callable[[RawClient], Awaitable[None]]


class Neighbour:
    """Use it in a `with` block: at its end, the client must have been served until the last moment."""

    def __init__(self, served: Served) -> None:
        self._served = served
        self._stop = threading.Event()
        self._round = threading.Condition()
        self._rounds = 0
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._live)

    def _live(self) -> None:
        try:
            run(self._ask_all_the_time())
        except BaseException as error:
            self._error = error
            with self._round:
                self._round.notify_all()

    async def _ask_all_the_time(self) -> None:
        client = RawClient(await connect(("127.0.0.1", self._served.port)), asyncio.Queue())
        names = RawClient(await connect(("127.0.0.1", self._served.namesrv_port)), asyncio.Queue())
        while not self._stop.is_set():
            body = b"%d" % self._rounds
            offset = int(ok(await client.send(TOPIC, body)).ext["queueOffset"])
            pulled = await client.hold(TOPIC, offset)
            while pulled.code == ResponseCode.PULL_NOT_FOUND:
                pulled = await client.hold(TOPIC, offset)
            assert bodies(pulled)[0] == body
            ok(await names.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, topic=TOPIC))
            with self._round:
                self._rounds += 1
                self._round.notify_all()
            await asyncio.sleep(0.01)
        client.close()
        names.close()

    def rounds(self, more: int) -> None:
        """Waits until the client was served so many times more."""
        with self._round:
            goal = self._rounds + more
            assert self._round.wait_for(lambda: self._error is not None or self._rounds >= goal, 30), "not served"
        if self._error is not None:
            raise self._error

    def __enter__(self) -> Self:
        self._thread.start()
        self.rounds(1)
        return self

    def __exit__(self, *error: object) -> None:
        try:
            if error[0] is None:
                self.rounds(2)
        finally:
            self._stop.set()
            self._thread.join()
        if self._error is not None:
            raise self._error


class Memory:
    """What a process holds, in MiB: its own memory (not the store's mapped files) now, and all of it at its peak."""

    def __init__(self, pid: int) -> None:
        self._status = Path(f"/proc/{pid}/status")

    def _mib(self, field: str) -> float:
        line = next(line for line in self._status.read_text().splitlines() if line.startswith(f"{field}:"))
        return int(line.split()[1]) / 1024

    @property
    def own(self) -> float:
        return self._mib("RssAnon")

    @property
    def peak(self) -> float:
        return self._mib("VmHWM")


def broker_of(served: Served) -> Address:
    return "127.0.0.1", served.port


def names_of(served: Served) -> Address:
    return "127.0.0.1", served.namesrv_port


def both(served: Served) -> tuple[Address, Address]:
    return broker_of(served), names_of(served)


def with_client(address: Address, act: Act) -> None:
    async def main() -> None:
        client = RawClient(await connect(address), asyncio.Queue())
        try:
            await act(client)
        finally:
            client.close()

    run(main())


@asynccontextmanager
async def raw_peers(served: Served) -> AsyncIterator[dict[Address, Raw]]:
    """A connection to each of the two."""
    async with AsyncExitStack() as stack:
        yield {address: await stack.enter_async_context(await Raw.open(address)) for address in both(served)}
