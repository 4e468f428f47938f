"""A store's folder before it is opened, and views of it."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path
from subprocess import Popen

import pytest
from support.stores import StoreHome

from penstock.errors import BadSettings, BadStore, StoreFailed
from penstock.store import Message
from penstock.store.readonly.store_folder import StoreFolder

OWNER = """
import sys
from pathlib import Path
from penstock.store import MessageStore, Settings
with MessageStore.open(Path(sys.argv[1]), Settings.dev()):
    print("open", flush=True)
    sys.stdin.read()
"""


@pytest.mark.parametrize("sign", ["commitlog", "consumequeue", "index", "config", "checkpoint", "abort", "lock"])
def test_a_folder_with_any_part_of_a_store_is_one(tmp_path: Path, sign: str) -> None:
    with pytest.raises(BadStore, match=r"there is no store here: none of commitlog, .* is in the folder"):
        StoreFolder.find(tmp_path)
    (tmp_path / sign).mkdir()
    assert StoreFolder.find(tmp_path).owner == 0


def test_a_folder_that_is_none_is_said(tmp_path: Path) -> None:
    with pytest.raises(BadStore, match="there is no store here: no such folder"):
        StoreFolder.find(tmp_path / "nothing")
    (tmp_path / "file").touch()
    with pytest.raises(BadStore, match="a store is a folder, and this is a file"):
        StoreFolder.find(tmp_path / "file")


def test_settings_come_from_a_file_and_from_pairs(home: StoreHome, tmp_path: Path) -> None:
    home.open().close()
    conf = tmp_path / "broker.conf"
    conf.write_text("messageIndexEnable=false\n")
    found = StoreFolder.find(home.path, conf, ["fileReservedTime=5"])
    assert not found.settings.message_index_enable
    assert found.settings.file_reserved_time == 5
    with pytest.raises(BadSettings):
        StoreFolder.find(home.path, conf, ["fileReservedTime=never"])


def test_the_log_may_lie_elsewhere(home: StoreHome, tmp_path: Path) -> None:
    log = tmp_path / "log"
    with home.open(store_path_commit_log=log) as store:
        home.put_numbered(store, 3)
    found = StoreFolder.find(home.path, None, [f"storePathCommitLog={log}"])
    assert found.layout.commit_log == log
    view = found.view().store
    assert home.bodies(view, "T") == [b"0000", b"0001", b"0002"]
    view.close()


def test_any_owner_is_seen(home: StoreHome, run_python: Callable[..., Popen[str]]) -> None:
    with home.open():
        assert StoreFolder.find(home.path).owner == os.getpid()
    assert StoreFolder.find(home.path).owner == 0
    other = run_python(OWNER, home.path)
    assert other.stdout is not None
    assert other.stdout.readline() == "open\n"
    assert StoreFolder.find(home.path).owner == other.pid
    assert not StoreFolder.find(home.path).closed_cleanly
    other.communicate("")
    assert StoreFolder.find(home.path).owner == 0
    assert StoreFolder.find(home.path).closed_cleanly


def test_a_view_shows_what_a_start_would_serve_and_changes_nothing(home: StoreHome, tmp_path: Path) -> None:
    with home.open(mapped_file_size_commit_log=8192, mapped_file_size_consume_queue=200) as store:
        home.put_numbered(store, 100)
        store.flush()
        crashed = home.copy_to(tmp_path / "crashed")
    for path in (crashed.path / "consumequeue").rglob("0*0"):
        if path.is_file():
            path.unlink()
    before = crashed.listing()
    found = StoreFolder.find(crashed.path)
    assert not found.closed_cleanly
    view, problem = found.view()
    assert problem == ""
    assert home.bodies(view, "T") == [b"%04d" % number for number in range(100)]
    assert [record.body for record in view.query("T", "k7")] == [b"0007"]
    with pytest.raises(StoreFailed):
        view.put_many([])
    view.close()
    assert crashed.listing() == before


def test_an_index_that_cannot_be_read_is_a_problem_only_for_who_needs_it(home: StoreHome) -> None:
    with home.open() as store:
        home.put_numbered(store, 3)
    (home.path / "penstock" / "dispatched.json").unlink()
    index = home.index_files()[0]
    index.write_bytes(index.read_bytes()[:-4])
    found = StoreFolder.find(home.path)
    view, problem = found.view()
    assert problem.startswith("the index cannot be read: ")
    assert home.bodies(view, "T") == [b"0000", b"0001", b"0002"]
    view.close()
    with pytest.raises(BadStore, match="the index cannot be read"):
        found.view(needs_index=True)


def test_defaults_do_not_go_before_what_was_given(home: StoreHome) -> None:
    home.open().close()
    for pairs, expected in (([], 7), (["fileReservedTime=5"], 5)):
        view = StoreFolder.find(home.path, None, pairs).view(file_reserved_time=7).store
        assert view.settings.file_reserved_time == expected
        view.close()


def test_what_an_owner_disturbs_is_tried_again(home: StoreHome) -> None:
    tried: list[int] = []

    def act(fails: int) -> str:
        tried.append(fails)
        if len(tried) <= fails:
            raise FileNotFoundError(2, "gone", "x")
        return "done"

    with home.open():
        folder = StoreFolder.find(home.path)
        assert folder.retrying(lambda: act(3)) == "done"
        assert len(tried) == 4
        tried.clear()
        with pytest.raises(FileNotFoundError):
            folder.retrying(lambda: act(9))
        assert len(tried) == 4
    tried.clear()
    with pytest.raises(FileNotFoundError):
        StoreFolder.find(home.path).retrying(lambda: act(1))
    assert len(tried) == 1, "without an owner nothing changes by itself"


def test_only_the_owner_may_read_what_a_store_creates(home: StoreHome) -> None:
    umask = os.umask(0)
    try:
        with home.open() as store:
            assert store.put(Message("T", b"x", keys="k")).ok
    finally:
        os.umask(umask)
    modes = {path: stat.S_IMODE(path.stat().st_mode) for path in home.path.rglob("*")}
    assert {mode for path, mode in modes.items() if path.is_file()} == {0o600}
    assert {mode for path, mode in modes.items() if path.is_dir()} == {0o700}
