"""The plain twin of the appender: declines everything, so that every message takes the store's general path."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from penstock.format.kernels._types import WritableBuffer


def populate(out: WritableBuffer, start: int, stop: int) -> None:
    """Makes the memory of out[start:stop] ready to be written; here the stores themselves will have to."""


class Appender:
    """See the compiled twin; this one keeps the shared tables and never appends."""

    def __init__(
        self,
        message_type: type[Any],
        result_type: Callable[..., Any],
        ok: object,
        clock: Callable[[], int] | None,
        store_host_text: str,
        store_host: bytes,
        max_body: int,
        max_record: int,
    ) -> None:
        self.is_open = False
        """False while somebody else is appending, or nobody may."""
        self.is_follower_asleep = False
        """True if `wake` is to be called after the next append."""
        self.wake: Callable[[], object] = bool
        self.page_need: Callable[[], object] = bool
        """Called after every 8 MiB: the pages that follow should be made ready."""
        self.queues: dict[str, dict[int, int]] = {}
        """Topics known to be legal, with the next queue offset of each of their queues."""
        self.hosts: dict[str, bytes] = {}
        """Hosts seen before, with their bytes."""
        self.newest_timestamp = 0
        self.count = self.bytes_appended = self.slowest_ns = 0
        self.latency_counts = [0] * 12

    def attach(self, target: WritableBuffer, marks: WritableBuffer, from_offset: int) -> None:
        """From now on appends go to `target`, whose end so far and newest store time stand in `marks`."""

    def detach(self) -> None:
        """Lets go of the file's memory; everything is declined until the next `attach`."""

    def append_many(self, messages: object) -> Any:
        """The results of an append of all, visible at once; None, and nothing changed, if one is not for this path."""
        return None

    def append(self, message: object) -> Any:
        """The result of an append, or None if the message is not for this path."""
        return None
