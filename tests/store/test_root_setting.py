"""storePathRootDir names the store's folder unless a path does."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.errors import StoreFailed
from penstock.store import Message, MessageStore, Settings
from penstock.store.files.file_io import Files


def test_the_setting_names_the_folder_unless_a_path_does(tmp_path: Path) -> None:
    settings = Settings.dev(store_path_root_dir=tmp_path / "set")
    for path, folder in ((None, "set"), (tmp_path / "given", "given")):
        with MessageStore.open(path, settings) as store:
            assert store.put(Message("orders", b"x")).ok
        assert (tmp_path / folder / "commitlog").is_dir()


class NoFolders(Files):
    def make_folder(self, folder: Path) -> None:
        raise OSError(30, "Read-only file system", str(folder))


def test_whatever_the_disk_refuses_while_opening_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(StoreFailed, match="read-only"):
        MessageStore.open(tmp_path / "new", Settings.dev(), files=NoFolders())
