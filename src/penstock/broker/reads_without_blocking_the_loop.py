"""Reads of the store from the loop: at once if the bytes are in memory, otherwise by a thread of the store.

`MessageStore.try_get`, `try_look_up` and `try_read` return what they read, or a ColdRead if that is not in memory. The
functions here take either. The loop serves other requests while a thread reads. Each client, each delay level and the
transaction check is a key of its own, and has one cold read under way at a time. Use them from the loop's thread only.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from inspect import isawaitable
from typing import TypeVar

from penstock.store.cold_reads import ColdRead
from penstock.store.message_store import MessageStore

T = TypeVar("T")
U = TypeVar("U")


async def completed(store: MessageStore, read: T | ColdRead[T], key: Hashable) -> T:
    """Returns what was read. A cold read runs after all earlier ones of `key`. Raises StoreFailed."""
    if isinstance(read, ColdRead):
        return await asyncio.wrap_future(store.read_cold(read, key))
    return read


def after_read(
    store: MessageStore, read: T | ColdRead[T], key: Hashable, use: Callable[[T], U | Awaitable[U]]
) -> U | Awaitable[U]:
    """Returns what `use` makes of what was read: at once, or for a cold read as an awaitable."""
    return _use_later(store, read, key, use) if isinstance(read, ColdRead) else use(read)


async def _use_later(store: MessageStore, read: ColdRead[T], key: Hashable, use: Callable[[T], U | Awaitable[U]]) -> U:
    outcome = use(await completed(store, read, key))
    return await outcome if isawaitable(outcome) else outcome
