"""Which data files a store has, as they lie there: names, sizes, what is foreign and what is missing.

Nothing is opened for its content. A file that goes away while this looks (retention, a rename) is left out.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

import msgspec

from penstock.errors import BadStore
from penstock.store.audit import kinds
from penstock.store.audit.finding import Finding, Kind
from penstock.store.file_queue import file_name
from penstock.store.files import Files
from penstock.store.layout import Layout

_DATA_NAME = re.compile(r"[0-9]{20}")
_INDEX_NAME = re.compile(r"[0-9]{17}")
_MAX_OFFSET = 2**63 - 1


class DataFile(msgspec.Struct, frozen=True, order=True):
    """A file whose name is a number: the offset of its first byte, or of an index file the time it was made."""

    base: int
    size: int
    path: Path


class DataFolder(msgspec.Struct, frozen=True):
    """The data files of one folder in the order of their names, and what else lies there."""

    path: Path
    files: tuple[DataFile, ...] = ()
    foreign: tuple[Path, ...] = ()


class StoreFiles(msgspec.Struct, frozen=True):
    """Every data file of a store."""

    log: DataFolder
    queues: dict[tuple[str, int], DataFolder]
    index: DataFolder
    foreign: tuple[Path, ...]


def list_store(files: Files, layout: Layout) -> StoreFiles:
    """Looks at all folders once."""
    queues: dict[tuple[str, int], DataFolder] = {}
    foreign: list[Path] = []
    for topic in _names(files, layout.consume_queue):
        folder = layout.consume_queue / topic
        if not files.is_folder(folder):
            foreign.append(folder)
            continue
        for name in _names(files, folder):
            if name.isascii() and name.isdecimal() and files.is_folder(folder / name):
                queues[topic, int(name)] = list_folder(files, folder / name)
    return StoreFiles(
        list_folder(files, layout.commit_log), queues, list_folder(files, layout.index, _INDEX_NAME), tuple(foreign)
    )


def list_folder(files: Files, folder: Path, pattern: re.Pattern[str] = _DATA_NAME) -> DataFolder:
    found, foreign = [], []
    for name in _names(files, folder):
        path = folder / name
        if pattern.fullmatch(name) and not files.is_folder(path) and int(name) <= _MAX_OFFSET:
            with suppress(FileNotFoundError):
                found.append(DataFile(int(name), files.size(path), path))
        else:
            foreign.append(path)
    return DataFolder(folder, tuple(found), tuple(foreign))


def _names(files: Files, folder: Path) -> list[str]:
    try:
        return files.names(folder)
    except BadStore:  # it is a file, which whoever lists the folder above it reports
        return []


class Shape(msgspec.Struct, frozen=True):
    """A run of files of one size: those that lie where they should, and the ranges where none does."""

    files: tuple[DataFile, ...]
    missing: tuple[tuple[int, int], ...]
    findings: tuple[Finding, ...]


class ShapeKinds(msgspec.Struct, frozen=True):
    """What the findings about a folder are called."""

    missing: Kind
    empty: Kind
    size: Kind
    name: Kind


LOG_KINDS = ShapeKinds(kinds.LOG_FILE_MISSING, kinds.LOG_FILE_EMPTY, kinds.LOG_FILE_SIZE, kinds.LOG_FILE_NAME)
QUEUE_KINDS = ShapeKinds(kinds.QUEUE_FILE_MISSING, kinds.QUEUE_FILE_EMPTY, kinds.QUEUE_FILE_SIZE, kinds.QUEUE_FILE_NAME)


def shape_of(folder: DataFolder, size: int, names: ShapeKinds, *, live: bool) -> Shape:
    """Judges names and sizes. The last file of a store in use may just be in the making."""
    placed = [file for file in folder.files if file.base % size == 0]
    findings = [
        names.name.at(file.path, f"the name is not a multiple of the file size, {size}")
        for file in folder.files
        if file.base % size
    ]
    findings += [kinds.FOREIGN_FILE.at(path, "this is no data file") for path in folder.foreign]
    missing: list[tuple[int, int]] = []
    for before, after in pairwise(placed):
        if after.base > before.base + size:
            missing.append((before.base + size, after.base))
            findings.append(_missing(folder.path, before.base + size, after.base, size, names.missing))
    for file in placed:
        if file.size != size and not (live and file is placed[-1] and file.size < size):
            findings.append(_wrong_size(file, size, names))
    return Shape(tuple(placed), tuple(missing), tuple(findings))


def _missing(folder: Path, begin: int, end: int, size: int, kind: Kind) -> Finding:
    count = (end - begin) // size
    what = "the file is missing" if count == 1 else f"{count} files are missing, up to {file_name(end - size)}"
    return kind.at(folder / file_name(begin), what)


def _wrong_size(file: DataFile, size: int, names: ShapeKinds) -> Finding:
    if not file.size:
        return names.empty.at(file.path, f"the file is empty, and must have {size} bytes")
    return names.size.at(file.path, f"the file has {file.size} bytes, and must have {size}")


def foreign_findings(found: StoreFiles) -> Iterator[Finding]:
    """What lies among the topics' folders, and in the index folder, and is no data."""
    for path in (*found.foreign, *found.index.foreign):
        yield kinds.FOREIGN_FILE.at(path, "this is no data file")
