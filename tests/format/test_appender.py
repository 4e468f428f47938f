"""The compiled appender: which classes of messages it can read. What it writes is in tests/store/test_fast_path.py."""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from typing import Any

import pytest

from penstock.errors import BadSettings
from penstock.format.kernels import _compiled


@dataclass(slots=True)
class Slotted:
    topic: str = ""
    body: bytes = b""
    keys: str = ""
    tags: str = ""
    properties: dict[str, str] | None = None
    queue_id: int = 0
    delay_level: int = 0
    flag: int = 0
    sys_flag: int = 0
    born_timestamp: int = 0
    born_host: str = ""
    store_host: str = ""
    reconsume_times: int = 0
    prepared_transaction_offset: int = 0
    wait: bool = True
    property_text: str = ""


class WithProperty(Slotted):
    @property
    def tags(self) -> str:
        return ""


class WithoutSlots:
    topic = body = ""


def appender_of(message_type: type) -> Any:
    return _compiled.Appender(message_type, tuple, None, None, "127.0.0.1:1", bytes(8), 1000, 2000, False)


def test_the_compiled_appender_reads_messages_with_slots() -> None:
    assert appender_of(Slotted).append(Slotted()) is None, "it is not attached to a file"


def test_a_message_whose_fields_are_not_set_is_declined() -> None:
    appender = appender_of(Slotted)
    appender.attach(bytearray(1000), array("q", [0, 0]), 0)
    appender.is_open = True
    assert appender.append(Slotted.__new__(Slotted)) is None
    assert appender.append_many([Slotted.__new__(Slotted)]) is None
    assert appender.count == 0


@pytest.mark.parametrize(
    ("message_type", "field"), [(WithProperty, "tags"), (WithoutSlots, "topic"), (object, "topic")]
)
def test_a_message_type_that_it_cannot_read_is_an_error_not_a_slow_path(message_type: type, field: str) -> None:
    with pytest.raises(BadSettings, match=f"cannot read {message_type.__name__}.{field} .*PENSTOCK_KERNELS=plain"):
        appender_of(message_type)


def test_marks_of_another_size_are_refused_and_no_buffer_is_kept() -> None:
    target, marks = bytearray(100), bytearray(8)
    with pytest.raises(ValueError, match="16 bytes"):
        appender_of(Slotted).attach(target, marks, 0)
    target.clear()
    marks.clear()
