"""A view of the disk that keeps every change to itself: nothing on disk changes, not even a time."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.stores import StoreHome

from penstock.errors import BadStore
from penstock.store import Message
from penstock.store.files.in_memory_copy_on_write_files import OverlayFiles


def tree(folder: Path) -> dict[str, tuple[bytes, int, int]]:
    """Every file below a folder: its content, its inode and when it was changed."""
    return {
        str(path.relative_to(folder)): (path.read_bytes(), path.stat().st_ino, path.stat().st_mtime_ns)
        for path in folder.rglob("*")
        if path.is_file()
    }


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A folder that must be the same afterwards, to the byte."""
    (tmp_path / "queue").mkdir()
    (tmp_path / "queue" / "0").write_bytes(b"\x01" * 4096)
    (tmp_path / "queue" / "1").write_bytes(b"\x02" * 4096)
    (tmp_path / "empty").write_bytes(b"")
    before = tree(tmp_path)
    yield tmp_path
    assert tree(tmp_path) == before
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["empty", "queue"]


def test_an_overlay_reads_what_is_there(folder: Path) -> None:
    view = OverlayFiles()
    assert view.names(folder / "queue") == ["0", "1"]
    assert view.exists(folder / "queue" / "0")
    assert view.is_folder(folder / "queue")
    assert view.size(folder / "queue" / "0") == 4096
    assert view.read_bytes(folder / "queue" / "1") == b"\x02" * 4096


def test_what_is_stored_in_an_overlays_map_stays_in_memory(folder: Path) -> None:
    seen = OverlayFiles().open_map(folder / "queue" / "0")
    seen.view[:4] = b"\xff" * 4
    seen.sync()
    assert bytes(seen.view[:5]) == b"\xff" * 4 + b"\x01"
    seen.close()


def test_a_file_made_in_an_overlay_is_seen_only_there(folder: Path) -> None:
    view = OverlayFiles()
    made = view.create_map(folder / "queue" / "2", 4096)
    made.view[0] = 7
    assert view.names(folder / "queue") == ["0", "1", "2"]
    assert view.exists(folder / "queue" / "2")
    assert view.size(folder / "queue" / "2") == 4096
    assert view.read_bytes(folder / "queue" / "2")[0] == 7
    made.close()


def test_a_file_removed_in_an_overlay_is_gone_only_there(folder: Path) -> None:
    view = OverlayFiles()
    view.unlink(folder / "queue" / "0")
    assert view.names(folder / "queue") == ["1"]
    assert not view.exists(folder / "queue" / "0")
    for look in (view.read_bytes, view.size, view.open_map, view.modified_ms):
        with pytest.raises(FileNotFoundError):
            look(folder / "queue" / "0")


def test_a_file_replaced_in_an_overlay_has_its_new_content_only_there(folder: Path) -> None:
    view = OverlayFiles()
    view.replace_bytes(folder / "queue" / "0", b"new", keep_backup=True)
    assert view.read_bytes(folder / "queue" / "0") == b"new"
    assert view.size(folder / "queue" / "0") == 3
    opened = view.open_map(folder / "queue" / "0")
    assert bytes(opened.view) == b"new"
    opened.close()


def test_a_file_renamed_in_an_overlay_has_its_new_name_only_there(folder: Path) -> None:
    view = OverlayFiles()
    view.rename(folder / "queue" / "0", folder / "queue" / "9")
    assert view.names(folder / "queue") == ["1", "9"]
    assert view.read_bytes(folder / "queue" / "9") == b"\x01" * 4096


def test_a_folder_renamed_in_an_overlay_is_gone_only_there(folder: Path) -> None:
    view = OverlayFiles()
    view.rename(folder / "queue", folder / "aside")
    assert view.names(folder / "queue") == []
    assert not view.exists(folder / "queue")
    assert not view.is_folder(folder / "queue")
    assert view.names(folder / "aside") == ["0", "1"]
    assert view.read_bytes(folder / "aside" / "0") == b"\x01" * 4096
    opened = view.open_map(folder / "aside" / "1")
    assert (opened.path, bytes(opened.view[:2])) == (folder / "aside" / "1", b"\x02\x02")
    opened.close()


def test_another_folder_may_take_the_place_of_one_that_was_moved(folder: Path) -> None:
    view = OverlayFiles()
    view.create_map(folder / "staged" / "deep" / "7", 8).view[:] = b"in place"
    assert view.is_folder(folder / "staged")
    view.rename(folder / "queue", folder / "aside")
    view.rename(folder / "staged" / "deep", folder / "queue")
    assert view.names(folder / "queue") == ["7"]
    assert view.read_bytes(folder / "queue" / "7") == b"in place"
    view.remove_folder(folder / "staged")
    assert not view.exists(folder / "staged")


def test_a_folder_made_in_an_overlay_is_seen_only_there(folder: Path) -> None:
    view = OverlayFiles()
    view.make_folder(folder / "new")
    assert view.is_folder(folder / "new")
    assert "new" in view.names(folder)
    view.sync_folder(folder / "new")
    view.remove_folder(folder / "new")
    assert not view.exists(folder / "new")
    view.remove_folder(folder / "queue")
    assert view.is_folder(folder / "queue"), "it is not empty"


def test_an_empty_file_cannot_be_mapped_and_is_named(folder: Path) -> None:
    with pytest.raises(BadStore, match="the file is empty") as caught:
        OverlayFiles().open_map(folder / "empty")
    assert str(folder / "empty") in str(caught.value)


def resident_kb(path: Path) -> int:
    """How much of a file's maps is in this process's memory."""
    total, is_ours = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if not line[0].isupper():
            is_ours = line.endswith(str(path))
        elif is_ours and line.startswith("Rss:"):
            total += int(line.split()[1])
    return total


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells what is resident")
def test_a_view_keeps_no_pages_of_the_log_that_it_has_walked(home: StoreHome, monkeypatch: pytest.MonkeyPatch) -> None:
    with home.open(mapped_file_size_commit_log=16 << 20) as store:
        for number in range(900):
            store.put(Message("T", b"%d" % number + bytes(8000)))
    (log,) = home.log_files()
    monkeypatch.setattr("penstock.store.log_end_and_damage._PIECE", 1 << 20)
    monkeypatch.setattr("penstock.store.recovery.log._STRIDE", 1 << 20)
    with home.open(read_only=True, mapped_file_size_commit_log=16 << 20) as view:
        assert resident_kb(log) < 4096
        assert home.bodies(view, "T")[-1].startswith(b"899")
