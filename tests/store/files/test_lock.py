"""One process owns a store, and opening says in one sentence why it cannot."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from support.stores import StoreHome

from penstock.errors import BadStore, PenstockError, StoreFailed, StoreInUse
from penstock.store import Message, MessageStore, Settings
from penstock.store.files.file_io import Files

Run = Callable[..., "subprocess.Popen[str]"]

OWNER = """
import sys
from penstock.store import Message, MessageStore, Settings
with MessageStore.open(sys.argv[1], Settings.dev()) as store:
    store.put(Message("T", b"theirs"))
    store.catch_up()
    print("open", flush=True)
    sys.stdin.readline()
"""

ASKER = """
import sys
from penstock.errors import StoreInUse
from penstock.store import MessageStore, Settings
try:
    MessageStore.open(sys.argv[1], Settings.dev()).close()
    print("opened")
except StoreInUse:
    print("in use")
"""


def ask(run_python: Run, path: Path) -> str:
    """Whether another process can open the store."""
    answer, errors = run_python(ASKER, path).communicate(timeout=60)
    assert answer, errors
    return answer.strip()


def test_a_store_that_another_process_owns_is_refused_and_left_alone(home: StoreHome, run_python: Run) -> None:
    owner = run_python(OWNER, home.path)
    assert owner.stdout is not None
    assert owner.stdout.readline() == "open\n"
    before = home.listing()
    with pytest.raises(StoreInUse, match="in use by another process") as refused:
        home.open()
    assert str(home.path) in str(refused.value)
    assert "\n" not in str(refused.value)
    assert home.listing() == before
    assert Files().lock_owner(home.path / "lock") == owner.pid

    owner.communicate("close\n", timeout=60)
    store = home.open()
    assert store.report.clean_exit
    assert home.bodies(store, "T") == [b"theirs"]


def test_a_refused_open_does_not_take_the_lock_from_its_owner(home: StoreHome, run_python: Run) -> None:
    owner = run_python(OWNER, home.path)
    assert owner.stdout is not None
    assert owner.stdout.readline() == "open\n"
    for _ in range(2):
        with pytest.raises(StoreInUse):
            home.open()
    assert ask(run_python, home.path) == "in use"


def test_the_same_process_cannot_open_a_store_twice(home: StoreHome, run_python: Run) -> None:
    store = home.open()
    with pytest.raises(StoreInUse, match="already open in this process"):
        home.open()
    assert ask(run_python, home.path) == "in use", "the attempt did not drop the lock"
    assert store.put(Message("T", b"still mine")).ok
    store.close()
    assert home.open().put(Message("T", b"mine again")).queue_offset == 1


def test_another_name_for_the_same_folder_is_the_same_store(home: StoreHome, tmp_path: Path) -> None:
    home.open()
    (tmp_path / "link").symlink_to(home.path)
    with pytest.raises(StoreInUse):
        MessageStore.open(tmp_path / "link", Settings.dev())
    with pytest.raises(StoreInUse):
        MessageStore.open(home.path / ".." / home.path.name, Settings.dev())


def test_a_read_only_view_does_not_drop_the_lock(home: StoreHome, run_python: Run) -> None:
    store = home.open()
    store.put(Message("T", b"mine"))
    with home.open(read_only=True) as view:
        assert home.bodies(view, "T") == [b"mine"]
        assert ask(run_python, home.path) == "in use"
    assert Files().lock_owner(home.path / "lock") == os.getpid()
    assert ask(run_python, home.path) == "in use"
    store.close()
    assert ask(run_python, home.path) == "opened"


def test_a_read_only_view_needs_no_lock_and_changes_no_byte(home: StoreHome) -> None:
    with home.open() as store:
        store.put(Message("T", b"x", keys=("k",)))
    home.mark_crashed()
    home.write(home.log_files()[0], 5000, b"garbage")
    before = home.listing()
    with home.open(read_only=True) as view:
        assert home.bodies(view, "T") == [b"x"]
        assert len(view.query("T", "k")) == 1
        with pytest.raises(StoreFailed, match="read-only"):
            view.put(Message("T", b"y"))
    assert home.listing() == before


def test_the_lock_is_the_one_that_rocketmq_takes(home: StoreHome, run_python: Run) -> None:
    """A POSIX record lock on the first byte of `lock`."""
    holder = run_python(
        "import fcntl, os, sys\n"
        "fd = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)\n"
        "fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)\n"
        "print('held', flush=True)\n"
        "sys.stdin.readline()\n",
        home.path.parent / "lock",
    )
    assert holder.stdout is not None
    assert holder.stdout.readline() == "held\n"
    home.path = home.path.parent
    with pytest.raises(StoreInUse):
        home.open()
    holder.communicate("go\n", timeout=60)
    home.open()
    prober = "import fcntl, os, sys; fcntl.lockf(os.open(sys.argv[1], os.O_RDWR), fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)"
    assert run_python(prober, home.path / "lock").wait(60) != 0, "a Java broker would see it"
    assert (home.path / "lock").read_bytes() == b"lock"


def test_a_killed_owner_leaves_no_lock_behind(home: StoreHome, run_python: Run) -> None:
    owner = run_python(OWNER, home.path)
    assert owner.stdout is not None
    assert owner.stdout.readline() == "open\n"
    owner.kill()
    owner.wait(60)
    assert Files().lock_owner(home.path / "lock") == 0
    store = home.open()
    assert not store.report.clean_exit
    assert home.bodies(store, "T") == [b"theirs"]


# -- the folder ----------------------------------------------------------------------------------------------


def test_the_folder_is_made_with_all_above_it(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b" / "store"
    with MessageStore.open(path, Settings.dev()) as store:
        assert store.put(Message("T", b"x")).ok
    assert (path / "commitlog").is_dir()


def test_the_folder_may_be_given_as_text(tmp_path: Path) -> None:
    with MessageStore.open(str(tmp_path / "store"), Settings.dev()) as store:
        assert store.put(Message("T", b"x")).ok


def test_a_file_instead_of_a_folder_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "store"
    path.write_text("mine")
    for read_only in (False, True):
        with pytest.raises(BadStore) as refused:
            MessageStore.open(path, Settings.dev(), read_only=read_only)
        assert str(path) in str(refused.value)
    with pytest.raises(PenstockError) as refused_below:
        MessageStore.open(path / "below", Settings.dev())
    assert str(path / "below") in str(refused_below.value)
    assert path.read_text() == "mine"


def test_a_read_only_view_of_nothing_is_refused_and_makes_nothing(tmp_path: Path) -> None:
    with pytest.raises(BadStore, match="no such folder"):
        MessageStore.open(tmp_path / "nowhere", Settings.dev(), read_only=True)
    assert list(tmp_path.iterdir()) == []


def as_nobody(work: Callable[[], None]) -> str:
    """Runs work in a child process without root's rights; returns what it wrote of its exception."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        said = "nothing was raised"
        try:
            os.close(reading)
            if os.geteuid() == 0:
                os.setgroups([])
                os.setgid(65534)
                os.setuid(65534)
            work()
        except PenstockError as error:
            said = f"{type(error).__name__}: {error}"
        except BaseException as error:
            said = f"unexpected {type(error).__name__}: {error}"
        finally:
            os.write(writing, said.encode())
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        said = pipe.read()
    os.waitpid(child, 0)
    return said


def test_a_read_only_folder_is_refused_in_one_sentence() -> None:
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        with MessageStore.open(place / "store", Settings.dev()) as store:
            store.put(Message("T", b"x"))
        for path in (*place.rglob("*"), place):
            path.chmod(0o555 if path.is_dir() else 0o444)
        try:
            existing = as_nobody(lambda: MessageStore.open(place / "store", Settings.dev()).close())
            new = as_nobody(lambda: MessageStore.open(place / "new", Settings.dev()).close())
            viewed = as_nobody(lambda: MessageStore.open(place / "store", Settings.dev(), read_only=True).close())
        finally:
            for path in (place, place / "store"):
                path.chmod(0o755)
            for path in (place / "store").rglob("*"):
                path.chmod(0o755)
        assert existing.startswith(f"StoreFailed: {place}/store/lock: "), existing
        assert "read-only for this user" in existing
        assert new.startswith(f"StoreFailed: {place}/new/lock: "), new
        assert "read-only for this user" in new
        assert viewed == "nothing was raised", "a view needs no right to write"
        assert not (place / "new").exists()
