"""The kernels unpack a client's batch like the reference code, or leave it to that code."""

from __future__ import annotations

import random

import pytest

from penstock.format import kernels
from penstock.format.batch import decode_batch_body, encode_batch_body
from penstock.format.constants import MAX_PROPERTIES_LENGTH
from penstock.format.properties import join_properties

pytestmark = pytest.mark.usefixtures("kernels_name")

COMMON = b"CLUSTER\x01DefaultCluster"
ITEMS = [
    (0, b"", b""),
    (-7, b"body", b"KEYS\x01one"),
    (2**31 - 1, bytes(5_000), b"KEYS\x01two\x02TAGS\x01a\x02"),
    (1, "ü".encode(), "name\x01größer".encode()),
    (0, b"x", b"p\x01" + b"y" * (MAX_PROPERTIES_LENGTH - 2)),
]


def test_each_item_gets_the_common_properties_behind_its_own() -> None:
    assert kernels.split_batch(encode_batch_body(ITEMS), COMMON) == [
        (flag, body, join_properties(properties, COMMON).decode()) for flag, body, properties in ITEMS
    ]


def test_without_common_properties_the_texts_stay_as_they_are() -> None:
    split = kernels.split_batch(encode_batch_body(ITEMS), b"")
    assert split == [(flag, body, properties.decode()) for flag, body, properties in ITEMS]


def test_no_bytes_are_no_items() -> None:
    assert kernels.split_batch(b"", COMMON) == []


def test_text_that_is_not_utf8_is_left_to_others() -> None:
    assert kernels.split_batch(encode_batch_body([ITEMS[1], (0, b"", b"p\x01\xff")]), COMMON) is None


def test_whatever_is_cut_or_changed_is_taken_apart_as_item_by_item_or_left_to_others() -> None:
    whole = encode_batch_body(ITEMS[:4])
    chance = random.Random(20261116)
    damaged = [whole[:length] for length in range(0, len(whole), 7)]
    for _ in range(2_000):
        changed = bytearray(whole[:200] if chance.random() < 0.5 else whole)
        changed[chance.randrange(min(len(changed), 120))] = chance.randrange(256)
        damaged.append(bytes(changed))
    for data in damaged:
        split = kernels.split_batch(data, b"")
        if split is not None:
            expected = [(flag, body, properties.decode()) for flag, body, properties in decode_batch_body(data)]
            assert split == expected
