"""Which sizes a store's files should have, when some of them may have wrong ones: as an audit judges them.

One log file alone has no other to agree with: unless a filler ends it, the size is the one that the store noted at its
last close. Without a note it is believed, if its last record does not run past its end. Where the geometry of the index
files is not known, the index is left alone.
"""

from __future__ import annotations

from penstock.errors import BadStore
from penstock.format.rows import Reason
from penstock.store.audit import sizes
from penstock.store.audit.listing import DataFile, list_store
from penstock.store.dispatch_state import read_state
from penstock.store.files import Files
from penstock.store.geometry import Fitted, where_records_end
from penstock.store.layout import Layout
from penstock.store.settings import Settings


def fit_sizes(settings: Settings, files: Files, layout: Layout) -> Fitted:
    """Raises BadStore if the size of the log's files cannot be told."""
    found = list_store(files, layout)
    state = read_state(files, layout.dispatched)
    noted = None if state is None else state.sizes
    fitted, geometry = sizes.fit_sizes(settings, found, noted)
    if len(found.log.files) == 1 and "mapped_file_size_commit_log" not in settings.given:
        size = _size_of_only_file(files, found.log.files[0], None if noted is None else noted.commit_log)
        if size:
            fitted = fitted.with_changes(mapped_file_size_commit_log=size)
    if geometry is not None:
        return Fitted(fitted.with_changes(max_hash_slot_num=geometry.slots, max_index_num=geometry.items))
    problem = (
        f"{layout.index} was left alone: its files have {found.index.files[0].size} bytes, which no geometry that is "
        "known makes; say the one they were made with (--set maxHashSlotNum=... --set maxIndexNum=...)"
    )
    return Fitted(fitted.with_changes(message_index_enable=False), problem)


def _size_of_only_file(files: Files, file: DataFile, noted: int | None) -> int | None:
    if not file.size or file.size == noted:
        return noted
    at, reason = where_records_end(files, file.path)
    if reason == Reason.BLANK or (noted is None and reason != Reason.BEYOND_END):
        return file.size
    if noted is None:
        raise BadStore(
            "the file was cut short: its last record runs past its end, and nothing tells how long it was; say it with "
            "--set mappedFileSizeCommitLog=...",
            path=file.path,
            offset=at,
        )
    return noted
