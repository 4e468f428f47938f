"""A long dispatch walks ahead on a second thread, and builds what it would have built without."""

from __future__ import annotations

import shutil
import threading

import pytest
from support.stores import StoreHome

from penstock.store import Message, MessageStore, queue_units_and_keys
from penstock.store.recovery import queues as queues_module


def _fill(home: StoreHome) -> None:
    with home.open() as store:
        for number in range(3000):
            keys = (f"k{number}", "all")
            message = Message(f"T{number % 3}", bytes(number % 200), keys=keys, tags="a", queue_id=number % 2)
            assert store.put(message).ok


def _derived(store: MessageStore) -> dict[str, bytes]:
    found = {}
    for queue in store.queues:
        for file in queue.files.files:
            found[f"{queue.topic}/{queue.queue_id}/{file.path.name}"] = bytes(file.map.view)
    assert store.index is not None
    for number, file in enumerate(store.index.files):
        found[f"index {number}"] = bytes(file.map.view)
    return found


def _rebuilt(home: StoreHome) -> tuple[dict[str, bytes], set[str]]:
    for folder in ("consumequeue", "index"):
        shutil.rmtree(home.path / folder)
    seen: set[str] = set()
    original = queue_units_and_keys.Deriver.derive

    def watched(deriver: queue_units_and_keys.Deriver, *arguments: object) -> object:
        seen.add(threading.current_thread().name)
        return original(deriver, *arguments)  # type: ignore[arg-type]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(queue_units_and_keys.Deriver, "derive", watched)
        store = home.open()
    try:
        return _derived(store), seen
    finally:
        store.close()


def test_the_files_are_the_same_with_and_without(home: StoreHome, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue_units_and_keys, "MAX_RECORDS", 100)
    _fill(home)
    plain, threads = _rebuilt(home)
    assert not any("ahead" in name for name in threads)
    monkeypatch.setattr(queues_module, "_WORTH_A_THREAD", 0)
    ahead, threads = _rebuilt(home)
    assert any("ahead" in name for name in threads)
    assert ahead == plain
