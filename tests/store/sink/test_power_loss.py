"""The plug is pulled at every sync of a commit, and of a roll-back: all of the batch is there, or nothing.

What a commit has answered for is there, whatever was not synced; `PENSTOCK_SEED` chooses other images of the disk.
"""

from __future__ import annotations

import logging
import shutil
from pathlib import Path

import pytest
from support.arrow import SETTINGS, assert_sound, bodies, commit_rows, make_store, query_batch, whole
from support.disks import UnsyncedFiles
from support.messages import SEED
from support.power_loss import Image, PowerLossFiles, write_image

from penstock.format.index_layout import ITEM_SIZE, IndexGeometry
from penstock.store import MessageStore
from penstock.store.files.file_io import Files
from penstock.store.files.layout import Layout
from penstock.store.sink import pending_start

ROWS = 30


@pytest.fixture(autouse=True)
def only_errors_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR, logger="penstock.store")


@pytest.fixture
def base(tmp_path: Path) -> Path:
    """A folder with a sound store in it."""
    make_store(tmp_path / "base" / "store", UnsyncedFiles())
    return tmp_path / "base"


def cuts_of_commit(base: Path, seed: str) -> tuple[list[tuple[str, Image]], Image]:
    """What the disk may hold at each sync of a commit, and after it."""
    cuts: list[tuple[str, Image]] = []
    files = PowerLossFiles(base, seed, lambda what: cuts.append((what, files.image())))
    try:
        commit_rows(base / "store", query_batch(1), ROWS, files)
        return cuts, files.image()
    finally:
        files.close()


def opened(image: Image, folder: Path) -> Path:
    shutil.rmtree(folder, ignore_errors=True)
    write_image(image, folder)
    return folder / "store"


def test_the_power_goes_at_any_sync_of_a_commit(base: Path, tmp_path: Path) -> None:
    seed = f"{SEED} commit"
    print(f"seed: {seed}")
    cuts, _ = cuts_of_commit(base, seed)
    assert len(cuts) > 30
    stored = 0
    for what, image in cuts:
        path = opened(image, tmp_path / "image")
        found = bodies(path)
        assert found in ([], whole(1, ROWS)), what
        stored += bool(found)
        assert_sound(path)
        commit_rows(path, query_batch(1), ROWS, UnsyncedFiles())
        assert bodies(path) == whole(1, ROWS), what
    assert 0 < stored < len(cuts)


@pytest.mark.parametrize("number", range(10))
def test_what_was_committed_outlives_the_power(base: Path, tmp_path: Path, number: int) -> None:
    seed = f"{SEED} committed {number}"
    print(f"seed: {seed}")
    _, after = cuts_of_commit(base, seed)
    path = opened(after, tmp_path / "image")
    assert bodies(path) == whole(1, ROWS)
    assert commit_rows(path, query_batch(1), ROWS, UnsyncedFiles()).already_stored
    assert_sound(path)


def test_the_power_goes_at_any_sync_of_a_roll_back(base: Path, tmp_path: Path) -> None:
    seed = f"{SEED} roll back"
    print(f"seed: {seed}")
    cuts, _ = cuts_of_commit(base, seed)
    whole_log = next(image for what, image in cuts if what.startswith("write store/penstock/sink/marks"))
    layout = Layout.of(opened(whole_log, tmp_path / "killed"), SETTINGS)
    assert pending_start(Files(), layout) is not None
    again: list[tuple[str, Image]] = []
    files = PowerLossFiles(tmp_path / "killed", seed, lambda what: again.append((what, files.image())))
    MessageStore.open(layout.root, SETTINGS, files=files).close()
    files.close()
    assert len(again) > 10
    for what, image in again:
        path = opened(image, tmp_path / "image")
        assert bodies(path, read_only=True) == [], what
        assert bodies(path) == [], what
        assert_sound(path)


@pytest.mark.parametrize(("first", "lost"), [(38, 1), (38, 5), (14, 28), (5, 6)])
def test_index_items_that_were_counted_and_never_reached_the_disk_hide_no_others(
    base: Path, tmp_path: Path, first: int, lost: int
) -> None:
    cuts, _ = cuts_of_commit(base, f"{SEED} items")
    whole_log = next(image for what, image in cuts if what.startswith("write store/penstock/sink/marks"))
    path = opened(whole_log, tmp_path / "killed")
    [index] = Layout.of(path, SETTINGS).index.iterdir()
    with index.open("r+b") as file:
        file.seek(IndexGeometry(50, 150).item_position(first))
        file.write(bytes(ITEM_SIZE * lost))
    index_before = index.read_bytes()
    assert bodies(path, read_only=True) == []
    assert index.read_bytes() == index_before
    assert bodies(path) == []
    assert_sound(path)
