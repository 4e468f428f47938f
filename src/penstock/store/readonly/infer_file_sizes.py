"""Lists a store's files, and derives the settings for file sizes from them.

Sizes given by `--set` or `--config` have precedence. `penstock/dispatched.json` notes the sizes of the last close. An
index file does not record its numbers of slots and items. The note has them. Without it, the size of the index files
selects the settings, RocketMQ's defaults, or `Settings.dev()`, whichever fits.

`fit_to_files` is strict, for a store to be opened: all log files must have the same size, except an unfinished last
file, which a crash left shorter and all zero. A start quarantines queue files of other sizes and rebuilds them.
`infer_sizes` never fails, for an audit: a file of another size is a finding. `fit_to_damaged` is for a repair.
"""

from __future__ import annotations

import contextlib
import re
from collections import Counter
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import NamedTuple

import msgspec

from penstock.errors import BadStore
from penstock.format import kernels
from penstock.format.index_layout import IndexGeometry
from penstock.format.kernel_row_types import Reason
from penstock.format.queue_unit import UNIT_SIZE
from penstock.store.dispatch_checkpoint import FileSizes, read_state
from penstock.store.files.file_io import Files
from penstock.store.files.layout import Layout, path_below
from penstock.store.settings import Settings

_DATA_NAME = re.compile(r"[0-9]{20}")
_INDEX_NAME = re.compile(r"[0-9]{17}")
_MAX_OFFSET = 2**63 - 1
_INDEX_SETTINGS = {"max_hash_slot_num", "max_index_num"}

# -- the files -----------------------------------------------------------------------------------------------------


class NumberedFile(msgspec.Struct, frozen=True, order=True):
    """A file whose name is a number (`base`): the offset of its first byte, or an index file's creation time."""

    base: int
    size: int
    path: Path


class DataFolder(msgspec.Struct, frozen=True):
    """The data files of one folder, sorted by name, and its foreign files: all other entries."""

    path: Path
    files: tuple[NumberedFile, ...] = ()
    foreign: tuple[Path, ...] = ()


class StoreFiles(msgspec.Struct, frozen=True):
    log: DataFolder
    queues: dict[tuple[str, int], DataFolder]
    index: DataFolder
    foreign: tuple[Path, ...]
    """Files among the folders of the topics."""


def list_store(files: Files, layout: Layout) -> StoreFiles:
    """Lists the data files of a store. Leaves out a file that disappears meanwhile (retention, a rename)."""
    queues, foreign = _list_queues(files, layout.consume_queue)
    index = list_folder(files, layout.index, _INDEX_NAME)
    return StoreFiles(list_folder(files, layout.commit_log), queues, index, foreign)


def list_folder(files: Files, folder: Path, pattern: re.Pattern[str] = _DATA_NAME) -> DataFolder:
    numbered, foreign = [], []
    for name in _names(files, folder):
        path = folder / name
        if pattern.fullmatch(name) and not files.is_folder(path) and int(name) <= _MAX_OFFSET:
            with contextlib.suppress(FileNotFoundError):
                numbered.append(NumberedFile(int(name), files.size(path), path))
        else:
            foreign.append(path)
    return DataFolder(folder, tuple(numbered), tuple(foreign))


def _list_queues(files: Files, parent: Path) -> tuple[dict[tuple[str, int], DataFolder], tuple[Path, ...]]:
    """Returns the queues below a folder by topic and queue id, and the files among the topics' folders."""
    queues: dict[tuple[str, int], DataFolder] = {}
    foreign: list[Path] = []
    for topic in _names(files, parent):
        folder = path_below(parent, topic)
        if not files.is_folder(folder):
            foreign.append(folder)
            continue
        for name in _names(files, folder):
            if name.isascii() and name.isdecimal() and files.is_folder(folder / name):
                queues[topic, int(name)] = list_folder(files, folder / name)
    return queues, tuple(foreign)


def _names(files: Files, folder: Path) -> list[str]:
    try:
        return files.names(folder)
    except BadStore:  # it is a file; the listing of its parent folder reports it
        return []


# -- a store to open -----------------------------------------------------------------------------------------------


class FittedSettings(NamedTuple):
    """Settings whose sizes match the files. `index_problem` says why the index cannot be used; empty if it can."""

    settings: Settings
    index_problem: str = ""


def fit_to_log(settings: Settings, files: Files, layout: Layout) -> Settings:
    """Returns the settings with the log files' size. Raises BadStore if they differ or the only file is truncated."""
    if "mapped_file_size_commit_log" in settings.given:
        return settings
    folder = list_folder(files, layout.commit_log)
    size = _common_size(files, [folder], "mappedFileSizeCommitLog")
    if size is None:
        return settings
    if size != Settings().mapped_file_size_commit_log and len(folder.files) == 1:
        _refuse_truncated(files, folder.files[0])
    return settings.with_changes(mapped_file_size_commit_log=size)


def fit_to_files(settings: Settings, files: Files, layout: Layout) -> FittedSettings:
    """Returns the settings with all sizes of the store's files. Raises BadStore if log or extension files differ."""
    settings = fit_to_log(settings, files, layout)
    noted = _noted_sizes(files, layout)
    settings = _fit_to_queues(settings, _list_queues(files, layout.consume_queue)[0].values(), noted)
    if "mapped_file_size_consume_queue_ext" not in settings.given:
        folders = _list_queues(files, layout.consume_queue_ext)[0].values()
        size = _common_size(files, folders, "mappedFileSizeConsumeQueueExt")
        if size is not None:
            settings = settings.with_changes(mapped_file_size_consume_queue_ext=size)
    if not settings.message_index_enable:
        return FittedSettings(settings, "there is no index, because messageIndexEnable is false")
    index = list_folder(files, layout.index, _INDEX_NAME).files
    geometry = _index_geometry(settings, noted, {file.size for file in index})
    wrong = [file for file in index if geometry is None or file.size != geometry.file_size]
    if geometry is None or (len(wrong) == len(index) > 0 and geometry != _noted_geometry(noted)):
        return FittedSettings(settings, _index_misfit(settings.index_geometry, wrong[0]))
    return FittedSettings(settings.with_changes(max_hash_slot_num=geometry.slots, max_index_num=geometry.items))


def _common_size(files: Files, folders: Collection[DataFolder], setting: str) -> int | None:
    by_size: dict[int, list[NumberedFile]] = {}
    for file in (file for folder in folders for file in folder.files):
        by_size.setdefault(file.size, []).append(file)
    last = {folder.files[-1] for folder in folders if folder.files}
    for size in by_size:
        if size < max(by_size) or not size:  # an unfinished last file does not count
            by_size[size] = [each for each in by_size[size] if not (each in last and files.is_zero(each.path))]
    sizes = sorted((size for size in by_size if by_size[size]), key=lambda size: (len(by_size[size]), size))
    if not sizes:
        return None
    usual, odd = sizes[-1], sizes[0]
    if len(sizes) > 1:
        raise BadStore(
            f"the files differ in size ({len(by_size[odd])} of this size, {len(by_size[usual])} of the other); "
            f"restore this one from a copy, run `penstock store repair`, or set the right one with --set {setting}=...",
            path=by_size[odd][0].path,
            expected=f"{usual} bytes, as {by_size[usual][0].path.name} has",
            found=f"{odd} bytes",
        )
    return usual


def _refuse_truncated(files: Files, file: NumberedFile) -> None:
    """Raises BadStore if a log file ends within a record, which shows that the file was truncated."""
    at, reason = _where_records_end(files, file)
    if reason == Reason.BEYOND_END:
        raise BadStore(
            "the file was cut short: its last record runs past its end; restore it from a copy, or read the "
            f"rest with --set mappedFileSizeCommitLog={file.size}",
            path=file.path,
            offset=at,
        )


def _where_records_end(files: Files, file: NumberedFile) -> tuple[int, int]:
    """Returns the physical offset at which the consecutive valid records of a log file end, and the Reason."""
    with contextlib.closing(files.open_map(file.path)) as data:
        at, reason, _ = kernels.find_valid_end(data.view, file.base, 0, len(data), False)
    return file.base + at, reason


def _index_misfit(geometry: IndexGeometry, file: NumberedFile) -> str:
    return (
        f"the index cannot be read: {file.path} has {file.size} bytes, and {geometry.slots} slots with "
        f"{geometry.items} items make {geometry.file_size}; set the values it was created with "
        "(--set maxHashSlotNum=... --set maxIndexNum=...)"
    )


# -- a store to check or to repair ---------------------------------------------------------------------------------


def infer_sizes(settings: Settings, store_files: StoreFiles, noted: FileSizes | None) -> FittedSettings:
    """Returns the settings with the most likely sizes of these files. `noted`: the sizes in the dispatch note."""
    if "mapped_file_size_commit_log" not in settings.given:
        size = _usual_size(store_files.log.files, 0 if noted is None else noted.commit_log)
        settings = settings.with_changes(mapped_file_size_commit_log=size) if size else settings
    settings = _fit_to_queues(settings, store_files.queues.values(), noted)
    geometry = _index_geometry(settings, noted, {file.size for file in store_files.index.files})
    if geometry is not None:
        return FittedSettings(settings.with_changes(max_hash_slot_num=geometry.slots, max_index_num=geometry.items))
    problem = (
        f"{store_files.index.path} was left alone: its files have {store_files.index.files[0].size} bytes, which fits "
        "no known geometry; give the one they were created with (--set maxHashSlotNum=... --set maxIndexNum=...)"
    )
    return FittedSettings(settings, problem)


def fit_to_damaged(settings: Settings, files: Files, layout: Layout) -> FittedSettings:
    """Returns settings that fit the store's files. Raises BadStore if the size of the log files is unknown.

    A single log file cannot be compared with others. If it ends with a filler, its size is correct. Otherwise the
    dispatch note has the full size. Without a note the file's size is accepted if the last record does not run past the
    end of the file. If the geometry of the index files is unknown, the index is left alone.
    """
    store_files = list_store(files, layout)
    noted = _noted_sizes(files, layout)
    fitted, problem = infer_sizes(settings, store_files, noted)
    if len(store_files.log.files) == 1 and "mapped_file_size_commit_log" not in settings.given:
        size = _size_of_only_file(files, store_files.log.files[0], 0 if noted is None else noted.commit_log)
        fitted = fitted.with_changes(mapped_file_size_commit_log=size) if size else fitted
    return FittedSettings(fitted.with_changes(message_index_enable=False) if problem else fitted, problem)


def _size_of_only_file(files: Files, file: NumberedFile, noted: int) -> int:
    if not file.size or file.size == noted:
        return noted
    at, reason = _where_records_end(files, file)
    if reason == Reason.BLANK or (not noted and reason != Reason.BEYOND_END):
        return file.size
    if not noted:
        raise BadStore(
            "the file was cut short: its last record runs past its end, and its full size is unknown; give it with "
            "--set mappedFileSizeCommitLog=...",
            path=file.path,
            offset=at,
        )
    return noted


# -- likely sizes --------------------------------------------------------------------------------------------------


def _noted_sizes(files: Files, layout: Layout) -> FileSizes | None:
    state = read_state(files, layout.dispatched)
    return None if state is None else state.sizes


def _fit_to_queues(settings: Settings, folders: Iterable[DataFolder], noted: FileSizes | None) -> Settings:
    if "mapped_file_size_consume_queue" in settings.given:
        return settings
    whole = [file for folder in folders for file in folder.files if file.size % UNIT_SIZE == 0]
    size = _usual_size(whole, 0 if noted is None else noted.consume_queue)
    return settings.with_changes(mapped_file_size_consume_queue=size) if size else settings


def _usual_size(files: Iterable[NumberedFile], noted: int) -> int:
    """Returns `noted` if a file has that size or there are no files; else the size that most names are multiples of.

    In a tie the most frequent size, then the larger one.
    """
    files = [file for file in files if file.size]
    count = Counter(file.size for file in files)

    def rank(size: int) -> tuple[int, int, int]:
        return sum(file.base % size == 0 for file in files), count[size], size

    return noted if noted in count else max(count, key=rank, default=noted)


def _noted_geometry(noted: FileSizes | None) -> IndexGeometry | None:
    return None if noted is None else IndexGeometry(noted.hash_slots, noted.index_items)


def _index_geometry(settings: Settings, noted: FileSizes | None, sizes: set[int]) -> IndexGeometry | None:
    """Returns the first known geometry that fits a file.

    If there is none: the given or noted geometry, or the settings' geometry if there is nothing to fit, else None.
    """
    from_note = _noted_geometry(noted)
    known = [settings.index_geometry]
    if not _INDEX_SETTINGS & settings.given:
        known += [Settings().index_geometry, Settings.dev().index_geometry]
        known = known if from_note is None else [from_note, *known]
    fitting = next((each for each in known if each.file_size in sizes), None)
    is_sure = from_note is not None or bool(_INDEX_SETTINGS & settings.given) or not sizes - {0}
    return fitting or (known[0] if is_sure else None)
