"""A view for dry runs: what is stored into a map is still there when the file is opened again."""

from __future__ import annotations

from pathlib import Path

from penstock.store.files.in_memory_copy_on_write_files import OverlayFiles, RehearsalFiles


def test_what_is_stored_outlives_closing_and_moving_and_never_reaches_the_disk(tmp_path: Path) -> None:
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "file").write_bytes(b"as it was")
    view = RehearsalFiles()
    with_change = view.open_map(tmp_path / "old" / "file")
    with_change.view[:5] = b"as it"[::-1]
    with_change.close()
    view.rename(tmp_path / "old", tmp_path / "new")
    again = view.open_map(tmp_path / "new" / "file")
    assert again.path == tmp_path / "new" / "file"
    assert bytes(again.view) == b"ti sa was"
    assert list(again.written_ranges(3)) == [(3, 9)]
    assert not view.exists(tmp_path / "old" / "file")
    assert (tmp_path / "old" / "file").read_bytes() == b"as it was"
    assert not (tmp_path / "new").exists()


def test_what_is_made_outlives_closing(tmp_path: Path) -> None:
    view = RehearsalFiles()
    made = view.create_map(tmp_path / "a" / "b", 4)
    made.view[:] = b"1234"
    made.close()
    assert view.read_bytes(tmp_path / "a" / "b") == b"1234"
    assert bytes(view.open_map(tmp_path / "a" / "b").view) == b"1234"
    assert OverlayFiles().names(tmp_path) == []
