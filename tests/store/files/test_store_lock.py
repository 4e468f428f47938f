"""The right to be the only writer of a store, and asking who has it."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.errors import StoreFailed, StoreInUse
from penstock.store.files.file_io import Files
from penstock.store.files.in_memory_copy_on_write_files import OverlayFiles

HOLDER = """
import sys
from pathlib import Path
from penstock.errors import StoreInUse
from penstock.store.files.file_io import Files
try:
    lock = Files().lock(Path(sys.argv[1]))
except StoreInUse as error:
    print("refused:", error, flush=True)
else:
    print("locked", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def holder(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process that tries to take the lock, says how that went, and ends when its input does."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path / "lock")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        yield process
        process.stdin.close()


def test_nobody_owns_a_store_without_a_lock(tmp_path: Path) -> None:
    assert Files().lock_owner(tmp_path / "lock") == 0
    assert not (tmp_path / "lock").exists()
    (tmp_path / "lock").write_bytes(b"lock")
    assert Files().lock_owner(tmp_path / "lock") == 0


def test_of_two_threads_one_gets_the_lock(tmp_path: Path) -> None:
    switching = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for _ in range(200):
            barrier, owned, refused = threading.Barrier(2), [], []

            def take(barrier=barrier, owned=owned, refused=refused) -> None:  # type: ignore[no-untyped-def]
                barrier.wait()
                try:
                    owned.append(Files().lock(tmp_path / "lock"))
                except StoreInUse as error:
                    refused.append(error)

            threads = [threading.Thread(target=take) for _ in range(2)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert (len(owned), len(refused)) == (1, 1)
            owned[0].release()
    finally:
        sys.setswitchinterval(switching)


def test_another_process_that_owns_the_store_is_named(tmp_path: Path, holder: subprocess.Popen[str]) -> None:
    assert holder.stdout.readline() == "locked\n"
    assert Files().lock_owner(tmp_path / "lock") == holder.pid
    assert OverlayFiles().lock_owner(tmp_path / "lock") == holder.pid
    assert (tmp_path / "lock").read_bytes() == b"lock"
    with pytest.raises(StoreInUse, match="in use by another process"):
        Files().lock(tmp_path / "lock")
    holder.stdin.close()
    holder.wait(20)
    assert Files().lock_owner(tmp_path / "lock") == 0
    Files().lock(tmp_path / "lock").release()


def test_asking_and_being_refused_do_not_drop_the_lock(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    held = Files().lock(path)
    assert Files().lock_owner(path) == os.getpid()
    with pytest.raises(StoreInUse, match="already open in this process"):
        Files().lock(path)
    assert Files().lock_owner(path) == os.getpid()
    other = subprocess.run([sys.executable, "-c", HOLDER, str(path)], input="", capture_output=True, text=True)
    assert other.stdout.startswith("refused:"), other.stdout + other.stderr
    held.release()
    assert Files().lock_owner(path) == 0


def open_descriptors() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def test_a_lock_that_cannot_be_written_is_one_sentence_and_not_held(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(descriptor: int, data: bytes, offset: int) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "pwrite", refuse)
    before = open_descriptors()
    with pytest.raises(StoreFailed, match="no space left on the disk"):
        Files().lock(tmp_path / "lock")
    assert open_descriptors() == before
    monkeypatch.undo()
    Files().lock(tmp_path / "lock").release()
