"""A mark: how far somebody has come, in a small file that others look at all the time.

    OFFSET  SIZE  DESCRIPTION (big-endian)
    0       8     "PENMARK1"
    8       8     position: a physical offset
    16      8     safe: of `dispatch.end` up to where the log is on disk; of `dispatch.done` the store time of the
                  newest record up to which queues and index are on disk
    24      8     boot: tells one run of the machine from the next
    32      4     CRC-32 of the bytes 8 to 31

The file is written in place, by one process, and never synced: it tells the living. Whoever reads half a mark sees that
by its CRC, and looks again. It is no longer true after the machine has failed, which `boot` tells.
"""

from __future__ import annotations

import struct
import zlib
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

from penstock.store.file_map import FileMap
from penstock.store.files import Files

_MAGIC: Final = b"PENMARK1"
_BODY: Final = struct.Struct(">qqq")
_SIZE: Final = len(_MAGIC) + _BODY.size + 4
_TRIES: Final = 100
_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")


class Mark(NamedTuple):
    """What a mark says."""

    position: int
    safe: int = 0
    boot: int = 0

    @property
    def is_of_this_boot(self) -> bool:
        """Whether all that was written before it is still there, synced or not."""
        return self.boot == boot_number()


@cache
def boot_number() -> int:
    """A number that changes when the machine is started anew; 0, which no mark has, where there is none."""
    try:
        return int(_BOOT_ID.read_text().replace("-", "")[:15], 16) or 1
    except (OSError, ValueError):
        return 0


def _parsed(data: bytes) -> Mark | None:
    body = data[len(_MAGIC) : len(_MAGIC) + _BODY.size]
    if len(data) != _SIZE or data[: len(_MAGIC)] != _MAGIC or zlib.crc32(body) != int.from_bytes(data[-4:], "big"):
        return None
    return Mark(*_BODY.unpack(body))


def read_mark(files: Files, path: Path) -> Mark | None:
    """What a mark says now; None if there is none, or garbage."""
    for _ in range(_TRIES):
        try:
            found = _parsed(files.read_bytes(path))
        except FileNotFoundError:
            return None
        if found is not None:
            return found
    return None


class MarkFile:
    """A mark that stays mapped: for who writes it, and for who looks often. One thread writes."""

    def __init__(self, files: Files, path: Path) -> None:
        """Makes the file if it is not there. Raises StoreFailed or OSError."""
        if files.exists(path) and files.size(path) != _SIZE:
            files.unlink(path)
        self._map: FileMap = files.open_map(path) if files.exists(path) else files.create_map(path, _SIZE)

    def write(self, position: int, safe: int) -> None:
        """Raises StoreFailed."""
        body = _BODY.pack(position, safe, boot_number() or -1)
        self._map.write(0, bytearray(_MAGIC + body + zlib.crc32(body).to_bytes(4, "big")))

    def read(self) -> Mark | None:
        """None if nothing, or garbage, stands there."""
        for _ in range(_TRIES):
            found = _parsed(bytes(self._map.view))
            if found is not None:
                return found
        return None

    def close(self) -> None:
        self._map.close()
