"""The next queue offsets of a store that does not build its queues: from the note, and the log behind it.

The note says how many units each queue had when everything before its position was dispatched. What lies behind that in
the log says the rest: each record carries its own queue offset. Nothing of the queues is read or changed.
"""

from __future__ import annotations

import numpy as np

from penstock.format import kernels
from penstock.format.rows import Reason
from penstock.store.commit_log import CommitLog
from penstock.store.deleted_topics import read_deleted_topics
from penstock.store.dispatch_state import DispatchState
from penstock.store.files import Files
from penstock.store.layout import Layout
from penstock.store.recovery.report import DISPATCH, Meter, Tell
from penstock.store.witness import most_offset

_ROWS = 65_536


def take_next_offsets(files: Files, layout: Layout, log: CommitLog, state: DispatchState, tell: Tell) -> None:
    """Sets them in a log whose end is settled."""
    deleted = read_deleted_topics(files, layout.deleted_topics)
    for noted in state.queues:
        if noted.count and noted.end > deleted.get(noted.topic, -2):
            log.set_next_offset(noted.topic, noted.queue_id, noted.count)
    topics = kernels.TopicTable()
    end = log.queue.wrote_offset
    position = max(state.position, log.min_offset)
    meter = Meter(tell, DISPATCH, end - position)
    while position < end:
        file = log.queue.find(position)
        assert file is not None, "a log has no holes"
        base, stop = file.from_offset, min(end - file.from_offset, file.size)
        rows, reached, reason = kernels.walk(file.map.view, base, position - base, stop, False, topics, _ROWS)
        _count(log, rows, topics, deleted)
        if reason == Reason.BLANK:
            reached = file.size
        elif reason not in (Reason.STOP, Reason.FULL):
            found = kernels.find_record(file.map.view, base, reached + 1, stop, True)
            reached = stop if found < 0 else found
        meter.add(base + reached - position)
        position = base + reached


def _count(log: CommitLog, rows: kernels.Rows, topics: kernels.Topics, deleted: dict[str, int]) -> None:
    for topic_id, queue_id, picks in kernels.group_rows(rows):
        topic = topics.name(topic_id)
        offsets, positions = rows["queue_offset"][picks], rows["physical_offset"][picks]
        # A queue offset that the log had no room for is damage; one of a deleted topic counts no more.
        sound = (offsets >= 0) & (offsets <= most_offset(positions)) & (positions >= deleted.get(topic, 0))
        if sound.any():
            known = log.next_offset(topic, queue_id)
            log.set_next_offset(topic, queue_id, max(known, int(np.max(offsets[sound])) + 1))
