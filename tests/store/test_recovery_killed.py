"""A start that is cut short, at whatever step, and started again ends in the state that an undisturbed one ends in."""

from __future__ import annotations

import shutil
import threading
from pathlib import Path

import pytest
from support.stores import StoreHome

from penstock.errors import StoreFailed
from penstock.store import MessageStore, Settings
from penstock.store.files.file_io import FileMap, Files
from penstock.store.files.lock import StoreLock, _locked_here
from penstock.store.log_end_and_damage import Doubt, Walked
from penstock.store.recovery import log as log_module

SMALL = {
    "mapped_file_size_commit_log": 2048,
    "mapped_file_size_consume_queue": 20 * 20,
    "max_hash_slot_num": 50,
    "max_index_num": 400,
}


class Killed(BaseException):
    """The process is gone."""


class DyingFiles(Files):
    """The real disk, until its N-th operation: that one is not done, and no later one either."""

    def __init__(self, last: int) -> None:
        self.left = last
        self._thread = threading.get_ident()
        self._lock: StoreLock | None = None

    def _live(self, what: str) -> None:
        if threading.get_ident() != self._thread:
            return  # the store is open
        self.left -= 1
        if self.left <= 0:
            raise Killed(what)

    def lock(self, path: Path) -> StoreLock:
        self._lock = super().lock(path)
        return self._lock

    def bury(self) -> None:
        """What the system does with the lock of a process that is gone."""
        if self._lock is not None and self._lock._identity in _locked_here:
            self._lock.release()

    def create_map(self, path: Path, size: int, *, allocated: int | None = None) -> FileMap:
        self._live(f"create {path.name}")
        return self._dying(super().create_map(path, size, allocated=allocated))

    def create_sparse(self, path: Path, size: int) -> None:
        self._live(f"create sparse {path.name}")
        super().create_sparse(path, size)

    def open_map(self, path: Path) -> FileMap:
        self._live(f"open {path.name}")
        return self._dying(super().open_map(path))

    def _write_synced(self, path: Path, data: bytes | memoryview) -> None:
        self._live(f"write {path.name}")
        super()._write_synced(path, data)

    def rename(self, source: Path, target: Path) -> None:
        self._live(f"rename {source.name}")
        super().rename(source, target)

    def unlink(self, path: Path) -> None:
        self._live(f"unlink {path.name}")
        super().unlink(path)

    def sync_folder(self, folder: Path) -> None:
        self._live(f"sync folder {folder.name}")
        super().sync_folder(folder)

    def _dying(self, made: FileMap) -> FileMap:
        really_sync = made.sync

        def sync(start: int = 0, stop: int | None = None) -> None:
            self._live(f"sync {made.path.name}")
            really_sync(start, stop)

        made.sync = sync  # type: ignore[method-assign]
        return made


def harm(home: StoreHome) -> None:
    """A torn tail with a torn file behind it, damage in the middle, a missing file, a bad queue, and no index."""
    with home.open(**SMALL) as store:
        for _ in range(50):
            home.clock.now += 1000
            home.put_numbered(store, 1)
        home.put_numbered(store, 50, topic="U")
        end = store.log.max_offset
        bad = home.read_queue(store, "T")[20].physical_offset
    files = home.log_files()
    home.flip(files[bad // 2048], bad % 2048 + 90)
    home.write(files[-1], end % 2048, b"torn tail" * 5)
    (home.path / "commitlog" / f"{len(files) * 2048:020d}").write_bytes(b"torn file".ljust(2048, b"\0"))
    files[3].unlink()
    home.queue_files("T")[1].write_bytes(b"\x01" * 400)
    home.queue_files("U")[1].unlink()
    shutil.rmtree(home.path / "index")


def seen(home: StoreHome) -> dict[str, object]:
    """What can be seen of a store that has recovered: its files but for notes, times and what was kept aside."""
    with home.open(**SMALL) as store:
        state = home.state(store)
        state["damage"] = store.report.damage
        state["keys"] = [len(store.query(topic, f"k{number}")) for topic in "TU" for number in range(50)]
    state["log"] = {path.name: path.read_bytes() for path in home.log_files()}
    state["queues"] = {str(path): path.read_bytes() for topic in "TU" for path in home.queue_files(topic)}
    state["names"] = sorted(path.name for path in home.path.iterdir())
    return {key: str(value).replace(str(home.path), "") for key, value in state.items()}


@pytest.mark.parametrize("crashed", [False, True], ids=["clean_exit", "crash"])
def test_a_recovery_killed_at_any_step_ends_in_the_same_state_when_it_is_started_again(
    home: StoreHome, tmp_path: Path, crashed: bool
) -> None:
    """rocketmq#9587: a container was killed in mid-recovery by its health check, again and again."""
    harm(home)
    if crashed:
        home.mark_crashed()
    undisturbed = home.copy_to(tmp_path / "undisturbed")
    undisturbed.open(**SMALL).close()
    expected = seen(undisturbed)
    step, ended = 0, False
    last: list[str] = []
    while not ended:
        step += 1
        place = home.copy_to(tmp_path / "copy")
        files = DyingFiles(step)
        try:
            store = place.open(files=files, **SMALL)
            ended = True
            files.left = 10**9
            store.close()
        except Killed as killed:
            last.append(str(killed))
            files.bury()
        except StoreFailed as error:
            pytest.fail(f"step {step}: a kill must not look like a disk error: {error}")
        found = seen(place)
        place.close_all()
        assert found == expected, f"killed at step {step}: {last[-1:]}"
        shutil.rmtree(place.path)
    assert step > 60
    for what in ("write damaged.json", "create sparse", "rename 0000", "unlink", "create 2020", "sync 0000"):
        assert any(each.startswith(what) for each in last), what


def test_a_recovery_killed_again_and_again_gets_to_its_end(home: StoreHome, tmp_path: Path) -> None:
    """Each start gets a little further than the one before, and then is killed."""
    harm(home)
    home.mark_crashed()
    undisturbed = home.copy_to(tmp_path / "undisturbed")
    undisturbed.open(**SMALL).close()
    for steps in range(5, 120, 5):
        files = DyingFiles(steps)
        try:
            store = home.open(files=files, **SMALL)
            files.left = 10**9
            store.close()
        except Killed:
            files.bury()
    assert seen(home) == seen(undisturbed)


def test_a_walk_goes_on_where_the_one_before_was_killed(
    home: StoreHome, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_module, "EVERY_SECONDS", 0.0)
    harm(home)
    home.mark_crashed()
    (home.path / "checkpoint").unlink()
    (home.path / "penstock" / "dispatched.json").unlink()
    undisturbed = home.copy_to(tmp_path / "undisturbed")
    undisturbed.open(**SMALL).close()
    note = home.path / "penstock" / "walked.json"

    class KilledWhenItActs(Files):
        def create_sparse(self, path: Path, size: int) -> None:
            raise Killed

    with pytest.raises(Killed):
        home.open(files=KilledWhenItActs(), **SMALL)
    assert note.exists()
    done: list[int] = []
    with MessageStore.open(
        home.path, Settings.dev(**SMALL), clock=home.clock, progress=lambda progress: done.append(progress.done)
    ) as store:
        assert done[0] > 2048, "it does not begin again"
        assert store.report.walked_from == 0
    assert not note.exists()
    assert seen(home) == seen(undisturbed)


def test_a_walk_that_doubted_other_records_is_not_continued(home: StoreHome, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_module, "EVERY_SECONDS", 0.0)
    with home.open(**SMALL) as store:
        home.put_numbered(store, 60)
        files = store.log.queue.files
        note, doubt = log_module.WalkNote(Files(), home.path / "penstock" / "walked.json"), Doubt(0, 1_600_000_000_000)
        walked = Walked(files[1].from_offset, files[1].from_offset, 1)
        note.write(0, walked, True, doubt)
        assert note.find(0, files, True, doubt) == walked
        assert note.find(0, files, True, Doubt(0, 0)) is None
