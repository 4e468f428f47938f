"""Faults in the queues: each function plants one in a `SoundStore` and returns the kinds of findings that are due."""

from __future__ import annotations

import shutil

from penstock.format.queue_unit import PRE_BLANK, pack_unit, unpack_unit
from penstock.store import Message, MessageStore
from support.damage import PREPARED, SETTINGS, UNITS_PER_FILE, SoundStore

Kinds = set[str]
NUMBER = 12
"""A unit in the second file of its queue."""


def _change(store: SoundStore, offset: int = 0, size: int = 0, tags_code: int = 0) -> None:
    """Adds to the fields of a unit."""
    was = unpack_unit(store.unit(NUMBER))
    store.write_unit(NUMBER, pack_unit(was[0] + offset, was[1] + size, was[2] + tags_code))


def a_unit_with_a_wrong_offset(store: SoundStore) -> Kinds:
    _change(store, offset=1)
    return {"unit-offset"}


def a_unit_with_a_wrong_size(store: SoundStore) -> Kinds:
    _change(store, size=-1)
    return {"unit-size"}


def a_unit_with_a_wrong_tag(store: SoundStore) -> Kinds:
    _change(store, tags_code=1)
    return {"unit-tags"}


def a_delayed_message_that_is_due_at_another_time(store: SoundStore) -> Kinds:
    offset, size, due = unpack_unit(store.unit(1, "SCHEDULE_TOPIC_XXXX", 2))
    store.write_unit(1, pack_unit(offset, size, due + 1000), "SCHEDULE_TOPIC_XXXX", 2)
    return {"unit-tags"}


def a_unit_of_another_topic(store: SoundStore) -> Kinds:
    store.write_unit(NUMBER, store.unit(3, "Alerts"))
    return {"unit-topic"}


def a_unit_of_another_queue(store: SoundStore) -> Kinds:
    store.write_unit(NUMBER, store.unit(3, queue_id=1))
    return {"unit-queue"}


def a_unit_of_a_prepared_record(store: SoundStore) -> Kinds:
    spot = next(spot for spot in store.records() if spot.type == PREPARED)
    store.write_unit(NUMBER, pack_unit(spot.offset, spot.size, 0))
    return {"unit-transaction"}


def a_unit_that_is_there_twice(store: SoundStore) -> Kinds:
    store.write_unit(NUMBER, store.unit(NUMBER - 1))
    return {"unit-repeated"}


def a_missing_last_unit(store: SoundStore) -> Kinds:
    store.write_unit(store.queue_end() - 1, bytes(20))
    return {"unit-missing"} | _consumers_are_ahead(store)


def a_missing_unit_that_keeps_its_place(store: SoundStore) -> Kinds:
    store.write_unit(NUMBER, PRE_BLANK)
    return {"unit-missing"}


def a_gap_of_zeros(store: SoundStore) -> Kinds:
    store.write_unit(NUMBER, bytes(20))
    store.write_unit(NUMBER + 1, bytes(20))
    return {"unit-gap"}


def a_unit_that_is_garbage(store: SoundStore) -> Kinds:
    store.write_unit(NUMBER, b"\xff" * 20)
    return {"unit-garbage"}


def a_unit_past_the_log(store: SoundStore) -> Kinds:
    store.write_unit(store.queue_end(), pack_unit(store.end() + 1000, 200, 0))
    return {"unit-past-log"}


def a_unit_for_nothing_at_the_end(store: SoundStore) -> Kinds:
    store.write_unit(store.queue_end(), PRE_BLANK)
    return {"unit-blank"}


def a_queue_without_its_first_file(store: SoundStore) -> Kinds:
    store.queue_files()[0].unlink()
    return {"queue-minimum"}


def a_queue_that_forgot_its_first_messages(store: SoundStore) -> Kinds:
    for number in range(3):
        store.write_unit(number, PRE_BLANK)
    return {"queue-minimum"}


def a_queue_without_files(store: SoundStore) -> Kinds:
    shutil.rmtree(store.folder / "consumequeue" / "orders" / "0")
    return {"unit-missing", "consumer-offset-queue-gone"}


def a_missing_queue_file(store: SoundStore) -> Kinds:
    store.queue_files()[1].unlink()
    return {"queue-file-missing"}


def a_missing_last_queue_file(store: SoundStore) -> Kinds:
    store.queue_files()[-1].unlink()
    return {"unit-missing", "consumer-offset-past-end"}


def an_empty_queue_file(store: SoundStore) -> Kinds:
    store.queue_files()[1].write_bytes(b"")
    return {"queue-file-empty"}


def a_queue_file_that_was_cut_short(store: SoundStore) -> Kinds:
    path = store.queue_files()[1]
    path.write_bytes(path.read_bytes()[:45])
    return {"queue-file-size"}


def a_queue_file_that_is_too_long(store: SoundStore) -> Kinds:
    path = store.queue_files()[1]
    path.write_bytes(path.read_bytes() + b"more")
    return {"queue-file-size"}


def a_queue_file_with_a_wrong_name(store: SoundStore) -> Kinds:
    path = store.queue_files()[1]
    path.rename(path.with_name(f"{int(path.name) + 1:020d}"))
    return {"queue-file-name", "queue-file-missing"}


def a_foreign_file_in_a_queue(store: SoundStore) -> Kinds:
    (store.queue_files()[0].parent / "00000000000000000000.old").write_text("mine")
    return {"foreign-file"}


def a_foreign_file_among_the_topics(store: SoundStore) -> Kinds:
    (store.folder / "consumequeue" / "notes.txt").write_text("mine")
    return {"foreign-file"}


def queue_offsets_that_no_record_has(store: SoundStore) -> Kinds:
    with MessageStore.open(store.folder, SETTINGS) as opened:
        opened.log.set_next_offset("orders", 0, store.queue_end() + 3)
        assert opened.put(Message("orders", b"after the gap")).ok
    return {"queue-offset-gap"}


def a_queue_offset_that_two_records_have(store: SoundStore) -> Kinds:
    end = store.queue_end()
    with MessageStore.open(store.folder, SETTINGS) as opened:
        opened.log.set_next_offset("orders", 0, end - 2)
        assert opened.put(Message("orders", b"again")).ok
    return {"queue-offset-repeated"}


def a_queue_that_began_anew(store: SoundStore) -> Kinds:
    """What RocketMQ leaves of a topic that was deleted and made again."""
    shutil.rmtree(store.folder / "consumequeue" / "orders")
    spot = store.records()[-1]
    end = spot.offset + spot.size
    with MessageStore.open(store.folder, SETTINGS) as opened:
        for queue_id in (0, 1):
            opened.log.set_next_offset("orders", queue_id, 0)
            assert opened.put(Message("orders", b"anew", queue_id=queue_id)).ok
    shutil.rmtree(store.folder / "consumequeue" / "orders")
    for record in (record for record in store.records() if record.offset >= end):
        path = store.folder / "consumequeue" / "orders" / str(record.queue_id) / ("0" * 20)
        path.parent.mkdir(parents=True)
        path.write_bytes(pack_unit(record.offset, record.size, 0).ljust(20 * UNITS_PER_FILE, b"\0"))
    return {"queue-restarted", "consumer-offset-past-end"}


def a_topic_that_was_deleted(store: SoundStore) -> Kinds:
    with MessageStore.open(store.folder, SETTINGS) as opened:
        assert opened.delete_topic("Alerts")
    return {"topic-deleted", "consumer-offset-queue-gone"}


def a_topic_that_rocketmq_deleted(store: SoundStore) -> Kinds:
    """Its queues and its entry in topics.json are gone, and nothing else says so."""
    shutil.rmtree(store.folder / "consumequeue" / "Alerts")
    topics = store.config.topics.read().table
    del topics.topics["Alerts"]
    store.config.topics.write(topics)
    return {"topic-deleted", "unknown-topic"}


def a_unit_whose_tags_code_lies_in_a_file_that_is_not_there(store: SoundStore) -> Kinds:
    offset, size, _ = unpack_unit(store.unit(NUMBER))
    store.write_unit(NUMBER, pack_unit(offset, size, -(2**63)))
    return {"unit-extension"}


def _consumers_are_ahead(store: SoundStore) -> Kinds:
    """The group has read queue 0 to its end."""
    return {"consumer-offset-past-end"}


QUEUE_FAULTS = [
    a_unit_with_a_wrong_offset,
    a_unit_with_a_wrong_size,
    a_unit_with_a_wrong_tag,
    a_delayed_message_that_is_due_at_another_time,
    a_unit_of_another_topic,
    a_unit_of_another_queue,
    a_unit_of_a_prepared_record,
    a_unit_that_is_there_twice,
    a_missing_last_unit,
    a_missing_unit_that_keeps_its_place,
    a_gap_of_zeros,
    a_unit_that_is_garbage,
    a_unit_past_the_log,
    a_unit_for_nothing_at_the_end,
    a_queue_without_its_first_file,
    a_queue_that_forgot_its_first_messages,
    a_queue_without_files,
    a_missing_queue_file,
    a_missing_last_queue_file,
    an_empty_queue_file,
    a_queue_file_that_was_cut_short,
    a_queue_file_that_is_too_long,
    a_queue_file_with_a_wrong_name,
    a_foreign_file_in_a_queue,
    a_foreign_file_among_the_topics,
    queue_offsets_that_no_record_has,
    a_queue_offset_that_two_records_have,
    a_queue_that_began_anew,
    a_topic_that_was_deleted,
    a_topic_that_rocketmq_deleted,
    a_unit_whose_tags_code_lies_in_a_file_that_is_not_there,
]
