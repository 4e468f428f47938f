"""Whatever is asked, and in whatever state the store is: nothing on disk changes, and its owner keeps the lock."""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from cli.conftest import Writer, all_verbs

from penstock.errors import StoreInUse
from penstock.store import MessageStore, Settings
from penstock.store.files.file_io import Files

if TYPE_CHECKING:
    from cli.conftest import Filled, Run, StartWriter

VERBS = list(all_verbs(Path()))


def fingerprint(folder: Path) -> dict[str, object]:
    """Every name below a folder with its content, size and time of change."""
    found: dict[str, object] = {}
    for path in sorted(folder.rglob("*")):
        facts = path.stat()
        content = hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "folder"
        found[str(path.relative_to(folder))] = (content, facts.st_size, facts.st_mtime_ns, facts.st_ino, facts.st_mode)
    return found


@pytest.mark.parametrize("verb", VERBS)
def test_a_store_that_was_closed_stays_as_it_is(run: Run, filled: Filled, verb: str) -> None:
    before = fingerprint(filled.path)
    ran = run(*all_verbs(filled.path)[verb]).done()
    assert ran.err == ""
    assert fingerprint(filled.path) == before


@pytest.fixture
def killed(killed_model: Path, tmp_path: Path) -> Path:
    """A copy of `killed_model`."""
    return Path(shutil.copytree(killed_model, tmp_path / "store"))


@pytest.fixture(scope="module")
def killed_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store whose writer was killed, with a torn record behind its last one."""
    path = tmp_path_factory.mktemp("killed") / "store"
    writer = Writer(path, 40)
    writer.wait_until_ready()
    writer.kill()
    log = path / "commitlog" / ("0" * 20)
    end = len(log.read_bytes().rstrip(b"\0"))
    with log.open("r+b") as data:
        data.seek(end)
        data.write(b"\x00\x00\x00\x80\xda\xa3\x20\xa7 torn")
    return path


@pytest.mark.parametrize("verb", VERBS)
def test_a_store_that_crashed_stays_as_it_is(run: Run, killed: Path, verb: str) -> None:
    before = fingerprint(killed)
    run(*all_verbs(killed)[verb]).done()
    assert fingerprint(killed) == before


def test_a_store_in_use_stays_as_it_is_and_stays_its_owners(
    run: Run, start_writer: StartWriter, tmp_path: Path
) -> None:
    path = tmp_path / "store"
    owner = start_writer(path, 40)
    before = fingerprint(path)
    for verb, call in all_verbs(path).items():
        ran = run(*call).done()
        if verb != "conf":
            assert ran.err.startswith(f"penstock: {path} is in use by process {owner.pid}: "), verb
            assert ran.err.count("\n") == 1
        assert fingerprint(path) == before, verb
        assert Files().lock_owner(path / "lock") == owner.pid
        with pytest.raises(StoreInUse):
            MessageStore.open(path, Settings.dev())


CHANGES = frozenset(
    {"os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.link", "os.truncate", "os.utime", "os.chmod"}
)
watched: list[str] = []
"""What was opened for writing or changed, while a test looks."""


def watch(event: str, arguments: tuple[object, ...], changes: frozenset[str] = CHANGES) -> None:
    # `changes` is bound here: the hook runs until the interpreter has ended, when globals are None already.
    if event == "open" and isinstance(arguments[2], int) and arguments[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
        watched.append(f"open {arguments[0]}")
    elif event in changes:
        watched.append(f"{event} {arguments[0]}")


sys.addaudithook(watch)


@pytest.mark.parametrize("verb", VERBS)
def test_nothing_is_even_opened_for_writing(run: Run, killed: Path, verb: str) -> None:
    (killed / "probe").write_bytes(b"")
    assert str(killed / "probe") in watched[-1]
    watched.clear()
    run(*all_verbs(killed)[verb]).done()
    assert watched == []
