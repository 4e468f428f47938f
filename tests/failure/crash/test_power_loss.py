"""The plug is pulled at every sync: what was acknowledged under SYNC_FLUSH is there, and everything else is whole.

The store runs on a disk that forgets what was not synced (`power_loss.py`). Before each sync an image is taken of
what that disk may hold, and later a store is opened on each image. `PENSTOCK_SEED` and `PENSTOCK_IMAGES` choose others
and more of them.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import shutil
import threading
from concurrent.futures import Future, wait
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from support.disks import UnsyncedFiles
from support.messages import (
    SEED,
    SMALL_FILES,
    Place,
    is_as_put,
    is_delayed,
    message,
    number_of,
    place_of,
    place_put,
    read_store,
)
from support.power_loss import Image, PowerLossFiles, write_image

from penstock.format.config_tables import ConsumerOffsets
from penstock.format.kernel_row_types import Reason
from penstock.format.kernels import check_record
from penstock.format.record import decode_record
from penstock.store import FlushDiskType, MessageStore, PutResult, Settings
from penstock.store.config_files import ConfigFiles

IMAGES = int(os.environ.get("PENSTOCK_IMAGES", "60"))
TORTURE_IMAGES = int(os.environ.get("PENSTOCK_IMAGES", "20000"))
PRODUCERS = 3
BUSY: dict[str, Any] = {
    **SMALL_FILES,
    "flush_interval_commit_log": 3,
    "flush_commit_log_least_pages": 1,
    "flush_commit_log_thorough_interval": 10,
    "flush_interval_consume_queue": 5,
    "flush_consume_queue_least_pages": 0,
    "flush_consume_queue_thorough_interval": 15,
}
"""Small files, and threads that sync all the time."""


Promise = tuple[int, Place]


class Cut(NamedTuple):
    """A moment at which the power may go: what was promised by then, and what the disk may hold."""

    what: str
    acknowledged: list[Promise]
    seen: list[Promise]
    offsets_saved: int
    offsets_at_most: int
    """The newest whose saving had begun: other threads go on while the image is taken."""
    image: Image


class Scenario:
    """A store on the forgetful disk, with all that goes on in it. It may begin with what a power loss left."""

    def __init__(self, base: Path, seed: str, flush: str, before: Cut | None = None) -> None:
        self.base = base
        if before is None:
            base.mkdir()
        else:
            write_image(before.image, base)
        self.chance = random.Random(seed)
        drawn = {name: self.chance.random() < 0.5 for name in ("pre_allocate_files", "grow_log_files")}
        self.settings = Settings.dev(**BUSY, flush_disk_type=flush, **drawn)
        self.files = PowerLossFiles(base, seed, self.cut)
        self.cuts: list[Cut] = []
        self.acknowledged = [] if before is None else list(before.acknowledged)
        self.seen = [] if before is None else list(before.seen)
        self.offsets_saved = 0 if before is None else before.offsets_saved
        self.offsets_at_most = 0 if before is None else before.offsets_at_most

    def cut(self, what: str) -> None:
        promised = self.acknowledged[:], self.seen[:], self.offsets_saved
        image = self.files.image()
        self.cuts.append(Cut(what, *promised, self.offsets_at_most, image))

    # -- what goes on ----------------------------------------------------------------------------------------

    def open(self) -> MessageStore:
        return MessageStore.open(self.base / "store", self.settings, files=self.files)

    def work(self, store: MessageStore, first: int, count: int) -> None:
        """Several producers, a consumer, and somebody who saves consumer offsets, all at once."""
        producers = [
            threading.Thread(target=self._produce, args=(store, first + place * 10_000, count))
            for place in range(PRODUCERS)
        ]
        ended = threading.Event()
        others = [threading.Thread(target=each, args=(store, ended)) for each in (self._consume, self._save_offsets)]
        for thread in (*producers, *others):
            thread.start()
        for thread in producers:
            thread.join()
        ended.set()
        for thread in others:
            thread.join()

    def _produce(self, store: MessageStore, first: int, count: int) -> None:
        numbers = iter(range(first, first + count))
        asked: list[Future[PutResult]] = []
        for number in numbers:
            way = "put" if is_delayed(number) else random.Random(number).choice(("put", "async", "many"))
            if way == "put":
                self._answered(number, store.put(message(number)))
            elif way == "many":
                batch = [number, *itertools.islice(itertools.takewhile(lambda n: not is_delayed(n), numbers), 3)]
                stored = store.put_many([message(n) for n in batch])
                assert stored.ok, stored
                for each, result in zip(batch, stored.results, strict=True):
                    self._answered(each, result)
            else:
                future = store.put_async(message(number))
                future.add_done_callback(lambda done, number=number: self._answered(number, done.result()))  # type: ignore[misc]
                asked.append(future)
        wait(asked)

    def _answered(self, number: int, result: PutResult) -> None:
        assert result.ok, result
        self.acknowledged.append((number, place_put(number, result)))

    def _consume(self, store: MessageStore, ended: threading.Event) -> None:
        while not ended.wait(0.002):
            self.look(store)

    def look(self, store: MessageStore) -> None:
        for queue in store.queues:
            start = max(store.max_offset(queue.topic, queue.queue_id) - 5, 0)
            for record in store.get(queue.topic, queue.queue_id, start).messages:
                self.seen.append((number_of(record), place_of(record)))

    def _save_offsets(self, store: MessageStore, ended: threading.Event) -> None:
        offsets = ConfigFiles(self.files, store.layout.config).consumer_offsets
        while not ended.wait(0.01):
            self.offsets_at_most = max(self.offsets_at_most, self.offsets_saved + 1)
            offsets.write(saved_offsets(self.offsets_saved + 1))
            self.offsets_saved += 1


def saved_offsets(count: int) -> ConsumerOffsets:
    return ConsumerOffsets.from_json({"offsetTable": {"orders@group": {"0": count}}})


# -- looking at what is left ---------------------------------------------------------------------------------


def assert_sound(cut: Cut, folder: Path, settings: Settings) -> None:
    """A store opens on the image, keeps what was promised before the power went, and all that is whole."""
    shutil.rmtree(folder, ignore_errors=True)
    write_image(cut.image, folder)
    with MessageStore.open(folder / "store", settings, files=UnsyncedFiles()) as store:
        found = read_store(store, holes=True)
        saved = ConfigFiles(UnsyncedFiles(), store.layout.config).consumer_offsets.read().table
    if settings.flush_disk_type is FlushDiskType.SYNC_FLUSH:
        assert_there(cut.acknowledged, found, "acknowledged")
        assert_there(cut.seen, found, "seen by a consumer")
    assert_there([promise for promise in cut.acknowledged if is_whole(cut.image, promise)], found, "whole on disk")
    if cut.offsets_saved:
        assert saved in [saved_offsets(count) for count in range(cut.offsets_saved, cut.offsets_at_most + 1)]
    with MessageStore.open(folder / "store", settings, files=UnsyncedFiles()) as store:
        assert read_store(store, holes=True) == found, "the second start shows something else"


def is_whole(image: Image, promise: Promise) -> bool:
    """Whether every byte of a message is in the image."""
    number, place = promise
    position = place.physical_offset % SMALL_FILES["mapped_file_size_commit_log"]
    content = image.get(f"store/commitlog/{place.physical_offset - position:020d}")
    if content is None or check_record(content, position, place.physical_offset - position, True) != Reason.STOP:
        return False
    record = decode_record(content, position)  # in a second life it may be another one
    return (place_of(record), number_of(record)) == (place, number) and is_as_put(record)


def assert_there(promised: list[Promise], found: dict[int, Place], what: str) -> None:
    lost = [(number, place) for number, place in promised if found.get(number) != place]
    assert not lost, f"{len(lost)} of {len(promised)} messages {what} are lost or elsewhere: {lost[:3]}"


def assert_all_sound(scenario: Scenario, seed: str, most: int) -> int:
    """Looks at the images of a scenario, or at a sample of them; returns at how many."""
    cuts = scenario.cuts if len(scenario.cuts) <= most else scenario.chance.sample(scenario.cuts, most)
    folder = scenario.base.with_name("image")
    for cut in cuts:
        try:
            assert_sound(cut, folder, scenario.settings)
        except BaseException:
            print(f"seed {seed!r}, power lost before {cut.what!r}, the disk is in {folder}")
            raise
    return len(cuts)


def first_life(folder: Path, seed: str, flush: str) -> Scenario:
    """Made, written to, closed, opened again, written to, closed."""
    folder.mkdir(parents=True)
    scenario = Scenario(folder / "disk", seed, flush)
    with contextlib.closing(scenario.files):
        for first, count in ((0, 40), (100_000, 10)):
            with scenario.open() as store:
                scenario.work(store, first, count)
        scenario.cut("the next start")
    return scenario


def second_life(folder: Path, seed: str, flush: str, before: Cut) -> Scenario:
    """Recovered from a power loss, looked at, written to, closed."""
    folder.mkdir(parents=True)
    scenario = Scenario(folder / "disk", seed, flush, before)
    with contextlib.closing(scenario.files):
        with scenario.open() as store:
            scenario.seen += read_store(store, holes=True).items()
            scenario.work(store, 200_000, 3)
        scenario.cut("the next start")
    return scenario


def run(folder: Path, seed: str, flush: str, most: int) -> int:
    """Pulls the plug in a first life, and from some of what is left in a second one; returns how often."""
    first = first_life(folder / "first", seed, flush)
    looked = assert_all_sound(first, seed, most // 2)
    for number, before in enumerate(first.chance.sample(first.cuts, 5)):
        second = second_life(folder / f"second-{number}", f"{seed} {number}", flush, before)
        looked += assert_all_sound(second, f"{seed} {number}", most // 10)
    return looked


FLUSH = pytest.mark.parametrize("flush", ["SYNC_FLUSH", "ASYNC_FLUSH"])


@FLUSH
def test_a_power_loss_at_any_sync_keeps_what_was_promised(tmp_path: Path, flush: str) -> None:
    assert run(tmp_path, f"{SEED} {flush}", flush, IMAGES) > 30


@pytest.mark.torture
@pytest.mark.timeout(7200)
@FLUSH
def test_thousands_of_power_losses_keep_what_was_promised(tmp_path: Path, flush: str) -> None:
    looked = 0
    while looked < TORTURE_IMAGES:
        folder = tmp_path / "run"
        looked += run(folder, f"{SEED} {flush} {looked}", flush, 400)
        shutil.rmtree(folder)
        print(f"power losses, {flush}: {looked:,} of {TORTURE_IMAGES:,}, PENSTOCK_SEED={SEED}", flush=True)
