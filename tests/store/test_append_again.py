"""A message that the store accepted before gets another topic: limits that came or changed since do not refuse it."""

from __future__ import annotations

import pytest
from support.stores import StoreHome

from penstock.format.constants import CRC32, MAX_PROPERTIES_LENGTH
from penstock.store import Message, PutStatus

ZEROS = {"at the end": "v\0", "many": "v" + "\0" * 1100 + "v", "many at the end": "v" + "\0" * 1100}


@pytest.mark.parametrize("as_text", [False, True])
@pytest.mark.parametrize("value", ZEROS.values(), ids=ZEROS)
def test_properties_that_look_like_a_lost_sector_are_stored_and_survive_a_crash(
    home: StoreHome, value: str, as_text: bool
) -> None:
    """Their record has its own CRC, so a start believes it, although nothing else vouches for it."""
    message = Message("T", b"body", property_text=f"p\x01{value}") if as_text else None
    message = message or Message("T", b"body", properties={"p": value})
    count = 300
    with home.open(enabled_append_prop_crc=False) as store:
        assert store.append(message).status is PutStatus.MESSAGE_ILLEGAL
        results = [store.append(message, again=True) for _ in range(count)]
        assert all(result.ok for result in results)
        record = store.look_up_encoded(results[0].physical_offset)
        assert record is not None
        assert record[-20:-11] == CRC32.encode() + b"\x01"
    (home.path / "penstock/dispatched.json").unlink()
    (home.path / "checkpoint").unlink()
    home.mark_crashed()
    store = home.open()
    messages = home.read_queue(store, "T")
    assert [message.properties for message in messages] == [{"p": value}] * count
    assert (store.report.damage, store.report.torn_bytes) == ([], 0)


def test_a_message_that_is_too_long_by_now_is_stored(home: StoreHome) -> None:
    store = home.open(max_message_size=1024)
    message = Message("T", bytes(60_000))
    assert store.append(message).status is PutStatus.MESSAGE_ILLEGAL
    assert store.append(message, again=True).ok
    assert [len(body) for body in home.bodies(store, "T")] == [60_000]
    assert store.append(Message("T", bytes(store.settings.mapped_file_size_commit_log)), again=True).refused_for_good


def test_properties_without_room_for_a_crc_are_stored_without_it(home: StoreHome) -> None:
    store = home.open(enabled_append_prop_crc=True)
    message = Message("T", b"", properties={"p": "v" * (MAX_PROPERTIES_LENGTH - 2)})
    assert store.append(message).status is PutStatus.PROPERTIES_SIZE_EXCEEDED
    assert store.append(message, again=True).ok
    (found,) = home.read_queue(store, "T")
    assert found.properties == message.properties
