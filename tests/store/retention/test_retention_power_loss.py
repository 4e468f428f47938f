"""The plug is pulled at every sync of a deletion, and any part of what was not synced is lost."""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING

import pytest
from support.disks import UnsyncedFiles
from support.power_loss import Image, PowerLossFiles, write_image
from support.stores import FILE_SIZE, PER_FILE, AgedStore, StoreHome

from penstock.store import Message

if TYPE_CHECKING:
    from pathlib import Path

SEED = os.environ.get("PENSTOCK_SEED", "7")
IMAGES_EACH = 5
"""Images taken at each sync: what is lost is a matter of chance."""


class ForgetfulDisk(PowerLossFiles):
    """Half full."""

    def disk_usage(self, folder: Path) -> tuple[int, int]:
        return 50, 50


class RoomyDisk(UnsyncedFiles):
    def disk_usage(self, folder: Path) -> tuple[int, int]:
        return 50, 50


@pytest.fixture
def base(tmp_path: Path) -> Path:
    return tmp_path / "base"


@pytest.fixture
def aged(base: Path) -> AgedStore:
    """Eight log files of four messages of two topics in turn, of which the first six are old; on disk, and closed."""
    base.mkdir()
    made = AgedStore(StoreHome(base / "store"), RoomyDisk())
    for _ in range(4):
        made.fill(1, "A")
        made.fill(1, "B")
    made.age(80, files=6)
    made.store.close()
    return made


def images_of(aged: AgedStore, base: Path, act: object) -> list[tuple[str, Image]]:
    """What the disk may hold if the power goes at a sync while something is done to the store."""
    print(f"seed {SEED}")
    taken: list[tuple[str, Image]] = []
    disk = ForgetfulDisk(base, SEED)
    aged.disk = disk
    aged.open()

    def take(what: str) -> None:
        taken.extend((what, disk.image()) for _ in range(IMAGES_EACH))

    disk.at_sync_point = take
    act()  # type: ignore[operator]
    take("the end")
    disk.at_sync_point = lambda what: None
    aged.store.close()
    disk.close()
    return taken


def opened(image: Image, folder: Path) -> AgedStore:
    shutil.rmtree(folder, ignore_errors=True)
    write_image(image, folder)
    return AgedStore(StoreHome(folder / "store"), RoomyDisk())


def test_no_hole_and_no_record_without_its_unit_is_left_by_a_deletion(
    aged: AgedStore, base: Path, tmp_path: Path
) -> None:
    images = images_of(aged, base, aged.run_on_request)
    beginnings = set()
    for what, image in images:
        again = opened(image, tmp_path / "image")
        assert again.store.report.notes == [], what
        first = again.store.log.min_offset // FILE_SIZE
        beginnings.add(first)
        for place, topic in enumerate("AB"):
            lowest = (first + 1 - place) // 2 * PER_FILE
            assert again.numbers(topic) == list(range(lowest, 16)), (what, topic)
            assert again.store.min_offset(topic, 0) == lowest, what
            assert again.found(range(16), topic) == list(range(lowest, 16)), what
        again.home.close_all()
    assert {0, 6} <= beginnings, "from the first step to the last"


def test_a_topic_is_there_or_deleted_whatever_was_lost(aged: AgedStore, base: Path, tmp_path: Path) -> None:
    def act() -> None:
        assert aged.store.delete_topic("A")
        assert aged.store.put(Message("A", b"000000")).queue_offset == 0
        aged.store.flush()

    outcomes = set()
    for what, image in images_of(aged, base, act):
        again = opened(image, tmp_path / "image")
        numbers = again.numbers("A")
        assert numbers in (list(range(16)), [], [0]), what
        outcomes.add(len(numbers))
        assert again.numbers("B") == list(range(16)), what
        expected = 16 if len(numbers) == 16 else len(numbers)
        assert again.store.put(Message("A", b"next")).queue_offset == expected, what
        again.home.close_all()
    assert outcomes == {0, 1, 16}


def test_a_queue_whose_messages_are_all_deleted_goes_on_where_it_was(base: Path, tmp_path: Path) -> None:
    """Only its last unit tells its next offset then: it is on disk before the log's file goes."""
    base.mkdir()
    disk = ForgetfulDisk(base, SEED)
    aged = AgedStore(StoreHome(base / "store"), disk)
    aged.fill(1, "A")
    aged.fill(1, "B")
    aged.age(80, files=1)
    images: list[Image] = []
    disk.at_sync_point = lambda what: images.append(disk.image())
    assert len(aged.run_on_request()) == 1
    disk.at_sync_point = lambda what: None
    images += [disk.image() for _ in range(10)]
    aged.store.close()
    disk.close()
    for image in images:
        again = opened(image, tmp_path / "image")
        assert again.store.put(Message("A", b"next")).queue_offset == PER_FILE
        again.home.close_all()


def test_a_message_of_a_queue_that_was_cleaned_away_is_served_whatever_was_lost(base: Path, tmp_path: Path) -> None:
    """The files of the old queue may be back, with units up to an offset that the new queue has not reached."""
    base.mkdir()
    disk = ForgetfulDisk(base, SEED)
    aged = AgedStore(StoreHome(base / "store"), disk)
    aged.fill(1, "A")
    aged.fill(2, "B")
    aged.store.close()
    aged.open()
    aged.age(80, files=1)
    assert len(aged.run_on_request()) == 1
    assert aged.store.clean_expired_queues() == [("A", 0)]
    with aged.store.dispatcher.paused():
        assert aged.store.put(Message("A", b"000000")).queue_offset == 0
        aged.store.flush()
        killed = aged.home.copy_to(tmp_path / "killed")
        images = [disk.image() for _ in range(20)]
    aged.store.close()
    disk.close()
    for image in (None, *images):
        again = AgedStore(killed, RoomyDisk()) if image is None else opened(image, tmp_path / "image")
        assert again.numbers("A") == [0]
        assert again.store.put(Message("A", b"000001")).queue_offset == 1
        again.home.close_all()


def test_a_deleted_topic_does_not_come_back_once_its_messages_have_expired(base: Path, tmp_path: Path) -> None:
    """The files of its queue may come back until their removal is synced. The note of the deletion stays until then."""
    base.mkdir()
    disk = ForgetfulDisk(base, SEED)
    aged = AgedStore(StoreHome(base / "store"), disk)
    aged.fill(1, "A")
    aged.fill(1, "B")
    assert aged.store.delete_topic("A")
    aged.fill(2, "B")
    aged.store.close()
    aged.open()
    aged.age(80, files=2)
    assert len(aged.run_on_request()) == 2
    assert aged.store.deleted_topics() == {}, "the note is gone"
    images = [disk.image() for _ in range(10)]
    aged.store.close()
    disk.close()
    for image in images:
        again = opened(image, tmp_path / "image")
        assert again.store.topics() == ["B"]
        assert again.store.put(Message("A", b"000000")).queue_offset == 0
        again.home.close_all()
