"""External dispatch on a disk that forgets, fills up, or loses its old files: a rebuild of the log is the judge."""

from __future__ import annotations

import contextlib
import errno
import os
import random
import shutil
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from support.disks import FaultyFiles, UnsyncedFiles, refuse
from support.messages import SEED, SMALL_FILES, Place, message, place_put, read_store
from support.power_loss import Image, PowerLossFiles, write_image
from support.stores import StoreHome, build_all, derived_files, eventually, put_mixed

from penstock.errors import StoreFailed
from penstock.store import Dispatch, Message, MessageStore, Settings
from penstock.store.audit import audit
from penstock.store.damage_and_quarantine import read_damage
from penstock.store.external_dispatch import files_shared_with_job
from penstock.store.external_dispatch import queue_and_index_builder as builder_module
from penstock.store.external_dispatch.queue_and_index_builder import Builder
from penstock.store.files.layout import Layout

IMAGES = int(os.environ.get("PENSTOCK_IMAGES", "25"))
TORTURE_IMAGES = int(os.environ.get("PENSTOCK_IMAGES", "5000"))
SMALL: dict[str, Any] = {"mapped_file_size_commit_log": 16_384, "max_hash_slot_num": 50, "max_index_num": 300}
EXTERNAL: dict[str, Any] = {**SMALL, "dispatch": Dispatch.EXTERNAL}
BUSY: dict[str, Any] = {
    **SMALL_FILES,
    "flush_interval_commit_log": 3,
    "flush_commit_log_least_pages": 1,
    "flush_commit_log_thorough_interval": 10,
}


@pytest.fixture(autouse=True)
def syncs_after_each_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(builder_module, "_SYNC_EVERY_S", 0.0)


@pytest.fixture
def home(tmp_path: Path) -> Any:
    made = StoreHome(tmp_path / "store")
    yield made
    made.close_all()


# -- power losses ------------------------------------------------------------------------------------------------------


class Cut(NamedTuple):
    """A moment at which the power may go."""

    what: str
    acknowledged: dict[int, Place]
    image: Image


def life(base: Path, seed: str, settings: Settings, count: int) -> list[Cut]:
    """A store and its job, which stops and begins again now and then; the moments before each sync of either."""
    cuts: list[Cut] = []
    acknowledged: dict[int, Place] = {}
    base.mkdir()
    files = PowerLossFiles(base, seed, lambda what: cuts.append(Cut(what, dict(acknowledged), files.image())))
    chance = random.Random(seed)
    with contextlib.closing(files), MessageStore.open(base / "store", settings, files=files) as store:
        builder = Builder.open(base / "store", files=files)
        for number in range(count):
            result = store.put(message(number))
            assert result.ok
            acknowledged[number] = place_put(number, result)
            if chance.random() < 0.3:
                build_all(builder, step=3000)
            if chance.random() < 0.03:
                builder.close()
                builder = Builder.open(base / "store", files=files)
        builder.close()
    return cuts


def assert_sound(cut: Cut, folder: Path, settings: Settings, is_promised: bool) -> None:
    """The store starts on the image, and its job then ends with the queues and index that a rebuild of the log has.

    With one exception, under ASYNC_FLUSH: a unit can survive the record to which it points. Its queue offset stays
    reserved, because a consumer may have read past it, while a rebuild knows nothing of it. Then both serve the same.
    """
    shutil.rmtree(folder, ignore_errors=True)
    write_image(cut.image, folder)
    with MessageStore.open(folder / "store", settings, files=UnsyncedFiles()) as store:
        with Builder.open(folder / "store", files=UnsyncedFiles()) as builder:
            eventually(lambda: builder.published == store.log.max_offset, "the end is published")
            build_all(builder)
        found, outlives = read_store(store, holes=True), has_unit_in_damage(folder / "store", store)
    if is_promised:
        assert {number: found.get(number) for number in cut.acknowledged} == cut.acknowledged
    twin = folder / "twin"
    if (folder / "store" / "commitlog").exists():
        shutil.copytree(folder / "store" / "commitlog", twin / "commitlog")
        (twin / "abort").touch()  # each record is checked, as in the store
    with MessageStore.open(twin, settings.with_changes(dispatch=Dispatch.INLINE), files=UnsyncedFiles()) as rebuilt:
        assert read_store(rebuilt, holes=True) == found
    assert not (outlives and is_promised), "what was acknowledged after a sync is no damage"
    if not outlives:
        derived, wanted = filled_files(folder / "store"), filled_files(twin)
        assert [name for name in {**derived, **wanted} if derived.get(name) != wanted.get(name)] == []


def has_unit_in_damage(path: Path, store: MessageStore) -> bool:
    damage = read_damage(UnsyncedFiles(), Layout.of(path, store.settings).damaged)
    offsets = [queue.unit(number)[0] for queue in store.queues for number in range(queue.min_offset, queue.max_offset)]
    return any(each.physical_offset <= offset < each.end for offset in offsets for each in damage)


def filled_files(store: Path) -> dict[str, bytes]:
    """What was derived. A queue whose messages were all lost with the power has a file without units."""
    return {name: content for name, content in derived_files(store).items() if any(content)}


def lose_power(tmp_path: Path, flush: str, images: int, monkeypatch: pytest.MonkeyPatch, seed: str) -> int:
    settings = Settings.dev(**BUSY, flush_disk_type=flush, dispatch=Dispatch.EXTERNAL)
    cuts = life(tmp_path / "disk", seed, settings, 60)
    boot = files_shared_with_job.boot_number() + 1
    monkeypatch.setattr(files_shared_with_job, "boot_number", lambda: boot)
    chosen = random.Random(seed).sample(cuts, min(images, len(cuts)))
    for cut in chosen:
        try:
            assert_sound(cut, tmp_path / "image", settings, flush == "SYNC_FLUSH")
        except BaseException:
            print(f"seed {seed!r}, power lost before {cut.what!r}, the disk is in {tmp_path / 'image'}")
            raise
    return len(chosen)


@pytest.mark.rest
@pytest.mark.parametrize("flush", ["SYNC_FLUSH", "ASYNC_FLUSH"])
def test_after_a_power_loss_at_any_sync_the_job_ends_with_what_a_rebuild_has(
    tmp_path: Path, flush: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert lose_power(tmp_path, flush, IMAGES, monkeypatch, f"external {SEED} {flush}") > 20


@pytest.mark.torture
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("flush", ["SYNC_FLUSH", "ASYNC_FLUSH"])
def test_after_thousands_of_power_losses_the_job_ends_with_what_a_rebuild_has(
    tmp_path: Path, flush: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked = 0
    while looked < TORTURE_IMAGES:
        (tmp_path / "run").mkdir()
        with monkeypatch.context() as patched:
            looked += lose_power(tmp_path / "run", flush, 200, patched, f"external {SEED} {flush} {looked}")
        shutil.rmtree(tmp_path / "run")
        print(f"power losses, {flush}: {looked:,} of {TORTURE_IMAGES:,}, PENSTOCK_SEED={SEED}", flush=True)


# -- a full disk -------------------------------------------------------------------------------------------------------


def inline_twin(home: StoreHome, count: int) -> dict[str, bytes]:
    twin = StoreHome(home.path.with_name("twin"))
    with twin.open(**SMALL) as store:
        put_mixed(twin, store, count)
    return derived_files(twin.path)


@pytest.mark.parametrize("full", ["consumequeue", "index", "penstock"])
def test_a_job_that_finds_no_room_fails_and_the_next_one_completes_its_work(home: StoreHome, full: str) -> None:
    disk, reasons = FaultyFiles(), []
    with home.open(**EXTERNAL) as store:
        put_mixed(home, store, 300)
        for room in range(1, 40):
            left = [room]

            def take(path: Path, left: list[int] = left) -> None:
                if full in path.parts:
                    left[0] -= 1
                    if left[0] < 0:
                        refuse(errno.ENOSPC)

            disk.before_allocate = disk.before_sync_folder = take
            try:
                with Builder.open(home.path, files=disk) as builder:
                    build_all(builder, step=4000)
            except (StoreFailed, OSError) as error:
                reasons.append(str(error))
        assert reasons, "the disk was full at least once"
        assert all("space" in reason.lower() for reason in reasons), reasons
        with Builder.open(home.path) as builder:
            eventually(lambda: builder.published == store.log.max_offset, "the end is published")
            build_all(builder)
        eventually(lambda: store.dispatcher.behind == 0, "the store sees all of it")
    assert derived_files(home.path) == inline_twin(home, 300)


# -- deletion ----------------------------------------------------------------------------------------------------------


def test_topics_deleted_under_a_killed_job_end_as_under_inline_dispatch(home: StoreHome, tmp_path: Path) -> None:
    """A kill is a copy of the files at that moment."""

    def work(store: MessageStore, rest: Any) -> None:
        for round_ in range(4):
            for number in range(40):
                topic = f"T{number % 3}"
                assert store.put(Message(topic, b"%d" % number, keys=(f"k{number}",), queue_id=number % 2)).ok
            rest()
            if round_ in (1, 2):
                store.delete_topic(f"T{round_}")

    twin = StoreHome(tmp_path / "twin")
    with twin.open(**SMALL) as store:
        work(store, store.catch_up)
    copies: list[StoreHome] = []
    with home.open(**EXTERNAL) as store:

        def dispatch_and_copy() -> None:
            eventually(lambda: builder.published == store.log.max_offset, "the end is published")
            build_all(builder, step=900)
            store.catch_up()
            copies.append(home.copy_to(tmp_path / f"killed{len(copies)}"))

        with Builder.open(home.path) as builder:
            work(store, dispatch_and_copy)
            dispatch_and_copy()
    assert derived_files(home.path) == derived_files(twin.path)
    for copy in copies:
        with copy.open(**EXTERNAL) as store, Builder.open(copy.path) as builder:
            build_all(builder)
            store.catch_up()
        assert not audit(copy.path).errors
        copy.close_all()


def test_retention_under_a_job_that_is_killed_leaves_what_verify_accepts(home: StoreHome, tmp_path: Path) -> None:
    with home.open(**EXTERNAL) as store:
        for start in range(0, 400, 100):
            put_mixed(home, store, 100, start)
            with Builder.open(home.path) as builder:
                eventually(lambda: builder.published == store.log.max_offset, "the end is published")
                build_all(builder, step=5000)
            store.catch_up()
            for path in home.log_files()[:-2]:
                os.utime(path, (0, 0))
            assert store.retention is not None
            store.flush()  # what is not on disk is not deleted
            store.retention.cleaner.run(on_request=True)
            copy = home.copy_to(tmp_path / f"killed{start}")
            with copy.open(**EXTERNAL) as other, Builder.open(copy.path) as builder:
                build_all(builder)
                other.catch_up()
                assert other.dispatcher.behind == 0
            assert not audit(copy.path).errors
            copy.close_all()
        assert store.log.min_offset > 0, "old files are gone"
    with Builder.open(home.path) as builder:
        build_all(builder)
    assert not audit(home.path).errors
