"""Single records of the log by their physical offset, for what a bulk comparison leaves over."""

from __future__ import annotations

from typing import NamedTuple

from penstock.format import kernels
from penstock.format.sys_flag import enters_queue
from penstock.store.audit.listing import DataFile
from penstock.store.audit.maps import Maps


class Found(NamedTuple):
    """What a record says of itself."""

    topic: str
    queue_id: int
    queue_offset: int
    size: int
    tags_code: int
    has_unit: bool
    store_timestamp: int


class LogReader:
    """Reads with every check but the CRC."""

    def __init__(self, maps: Maps, files: tuple[DataFile, ...], file_size: int, delay_levels: tuple[int, ...]) -> None:
        self._maps = maps
        self._files = {file.base: file for file in files}
        self._file_size = file_size
        self._delay_levels = delay_levels

    def view(self, offset: int) -> tuple[memoryview, int] | None:
        """The bytes of the file that covers an offset, and where it begins."""
        base = offset - offset % self._file_size
        file = self._files.get(base)
        found = None if file is None else self._maps.get(file.path)
        return None if found is None else (found.view[: self._file_size], base)

    def record_at(self, offset: int) -> Found | None:
        """The record that begins there, None if none does."""
        covering = self.view(offset) if offset >= 0 else None
        if covering is None:
            return None
        data, base = covering
        at = offset - base
        rows, _, _ = kernels.walk(data, base, at, at + 1, False, None, 1)
        if not len(rows):
            return None
        kernels.tag_codes(data, base, rows, self._delay_levels)
        row = rows[0]
        topic_at = at + int(row["topic_at"])
        topic = bytes(data[topic_at : topic_at + int(row["topic_length"])]).decode("utf-8", "surrogateescape")
        return Found(
            topic,
            int(row["queue_id"]),
            int(row["queue_offset"]),
            int(row["size"]),
            int(row["tags_code"]),
            enters_queue(int(row["sys_flag"])),
            int(row["store_timestamp"]),
        )
