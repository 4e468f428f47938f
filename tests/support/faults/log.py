"""Faults in the log: each function plants one in a `SoundStore` and returns the kinds of findings that are due."""

from __future__ import annotations

from penstock.format import kernels
from penstock.format.damage_placeholder import write_placeholder
from penstock.format.hosts import encode_host
from penstock.format.queue_unit import pack_unit
from support.damage import LOG_SIZE, PLAIN, SoundStore, Spot

Kinds = set[str]


def _number(value: int, size: int) -> bytes:
    return value.to_bytes(size, "big", signed=True)


def _last_in_file(store: SoundStore, number: int) -> Spot:
    return [spot for spot in store.records() if spot.offset // LOG_SIZE == number][-1]


def a_size_that_is_too_small(store: SoundStore) -> Kinds:
    store.write_log(store.middle().offset, _number(5, 4))
    return {"record-size"}


def a_size_that_is_one_too_large(store: SoundStore) -> Kinds:
    spot = store.middle()
    store.write_log(spot.offset, _number(spot.size + 1, 4))
    return {"record-size"}


def a_size_past_the_end_of_the_file(store: SoundStore) -> Kinds:
    store.write_log(store.middle().offset, _number(LOG_SIZE, 4))
    return {"record-size"}


def a_wrong_magic(store: SoundStore) -> Kinds:
    store.write_log(store.middle().offset + 4, b"\xde\xad\xbe\xef")
    return {"record-magic"}


def a_magic_of_zeros(store: SoundStore) -> Kinds:
    store.write_log(store.middle().offset + 4, bytes(4))
    return {"record-magic"}


def a_body_with_another_crc(store: SoundStore) -> Kinds:
    spot = store.middle()
    at = spot.offset + spot.body_at
    store.write_log(at, bytes([store.read_log(at, 1)[0] ^ 1]))
    return {"record-crc"}


def a_record_that_says_it_lies_elsewhere(store: SoundStore) -> Kinds:
    spot = store.middle()
    store.write_log(spot.offset + 28, _number(spot.offset + LOG_SIZE, 8))
    return {"record-position"}


def a_wrong_topic_length(store: SoundStore) -> Kinds:
    spot = store.middle()
    store.write_log(spot.offset + spot.topic_at - 1, _number(len(spot.topic) + 1, 1))
    return {"record-lengths"}


def a_negative_topic_length(store: SoundStore) -> Kinds:
    spot = store.middle()
    store.write_log(spot.offset + spot.topic_at - 1, _number(-1, 1))
    return {"record-lengths"}


def a_wrong_properties_length(store: SoundStore) -> Kinds:
    spot = store.middle()
    store.write_log(spot.offset + spot.properties_at - 2, _number(3, 2))
    return {"record-lengths"}


def a_store_time_before_2010(store: SoundStore) -> Kinds:
    store.write_log(store.middle(PLAIN).offset + 56, _number(1_100_000_000_000, 8))
    return {"record-time", "time-step-back"}


def a_store_time_in_the_far_future(store: SoundStore) -> Kinds:
    store.write_log(store.middle(PLAIN).offset + 56, _number(9_000_000_000_000, 8))
    return {"record-time", "time-step-back"}


def an_illegal_topic(store: SoundStore) -> Kinds:
    spot = store.middle(PLAIN)
    store.write_log(spot.offset + spot.topic_at, b"/")
    return {"record-topic", "unit-topic", "queue-offset-gap"}


def a_negative_queue_id(store: SoundStore) -> Kinds:
    store.write_log(store.middle(PLAIN).offset + 12, _number(-1, 4))
    return {"record-queue", "unit-queue", "queue-offset-gap"}


def a_hole_where_a_record_was(store: SoundStore) -> Kinds:
    spot = store.middle()
    store.write_log(spot.offset, bytes(spot.size))
    return {"log-hole"}


def a_file_that_ends_without_a_filler(store: SoundStore) -> Kinds:
    spot = _last_in_file(store, 1)
    store.write_log(spot.offset + spot.size, bytes(8))
    return {"log-hole"}


def a_file_of_zeros_in_the_middle(store: SoundStore) -> Kinds:
    store.log_files()[1].write_bytes(bytes(LOG_SIZE))
    return {"log-hole"}


def garbage_at_the_end_of_a_file_in_the_middle(store: SoundStore) -> Kinds:
    spot = _last_in_file(store, 1)
    store.write_log(spot.offset, b"\xff" * (LOG_SIZE - spot.offset % LOG_SIZE))
    return {"record-magic"}


def a_filler_in_the_middle(store: SoundStore) -> Kinds:
    store.write_log(store.middle().offset, bytes.fromhex("00000100cbd43194"))
    return {"filler-in-middle"}


def a_filler_over_records_that_are_still_there(store: SoundStore) -> Kinds:
    offset = store.middle().offset
    store.write_log(offset, _number(LOG_SIZE - offset % LOG_SIZE, 4) + bytes.fromhex("cbd43194"))
    return {"filler-in-middle"}


def stale_bytes_behind_the_end(store: SoundStore) -> Kinds:
    store.write_log(store.end() + 300, b"stale")
    return {"stale-bytes"}


def an_old_record_behind_the_end(store: SoundStore) -> Kinds:
    first = store.records()[0]
    store.write_log(store.end(), store.read_log(first.offset, first.size))
    return {"stale-bytes"}


def a_damaged_last_record(store: SoundStore) -> Kinds:
    last = store.records()[-1]
    assert not last.type
    store.write_log(last.offset + 28, _number(7, 8))
    return {"record-position"}


def a_torn_record_after_a_crash(store: SoundStore) -> Kinds:
    (store.folder / "abort").touch()
    spot = store.middle()
    store.write_log(store.end(), store.read_log(spot.offset, spot.size // 2))
    return {"torn-tail", "not-closed"}


def a_missing_log_file(store: SoundStore) -> Kinds:
    store.log_files()[1].unlink()
    return {"log-file-missing"}


def an_empty_log_file_in_the_middle(store: SoundStore) -> Kinds:
    store.log_files()[1].write_bytes(b"")
    return {"log-file-empty"}


def an_empty_last_log_file(store: SoundStore) -> Kinds:
    last = int(store.log_files()[-1].name)
    (store.folder / "commitlog" / f"{last + LOG_SIZE:020d}").touch()
    return {"log-file-empty"}


def a_log_file_that_was_cut_short(store: SoundStore) -> Kinds:
    path = store.log_files()[1]
    path.write_bytes(path.read_bytes()[:5000])
    return {"log-file-size"}


def a_log_file_that_is_too_long(store: SoundStore) -> Kinds:
    path = store.log_files()[1]
    path.write_bytes(path.read_bytes() + bytes(100))
    return {"log-file-size"}


def a_log_file_with_a_wrong_name(store: SoundStore) -> Kinds:
    path = store.log_files()[1]
    path.rename(path.with_name(f"{int(path.name) + 1:020d}"))
    return {"log-file-name", "log-file-missing"}


def a_foreign_file_in_the_log(store: SoundStore) -> Kinds:
    (store.folder / "commitlog" / "notes.txt").write_text("mine")
    return {"foreign-file"}


def a_repaired_range(store: SoundStore) -> Kinds:
    """What `penstock store repair` leaves: a placeholder, and the unit of the lost message pointing to it."""
    spot = store.middle()
    out = bytearray(spot.size)
    stored = int.from_bytes(store.read_log(spot.offset + 56, 8), "big")
    write_placeholder(out, 0, spot.offset, spot.size, stored, encode_host("127.0.0.1:1"), "lost")
    assert kernels.check_record(out, 0, spot.offset, True) == 0
    store.write_log(spot.offset, bytes(out))
    unit = pack_unit(spot.offset, spot.size, 0)
    store.write_unit(spot.queue_offset, unit, spot.topic, spot.queue_id)
    return {"repaired"}


def a_deleted_first_log_file(store: SoundStore) -> Kinds:
    """What retention does first; queues and index follow later."""
    store.log_files()[0].unlink()
    return {"units-below-minimum", "queue-gone", "index-below-minimum", "delay-offset-below-minimum"}


LOG_FAULTS = [
    a_size_that_is_too_small,
    a_size_that_is_one_too_large,
    a_size_past_the_end_of_the_file,
    a_wrong_magic,
    a_magic_of_zeros,
    a_body_with_another_crc,
    a_record_that_says_it_lies_elsewhere,
    a_wrong_topic_length,
    a_negative_topic_length,
    a_wrong_properties_length,
    a_store_time_before_2010,
    a_store_time_in_the_far_future,
    an_illegal_topic,
    a_negative_queue_id,
    a_hole_where_a_record_was,
    a_file_that_ends_without_a_filler,
    a_file_of_zeros_in_the_middle,
    garbage_at_the_end_of_a_file_in_the_middle,
    a_filler_in_the_middle,
    a_filler_over_records_that_are_still_there,
    stale_bytes_behind_the_end,
    an_old_record_behind_the_end,
    a_damaged_last_record,
    a_torn_record_after_a_crash,
    a_missing_log_file,
    an_empty_log_file_in_the_middle,
    an_empty_last_log_file,
    a_log_file_that_was_cut_short,
    a_log_file_that_is_too_long,
    a_log_file_with_a_wrong_name,
    a_foreign_file_in_the_log,
    a_repaired_range,
    a_deleted_first_log_file,
]
