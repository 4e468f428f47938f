"""The dev profile: a store of a few messages costs little."""

from __future__ import annotations

from pathlib import Path

from penstock.store import FlushDiskType, Message, MessageStore, Settings

TWO_MEGABYTES = 2_000_000


def apparent_size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def put_a_few(store: MessageStore) -> None:
    for number in range(10):
        message = Message("orders", b"%d" % number, keys=f"order_{number}", tags="paid", queue_id=number % 4)
        assert store.put(message).ok
    assert store.put(Message("invoices", b"", delay_level=3)).ok
    assert store.max_offset("orders", 0) == 3


def test_a_store_of_a_few_messages_is_below_two_megabytes(tmp_path: Path) -> None:
    with MessageStore.open(tmp_path / "store", Settings.dev()) as store:
        put_a_few(store)
        assert len(store.query("orders", "order_1")) == 1
        assert 0 < apparent_size(tmp_path) < TWO_MEGABYTES
    assert apparent_size(tmp_path) < TWO_MEGABYTES
    with MessageStore.open(tmp_path / "store", Settings.dev()) as store:
        assert store.put(Message("orders", b"again")).ok
        assert apparent_size(tmp_path) < TWO_MEGABYTES


def test_it_stays_small_where_puts_wait_for_the_disk(tmp_path: Path) -> None:
    with MessageStore.open(tmp_path / "store", Settings.dev(flush_disk_type=FlushDiskType.SYNC_FLUSH)) as store:
        put_a_few(store)
        assert apparent_size(tmp_path) < TWO_MEGABYTES
