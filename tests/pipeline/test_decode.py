"""Decoding bodies: values as columns, and a reason for each body that has none."""

from __future__ import annotations

import json
import uuid
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from support.pipeline import AVRO, avro_body, proto, proto_body

from penstock.errors import BadSettings
from penstock.pipeline.decode import Decode, make_decoder


def decoded(decode: Decode, *bodies: bytes | None) -> tuple[list[Any], list[str | None]]:
    values, reasons = make_decoder(decode).column(pa.array(bodies, pa.binary()))
    return values.to_pylist(), reasons.to_pylist()


def test_text_is_utf_8_or_has_a_reason() -> None:
    values, reasons = decoded(Decode.of("text"), "grün".encode(), b"\xff", b"", None)
    assert values == ["grün", None, "", None]
    assert reasons == [None, "it is not UTF-8 text (byte 0)", None, None]


def test_json_stays_the_text_it_was_if_it_is_json() -> None:
    values, reasons = decoded(Decode.of("json"), b'{"a": 1 }', b"{a", b"7", b"\xfe", b"[" * 100_000)
    assert values == ['{"a": 1 }', None, "7", None, None]
    assert [reason and reason.split(" (")[0] for reason in reasons] == [
        None, "it is not JSON", None, "it is not UTF-8 text", "it is not JSON",
    ]  # fmt: skip


def test_rows_that_could_not_be_read_are_left_alone() -> None:
    bodies, skip = pa.array([b"x", b"x"], pa.binary()), pa.array([True, False])
    values, reasons = make_decoder(Decode.of("json")).column(bodies, skip)
    assert values.to_pylist() == [None, None]
    assert reasons.to_pylist()[0] is None
    assert "it is not JSON" in reasons.to_pylist()[1]


def avro(tmp_path: Path, schema: Any) -> Decode:
    path = tmp_path / "schema.avsc"
    path.write_text(json.dumps(schema), encoding="utf-8")
    return Decode.of("avro", path)


def test_avro_comes_out_as_columns(tmp_path: Path) -> None:
    order = {
        "id": 7,
        "name": None,
        "lines": [{"count": 2}],
        "extra": {"a": {"count": 3}},
        "colour": "RED",
        "at": datetime(2026, 11, 16, 8, tzinfo=UTC),
        "day": date(2026, 11, 16),
        "price": Decimal("12.50"),
        "uid": uuid.UUID(int=5),
        "either": 5,
    }
    body = avro_body(order)
    values, reasons = decoded(avro(tmp_path, AVRO), body, body + b"!", body[:5], b"")
    assert values[0] == {
        **order, "extra": [("a", {"count": 3})], "uid": str(order["uid"]), "either": "5",
    }  # fmt: skip
    assert values[1:] == [None, None, None]
    assert reasons[0] is None
    assert reasons[1] == "1 bytes follow the Avro datum"
    assert all(reason and "not an Avro datum" in reason for reason in reasons[2:])


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        ({"type": "nothing"}, "must be an Avro schema, and is not"),
        ({"type": "record", "name": "N", "fields": [{"name": "n", "type": ["null", "N"]}]}, "contains itself"),
    ],
)
def test_an_avro_schema_without_columns_is_refused(tmp_path: Path, schema: Any, expected: str) -> None:
    with pytest.raises(BadSettings, match=expected):
        avro(tmp_path, schema)


def test_protobuf_comes_out_as_columns(tmp_path: Path) -> None:
    path = tmp_path / "order.desc"
    path.write_bytes(proto().SerializeToString())
    at = datetime(2026, 11, 16, 8, tzinfo=UTC)
    body = proto_body(at, id=2**64 - 1, name="n", raw=b"\xff", counts=[1, 2], extra={"a": 5})
    values, reasons = decoded(Decode.of("protobuf", path, "shop.Order"), body, b"\xff\xff\xff")
    assert values[0] == {
        "id": Decimal(2**64 - 1),
        "name": "n",
        "raw": b"\xff",
        "counts": [1, 2],
        "colour": "RED",
        "at": datetime(2026, 11, 16, 8, tzinfo=UTC),
        "missing": None,
        "extra": [("a", 5)],
    }
    assert values[1] is None
    assert reasons[0] is None
    assert "it is not a shop.Order" in str(reasons[1])
    with pytest.raises(BadSettings, match="there is no such message"):
        Decode.of("protobuf", path, "shop.Cart")
    with pytest.raises(BadSettings, match="contains itself"):
        Decode.of("protobuf", path, "shop.Tree")


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("xml",), "it must be one of text, json, avro, protobuf"),
        (("avro",), "needs --schema FILE"),
        (("text", "x"), "has no schema"),
        (("json", "nowhere.ddl"), "No such file"),
        (("protobuf", "x"), "needs --message"),
    ],
)
def test_what_does_not_go_together_is_said(arguments: tuple[str, ...], expected: str) -> None:
    with pytest.raises(BadSettings, match=expected):
        Decode.of(*arguments)
