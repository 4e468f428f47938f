"""Damage in the log, as data, and the file that remembers it: `penstock/damaged.json`.

Java would cut the log off at damage in its middle; here only the damaged bytes are passed over. The file holds every
range that a start, a scan or a repair has seen, so that the next start knows of those that lie before the files it
walks. It is replaced atomically; one owner of the store writes it, anyone reads it. If it is lost, nothing else is: a
walk finds the ranges again.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import msgspec

from penstock.store.files import Files
from penstock.store.sealed_json import read_sealed, write_sealed

MISSING = "MISSING"
"""The reason for a range whose whole file was not there; the other reasons are names of `Reason`."""


class DamagedRange(msgspec.Struct, frozen=True, order=True):
    """Bytes of the log that hold no valid record, though valid ones follow. They lie in one file."""

    physical_offset: int
    size: int
    reason: str

    @property
    def end(self) -> int:
        return self.physical_offset + self.size


class _Document(msgspec.Struct):
    ranges: list[DamagedRange]


def read_damage(files: Files, path: Path) -> list[DamagedRange]:
    """The ranges that are known, in order of their offsets; none if the file is missing or cannot be read."""
    return known_damage(files, path) or []


def known_damage(files: Files, path: Path) -> list[DamagedRange] | None:
    """As `read_damage`, but None if there is a file that cannot be read."""
    found = read_sealed(files, path, _Document)
    if found is None:
        return None if files.exists(path) else []
    return sorted(each for each in found.ranges if each.physical_offset >= 0 and each.size > 0)


def write_damage(files: Files, path: Path, ranges: Iterable[DamagedRange]) -> None:
    """Raises StoreFailed, and then the old file is still there."""
    write_sealed(files, path, _Document(sorted(ranges)))


def merged(ranges: Iterable[DamagedRange]) -> list[DamagedRange]:
    """The same bytes, each once: ranges that overlap or touch become one, with the first one's reason."""
    joined: list[DamagedRange] = []
    for each in sorted(ranges):
        last = joined[-1] if joined else None
        if last is not None and each.physical_offset <= last.end:
            joined[-1] = DamagedRange(last.physical_offset, max(last.end, each.end) - last.physical_offset, last.reason)
        else:
            joined.append(each)
    return joined


def merged_by_file(ranges: Iterable[DamagedRange], file_size: int) -> list[DamagedRange]:
    """As `merged`, but what lies in several files of the log stays one range for each file."""
    by_file: dict[int, list[DamagedRange]] = {}
    for each in ranges:
        begin = each.physical_offset
        while begin < each.end:
            end = min(each.end, begin + file_size - begin % file_size)
            by_file.setdefault(begin // file_size, []).append(DamagedRange(begin, end - begin, each.reason))
            begin = end
    return [joined for number in sorted(by_file) for joined in merged(by_file[number])]
