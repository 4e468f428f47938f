"""Truncation of the log of a store that is not open yet: durable, and before recovery looks at anything.

The caller has noted on disk that it truncates, and does so again after a crash: all steps are idempotent. Afterwards
the file `abort` exists, so that recovery walks the log, and truncates queues and index.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import msgspec

from penstock.store.dispatch_checkpoint import read_state
from penstock.store.files.atomic_files import write_checksummed
from penstock.store.files.file_io import Files
from penstock.store.files.layout import Layout
from penstock.store.files.mapped_file import MappedFile
from penstock.store.files.mapped_file_queue import FolderListing, file_name


@contextlib.contextmanager
def mapped_log_file(files: Files, layout: Layout, offset: int) -> Iterator[MappedFile]:
    """Maps the log file that begins at `offset`."""
    file = MappedFile(files.open_map(layout.commit_log / file_name(offset)), offset)
    try:
        yield file
    finally:
        file.shut_down()


def truncate_log(files: Files, layout: Layout, start: int, shape: FolderListing, file_size: int) -> int:
    """Removes everything from physical offset `start` on from the log; returns about how many bytes it removed.

    Raises StoreFailed or OSError.
    """
    offsets = [*shape.offsets, *(() if shape.unfinished is None else (shape.unfinished,))]
    if not offsets:
        return 0
    if not files.exists(layout.abort):
        files.replace_bytes(layout.abort, b"")  # the files no longer match the last clean close
    _rewind_note(files, layout, start)
    cut = 0
    removed = [offset for offset in offsets if offset > start or (offset == start and offset != offsets[0])]
    for offset in reversed(removed):  # last file first, so that a crash leaves no hole
        cut += files.size(layout.commit_log / file_name(offset))
        files.unlink(layout.commit_log / file_name(offset))
    files.sync_folder(layout.commit_log)
    for offset in shape.offsets:
        if offset <= start < offset + file_size and offset not in removed:
            with mapped_log_file(files, layout, offset) as file:
                cut += file.zero(start - offset)
                file.map.sync()
    return cut


def _rewind_note(files: Files, layout: Layout, start: int) -> None:
    """Rewinds the dispatch note to `start`. Otherwise a start would report the removed messages as lost."""
    state = read_state(files, layout.dispatched)
    if state is not None and max(state.position, state.flushed) > start:
        index_end = None if state.index_end is None else min(state.index_end, start - 1)
        rewound = msgspec.structs.replace(
            state,
            position=min(state.position, start),
            flushed=min(state.flushed, start),
            queues=[queue for queue in state.queues if queue.end <= start],
            index_end=index_end,
        )
        write_checksummed(files, layout.dispatched, rewound)
