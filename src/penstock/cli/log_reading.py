"""The commitlog, straight from its files: every record in log order, fillers and damage included.

Neither queues nor index are needed, and recovery's cut hides nothing. An unwritten place ends the log; if something
follows in a later file after all, that place is looked at again (a writer may have filled it meanwhile) and what is
still missing is damage. While a writer owns the store, broken bytes with nothing behind them are a record on its way
into the log, not damage.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeAlias

from penstock.format import kernels
from penstock.format.record import Record, decode_record
from penstock.format.rows import Reason
from penstock.format.scan import Batch, Blank, Damage, scan
from penstock.store.file_queue import FileQueue
from penstock.store.folder import StoreFolder
from penstock.store.geometry import fit_to_log
from penstock.store.mapped_file import MappedFile
from penstock.store.stand_in import MOST_IN_A_ROW

Found: TypeAlias = tuple[Record, int] | Blank | Damage
"""A record with its tags code, or what is no record."""

_ROWS = 1024


class LogReader:
    """Reads all log files that are there when it is made; they stay mapped as long as it is used."""

    def __init__(self, place: StoreFolder) -> None:
        self._delay_levels = place.settings.delay_levels
        self._live = bool(place.owner)
        self._queue = place.settled(lambda: _load(place))

    def __iter__(self) -> Iterator[Found]:
        unfinished: list[tuple[MappedFile, int]] = []
        for file in self._queue.files:
            position = 0
            for item, behind in self._scan(file, 0, live=self._live):
                for earlier, start in unfinished:
                    yield from self._rest(earlier, start)
                unfinished, position = [], behind
                yield item
            if position < file.size:
                unfinished.append((file, position))

    def _rest(self, file: MappedFile, position: int) -> Iterator[Found]:
        """The log goes on behind a file that seemed to be its end: what it holds by now, and what is missing."""
        for item, behind in self._scan(file, position, live=False):
            position = behind
            yield item
        if position < file.size:
            yield Damage(file.from_offset + position, file.size - position, Reason.UNWRITTEN)

    def _scan(self, file: MappedFile, start: int, *, live: bool) -> Iterator[tuple[Found, int]]:
        """What lies in a file from `start` on, each with the position behind it."""
        data, base = file.map.view, file.from_offset
        waiting: Damage | None = None
        for item in scan(data, base, start, file.size, check_crc=True, live=live, rows_per_batch=_ROWS):
            if waiting is not None:
                yield waiting, waiting.position + waiting.size - base
                waiting = None
            if isinstance(item, Batch):
                kernels.tag_codes(data, base, item.rows, self._delay_levels)
                for offset, size, code in item.rows[["physical_offset", "size", "tags_code"]].tolist():
                    yield (decode_record(data, offset - base), code), offset + size - base
            elif isinstance(item, Damage) and live:
                waiting = item
            else:
                yield item, item.position + item.size - base


def _load(place: StoreFolder) -> FileQueue:
    size = fit_to_log(place.settings, place.files, place.layout).mapped_file_size_commit_log
    queue = FileQueue(place.files, place.layout.commit_log, size)
    queue.map_files(queue.look(may_lack=MOST_IN_A_ROW).offsets)
    return queue
