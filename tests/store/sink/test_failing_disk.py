"""The N-th call to the disk fails, for every N of a commit: one sentence, and nothing of the batch, or all of it."""

from __future__ import annotations

import errno
import logging
import shutil
from pathlib import Path

import pytest
from support.arrow import assert_sound, bodies, commit_rows, make_store, query_batch, whole
from support.disks import FailingFiles, UnsyncedFiles
from support.effort import in_parts
from support.messages import SEED
from support.stores import is_one_sentence

from penstock.errors import PenstockError, disk_refused
from penstock.store.sink.journal import Identity, WriterKind

ROWS = 30


@pytest.fixture(autouse=True)
def only_what_matters_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, logger="penstock.store")


@pytest.fixture
def sound(tmp_path: Path) -> Path:
    make_store(tmp_path / "sound", UnsyncedFiles())
    return tmp_path / "sound"


@pytest.mark.parametrize("stays_broken", in_parts([False, True]))
@pytest.mark.parametrize("every", [pytest.param(1, marks=pytest.mark.torture), 4])
def test_any_call_fails(sound: Path, every: int, stays_broken: bool) -> None:
    number, refused = SEED % every, 0
    while True:
        path = shutil.copytree(sound, sound.parent / f"failed {number}")
        kind = (errno.EIO, errno.ENOSPC)[number // every % 2]
        files = FailingFiles(number, kind, stays_broken=stays_broken)
        sentence = ""
        try:
            commit_rows(path, query_batch(1), ROWS, files)
        except PenstockError as error:
            sentence = str(error)
            refused += 1
        if files.failed is None:
            break
        found = bodies(path)
        assert found in ([], whole(1, ROWS)), files.failed
        assert is_one_sentence(sentence) if sentence else found, f"{files.failed}: it was said to be stored"
        assert not found or not sentence or "it is unknown whether" in sentence, f"{files.failed}: {sentence}"
        commit_rows(path, query_batch(1), ROWS, UnsyncedFiles())
        assert bodies(path) == whole(1, ROWS), files.failed
        assert_sound(path)
        shutil.rmtree(path)
        number += every
    assert refused > 10


def test_a_log_that_cannot_be_synced_has_no_mark(sound: Path) -> None:
    class Refusing(FailingFiles):
        def call(self, what: str, path: Path) -> None:
            if what == "sync" and path.parent.name == "commitlog":
                raise OSError(errno.EIO, "Input/output error", str(path))

    with pytest.raises(PenstockError, match="could not be synced"):
        commit_rows(sound, query_batch(1), ROWS, Refusing(-1, errno.EIO))
    assert not (sound / "penstock" / "sink" / "marks").exists()
    assert bodies(sound) == []
    assert not commit_rows(sound, query_batch(1), ROWS, UnsyncedFiles()).already_stored


class RefusingJournal(UnsyncedFiles):
    """A disk that stores the batch and its mark, but not the journal's last update."""

    def __init__(self) -> None:
        self.is_marked = False

    def replace_bytes(self, path: Path, data: bytes | memoryview, keep_backup: bool = False) -> None:
        if self.is_marked and path.name == "journal.json":
            raise disk_refused("cannot write", path, len(data), OSError(errno.EIO, "Input/output error"))
        super().replace_bytes(path, data, keep_backup)
        self.is_marked = self.is_marked or path.parent.name == "marks"


@pytest.mark.parametrize("kind", list(WriterKind))
def test_a_batch_whose_mark_is_written_is_stored_whatever_follows(sound: Path, kind: WriterKind) -> None:
    batch = Identity(kind, "a", 1)
    assert not commit_rows(sound, batch, ROWS, RefusingJournal()).already_stored
    assert bodies(sound) == whole(1, ROWS)
    assert commit_rows(sound, batch, ROWS, UnsyncedFiles()).already_stored
    assert bodies(sound) == whole(1, ROWS)
