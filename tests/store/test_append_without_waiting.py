"""A caller that must not wait for the disk: it appends, and gets a callback when the log is synced."""

from __future__ import annotations

import errno
import threading

import pytest
from support.disks import FaultyFiles, refuse
from support.stores import StoreHome, eventually

from penstock.errors import StoreFailed
from penstock.store import GetStatus, Message, Page, PutStatus, TagFilter


def test_an_append_is_answered_while_the_disk_is_still_busy(home: StoreHome) -> None:
    disk, may_sync, called = FaultyFiles(), threading.Event(), threading.Event()
    store = home.open(files=disk, sync=True)
    disk.before_sync = lambda path: may_sync.wait(30) and None
    store.watermarks.on_advance(called.set)
    one, batch = store.append(Message("T", b"one")), store.append_many([Message("T", b"two"), Message("T", b"three")])
    assert one.ok
    assert batch.ok
    assert store.watermarks.flushed < one.end_offset
    called.clear()
    may_sync.set()
    assert called.wait(30)
    eventually(lambda: store.watermarks.flushed >= batch.results[-1].end_offset, "the batch never came to disk")
    assert home.bodies(store, "T") == [b"one", b"two", b"three"]


def test_a_listener_learns_that_a_sync_failed(home: StoreHome) -> None:
    disk, called = FaultyFiles(), threading.Event()
    store = home.open(files=disk, sync=True)
    store.watermarks.on_advance(lambda: called.set() if store.watermarks.failure else None)
    disk.before_sync = lambda path: refuse(errno.EIO) if "commitlog" in str(path) else None
    assert store.watermarks.failure is None
    assert store.append(Message("T", b"one")).ok
    assert called.wait(30)
    assert "could not be synced" in store.watermarks.failure
    assert store.append(Message("T", b"two")).status is PutStatus.SERVICE_NOT_AVAILABLE
    with pytest.raises(StoreFailed, match="could not be synced"):
        store.flush()


def test_a_flush_brings_to_disk_what_was_put_so_far(home: StoreHome) -> None:
    store = home.open()
    result = store.append(Message("T", b"one"))
    store.flush()
    assert store.watermarks.flushed == result.end_offset


def test_a_get_of_what_is_dispatched_waits_for_nothing(home: StoreHome) -> None:
    store = home.open()
    store.dispatcher.set_batch_delay(3600)  # the thread does not get to it in this test
    assert store.append(Message("T", b"one")).ok
    page = store.try_get("T", 0, 0, 32, TagFilter("*"))
    assert isinstance(page, Page)
    assert (page.status, page.count) == (GetStatus.NO_MESSAGE_IN_QUEUE, 0)
    assert store.get("T", 0, 0).count == 1
    page = store.try_get("T", 0, 0, 32, TagFilter("*"))
    assert isinstance(page, Page)
    assert page.count == 1
    store.dispatcher.set_batch_delay(0.0)
