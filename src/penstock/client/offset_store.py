"""How far a group has come: at the brokers for a group that shares its queues, in a file for one that broadcasts.

Offsets are noted as messages are consumed and stored by `save`, every five seconds and at the end. The file is replaced
whole: written beside it, synced, renamed.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Protocol

from penstock.client.queue_offsets import QueueOffsets
from penstock.errors import BadRequest, BadSettings, PenstockError
from penstock.protocol.bodies.progress import ResetOffsetBody
from penstock.protocol.bodies.queues import MessageQueue

log = logging.getLogger("penstock.client")


class OffsetStore(Protocol):
    """Where a consumer keeps its offsets."""

    async def load(self, queue: MessageQueue, *, exact: bool = False) -> int | None:
        """Where the group goes on; None if it has never consumed. Raises what asking a broker raises.

        Unless it is to be `exact`, a broker may say 0 for a new group if it still has the whole queue.
        """

    def note(self, queue: MessageQueue, offset: int) -> None:
        """Everything before `offset` has been consumed."""

    def noted(self, queue: MessageQueue) -> int | None:
        """What was noted last."""

    def forget(self, queue: MessageQueue) -> None:
        """The queue is somebody else's now."""

    async def save(self, queues: Iterable[MessageQueue] | None = None) -> None:
        """Stores what was noted, of all queues or of some. What cannot be stored is logged, and stored next time."""


class BrokerOffsets:
    """Offsets that the brokers keep."""

    def __init__(self, group: str, offsets: QueueOffsets) -> None:
        self._group = group
        self._offsets = offsets
        self._noted: dict[MessageQueue, int] = {}
        self._saved: dict[MessageQueue, int] = {}

    async def load(self, queue: MessageQueue, *, exact: bool = False) -> int | None:
        return await self._offsets.committed(self._group, queue, exact=exact)

    def note(self, queue: MessageQueue, offset: int) -> None:
        self._noted[queue] = offset

    def noted(self, queue: MessageQueue) -> int | None:
        return self._noted.get(queue)

    def forget(self, queue: MessageQueue) -> None:
        self._noted.pop(queue, None)
        self._saved.pop(queue, None)

    async def save(self, queues: Iterable[MessageQueue] | None = None) -> None:
        chosen = self._noted if queues is None else [queue for queue in queues if queue in self._noted]
        changed = [queue for queue in chosen if self._saved.get(queue) != self._noted[queue]]
        await asyncio.gather(*(self._save(queue, self._noted[queue]) for queue in changed))

    async def _save(self, queue: MessageQueue, offset: int) -> None:
        try:
            await self._offsets.commit(self._group, queue, offset)
        except PenstockError as error:
            log.warning("the offset of %s/%d is not stored yet: %s", queue.topic, queue.queue_id, error)
        else:
            if queue in self._noted:
                self._saved[queue] = offset


class FileOffsets:
    """Offsets of one broadcast consumer in a file of its own, or in memory only."""

    def __init__(self, path: Path | None) -> None:
        """Raises BadSettings if there is a file and it holds something else."""
        self._path = path
        self._noted: dict[MessageQueue, int] = {}
        self._writing = asyncio.Lock()
        self._is_saved = True
        if path is not None and path.exists():
            try:
                self._noted = dict(ResetOffsetBody.from_bytes(path.read_bytes()).offset_table)
            except (OSError, BadRequest) as error:
                raise BadSettings(
                    f"the offsets of a broadcast consumer cannot be read: {error}; remove the file to begin anew",
                    path=path,
                ) from None

    async def load(self, queue: MessageQueue, *, exact: bool = False) -> int | None:
        return self._noted.get(queue)

    def note(self, queue: MessageQueue, offset: int) -> None:
        if self._noted.get(queue) != offset:
            self._noted[queue] = offset
            self._is_saved = False

    def noted(self, queue: MessageQueue) -> int | None:
        return self._noted.get(queue)

    def forget(self, queue: MessageQueue) -> None:
        """A queue that comes back goes on where it was."""

    async def save(self, queues: Iterable[MessageQueue] | None = None) -> None:
        async with self._writing:
            if self._path is None or self._is_saved:
                return
            self._is_saved = True
            data = ResetOffsetBody(offset_table=dict(self._noted)).to_bytes()
            try:
                await asyncio.to_thread(_replace, self._path, data)
            except OSError as error:
                self._is_saved = False
                log.warning("%s: the offsets are not stored yet: %s", self._path, error.strerror)


def _replace(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f"{path.name}.tmp")
    with beside.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    beside.replace(path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
