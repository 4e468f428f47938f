"""A repair or a rebuild that is killed at any of its calls to the disk loses nothing; the next one ends the same."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from support.damage import QUEUES, SMALL_SETTINGS, DamagedHome
from support.disks import CountedFiles, UnsyncedFiles, run_killed
from support.effort import in_parts

from penstock.format.record import Record
from penstock.store import MessageStore
from penstock.store.rebuild import rebuild
from penstock.store.repair import repair

PARTS = 4


class Scene:
    """A damaged store, and what is to be served of it, whatever happens."""

    def __init__(self, home: DamagedHome, lost: set[int]) -> None:
        self.home = home
        self.due = {name: [each for each in self._records(name) if each.physical_offset not in lost] for name in QUEUES}
        self.ends = {name: len(self._records(name)) for name in QUEUES}

    def _records(self, name: tuple[str, int]) -> list[Record]:
        return [each for each in self.home.records.values() if (each.topic, each.queue_id) == name]

    def assert_served(self, path: Path, *, ends: bool) -> None:
        """By a plain start, without a repair."""
        copy = DamagedHome(path)
        with MessageStore.open(path, SMALL_SETTINGS, files=UnsyncedFiles(), clock=self.home.clock) as store:
            for name, due in self.due.items():
                assert copy.read_queue(store, *name) == due
                if ends:
                    assert store.max_offset(*name) == self.ends[name]


def damaged(home: DamagedHome) -> Scene:
    """Damage of every kind at once: in the log, a file gone, a file short, a queue, the index, a config file."""
    home.fill(40)
    records = sorted(home.records.values(), key=lambda each: each.physical_offset)
    broken = [home.record("T", 0, 2), home.record("U", 0, 39)]
    home.damage(*broken)
    files = home.log_files()
    files[1].unlink()
    files[2].write_bytes(files[2].read_bytes()[:3500])
    gone = [
        each
        for each in records
        if 4096 <= each.physical_offset < 8192 or 8192 + 3500 < each.physical_offset + each.size <= 12288
    ]
    home.write(home.queue_files("U", 1)[0], 59, b"\x01")
    home.flip(home.index_files()[0], 41)
    (home.path / "config").mkdir()
    (home.path / "config" / "topics.json").write_bytes(b"garbage")
    return Scene(home, {each.physical_offset for each in (*broken, *gone)})


def garbled(home: DamagedHome) -> Scene:
    home.fill(40)
    for path in (*home.queue_files("U", 1), *home.index_files()):
        home.flip(path, 59)
    return Scene(home, set())


def run_repair(path: Path, home: DamagedHome, files: UnsyncedFiles) -> None:
    repair(path, SMALL_SETTINGS, files=files, clock=home.clock)


def run_rebuild(path: Path, home: DamagedHome, files: UnsyncedFiles) -> None:
    rebuild(path, SMALL_SETTINGS, files=files, clock=home.clock)


Run = Callable[[Path, DamagedHome, UnsyncedFiles], None]


def assert_killed_at_any_call(scene: Scene, run: Run, tmp_path: Path, part: int) -> None:
    home, path = scene.home, tmp_path / "copy"
    counted = CountedFiles()
    shutil.copytree(home.path, path)
    run(path, home, counted)
    final = visible(path)
    for at in range(part, len(counted.calls), PARTS):
        where = f"call {at}: {counted.calls[at]}"
        shutil.rmtree(path)
        shutil.copytree(home.path, path)
        run_killed(lambda files: run(path, home, files), at)
        if at // PARTS % 2 and can_start(path):  # else the next run comes at once
            scene.assert_served(path, ends=False)
        run(path, home, UnsyncedFiles())
        assert visible(path) == final, where
        scene.assert_served(path, ends=True)


def can_start(path: Path) -> bool:
    """A start refuses a log file of the wrong size, so kills before the repair fixed it do not count."""
    return all(file.stat().st_size == 4096 for file in (path / "commitlog").iterdir())


def visible(path: Path) -> dict[str, bytes]:
    """What RocketMQ and Penstock see of a store, but for the texts in placeholders, names of index files and times."""
    found: dict[str, bytes] = {}
    for file in sorted((path / "consumequeue").rglob("*")):
        if file.is_file():
            found[str(file.relative_to(path))] = file.read_bytes()
    for number, file in enumerate(sorted((path / "index").iterdir())):
        found[f"index {number}"] = file.read_bytes()
    found["log files"] = repr(
        [(file.name, file.stat().st_size) for file in sorted((path / "commitlog").iterdir())]
    ).encode()
    for name in ("swap.json", "staging"):
        assert not (path / "penstock" / name).exists()
    return found


@pytest.mark.parametrize("part", in_parts(range(PARTS)))
def test_a_repair_killed_at_any_call_loses_nothing(home: DamagedHome, tmp_path: Path, part: int) -> None:
    assert_killed_at_any_call(damaged(home), run_repair, tmp_path, part)


@pytest.mark.parametrize("part", in_parts(range(PARTS)))
def test_a_rebuild_killed_at_any_call_loses_nothing(home: DamagedHome, tmp_path: Path, part: int) -> None:
    assert_killed_at_any_call(garbled(home), run_rebuild, tmp_path, part)
