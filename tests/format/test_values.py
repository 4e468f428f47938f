"""Values as Java computes them: hashes, CRCs, queue units, index hashes."""

from __future__ import annotations

import random
import zlib

import pytest

from penstock.format import kernels
from penstock.format.index_layout import IndexGeometry, key_hash

pytestmark = pytest.mark.usefixtures("kernels_name")


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("", 0),
        ("a", 97),
        ("TagA", 2_598_919),
        ("TagB", 2_598_920),
        ("中文", 646_394),
        ("\U0001f600", 1_772_899),
        ("polygenelubricants", -2_147_483_648),
        ("Aa", 2112),
        ("BB", 2112),
        ("é", 233),
        ("TopicTest#7F00000100002A139A55000000000000", 774_372_907),
        ("TopicTest#order_123", -1_211_765_249),
    ],
)
def test_a_text_has_the_hash_that_java_gives_it(text: str, code: int) -> None:
    assert kernels.java_hash(text) == code


@pytest.mark.parametrize(
    ("data", "crc"), [(b"123456789", 0x4BF43926), (b"", 0), (b"Hello RocketMQ", 0x69C865ED), (b"v6", 0x77065916)]
)
def test_the_crc_is_stored_without_its_top_bit(data: bytes, crc: int) -> None:
    assert kernels.crc32(data) == crc


def test_the_crc_of_every_length_is_that_of_zlib() -> None:
    """256 bytes, 64, 16 and the rest take different ways through the kernel."""
    data = random.Random(3).randbytes(820)
    for start in range(3):
        for size in range(800):
            piece = data[start : start + size]
            assert kernels.crc32(piece) == zlib.crc32(piece) & 0x7FFFFFFF


@pytest.mark.parametrize(
    ("key", "hashed", "slot", "position"),
    [
        ("7F00000100002A139A55000000000000", 774_372_907, 4_372_907, 17_491_668),
        ("order_123", 1_211_765_249, 1_765_249, 7_061_036),
        ("aentnpwi", 0, 0, 40),
    ],
)
def test_a_key_has_its_slot_in_a_file_of_default_geometry(key: str, hashed: int, slot: int, position: int) -> None:
    geometry = IndexGeometry()
    assert key_hash("TopicTest", key) == hashed
    assert geometry.slot_of(hashed) == slot
    assert geometry.slot_position(slot) == position


def test_a_key_that_is_not_utf8_is_found_as_java_hashes_it() -> None:
    assert key_hash("T", b"\xff".decode("utf-8", "surrogateescape")) == key_hash("T", "\ufffd")
