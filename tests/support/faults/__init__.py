"""Every fault that an audit must find: functions that plant it in a `SoundStore` and return the kinds of findings due.

`ALL` has them by name. A store with one of them gives exactly these kinds: consequences that cannot be avoided are
among them, nothing else may be.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

from penstock.format.checkpoint import Checkpoint
from penstock.format.config_tables import ConsumerOffsets, DelayOffsets
from support.damage import T0, SoundStore
from support.faults.index import INDEX_FAULTS
from support.faults.log import LOG_FAULTS
from support.faults.queues import QUEUE_FAULTS

Kinds = set[str]
Fault = Callable[[SoundStore], Kinds]


def _consumer_offsets(store: SoundStore) -> ConsumerOffsets:
    return store.config.consumer_offsets.read().table


def a_checkpoint_ahead_of_the_log(store: SoundStore) -> Kinds:
    (store.folder / "checkpoint").write_bytes(Checkpoint(T0 + 10**9, T0, T0).pack())
    return {"checkpoint-ahead"}


def a_checkpoint_of_another_size(store: SoundStore) -> Kinds:
    (store.folder / "checkpoint").write_bytes(bytes(4095))
    return {"checkpoint-size"}


def no_checkpoint(store: SoundStore) -> Kinds:
    (store.folder / "checkpoint").unlink()
    return {"checkpoint-missing"}


def a_consumer_offset_past_the_end(store: SoundStore) -> Kinds:
    table = _consumer_offsets(store)
    table.offsets["orders", "group"][0] += 1
    store.config.consumer_offsets.write(table)
    return {"consumer-offset-past-end"}


def a_consumer_offset_in_a_topic_that_nobody_knows(store: SoundStore) -> Kinds:
    table = _consumer_offsets(store)
    table.offsets["nobody", "group"] = {0: 3}
    store.config.consumer_offsets.write(table)
    return {"unknown-topic"}


def a_consumer_that_reads_what_retention_deleted(store: SoundStore) -> Kinds:
    table = _consumer_offsets(store)
    table.offsets["orders", "group"][0] = 0
    store.config.consumer_offsets.write(table)
    store.log_files()[0].unlink()
    return {
        "consumer-offset-below-minimum",
        "units-below-minimum",
        "queue-gone",
        "index-below-minimum",
        "delay-offset-below-minimum",
    }


def a_delay_offset_past_the_end(store: SoundStore) -> Kinds:
    store.config.delay_offsets.write(DelayOffsets(offsets={3: 10_000}))
    return {"delay-offset-past-end"}


def a_delay_level_that_nobody_knows(store: SoundStore) -> Kinds:
    store.config.delay_offsets.write(DelayOffsets(offsets={19: 1}))
    return {"delay-level-unknown"}


def a_config_file_of_zeros(store: SoundStore) -> Kinds:
    path = store.folder / "config" / "topics.json"
    path.write_bytes(bytes(path.stat().st_size))
    return {"config-unreadable"}


def an_empty_config_file(store: SoundStore) -> Kinds:
    (store.folder / "config" / "subscriptionGroup.json").write_bytes(b"")
    return {"config-unreadable"}


def a_config_file_that_does_not_exist(store: SoundStore) -> Kinds:
    (store.folder / "config" / "consumerFilter.json").unlink()
    return {"config-missing"}


def a_topic_that_is_not_configured(store: SoundStore) -> Kinds:
    table = store.config.topics.read().table
    del table.topics["Alerts"]
    store.config.topics.write(table)
    return {"topic-not-configured"}


CONFIG_FAULTS: list[Fault] = [
    a_checkpoint_ahead_of_the_log,
    a_checkpoint_of_another_size,
    no_checkpoint,
    a_consumer_offset_past_the_end,
    a_consumer_offset_in_a_topic_that_nobody_knows,
    a_consumer_that_reads_what_retention_deleted,
    a_delay_offset_past_the_end,
    a_delay_level_that_nobody_knows,
    a_config_file_of_zeros,
    an_empty_config_file,
    a_config_file_that_does_not_exist,
    a_topic_that_is_not_configured,
]
ALL: dict[str, Fault] = {
    fault.__name__: fault for fault in itertools.chain(LOG_FAULTS, QUEUE_FAULTS, INDEX_FAULTS, CONFIG_FAULTS)
}
