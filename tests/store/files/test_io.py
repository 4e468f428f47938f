"""The I/O seam on the real disk: files are allocated for real, and replaced whole or not at all."""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
from pathlib import Path

import pytest

from penstock.errors import StoreFailed
from penstock.store import FlushDiskType, Message, MessageStore, PutStatus, Settings
from penstock.store.files import file_io
from penstock.store.files.file_io import FileMap, Files

SIZE = 1 << 20


def tree(folder: Path) -> dict[str, tuple[bytes, int, int]]:
    """Every file below a folder: its content, its inode and when it was changed."""
    return {
        str(path.relative_to(folder)): (path.read_bytes(), path.stat().st_ino, path.stat().st_mtime_ns)
        for path in folder.rglob("*")
        if path.is_file()
    }


def open_descriptors() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


# -- making a file -------------------------------------------------------------------------------------------


class Witness(Files):
    """Notes which names and sizes were visible in the folder whenever something is about to happen to it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.seen: set[tuple[str, int]] = set()

    def look(self) -> None:
        self.seen |= {(entry.name, entry.stat().st_size) for entry in self._folder.iterdir()}

    def sync_folder(self, folder: Path) -> None:
        self.look()
        super().sync_folder(folder)


class WithoutUnnamedFiles(Files):
    """A file system that knows no O_TMPFILE, as some network file systems."""

    def _create_whole(self, path: Path, size: int, allocated: int) -> int:
        return self._create_in_place(path, size, allocated)


@pytest.fixture(params=[Files, WithoutUnnamedFiles])
def disk(request: pytest.FixtureRequest) -> Files:
    return request.param()


def test_a_new_file_has_all_its_blocks_before_anything_is_stored_in_it(tmp_path: Path, disk: Files) -> None:
    made = disk.create_map(tmp_path / "log" / "0", SIZE)
    facts = (tmp_path / "log" / "0").stat()
    assert facts.st_size == SIZE
    assert facts.st_blocks * 512 >= SIZE
    assert bytes(made.view) == bytes(SIZE)
    made.close()


def test_what_is_stored_in_a_map_is_in_the_file(tmp_path: Path, disk: Files) -> None:
    made = disk.create_map(tmp_path / "0", SIZE)
    made.view[100:105] = b"hello"
    assert (tmp_path / "0").read_bytes()[100:105] == b"hello"
    made.sync()
    made.close()
    again = disk.open_map(tmp_path / "0")
    assert (len(again), bytes(again.view[100:105])) == (SIZE, b"hello")
    again.close()


def test_a_name_appears_only_with_the_full_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = Witness(tmp_path)
    real = os.posix_fallocate

    def allocate(descriptor: int, offset: int, size: int) -> None:
        disk.look()
        real(descriptor, offset, size)
        disk.look()

    monkeypatch.setattr(os, "posix_fallocate", allocate)
    disk.create_map(tmp_path / "0", SIZE).close()
    assert disk.seen == {("0", SIZE)}


@pytest.mark.parametrize("code", [errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL])
def test_a_file_is_made_where_the_file_system_has_no_unnamed_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    real = os.open

    def refuse(path: str | Path, flags: int, mode: int = 0o777, **more: int) -> int:
        if flags & os.O_TMPFILE == os.O_TMPFILE:
            raise OSError(code, os.strerror(code))
        return real(path, flags, mode, **more)

    monkeypatch.setattr(os, "open", refuse)
    Files().create_map(tmp_path / "0", SIZE).close()
    assert (tmp_path / "0").stat().st_blocks * 512 >= SIZE


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (errno.ENOSPC, f"no space left on the disk for {SIZE} bytes"),
        (errno.EDQUOT, f"no space left on the disk for {SIZE} bytes"),
        (errno.EIO, "Input/output error"),
    ],
)
def test_a_refused_allocation_is_one_sentence_and_leaves_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, disk: Files, code: int, words: str
) -> None:
    def refuse(descriptor: int, offset: int, size: int) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "posix_fallocate", refuse)
    with pytest.raises(StoreFailed) as caught:
        disk.create_map(tmp_path / "log" / "0", SIZE)
    assert str(caught.value).startswith(f"{tmp_path / 'log' / '0'}: cannot allocate a file: {words}")
    assert list((tmp_path / "log").iterdir()) == []
    monkeypatch.undo()
    disk.create_map(tmp_path / "log" / "0", SIZE).close()


def test_a_file_that_is_there_already_is_not_touched(tmp_path: Path, disk: Files) -> None:
    (tmp_path / "0").write_bytes(b"mine")
    before = tree(tmp_path)
    with pytest.raises(StoreFailed, match="File exists"):
        disk.create_map(tmp_path / "0", SIZE)
    assert tree(tmp_path) == before


def test_a_file_whose_name_could_not_be_made_safe_can_be_made_again(tmp_path: Path) -> None:
    class Stumbling(Files):
        fail = True

        def sync_folder(self, folder: Path) -> None:
            if self.fail:
                raise OSError(errno.EIO, os.strerror(errno.EIO))

    disk = Stumbling()
    with pytest.raises(StoreFailed, match="Input/output error"):
        disk.create_map(tmp_path / "0", SIZE)
    assert list(tmp_path.iterdir()) == []
    disk.fail = False
    disk.create_map(tmp_path / "0", SIZE).close()


def test_a_file_that_cannot_be_mapped_can_be_made_again(tmp_path: Path) -> None:
    class Stumbling(Files):
        fail = True

        def _map(self, path: Path, descriptor: int, size: int) -> FileMap:
            if self.fail:
                os.close(descriptor)
                raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))
            return super()._map(path, descriptor, size)

    disk = Stumbling()
    with pytest.raises(StoreFailed, match="Cannot allocate memory"):
        disk.create_map(tmp_path / "0", SIZE)
    assert list(tmp_path.iterdir()) == []
    disk.fail = False
    disk.create_map(tmp_path / "0", SIZE).close()


def test_failed_attempts_leave_no_descriptor_open(tmp_path: Path, disk: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(descriptor: int, offset: int, size: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", refuse)
    before = open_descriptors()
    for _ in range(5):
        with pytest.raises(StoreFailed):
            disk.create_map(tmp_path / "0", SIZE)
    assert open_descriptors() == before


# -- systems that lack some of Linux's calls -----------------------------------------------------------------


@pytest.fixture
def without_calls_of_linux(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on macOS, as far as that can be had here."""
    for name in ("posix_fallocate", "posix_fadvise", "fdatasync", "O_TMPFILE"):
        monkeypatch.delattr(os, name)
    monkeypatch.setattr(file_io, "_IS_LINUX", False)


@pytest.mark.usefixtures("without_calls_of_linux")
def test_a_store_is_written_and_read_again_without_the_calls_of_linux(tmp_path: Path) -> None:
    settings = Settings.dev(flush_disk_type=FlushDiskType.SYNC_FLUSH)
    bodies = [b"%d" % number * 1000 for number in range(300)]
    with MessageStore.open(tmp_path, settings) as store:
        for body in bodies:
            assert store.put(Message("orders", body, keys=("k",))).status is PutStatus.PUT_OK
    with MessageStore.open(tmp_path, settings) as store:
        found = [record.body for at in range(0, 300, 30) for record in store.get("orders", 0, at, 30).messages]
    assert found == bodies


@pytest.mark.usefixtures("without_calls_of_linux")
def test_to_allocate_a_range_without_the_call_leaves_what_is_in_the_file(tmp_path: Path) -> None:
    (tmp_path / "0").write_bytes(b"mine" * 1024)
    opened = Files().open_map(tmp_path / "0")
    opened.reserve(0, 4096, 4096)
    opened.sync()
    opened.sync(0, 4096)
    opened.will_need()
    opened.close()
    assert (tmp_path / "0").read_bytes() == b"mine" * 1024


# -- replacing a file ----------------------------------------------------------------------------------------


class Killed(BaseException):
    """Stands for the end of the process: nothing after it runs but `finally`."""


class DiesAtStep(Files):
    """Dies before the n-th change of the disk."""

    def __init__(self, step: int) -> None:
        self._left = step

    def _step(self) -> None:
        if self._left == 0:
            raise Killed
        self._left -= 1

    def _write_synced(self, path: Path, data: bytes) -> None:
        self._step()
        super()._write_synced(path, data[: len(data) // 2])
        self._step()
        super()._write_synced(path, data)

    def rename(self, source: Path, target: Path) -> None:
        self._step()
        super().rename(source, target)

    def sync_folder(self, folder: Path) -> None:
        self._step()
        super().sync_folder(folder)


def test_replacing_puts_the_new_content_in_place(tmp_path: Path) -> None:
    path = tmp_path / "config" / "topics.json"
    Files().replace_bytes(path, b"one")
    Files().replace_bytes(path, b"two")
    assert path.read_bytes() == b"two"
    assert [entry.name for entry in path.parent.iterdir()] == ["topics.json"]


def test_replacing_with_a_backup_keeps_the_content_before(tmp_path: Path) -> None:
    path = tmp_path / "topics.json"
    for content in (b"one", b"two", b"three"):
        Files().replace_bytes(path, content, keep_backup=True)
    assert path.read_bytes() == b"three"
    assert (tmp_path / "topics.json.bak").read_bytes() == b"two"
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["topics.json", "topics.json.bak"]


@pytest.mark.parametrize("keep_backup", [False, True], ids=["without a backup", "with a backup"])
def test_a_kill_at_any_step_leaves_the_old_content_or_the_new(tmp_path: Path, keep_backup: bool) -> None:
    path, backup = tmp_path / "topics.json", tmp_path / "topics.json.bak"
    outcomes = []
    for step in range(100):
        for leftover in tmp_path.iterdir():
            leftover.unlink()
        Files().replace_bytes(path, b"the oldest")
        Files().replace_bytes(path, b"the old one", keep_backup=keep_backup)
        finished = False
        try:
            DiesAtStep(step).replace_bytes(path, b"the new one", keep_backup=keep_backup)
            finished = True
        except Killed:
            pass
        content = path.read_bytes()
        assert content in (b"the old one", b"the new one"), f"killed at step {step}"
        if keep_backup:
            assert backup.read_bytes() in (b"the oldest", b"the old one"), f"killed at step {step}"
        outcomes.append(content)
        Files().replace_bytes(path, b"a later one", keep_backup=keep_backup)  # leftovers do not stand in the way
        assert path.read_bytes() == b"a later one"
        if keep_backup:
            assert backup.read_bytes() == content
        if finished:
            break
    else:
        pytest.fail("the replacement never finished")
    assert step >= 4, "every change of the disk must be a step"
    assert outcomes[0] == b"the old one"
    assert outcomes[-1] == b"the new one"


def test_a_replacement_for_which_there_is_no_room_leaves_the_old_file(tmp_path: Path) -> None:
    class Full(Files):
        def _write_synced(self, path: Path, data: bytes) -> None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    path = tmp_path / "topics.json"
    Files().replace_bytes(path, b"the old one")
    with pytest.raises(StoreFailed, match="no space left on the disk for 11 bytes"):
        Full().replace_bytes(path, b"the new one", keep_backup=True)
    assert path.read_bytes() == b"the old one"


def test_a_large_content_is_written_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, data: real(descriptor, data[:1000]))
    content = os.urandom(10_001)
    Files().replace_bytes(tmp_path / "big", content)
    assert (tmp_path / "big").read_bytes() == content


def test_a_file_for_this_run_only_is_whole_or_not_there_and_nothing_waits_for_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(descriptor: int) -> None:
        raise AssertionError("it was synced")

    monkeypatch.setattr(os, "fsync", refuse)
    files, path = Files(), tmp_path / "note"
    files.write_unsynced(path, b"first")
    files.write_unsynced(path, memoryview(b"second"))
    files.create_sparse(tmp_path / "queue", 4096, synced=False)
    assert path.read_bytes() == b"second"
    assert (tmp_path / "queue").read_bytes() == bytes(4096)
    assert sorted(each.name for each in tmp_path.iterdir()) == ["note", "queue"]
    with pytest.raises(StoreFailed, match="cannot write"):
        files.write_unsynced(tmp_path / "missing" / "note", b"")


def test_a_failed_sync_is_not_lost_when_an_exception_interrupts_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """KeyboardInterrupt may come after the system call has failed and before its result was looked at."""

    def fails_and_is_interrupted(address: int, size: int, flags: int) -> int:
        ctypes.set_errno(errno.EIO)
        raise KeyboardInterrupt

    monkeypatch.setattr(file_io, "_msync", fails_and_is_interrupted)
    with mmap.mmap(-1, mmap.PAGESIZE) as memory, pytest.raises(OSError, match="Input/output error"):
        file_io.sync_memory(memory, 0, mmap.PAGESIZE)
