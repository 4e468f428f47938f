"""The file `epochFileCheckpoint`: which epoch wrote which part of the log.

An epoch is one mastership of a log: it has a number that grows, and the physical offset at which the log ended when it
began. The file has RocketMQ 5's name and format, and lies where RocketMQ 5 looks for it:

    2               number of entries
    773307083       CRC-32 of the lines after this one, without its highest bit; 0: not checked
    7-7000          epoch and start of each entry, oldest first
    8-8000

The file exists only in a store that has taken part in replication with epochs. `EpochFile` is its only reader and
writer. It replaces the file as a whole and syncs it, and keeps the former one as `.bak`: a crash leaves the old content
or the new one. Callers write an entry before the first byte of its epoch is appended.

An entry that starts where the last one starts replaces it, because nothing was written in the epoch before. RocketMQ 5
keeps the older one, so that two masters may have written the same (epoch, start).

Entries of a part of the log that retention has deleted stay, up to MAX_ENTRIES of them: by these a replica that comes
back late can prove that the log once had all that the replica has. Thread-safe.
"""

from __future__ import annotations

import re
import threading
import zlib
from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Final, NamedTuple

from penstock.errors import BadStore, CorruptData, StoreFailed
from penstock.store.files.file_io import Files

MAX_EPOCH: Final = 2**31 - 1
MAX_ENTRIES: Final = 10_000
_MAX_BYTES: Final = 1 << 20
_MAX_START: Final = 2**62
_LINE: Final = re.compile(rb"([0-9]{1,10})-([0-9]{1,19})")
_CRC_MASK: Final = 0x7FFFFFFF
_UNCHECKED: Final = 0


class EpochEntry(NamedTuple):
    """An epoch, and the physical offset at which it begins."""

    epoch: int
    start: int


Entries = tuple[EpochEntry, ...]
"""Oldest first. Epochs grow from entry to entry, and starts do not fall."""


def check_entries(pairs: Iterable[Sequence[int]]) -> Entries:
    """Returns pairs of epoch and start, from a file or from the network, as entries. Raises CorruptData."""
    entries = tuple(EpochEntry(*pair) for pair in pairs)
    for entry in entries:
        if not (1 <= entry.epoch <= MAX_EPOCH and 0 <= entry.start <= _MAX_START):
            raise CorruptData("an entry is out of range", expected="an epoch from 1 on", found=f"{entry[0]}-{entry[1]}")
    for older, newer in pairwise(entries):
        if newer.epoch <= older.epoch or newer.start < older.start:
            raise CorruptData(f"the epochs are not in order: {older[0]}-{older[1]} before {newer[0]}-{newer[1]}")
    if len(entries) > MAX_ENTRIES:
        raise CorruptData("there are too many epochs", expected=f"at most {MAX_ENTRIES}", found=len(entries))
    return entries


def encode_entries(entries: Entries) -> bytes:
    """Returns the content of the file."""
    lines = b"".join(b"%d-%d\n" % entry for entry in entries)
    return b"%d\n%d\n%s" % (len(entries), zlib.crc32(lines) & _CRC_MASK, lines)


def decode_entries(data: bytes) -> Entries:
    """Returns the entries in the content of the file. Raises CorruptData."""
    count, _, rest = data.partition(b"\n")
    checksum, _, lines = rest.partition(b"\n")
    if not count.strip().isdigit() or not checksum.strip().isdigit():
        raise CorruptData("the file does not begin with the number of its entries and their checksum")
    if int(checksum) not in (_UNCHECKED, zlib.crc32(lines) & _CRC_MASK):
        raise CorruptData("the checksum is wrong", expected=int(checksum), found=zlib.crc32(lines) & _CRC_MASK)
    matches = [_LINE.fullmatch(line) for line in lines.splitlines()]
    entries = check_entries((int(match[1]), int(match[2])) for match in matches if match is not None)
    if len(entries) != int(count) or len(matches) != int(count):
        raise CorruptData("the number of entries is wrong", expected=int(count), found=len(entries))
    return entries


def begun(entries: Entries, epoch: int, start: int) -> Entries:
    """Returns the entries of a log that ends at `start` and in which `epoch` begins there."""
    return (*(entry for entry in entries if entry.start < start), EpochEntry(epoch, start))


def without_tail(entries: Entries, end: int) -> Entries:
    """Returns the entries of a log that was cut at `end`."""
    return tuple(entry for entry in entries if entry.start < end)


class EpochFile:
    """The epochs of one store, in memory and on disk."""

    def __init__(self, files: Files, path: Path) -> None:
        self._io = files
        self._path = path
        self._gate = threading.Lock()
        self.entries: Entries = ()
        """Empty if the store has no epochs."""

    @property
    def last(self) -> int:
        """The newest epoch that this store knows; 0 if it has none."""
        return self.entries[-1].epoch if self.entries else 0

    def load(self) -> None:
        """Reads the file, or its backup if it is damaged. Raises BadStore if neither can be read."""
        if not self._io.exists(self._path):
            return
        try:
            self.entries = self._read(self._path)
        except CorruptData as error:
            backup = self._path.with_name(self._path.name + ".bak")
            try:
                self.entries = self._read(backup)
            except (CorruptData, OSError):
                raise BadStore(
                    f"the epochs of this log cannot be read, and neither can {backup.name}: {error}; restore the file "
                    "from a copy, or move both elsewhere: then a slave with this store compares its newest message "
                    "only, as slaves without epochs do",
                    path=self._path,
                ) from None

    def _read(self, path: Path) -> Entries:
        if (size := self._io.size(path)) > _MAX_BYTES:
            raise CorruptData("the file is too large", expected=f"at most {_MAX_BYTES} bytes", found=size)
        return decode_entries(self._io.read_bytes(path))

    def begin(self, epoch: int, start: int) -> None:
        """Notes, on disk, that `epoch` begins at `start`, where the log ends. Raises StoreFailed."""
        with self._gate:
            if epoch <= self.last:
                raise StoreFailed(
                    f"epoch {epoch} cannot begin: this store knows epoch {self.last}; a master needs a higher epoch "
                    "than all before it",
                    path=self._path,
                )
            self._write(begun(self.entries, epoch, start))

    def adopt(self, entries: Entries) -> None:
        """Replaces the entries by those of the master that this store follows from now on. Raises StoreFailed."""
        with self._gate:
            self._write(entries)

    def cut(self, end: int) -> None:
        """Removes the epochs of a log that was cut at `end`. Raises StoreFailed."""
        with self._gate:
            self._write(without_tail(self.entries, end))

    def _write(self, entries: Entries) -> None:
        if entries == self.entries:
            return
        if entries:
            self._io.replace_bytes(self._path, encode_entries(entries[-MAX_ENTRIES:]), keep_backup=True)
        else:
            self._io.unlink(self._path)
            self._io.unlink(self._path.with_name(self._path.name + ".bak"))
            self._io.sync_folder(self._path.parent)
        self.entries = entries[-MAX_ENTRIES:]
