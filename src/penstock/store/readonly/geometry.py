"""Derives the settings for file sizes from the files of a store.

Sizes given by `--set` or `--config` have precedence. Otherwise all log files must have the same size, except an
unfinished last file, which a crash left shorter and all zero. For queue files the size in `penstock/dispatched.json` is
used if any file has it, else the most common size; a start quarantines queue files of other sizes and rebuilds them. An
index file does not record its numbers of slots and items. `dispatched.json` has them. Without it, the size of the index
files selects the settings, RocketMQ's defaults, or `Settings.dev()`, whichever fits.
"""

from __future__ import annotations

import contextlib
import re
from collections import Counter
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import NamedTuple

from penstock.errors import BadStore
from penstock.format import kernels
from penstock.format.index_layout import IndexGeometry
from penstock.format.scan_rows import Reason
from penstock.store.dispatch_state import read_state
from penstock.store.file_io import Files
from penstock.store.layout import Layout
from penstock.store.settings import Settings

_DATA_NAME = re.compile(r"\d{20}")
_INDEX_NAME = re.compile(r"\d{17}")
_KNOWN = (Settings(), Settings.dev())


class FittedSettings(NamedTuple):
    """Settings whose sizes match the files. `index_problem` says why the index cannot be used; empty if it can."""

    settings: Settings
    index_problem: str = ""


def fit_to_log(settings: Settings, files: Files, layout: Layout) -> Settings:
    """Returns the settings with the log files' size. Raises BadStore if they differ or the only file is truncated."""
    if "mapped_file_size_commit_log" in settings.given:
        return settings
    size = _common_size(files, [layout.commit_log], "mappedFileSizeCommitLog")
    if size is None:
        return settings
    if size != Settings().mapped_file_size_commit_log:
        _refuse_truncated_alone(files, layout.commit_log)
    return settings.with_changes(mapped_file_size_commit_log=size)


def fit_to_files(settings: Settings, files: Files, layout: Layout) -> FittedSettings:
    """Returns the settings with all sizes of the store's files. Raises BadStore if log or extension files differ."""
    settings = fit_to_log(settings, files, layout)
    noted = read_state(files, layout.dispatched)
    if "mapped_file_size_consume_queue" not in settings.given:
        usual = _usual_size(files, layout.consume_queue, 0 if noted is None else noted.sizes.consume_queue)
        if usual:
            settings = settings.with_changes(mapped_file_size_consume_queue=usual)
    if "mapped_file_size_consume_queue_ext" not in settings.given:
        folders = _queue_folders(files, layout.consume_queue_ext)
        size = _common_size(files, folders, "mappedFileSizeConsumeQueueExt")
        if size is not None:
            settings = settings.with_changes(mapped_file_size_consume_queue_ext=size)
    geometry = None if noted is None else IndexGeometry(noted.sizes.hash_slots, noted.sizes.index_items)
    return _fit_to_index(settings, files, layout, geometry)


# -- one size for all ----------------------------------------------------------------------------------------------


def _common_size(files: Files, folders: list[Path] | Iterator[Path], setting: str) -> int | None:
    by_size: dict[int, list[Path]] = {}
    for path in chain.from_iterable(_data_files(files, folder) for folder in folders):
        by_size.setdefault(files.size(path), []).append(path)
    largest = max(by_size, default=0)
    for size in sorted(by_size):
        if size < largest or not size:
            by_size[size] = [path for path in by_size[size] if not _is_unfinished(files, path)]
    sizes = sorted((size for size in by_size if by_size[size]), key=lambda size: (len(by_size[size]), size))
    if not sizes:
        return None
    usual, odd = sizes[-1], sizes[0]
    if len(sizes) > 1:
        raise BadStore(
            f"the files differ in size ({len(by_size[odd])} of this size, {len(by_size[usual])} of the other); "
            f"restore this one from a copy, run `penstock store repair`, or set the right one with --set {setting}=...",
            path=by_size[odd][0],
            expected=f"{usual} bytes, as {by_size[usual][0].name} has",
            found=f"{odd} bytes",
        )
    return usual


def _usual_size(files: Files, folder: Path, noted: int) -> int:
    """Returns `noted` if a queue file has that size or there are no files; else the most common size of queue files."""
    paths = chain.from_iterable(_data_files(files, queue) for queue in _queue_folders(files, folder))
    counts = Counter(files.size(path) for path in paths)
    del counts[0]
    if noted in counts:
        return noted
    return max(counts, key=lambda size: (counts[size], size), default=noted)


def _data_files(files: Files, folder: Path) -> Iterator[Path]:
    for name in files.names(folder) if files.is_folder(folder) else ():
        if _DATA_NAME.fullmatch(name) and not files.is_folder(folder / name):
            yield folder / name


def _queue_folders(files: Files, folder: Path) -> Iterator[Path]:
    for topic in files.names(folder) if files.is_folder(folder) else ():
        if files.is_folder(folder / topic):
            for queue in files.names(folder / topic):
                yield folder / topic / queue


def _is_unfinished(files: Files, path: Path) -> bool:
    """Whether a file is the last of its folder and all zero."""
    return path.name == max(other.name for other in _data_files(files, path.parent)) and files.is_zero(path)


def _refuse_truncated_alone(files: Files, folder: Path) -> None:
    """Raises BadStore if the only log file ends within a record, which shows that the file was truncated."""
    paths = list(_data_files(files, folder))
    if len(paths) != 1 or not files.size(paths[0]):
        return
    at, reason = where_records_end(files, paths[0])
    if reason == Reason.BEYOND_END:
        raise BadStore(
            "the file was cut short: its last record runs past its end; restore it from a copy, or read the "
            f"rest with --set mappedFileSizeCommitLog={files.size(paths[0])}",
            path=paths[0],
            offset=at,
        )


def where_records_end(files: Files, path: Path) -> tuple[int, int]:
    """Returns the physical offset at which the consecutive valid records of a log file end, and the Reason."""
    with contextlib.closing(files.open_map(path)) as data:
        base = int(path.name)
        at, reason, _ = kernels.find_valid_end(data.view, base, 0, len(data), False)
    return base + at, reason


# -- the index -----------------------------------------------------------------------------------------------------


def _fit_to_index(settings: Settings, files: Files, layout: Layout, noted: IndexGeometry | None) -> FittedSettings:
    if not settings.message_index_enable:
        return FittedSettings(settings, "there is no index, because messageIndexEnable is false")
    paths = [layout.index / name for name in files.names(layout.index) if _INDEX_NAME.fullmatch(name)]
    sizes = {files.size(path): path for path in paths}
    known = [settings.index_geometry]
    if not {"max_hash_slot_num", "max_index_num"} & settings.given:
        known = [*([noted] if noted else []), settings.index_geometry, *(each.index_geometry for each in _KNOWN)]
    fitting = [geometry for geometry in known if not sizes or geometry.file_size in sizes]
    if not fitting and noted not in known:
        return FittedSettings(settings, _index_misfit(settings.index_geometry, sizes))
    slots, items = (fitting or known)[0]
    return FittedSettings(settings.with_changes(max_hash_slot_num=slots, max_index_num=items))


def _index_misfit(geometry: IndexGeometry, sizes: dict[int, Path]) -> str:
    size, path = next((size, path) for size, path in sizes.items() if size != geometry.file_size)
    return (
        f"the index cannot be read: {path} has {size} bytes, and {geometry.slots} slots with {geometry.items} items "
        f"make {geometry.file_size}; set the values it was created with "
        "(--set maxHashSlotNum=... --set maxIndexNum=...)"
    )
