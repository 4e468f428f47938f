"""What is kept aside: where, how much of it, and who is asked before there is more than the limit."""

from __future__ import annotations

import errno
import os
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest
from support.stores import Clock, StoreHome, is_one_sentence

from penstock.errors import StoreFailed
from penstock.store import MessageStore, Settings
from penstock.store.damage_and_quarantine import Quarantine, QuarantinedFolder, quarantined_folders
from penstock.store.files.file_io import Files
from penstock.store.files.in_memory_copy_on_write_files import OverlayFiles

SMALL = {
    "mapped_file_size_commit_log": 4096,
    "mapped_file_size_consume_queue": 20 * 20,
    "max_hash_slot_num": 50,
    "max_index_num": 40,
}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "store" / "penstock" / "quarantine"


def quarantine(root: Path, files: Files | None = None, **limits: object) -> Quarantine:
    return Quarantine(files or Files(), root, Clock(), **limits)  # type: ignore[arg-type]


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


# -- keeping -------------------------------------------------------------------------------------------------------


def test_bytes_are_kept_under_the_time_of_the_start(root: Path) -> None:
    kept = quarantine(root).keep("commitlog-1", b"torn")
    assert kept.read_bytes() == b"torn"
    assert kept.parent.parent == root
    assert kept.parent.name.startswith("20200913T")


def test_two_starts_in_one_millisecond_have_a_folder_each(root: Path) -> None:
    first, second = quarantine(root).keep("a", b"1"), quarantine(root).keep("a", b"2")
    assert first.parent != second.parent
    assert (first.read_bytes(), second.read_bytes()) == (b"1", b"2")


def test_the_same_name_twice_is_kept_twice(root: Path) -> None:
    here = quarantine(root)
    assert here.keep("a", b"1") != here.keep("a", b"2")
    assert sorted(contents(root).values()) == [b"1", b"2"]


def test_files_and_folders_are_moved_under_the_path_they_had(root: Path) -> None:
    store = root.parent.parent
    for queue in ("T/0", "T/1", "U/0"):
        (store / "consumequeue" / queue).mkdir(parents=True)
        (store / "consumequeue" / queue / "file").write_text(queue)
    here = quarantine(root)
    here.move_in(store / "consumequeue" / "T" / "0")
    here.move_in(store / "consumequeue" / "T" / "1" / "file")
    here.move_in(store / "consumequeue" / "U" / "0")
    (folder,) = root.iterdir()
    assert contents(folder) == {f"consumequeue/{queue}/file": queue.encode() for queue in ("T/0", "T/1", "U/0")}
    assert contents(store / "consumequeue") == {}


def test_a_log_on_another_disk_is_copied(root: Path, tmp_path: Path) -> None:
    class TwoDisks(Files):
        def rename(self, source: Path, target: Path) -> None:
            if source.is_relative_to(tmp_path / "log") != target.is_relative_to(tmp_path / "log"):
                raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))
            super().rename(source, target)

    for content in (b"content", b""):
        path = tmp_path / "log" / "00000000000000004096"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(content)
        kept = quarantine(root, TwoDisks()).move_in(path)
        assert kept.read_bytes() == content
        assert kept.parent.name == "log"
        assert not path.exists()


def test_what_cannot_be_moved_stays(root: Path) -> None:
    class Stubborn(Files):
        def rename(self, source: Path, target: Path) -> None:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    path = root.parent.parent / "index" / "file"
    path.parent.mkdir(parents=True)
    path.write_bytes(b"x")
    with pytest.raises(StoreFailed) as refused:
        quarantine(root, Stubborn()).move_in(path)
    assert is_one_sentence(str(refused.value))
    assert path.read_bytes() == b"x"


def test_keeping_much_takes_little_memory(root: Path, tmp_path: Path) -> None:
    """A torn file of 1 GiB must not need as much memory: the bytes go from the map to the file."""
    size = 64 << 20
    Files().create_sparse(tmp_path / "torn", size)
    torn = Files().open_map(tmp_path / "torn")
    tracemalloc.start()
    try:
        with torn.view[100:] as rest:
            kept = quarantine(root).keep("commitlog-100", rest)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
        torn.close()
    assert kept.stat().st_size == size - 100
    assert peak < 1 << 20


def test_a_view_keeps_nothing(root: Path) -> None:
    store = root.parent.parent
    (store / "index").mkdir(parents=True)
    (store / "index" / "1").write_bytes(b"x")
    before = contents(store)
    view = OverlayFiles()
    here = quarantine(root, view, max_bytes=0)
    here.keep("torn", b"torn")
    here.move_in(store / "index" / "1")
    assert not view.exists(store / "index" / "1")
    assert contents(store) == before
    assert not root.exists()


# -- the limit -----------------------------------------------------------------------------------------------------


def test_the_limit_counts_what_is_held_and_what_would_be_added(root: Path) -> None:
    asked: list[tuple[int, int, int]] = []

    def refuse(needed: int, held: int, limit: int) -> bool:
        asked.append((needed, held, limit))
        return False

    quarantine(root).keep("old", b"x" * 10_000)
    held = Files().allocated(root)
    assert held >= 10_000
    here = quarantine(root, max_bytes=held + 5000, may_exceed=refuse)
    here.keep("a", b"x" * 1000)
    assert asked == []
    with pytest.raises(StoreFailed) as refused:
        here.keep("b", b"x" * 5000)
    assert asked == [(5000, Files().allocated(root), held + 5000)]
    sentence = str(refused.value)
    for words in ("5000 bytes", f"holds {asked[0][1]} bytes", "quarantineMaxBytes", "remove old folders", str(root)):
        assert words in sentence
    assert is_one_sentence(sentence)


def test_room_that_was_asked_for_is_not_asked_for_again(root: Path) -> None:
    answers: list[int] = []

    def agree(needed: int, held: int, limit: int) -> bool:
        answers.append(needed)
        return True

    here = quarantine(root, max_bytes=100, may_exceed=agree)
    here.reserve(3000)
    here.keep("a", b"x" * 1000)
    here.keep("b", b"x" * 2000)
    here.keep("c", b"x" * 2000)
    assert answers == [3000], "who agreed once has agreed"


def test_what_is_held_is_listed_by_folder(root: Path) -> None:
    quarantine(root).keep("a", b"x" * 5000)
    second = quarantine(root)
    second.keep("b", b"x")
    second.keep("c", b"x")
    assert quarantined_folders(Files(), root) == [
        QuarantinedFolder(folder.name, files, Files().allocated(folder))
        for folder, files in zip(sorted(root.iterdir()), (1, 2), strict=True)
    ]
    assert quarantined_folders(Files(), root / "nowhere") == []


# -- a start -------------------------------------------------------------------------------------------------------


def torn_tail(home: StoreHome) -> None:
    home.write(home.log_files()[-1], 3500, b"torn!" * 100)


def garbage_queue(home: StoreHome) -> None:
    home.queue_files("T")[1].write_bytes(b"\x01" * 400)


def garbage_index(home: StoreHome) -> None:
    home.index_files()[1].write_bytes(b"\x01" * home.index_files()[1].stat().st_size)


def no_log(home: StoreHome) -> None:
    for path in home.log_files():
        path.unlink()


HARMS = [torn_tail, garbage_queue, garbage_index, no_log]


@pytest.mark.parametrize("harm", HARMS, ids=[harm.__name__ for harm in HARMS])
@pytest.mark.parametrize("crashed", [False, True])
def test_a_start_that_may_not_keep_things_aside_leaves_everything_as_it_was(
    home: StoreHome, harm: Callable[[StoreHome], None], crashed: bool
) -> None:
    with home.open(**SMALL) as store:
        home.put_numbered(store, 120)
    harm(home)
    if crashed:
        home.mark_crashed()
    before = home.listing()
    with pytest.raises(StoreFailed) as refused:
        home.open(**SMALL, quarantine_max_bytes=0)
    assert "quarantineMaxBytes" in str(refused.value)
    assert is_one_sentence(str(refused.value))
    assert home.listing() == before
    with home.open(read_only=True, **SMALL, quarantine_max_bytes=0) as view:
        shown = home.state(view)
    asked: list[int] = []
    settings = Settings.dev(**SMALL, quarantine_max_bytes=0)
    with MessageStore.open(
        home.path, settings, clock=home.clock, may_exceed=lambda needed, held, limit: not asked.append(needed)
    ) as store:
        assert home.state(store) == shown
    assert len(asked) == 1
    assert home.kept() != []
    assert sum(path.stat().st_size for path in home.kept()) <= asked[0] or harm is no_log


def test_a_start_that_keeps_nothing_asks_nobody(home: StoreHome) -> None:
    with home.open(**SMALL) as store:
        home.put_numbered(store, 120)
    home.mark_crashed()
    with home.open(**SMALL, quarantine_max_bytes=0) as store:
        assert store.report.kept_aside == []
