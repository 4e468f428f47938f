"""A tail that the master does not have is cut at the next open, and kept, whenever the power is lost."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from support.disks import UnsyncedFiles
from support.power_loss import Image, PowerLossFiles, write_image
from support.stores import Clock, StoreHome

from penstock.errors import StoreFailed
from penstock.store import Message, MessageStore, Settings
from penstock.store.files.atomic_files import write_checksummed
from penstock.store.files.file_io import Files
from penstock.store.replication.epochs import EpochEntry
from penstock.store.replication.tail_cut import MANIFEST, CutIntent, CutPlan, prepare_cut

FILE = 16 << 10
KEPT, TAIL = 40, 30
SMALL: dict[str, Any] = {
    "mapped_file_size_commit_log": FILE,
    "mapped_file_size_consume_queue": 20 * 20,
    "max_hash_slot_num": 100,
    "max_index_num": 400,
}


def fill(store: MessageStore, first: int, count: int, only: str = "") -> None:
    for number in range(first, first + count):
        topic = only or ("orders" if number % 3 else "bills")
        assert store.put(Message(topic, b"%05d " % number + b"x" * 900, keys=f"k{number}")).ok


def numbers(store: MessageStore) -> list[int]:
    """The numbers of all messages that can be read, through the queues."""
    found: list[int] = []
    for topic in ("orders", "bills"):
        offset = 0
        while page := store.get(topic, 0, offset).messages:
            found += [int(record.body[:5]) for record in page]
            offset = page[-1].queue_offset + 1
    return sorted(found)


def log_bytes(store: MessageStore) -> bytes:
    return b"".join(bytes(file.map.view[: file.wrote]) for file in store.log.queue.files)


def plan(offset: int | None) -> CutPlan:
    return CutPlan(offset, "10.0.0.8:10912", 2, "epoch 2 began there")


def tail_in(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in sorted(folder.iterdir()) if path.name != MANIFEST)


@pytest.fixture
def cut(home: StoreHome) -> int:
    """Fills a store with messages of epoch 1, of which the last ones are a tail; returns where the tail begins."""
    with home.open(**SMALL) as store:
        store.roles.begin_epoch()
        fill(store, 0, KEPT)
        offset = store.watermarks.appended
        fill(store, KEPT, TAIL)
    return offset


def test_the_next_open_cuts_the_tail_and_the_quarantine_has_it(home: StoreHome, cut: int) -> None:
    with home.open(**SMALL) as store:
        before = log_bytes(store)
        folder = prepare_cut(store, plan(cut))
        assert numbers(store) == list(range(KEPT + TAIL)), "nothing is cut while the store is open"
    assert tail_in(folder) == before[cut:]
    manifest = json.loads((folder / MANIFEST).read_text())
    assert manifest["messages"] == {"bills": 10, "orders": 20}
    assert (manifest["offset"], manifest["end"], manifest["master"]) == (cut, len(before), "10.0.0.8:10912")
    assert manifest["epochs"] == [[1, 0]]
    with home.open(**SMALL) as store:
        assert log_bytes(store) == before[:cut]
        assert numbers(store) == list(range(KEPT))
        assert store.query("orders", "k40") == [] == store.query("orders", f"k{KEPT + TAIL - 1}")
        assert [record.body[:5] for record in store.query("orders", "k38")] == [b"00038"]
        assert any(f"cut at {cut}" in note for note in store.report.notes)
        assert not store.layout.cut.exists()
        result = store.put(Message("orders", b"99999 next"))
        assert (result.physical_offset, result.queue_offset) == (cut, numbers(store).index(99999) - 14)
        assert store.epochs.entries == (EpochEntry(1, 0), EpochEntry(2, cut))


def test_a_log_can_be_cut_where_one_of_its_files_begins(home: StoreHome, cut: int) -> None:
    with home.open(**SMALL) as store:
        boundary = store.log.queue.files[-2].from_offset
        before = log_bytes(store)
        folder = prepare_cut(store, plan(boundary))
    assert tail_in(folder) == before[boundary:]
    with home.open(**SMALL) as store:
        assert store.watermarks.appended == boundary
        kept = numbers(store)
        assert kept == list(range(len(kept)))
        fill(store, len(kept), 20)
        assert numbers(store) == list(range(len(kept) + 20))
    with home.open(**SMALL) as store:
        assert store.report.clean_exit
        assert numbers(store) == list(range(len(kept) + 20))


def test_epochs_that_begin_in_the_tail_are_cut_with_it(home: StoreHome, cut: int) -> None:
    with home.open(**SMALL) as store:
        fill(store, 70, 1)
        assert [entry.epoch for entry in store.epochs.entries] == [1, 2]
        prepare_cut(store, plan(cut))
    with home.open(**SMALL) as store:
        assert store.epochs.entries == (EpochEntry(1, 0),)


def test_a_store_with_nothing_in_common_is_moved_aside_whole(home: StoreHome, cut: int) -> None:
    with home.open(**SMALL) as store:
        before = log_bytes(store)
        folder = prepare_cut(store, plan(None))
    with home.open(**SMALL) as store:
        assert (log_bytes(store), numbers(store), store.epochs.entries) == (b"", [], ())
        assert store.put(Message("orders", b"00000 new")).queue_offset == 0
    kept = b"".join(path.read_bytes() for path in sorted((folder / "commitlog").iterdir()))
    assert kept[: len(before)] == before
    assert (folder / "epochFileCheckpoint").exists()
    assert (folder / MANIFEST).exists()


def test_the_quarantine_does_not_grow_past_its_limit(home: StoreHome, cut: int) -> None:
    with home.open(**SMALL, quarantine_max_bytes=10_000) as store:
        for offset in (cut, None):
            with pytest.raises(StoreFailed, match="quarantineMaxBytes allows 10000"):
                prepare_cut(store, plan(offset))
        assert not store.layout.cut.exists()
    with home.open(**SMALL) as store:
        assert numbers(store) == list(range(KEPT + TAIL))


def test_a_log_is_not_cut_inside_a_record(home: StoreHome, cut: int) -> None:
    with home.open(**SMALL) as store:
        with pytest.raises(StoreFailed, match="no record begins there"):
            prepare_cut(store, plan(cut + 10))
        assert not store.layout.cut.exists()


def test_messages_that_another_program_appended_since_are_not_cut(home: StoreHome, cut: int) -> None:
    with home.open(**SMALL) as store:
        prepare_cut(store, plan(cut))
        intent = store.layout.cut.read_bytes()
        store.layout.cut.unlink()
    with home.open(**SMALL) as store:
        fill(store, KEPT + TAIL, 1)
    store.layout.cut.write_bytes(intent)
    with home.open(**SMALL) as store:
        assert numbers(store) == list(range(KEPT + TAIL + 1))
        assert any("nothing was cut" in note for note in store.report.notes)
        assert not store.layout.cut.exists()


@pytest.mark.parametrize("kept", ["../../../etc/tail-1-0", "x/../tail-1-0", "nowhere/tail-1-0", "/etc/tail-1-0"])
def test_a_forged_plan_is_not_carried_out(home: StoreHome, cut: int, kept: str) -> None:
    path = home.path / "penstock" / "cut.json"
    write_checksummed(Files(), path, CutIntent(0, cut, kept))
    with home.open(**SMALL) as store:
        assert numbers(store) == list(range(KEPT + TAIL))
        assert any("nothing was cut" in note for note in store.report.notes)
    path.write_bytes(b"garbage")
    with home.open(**SMALL) as store:
        assert numbers(store) == list(range(KEPT + TAIL))


def lose_power(folder: Path, *, is_whole: bool, most: int, deletes: bool = False) -> None:
    """Cuts a store, and opens what a power loss at each of `most` syncs may leave. Checks that nothing is lost.

    `deletes`: a topic is deleted in the tail, so that it is there after the cut, and not before. Its messages are so
    old that a start after a crash does not walk them.
    """
    settings, base, clock = Settings.dev(**SMALL), folder / "disk", Clock()
    base.mkdir()
    with MessageStore.open(base / "store", settings, files=UnsyncedFiles(), clock=clock) as store:
        store.roles.begin_epoch()
        if deletes:
            fill(store, 0, KEPT // 4, "bills")
            fill(store, KEPT // 4, KEPT // 4, "orders")
            clock.now += 60_000
            fill(store, KEPT // 2, KEPT // 2, "orders")
        else:
            fill(store, 0, KEPT)
        offset = store.watermarks.appended
        fill(store, KEPT, TAIL, "orders" if deletes else "")
        if deletes:
            assert store.delete_topic("bills")
        before, uncut = log_bytes(store), numbers(store)
    expected, planned = (b"", plan(None)) if is_whole else (before[:offset], plan(offset))
    images: list[tuple[str, Image]] = []
    files = PowerLossFiles(base, os.environ.get("PENSTOCK_SEED", "tail"))
    with MessageStore.open(base / "store", settings, files=files, clock=clock) as store:
        files.at_sync_point = lambda what: images.append((what, files.image()))
        prepare_cut(store, planned)
    with MessageStore.open(base / "store", settings, files=files, clock=clock) as store:
        files.at_sync_point = lambda what: None
        assert log_bytes(store) == expected
    files.close()
    states = set()
    for number, (what, image) in enumerate(images[:: max(len(images) // most, 1)]):
        home = folder / f"image{number}"
        write_image(image, home)
        with MessageStore.open(home / "store", settings, files=UnsyncedFiles(), clock=clock) as store:
            found = log_bytes(store)
            is_cut = found != before
            states.add(is_cut)
            assert found == (expected if is_cut else before), what
            assert numbers(store) == (list(range(len(expected) and KEPT)) if is_cut else uncut), what
            assert not store.layout.cut.exists(), "the plan is carried out, or was never made"
            kept = sorted(store.layout.quarantine.glob("*/*"))
            if is_cut and is_whole:
                assert any(tail_in(each / "commitlog")[: len(before)] == before for each in kept), what
            elif is_cut:
                assert any(tail_in(each) == before[offset:] for each in kept), what
            else:
                prepare_cut(store, planned)
        with MessageStore.open(home / "store", settings, files=UnsyncedFiles(), clock=clock) as store:
            assert log_bytes(store) == expected, what
            assert numbers(store) == list(range(len(expected) and KEPT)), what
        shutil.rmtree(home)
    assert states == {True, False}, "the power was lost before and after the cut"


@pytest.mark.parametrize("is_whole", [False, True])
def test_a_power_loss_during_a_cut_leaves_the_tail_in_the_log_or_in_the_quarantine(
    tmp_path: Path, is_whole: bool
) -> None:
    lose_power(tmp_path, is_whole=is_whole, most=12)


def test_a_power_loss_during_a_cut_leaves_a_topic_deleted_in_the_tail_deleted_or_whole(tmp_path: Path) -> None:
    lose_power(tmp_path, is_whole=False, most=12, deletes=True)


@pytest.mark.rest
@pytest.mark.parametrize(("is_whole", "deletes"), [(False, False), (True, False), (False, True)])
def test_a_power_loss_at_any_sync_of_a_cut_loses_nothing(tmp_path: Path, is_whole: bool, deletes: bool) -> None:
    lose_power(tmp_path, is_whole=is_whole, most=10_000, deletes=deletes)
