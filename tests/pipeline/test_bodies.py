"""Compressed bodies in the columns of a batch."""

from __future__ import annotations

import sys
import zlib
from collections.abc import Callable

import lz4.frame
import pyarrow as pa
import pytest
import zstandard

from penstock.errors import MissingPackage
from penstock.pipeline import source_rows as rows_module
from penstock.pipeline.source_rows import inflate_bodies

PLAIN, ZLIB, LZ4, ZSTD, NOBODYS = 0, 0x1, 0x101, 0x201, 0x701
PACK: dict[int, Callable[[bytes], bytes]] = {
    PLAIN: bytes,
    ZLIB: zlib.compress,
    LZ4: lz4.frame.compress,
    ZSTD: zstandard.ZstdCompressor().compress,
}
FLAGS = pa.int32()


def batch_of(values: list[bytes]) -> pa.RecordBatch:
    numbers = pa.array(range(len(values)), pa.int64())
    return pa.record_batch({"queue_offset": numbers, "body": pa.array(values, pa.binary())})


def test_bodies_of_all_codecs_are_unpacked_where_they_stand() -> None:
    flags = [PLAIN, ZLIB, LZ4, PLAIN, ZSTD, ZLIB | 0x300, ZLIB | 0x8]
    texts = [b"text %d " % number * number for number in range(len(flags))]
    packed = batch_of([PACK.get(flag, zlib.compress)(text) for flag, text in zip(flags, texts, strict=True)])
    (found,) = inflate_bodies(packed, pa.array(flags, FLAGS))
    assert found.batch.schema.equals(packed.schema)
    assert found.batch.column("body").to_pylist() == texts
    assert found.batch.column("queue_offset").to_pylist() == list(range(len(flags)))
    assert found.failures == ()


def test_a_batch_without_compressed_bodies_is_handed_on_as_it_is() -> None:
    batch = batch_of([b"a", zlib.compress(b"b")])
    (found,) = inflate_bodies(batch, pa.array([PLAIN, 0x700], FLAGS))
    assert found.batch is batch
    headers = batch.select(["queue_offset"])
    (found,) = inflate_bodies(headers, pa.array([ZLIB, ZLIB], FLAGS))
    assert found.batch is headers
    assert [each.batch.num_rows for each in inflate_bodies(batch.slice(0, 0), pa.array([], FLAGS))] == [0]


def test_what_cannot_be_unpacked_stays_and_is_told() -> None:
    values = [zlib.compress(b"good"), b"no zlib", zlib.compress(b"cut")[:-3], b"?", zlib.compress(b"long" * 100)]
    flags = pa.array([ZLIB, ZLIB, ZLIB, NOBODYS, ZLIB], FLAGS)
    (found,) = inflate_bodies(batch_of(values), flags, limit=100)
    assert found.batch.column("body").to_pylist() == [b"good", *values[1:]]
    assert [row for row, _ in found.failures] == [1, 2, 3, 4]
    assert "more than 100 bytes" in found.failures[3][1]


def test_bodies_that_grow_large_come_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows_module, "_MAX_PIECE_BYTES", 1000)
    texts = [b"x" * 400 if number % 2 else b"plain" for number in range(20)]
    flags = [ZLIB if number % 2 else PLAIN for number in range(20)]
    flags[9] = PLAIN
    flags[8], texts[9] = ZLIB, b"not packed"
    values = [PACK[flag](text) for flag, text in zip(flags, texts, strict=True)]
    values[8] = b"broken"
    pieces = list(inflate_bodies(batch_of(values), pa.array(flags, FLAGS)))
    assert len(pieces) > 2
    assert all(piece.batch.nbytes < 2000 for piece in pieces)
    assert [piece.first_row for piece in pieces] == [piece.batch.column("queue_offset")[0].as_py() for piece in pieces]
    found = [body for piece in pieces for body in piece.batch.column("body").to_pylist()]
    assert found == [*texts[:8], b"broken", *texts[9:]]
    assert [piece.first_row + row for piece in pieces for row, _ in piece.failures] == [8]


def test_a_slice_of_a_batch_is_unpacked_as_well() -> None:
    packed = batch_of([b"skipped", zlib.compress(b"one"), b"two"]).slice(1)
    (found,) = inflate_bodies(packed, pa.array([PLAIN, ZLIB, PLAIN], FLAGS).slice(1))
    assert found.batch.column("body").to_pylist() == [b"one", b"two"]


def test_a_codec_that_is_not_installed_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "zstandard", None)
    with pytest.raises(MissingPackage, match="zstandard"):
        list(inflate_bodies(batch_of([PACK[ZSTD](b"x")]), pa.array([ZSTD], FLAGS)))
