"""The extension files of consume queues: read where they exist, never written, never removed.

A unit whose tags code is an address in such a file has its real tags code there.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt

from penstock.errors import CorruptData
from penstock.format.queue_ext import decode_ext_unit, ext_offset
from penstock.format.queue_unit import MAX_EXT_ADDRESS
from penstock.store.file_queue import file_name
from penstock.store.files import Files


class QueueExtensions:
    """Looks tags codes up in `consumequeue_ext/{topic}/{queue id}`."""

    def __init__(self, files: Files, folder: Path, file_size: int) -> None:
        self._io = files
        self._folder = folder
        self._file_size = file_size
        self._cache: dict[Path, bytes] = {}

    def resolve(self, topic: str, queue_id: int, codes: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Tags codes with addresses replaced by what they point to; those that cannot be found stay."""
        codes = codes.astype(np.int64)
        for place in np.flatnonzero(codes <= MAX_EXT_ADDRESS).tolist():
            found = self.tags_code(topic, queue_id, int(codes[place]))
            if found is not None:
                codes[place] = found
        return codes

    def tags_code(self, topic: str, queue_id: int, address: int) -> int | None:
        offset = ext_offset(address)
        start = offset - offset % self._file_size
        path = self._folder / topic / str(queue_id) / file_name(start)
        try:
            data = self._cache.get(path) or self._io.read_bytes(path)
            self._cache[path] = data
            unit = decode_ext_unit(data, offset - start)
        except (FileNotFoundError, CorruptData):
            return None
        return None if unit is None else unit.tags_code
