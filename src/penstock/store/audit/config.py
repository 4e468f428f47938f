"""The audit of checkpoint and config files against what the log and the queues have."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from penstock.errors import BadStore
from penstock.format.checkpoint import CHECKPOINT_SIZE, Checkpoint
from penstock.format.constants import (
    DAMAGED_TOPIC,
    DLQ_PREFIX,
    HALF_TOPIC,
    OP_HALF_TOPIC,
    RETRY_PREFIX,
    SCHEDULE_TOPIC,
)
from penstock.store.audit import finding_kinds
from penstock.store.audit.cover import QueueName
from penstock.store.audit.findings import Finding
from penstock.store.audit.log import LogState
from penstock.store.audit.plan import AuditPlan
from penstock.store.config_files import ConfigFile, ConfigFiles
from penstock.store.io import Files

_SYSTEM_TOPICS = {SCHEDULE_TOPIC, HALF_TOPIC, OP_HALF_TOPIC, DAMAGED_TOPIC}
_TRIES = 5
"""How often a file that its owner may just be replacing is looked at."""


class ConfigState(msgspec.Struct, frozen=True):
    """What the config files and the checkpoint say, read before anything else of a store in use."""

    topics: frozenset[str] | None = None
    """The topics of topics.json, None if there is no such file."""
    consumer_offsets: dict[tuple[str, str], dict[int, int]] = {}
    delay_offsets: dict[int, int] = {}
    checkpoint: Checkpoint | None = None
    findings: tuple[Finding, ...] = ()


class QueueBounds(msgspec.Struct, frozen=True):
    """Where a queue begins and ends."""

    minimum: int
    maximum: int


def read_config(files: Files, plan: AuditPlan) -> ConfigState:
    """Reads every file; one that cannot be read is a finding, and counts as empty."""
    every = ConfigFiles(files, plan.layout.config)
    findings: list[Finding] = []
    tables: dict[str, Any] = {}
    for file in (
        every.topics,
        every.consumer_offsets,
        every.delay_offsets,
        every.subscription_groups,
        every.consumer_filters,
    ):
        tables[file.path.name], found = _read(files, file, _TRIES if plan.is_live else 1)
        findings += found
    if not files.is_folder(plan.layout.config):
        findings = [finding_kinds.CONFIG_MISSING.at(plan.layout.config, "there are no config files")]
    checkpoint, found = _read_checkpoint(files, plan)
    topics, offsets, delays = (tables[name] for name in ("topics.json", "consumerOffset.json", "delayOffset.json"))
    return ConfigState(
        None if topics is None else frozenset(topics.topics),
        {} if offsets is None else offsets.offsets,
        {} if delays is None else delays.offsets,
        checkpoint,
        (*findings, *found),
    )


def _read(files: Files, file: ConfigFile[Any], tries: int) -> tuple[Any, list[Finding]]:
    """The table, None if there is none."""
    exists, note, table = False, "", None
    for _ in range(tries):  # RocketMQ removes a file before it renames the new one
        exists = files.exists(file.path)
        try:
            loaded = file.read()
        except BadStore as error:
            return None, [finding_kinds.CONFIG_UNREADABLE.at(file.path, str(error.args[0]))]
        table, note = loaded.table, loaded.note.rstrip(".")
        if exists and not note:
            return table, []
    if exists:
        return table, [finding_kinds.CONFIG_UNREADABLE.at(file.path, note)]
    missing = finding_kinds.CONFIG_MISSING.at(file.path, note or "the file does not exist")
    return (table if note else None), [missing]


def _read_checkpoint(files: Files, plan: AuditPlan) -> tuple[Checkpoint | None, list[Finding]]:
    path = plan.layout.checkpoint
    if not files.exists(path):
        return None, [finding_kinds.CHECKPOINT_MISSING.at(path, "the file does not exist")]
    data = files.read_bytes(path)
    if len(data) != CHECKPOINT_SIZE:
        return None, [
            finding_kinds.CHECKPOINT_SIZE.at(path, f"the file has {len(data)} bytes, and must have {CHECKPOINT_SIZE}")
        ]
    return Checkpoint.unpack(data), []


def audit_config(
    plan: AuditPlan, state: ConfigState, log: LogState, queues: Mapping[QueueName, QueueBounds]
) -> Iterator[Finding]:
    """Compares the config with the queues, and the checkpoint with the log."""
    yield from state.findings
    yield from _checkpoint(plan, state, log)
    yield from _consumer_offsets(plan, state, queues)
    yield from _delay_offsets(plan, state, queues)
    stored = {topic for topic, _ in queues}
    for topic in sorted(stored - (state.topics or stored) - _SYSTEM_TOPICS):
        what = f"the topic {topic} has queues and is not in topics.json"
        yield finding_kinds.TOPIC_NOT_CONFIGURED.at(plan.layout.config / "topics.json", what)


def _checkpoint(plan: AuditPlan, state: ConfigState, log: LogState) -> Iterator[Finding]:
    """A checkpoint of a store in use moves on, and one beside a damaged end has lost what it speaks of."""
    tail_is_lost = any(trouble.end >= log.end for trouble in log.troubles)
    if state.checkpoint is None or plan.is_live or not log.newest_time or tail_is_lost:
        return
    for name in ("physic", "logics", "index"):
        said = getattr(state.checkpoint, name)
        if said > log.newest_time:
            what = f"its {name} time is {said}, and the newest record was stored at {log.newest_time}"
            at = 8 * ("physic", "logics", "index").index(name)
            yield finding_kinds.CHECKPOINT_AHEAD.at(plan.layout.checkpoint, what, offset=at)


def _consumer_offsets(
    plan: AuditPlan, state: ConfigState, queues: Mapping[QueueName, QueueBounds]
) -> Iterator[Finding]:
    path = plan.layout.config / "consumerOffset.json"
    stored = {topic for topic, _ in queues}
    for (topic, group), offsets in sorted(state.consumer_offsets.items()):
        if not (topic in stored or topic in (state.topics or ()) or _is_system(topic)):
            yield finding_kinds.UNKNOWN_TOPIC.at(
                path, f"group {group} has offsets in topic {topic}, which nobody knows"
            )
            continue
        for queue_id, offset in sorted(offsets.items()):
            bounds = queues.get((topic, queue_id))
            where = f"group {group} goes on at {offset} in queue {queue_id} of {topic}"
            if bounds is None:
                if offset > 0:
                    yield finding_kinds.CONSUMER_OFFSET_QUEUE_GONE.at(path, f"{where}, which has no files")
            elif offset > bounds.maximum or offset < 0:
                what = f"{where}, which ends at {bounds.maximum}"
                yield finding_kinds.CONSUMER_OFFSET_PAST_END.at(path, what)
            elif offset < bounds.minimum:
                what = f"{where}, which begins at {bounds.minimum}"
                yield finding_kinds.CONSUMER_OFFSET_BELOW_MINIMUM.at(path, what, messages=bounds.minimum - offset)


def _is_system(topic: str) -> bool:
    return topic in _SYSTEM_TOPICS or topic.startswith((RETRY_PREFIX, DLQ_PREFIX))


def _delay_offsets(plan: AuditPlan, state: ConfigState, queues: Mapping[QueueName, QueueBounds]) -> Iterator[Finding]:
    path = plan.layout.config / "delayOffset.json"
    levels = len(plan.settings.delay_levels)
    for level, offset in sorted(state.delay_offsets.items()):
        if not 1 <= level <= levels:
            yield finding_kinds.DELAY_LEVEL_UNKNOWN.at(
                path, f"there is an offset for level {level}, and {levels} levels"
            )
            continue
        bounds = queues.get((SCHEDULE_TOPIC, level - 1), QueueBounds(0, 0))
        if offset > bounds.maximum or offset < 0:
            what = f"level {level} goes on at {offset}, and its queue ends at {bounds.maximum}"
            yield finding_kinds.DELAY_OFFSET_PAST_END.at(path, what)
        elif offset < bounds.minimum:
            what = f"level {level} goes on at {offset}, and its queue begins at {bounds.minimum}"
            yield finding_kinds.DELAY_OFFSET_BELOW_MINIMUM.at(path, what, messages=bounds.minimum - offset)
