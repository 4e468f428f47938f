"""A slave's copy of what its master keeps beside the log: topics, groups, offsets of consumers and of delays.

Asked for by ordinary requests, as RocketMQ's slaves do: soon after the start, every ten seconds then, and when a
message comes whose topic is not known. Each table is replaced as a whole and saved by the slave's own persister. A
master of ours also tells which topics it has deleted, and up to where in the log: their queues go here as well. A slave
whose master is gone goes on with the last copy; offsets that consumers commit to it meanwhile are overwritten when the
master is back, so they may see messages again. Belongs to the loop's thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import Final

from penstock.broker.replication.master_link import MasterLink
from penstock.broker.state import BrokerState
from penstock.errors import PenstockError
from penstock.format.config_tables import ConsumerOffsets, DelayOffsets, SubscriptionGroups, Topics
from penstock.protocol.bodies.configs import DELETED_TOPICS, decode_config, decode_deleted
from penstock.protocol.codes import RequestCode

log = logging.getLogger("penstock.broker")

_EVERY_S: Final = 10.0
_RETRY_S: Final = 1.0
_LEAST_S: Final = 0.1
"""Between two copies, however many topics are new."""


class ConfigCopy:
    """Copies as long as it runs."""

    def __init__(self, state: BrokerState, link: MasterLink) -> None:
        self._state = state
        self._link = link
        self._task: asyncio.Task[None] | None = None
        self._failed = ""
        self._deleted: dict[str, int] = {}
        self._loop = asyncio.get_running_loop()
        self._soon = asyncio.Event()
        self.copies = 0
        """How often all tables were taken over."""

    def start(self) -> None:
        self._state.store.on_arrival(self._arrived)
        self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def _arrived(self, topic: str, *_: object) -> None:
        """On whatever thread dispatches."""
        if self._state.topics.find(topic) is None:
            with contextlib.suppress(RuntimeError):  # the loop is gone
                self._loop.call_soon_threadsafe(self._soon.set)

    async def _run(self) -> None:
        await self._link.known.wait()
        while True:
            self._soon.clear()
            try:
                await self.copy()
                self._failed = ""
            except PenstockError as error:
                if str(error) != self._failed:
                    log.warning("the master's tables are not copied now: %s", error)
                self._failed = str(error)
            except Exception:
                log.exception("the master's tables are not copied now")
                self._failed = "an error"
            await asyncio.sleep(_LEAST_S)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_RETRY_S if self._failed else _EVERY_S):
                    await self._soon.wait()

    async def copy(self) -> None:
        """Takes all four tables over. Raises PenstockError, and has taken over those that came before."""
        state, ask = self._state, self._link.ask
        told = await ask(RequestCode.GET_ALL_TOPIC_CONFIG)
        state.topics.take_over(decode_config(Topics, told.body))
        deleted = decode_deleted(told.ext.get(DELETED_TOPICS, ""))
        if deleted != self._deleted:
            for topic in await asyncio.to_thread(state.store.delete_as_master, deleted):
                log.info("topic %s is deleted, as the master has deleted it", topic)
            self._deleted = deleted
        groups = decode_config(SubscriptionGroups, (await ask(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)).body)
        state.groups.take_over(groups)
        offsets = decode_config(ConsumerOffsets, (await ask(RequestCode.GET_ALL_CONSUMER_OFFSET)).body)
        state.offsets.take_over(offsets)
        delays = decode_config(DelayOffsets, (await ask(RequestCode.GET_ALL_DELAY_OFFSET)).body)
        state.delayed.take_over(delays)
        self.copies += 1
