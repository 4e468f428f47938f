"""Offsets of consumer groups and delay levels that cannot be: behind the end of their queue, or of what nobody knows.

If the backup of the file has no such offset, it takes the place of the file. Otherwise offsets behind a queue's end are
set to the end, where a broker would send the consumer too, those below 0 to 0, and those of an unknown topic or delay
level go. The old file is kept aside.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from penstock.format import loose_json
from penstock.format.config_tables import ConsumerOffsets, DelayOffsets
from penstock.format.constants import DAMAGED_TOPIC, DLQ_PREFIX, HALF_TOPIC, OP_HALF_TOPIC, RETRY_PREFIX, SCHEDULE_TOPIC
from penstock.store.config_files import ConfigFile, ConfigFiles
from penstock.store.consume_queues import ConsumeQueues
from penstock.store.files import Files
from penstock.store.layout import Layout
from penstock.store.repair.report import Change
from penstock.store.repair.settle import Settler, is_good

_SYSTEM_TOPICS = {SCHEDULE_TOPIC, HALF_TOPIC, OP_HALF_TOPIC, DAMAGED_TOPIC}

T = TypeVar("T", ConsumerOffsets, DelayOffsets)


def settle_offsets(
    files: Files, layout: Layout, queues: ConsumeQueues, delay_levels: int, settler: Settler
) -> list[Change]:
    """Raises StoreFailed, and then can be called again."""
    config = ConfigFiles(files, layout.config)
    known = {*config.topics.read().table.topics, *queues.topics()}

    def consumers(table: ConsumerOffsets) -> list[str]:
        return _mend_consumers(table, queues, known)

    def delays(table: DelayOffsets) -> list[str]:
        return _mend_delays(table, queues, delay_levels)

    return [
        *_mend(files, config.consumer_offsets, ConsumerOffsets, consumers, settler),
        *_mend(files, config.delay_offsets, DelayOffsets, delays, settler),
    ]


def _mend(
    files: Files, file: ConfigFile[T], kind: type[T], mend: Callable[[T], list[str]], settler: Settler
) -> list[Change]:
    table = file.read().table
    mended = mend(table)
    if not mended:
        return []
    what = f"had offsets that cannot be ({'; '.join(mended)})"
    if is_good(files, file.backup, kind) and not mend(ConfigFile(files, file.backup, kind).read().table):
        return [settler.replace(file.path, files.read_bytes(file.backup), f"{what}; its backup took its place")]
    document: dict[str, Any] = table.to_json()
    return [settler.replace(file.path, loose_json.dumps(document).encode(), f"{what}; they were put right")]


def _mend_consumers(table: ConsumerOffsets, queues: ConsumeQueues, known: set[str]) -> list[str]:
    """Puts the table right; says what had to be."""
    mended: list[str] = []
    for (topic, group), offsets in list(table.offsets.items()):
        if not (topic in known or topic in _SYSTEM_TOPICS or topic.startswith((RETRY_PREFIX, DLQ_PREFIX))):
            del table.offsets[topic, group]
            mended.append(f"group {group} in topic {topic}, which nobody knows")
            continue
        for queue_id, offset in offsets.items():
            queue = queues.find(topic, queue_id)
            right = max(offset, 0) if queue is None else min(max(offset, 0), queue.max_offset)
            if right != offset:
                offsets[queue_id] = right
                mended.append(f"group {group} in queue {queue_id} of {topic}: {offset}, and {right} is the most")
    return mended


def _mend_delays(table: DelayOffsets, queues: ConsumeQueues, levels: int) -> list[str]:
    mended: list[str] = []
    for level, offset in list(table.offsets.items()):
        queue = queues.find(SCHEDULE_TOPIC, level - 1)
        right = min(max(offset, 0), 0 if queue is None else queue.max_offset)
        if not 1 <= level <= levels:
            del table.offsets[level]
            mended.append(f"delay level {level} of {levels}")
        elif right != offset:
            table.offsets[level] = right
            mended.append(f"delay level {level}: {offset}, and {right} is the most")
    return mended
