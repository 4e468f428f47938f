"""How far a store in use is settled: see `plan.py` for what that means and why it can be relied on."""

from __future__ import annotations

from collections import deque

import msgspec

from penstock.format import kernels
from penstock.format.index_layout import HEADER_SIZE, IndexGeometry, IndexHeader
from penstock.store.audit.index_items import ItemTable
from penstock.store.audit.log_reader import LogReader
from penstock.store.audit.maps import Maps
from penstock.store.audit.plan import ROWS_IN_FLIGHT, Plan
from penstock.store.audit.queue_units import QueueUnits
from penstock.store.files import Files

_UNITS_TRIED = 4
"""How many of a queue's last units are asked; the very last may be half written."""
_ROWS = 16_384


def bounded(plan: Plan, files: Files) -> Plan:
    """The plan of a store in use with its bounds, as they are now."""
    with Maps(files) as maps:
        reader = LogReader(maps, plan.log.files, plan.log_file_size, plan.settings.delay_levels)
        counts, index_limit = _index_bounds(plan, maps)
        ends = [_queue_end(plan, maps, reader, name) for name in plan.queues]
        last = reader.record_at(index_limit)
        limit = max([plan.log_min, *ends, 0 if last is None else index_limit + last.size])
        return msgspec.structs.replace(
            plan,
            log_limit=limit,
            settled=_settled(reader, limit, plan),
            index_limit=index_limit,
            index_counts=counts,
        )


def _index_bounds(plan: Plan, maps: Maps) -> tuple[tuple[int, ...], int]:
    """How many items each file has, and the offset of the newest one's record: other keys of it may be on their way."""
    counts: list[int] = []
    limit = plan.log_min
    for each in plan.index_files:
        file, geometry = maps.get(each.path), plan.geometry or IndexGeometry()
        count = 1
        if file is not None:
            header = IndexHeader.unpack(bytes(file.view[:HEADER_SIZE]))
            count = min(max(header.index_count, 1), geometry.items)
            if count > 1:
                limit = ItemTable(file, geometry, count, in_order=True).offset_at(count - 1)
        counts.append(count)
    return tuple(counts), limit


def _queue_end(plan: Plan, maps: Maps, reader: LogReader, name: tuple[str, int]) -> int:
    """Where the newest record that a queue knows ends in the log, -1 if it knows none."""
    units = QueueUnits(maps, plan.queues[name], plan.queue_file_size)
    end = units.end()
    for number in range(end - 1, max(end - 1 - _UNITS_TRIED, units.first - 1), -1):
        for unit in units.read(number, number + 1):
            found = reader.record_at(int(unit["offset"]))
            if found is not None and found.size == unit["size"]:
                return int(unit["offset"]) + found.size
    return -1


def _settled(reader: LogReader, limit: int, plan: Plan) -> int:
    """The record so many records before `limit` that no dispatcher can be at work on it any more."""
    covering = reader.view(limit - 1) if limit > plan.log_min else None
    if covering is None:
        return limit
    data, base = covering
    recent: deque[kernels.Longs] = deque(maxlen=ROWS_IN_FLIGHT // _ROWS + 2)
    at = 0
    while at < limit - base:
        rows, at, _ = kernels.walk(data, base, at, limit - base, False, None, _ROWS)
        if len(rows):
            recent.append(rows["physical_offset"].copy())
        elif (at := kernels.find_record(data, base, at + 1, limit - base, True)) < 0:
            break
    offsets = [offset for part in recent for offset in part.tolist()]
    return int(offsets[-ROWS_IN_FLIGHT]) if len(offsets) > ROWS_IN_FLIGHT else base
