"""Taking in what another process has added to queues and index, cheaply and without changing anything.

Only units whose records end at or before a limit are taken: those the job has told of. Files are mapped privately, so
nothing on disk can change by what is done here. One thread at a time; readers of the queues may go on meanwhile.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping

import numpy as np

from penstock.errors import BadStore
from penstock.format import kernels
from penstock.format.queue_unit import NO_RECORD_SIZE, UNIT_SIZE
from penstock.store.consume_queue import ConsumeQueue
from penstock.store.consume_queues import ConsumeQueues
from penstock.store.file_queue import file_name
from penstock.store.files import Files
from penstock.store.index import Index
from penstock.store.index_file import IndexFile
from penstock.store.mapped_file import MappedFile
from penstock.store.sound_units import view_units

_UNITS_AT_ONCE = 65_536
_DATA_NAME = re.compile(r"[0-9]{20}")
_INDEX_NAME = re.compile(r"[0-9]{17}")


def load(queue: ConsumeQueue, limit: int, log_min: int, deleted: Mapping[str, int]) -> bool:
    """Maps the files of a queue that has none so far; False if there are none, or only those of a deleted topic."""
    try:
        queue.load()
    except (BadStore, FileNotFoundError):  # files are being made or removed at this very moment
        queue.close()
        return False
    for file in queue.keep_first(queue.count_before(limit)):
        file.shut_down()
    first = queue.files.first
    if first is None or not first.wrote or queue.unit(first.from_offset // UNIT_SIZE)[0] < deleted.get(queue.topic, 0):
        queue.close()
        return False
    queue.correct_min_offset(log_min)
    return True


def begun(
    files: Files, queues: ConsumeQueues, topic: str, queue_id: int, deleted: Mapping[str, int]
) -> ConsumeQueue | None:
    """A queue that has come, with its first file and no unit yet; None if there is none, or of a deleted topic only."""
    folder = queues.folder / topic / str(queue_id)
    names = [name for name in files.names(folder) if _DATA_NAME.fullmatch(name)]
    if not names or files.size(folder / names[0]) != queues.file_size:
        return None
    queue = ConsumeQueue(files, folder, topic, queue_id, queues.file_size)
    queue.files.map_files([int(names[0])])
    if 0 < queue.unit(int(names[0]) // UNIT_SIZE)[0] + 1 <= deleted.get(topic, 0):
        queue.close()
        return None
    queue.files.cut(int(names[0]))
    return queue


def grow(files: Files, queue: ConsumeQueue, limit: int) -> kernels.Longs:
    """Takes in what has come to a queue that has files; the tags codes of the new units."""
    codes = [np.empty(0, np.int64)]
    while (last := queue.files.last) is not None:
        if last.full:
            following = last.path.with_name(file_name(last.from_offset + last.size))
            if not files.exists(following) or files.size(following) != last.size:
                break
            queue.files.writable(0, lambda path, offset: MappedFile(files.open_map(path), offset))
            continue
        room = min(last.size - last.wrote, _UNITS_AT_ONCE * UNIT_SIZE)
        units = view_units(last, last.wrote, room).copy()
        offsets, sizes = units["offset"].astype(np.int64), units["size"].astype(np.int64)
        real = sizes != NO_RECORD_SIZE
        not_yet = np.flatnonzero((sizes <= 0) | (real & (offsets + sizes > limit)))
        count = int(not_yet[0]) if len(not_yet) else len(units)
        pointing = np.flatnonzero(real[:count])
        if len(pointing):
            newest = pointing[-1]
            queue.max_physical_offset = int(offsets[newest] + sizes[newest])
        last.wrote += count * UNIT_SIZE
        codes.append(units["tags_code"][:count].astype(np.int64))
        if count < len(units):
            break
    return np.concatenate(codes)


def let_go(files: Files, queue: ConsumeQueue) -> None:
    """Lets go of leading files that are gone from the disk."""
    while len(queue.files.files) > 1 and not files.exists(queue.files.files[0].path):
        queue.files.drop_first(forced=True)


def follow_index(files: Files, index: Index) -> None:
    """Takes in the index files that have come, and lets go of those that are gone."""
    names = [name for name in files.names(index.folder) if _INDEX_NAME.fullmatch(name)]
    known = {file.path.name: file for file in index.files}
    if names == list(known):
        return
    there: list[IndexFile] = []
    for name in names:
        with contextlib.suppress(BadStore, FileNotFoundError):
            if name not in known and files.size(index.folder / name) != index.geometry.file_size:
                continue
            there.append(known.get(name) or IndexFile(files.open_map(index.folder / name), index.geometry))
    gone = [file for file in index.files if file not in there]
    index.files = tuple(there)
    for file in gone:
        file.shut_down()
