"""A store rebuilt twice: by ranges of the log, and by one process in the log's order. The files must be the same."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from repair.damaged_home import SETTINGS
from unsynced_files import UnsyncedFiles

from penstock.store import Settings
from penstock.store.rebuilding import RangesReport, rebuild_by_ranges
from penstock.store.repair import rebuild

NOW = 1_700_000_000_000
Files = tuple[dict[str, bytes], list[bytes]]


def derived(path: Path) -> Files:
    """The queue files by name, the index files without."""
    queues = {str(each.relative_to(path)): each.read_bytes() for each in _queue_files(path)}
    return queues, [each.read_bytes() for each in sorted((path / "index").glob("*"))]


def times(path: Path) -> dict[str, int]:
    """When the queue files were modified, in milliseconds."""
    return {str(each.relative_to(path)): each.stat().st_mtime_ns // 1_000_000 for each in _queue_files(path)}


def _queue_files(path: Path) -> list[Path]:
    return [each for each in (path / "consumequeue").rglob("*") if each.is_file()]


def by_ranges(path: Path, range_size: int | None = None, **arguments: Any) -> RangesReport:
    arguments = {"settings": SETTINGS, "clock": lambda: NOW, "files": UnsyncedFiles(), **arguments}
    return rebuild_by_ranges(path, range_size=range_size, **arguments)


def assert_same(path: Path, *sizes: int, settings: Settings = SETTINGS, **arguments: Any) -> RangesReport:
    """Rebuilds copies of a store, by ranges of these sizes and by one process; returns what the first rebuild said."""
    reports = []
    expected = copy_of(path)
    one = rebuild(expected, settings, clock=lambda: NOW, files=UnsyncedFiles(), **arguments)
    for size in sizes:
        copy = copy_of(path)
        report = by_ranges(copy, size, settings=settings, **arguments)
        assert derived(copy) == derived(expected), f"ranges of {size} bytes"
        assert not (copy / "penstock" / "staging").exists()
        told = [(each.what, each.units, each.kept) for each in report.rebuilt]
        assert told == [(each.what, each.units, each.kept) for each in one.rebuilt]
        assert (report.log_begin, report.log_end) == (one.log_begin, one.log_end)
        assert [note.replace(str(copy), str(expected)) for note in report.start] == one.start
        reports.append(report)
        shutil.rmtree(copy)
    shutil.rmtree(expected)
    return reports[0]


def copy_of(path: Path) -> Path:
    made = path.with_name("copy")
    while made.exists():
        made = made.with_name(made.name + "+")
    shutil.copytree(path, made)
    return made
