"""Exports with decoded Avro and protobuf bodies, on Spark, as readers of each format see them."""

from __future__ import annotations

import base64
import json
import uuid
from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
import pytest
from pyspark.sql import SparkSession
from support.pipeline import AVRO, avro_body, proto, proto_body
from support.spark import bad_rows
from support.stores import StoreHome

from penstock.cli.main import main
from penstock.pipeline.jobs.export import Export
from penstock.store import Message

AT = datetime(2026, 11, 16, 8, tzinfo=UTC)
COUNT = 6


def avro_order(number: int) -> dict[str, Any]:
    return {
        "id": number,
        "name": None if number % 2 else f"n{number}",
        "lines": [{"count": each} for each in range(number)],
        "extra": {"a": {"count": number}},
        "colour": "GREEN",
        "at": AT,
        "day": date(2026, 11, 16),
        "price": Decimal(number) / 4,
        "uid": uuid.UUID(int=number),
        "either": number,
    }


def avro_value(number: int) -> dict[str, Any]:
    """What is to be read of it."""
    order = avro_order(number)
    extra = [("a", {"count": number})]
    return {
        **order,
        "extra": extra,
        "uid": str(order["uid"]),
        "either": str(number),
        "price": Decimal(number * 25) / 100,
    }


def proto_value(number: int) -> dict[str, Any]:
    raw, counts = bytes([number]), list(range(number))
    fields = {"id": 2**63 + number, "name": f"n{number}", "raw": raw, "counts": counts, "extra": {"a": number}}
    return {
        **fields,
        "id": Decimal(2**63 + number),
        "colour": "RED",
        "at": AT,
        "missing": None,
        "extra": [("a", number)],
    }


def proto_order(number: int) -> bytes:
    value = proto_value(number)
    fields = {name: value[name] for name in ("name", "raw", "counts")}
    return proto_body(AT, id=int(value["id"]), extra=dict(value["extra"]), **fields)


class Kind:
    """Bodies of one kind, what is to be read of them, and what the command needs to know."""

    def __init__(self, folder: Path, kind: str) -> None:
        schema = folder / "schema"
        self.arguments = ["--decode", kind, "--schema", str(schema)]
        self.body: Callable[[int], bytes] = proto_order
        self.value: Callable[[int], dict[str, Any]] = proto_value
        if kind == "avro":
            self.body, self.value = lambda number: avro_body(avro_order(number)), avro_value
            schema.write_text(json.dumps(AVRO), encoding="utf-8")
        else:
            schema.write_bytes(proto().SerializeToString())
            self.arguments += ["--message", "shop.Order"]


def fill(home: StoreHome, kind: Kind) -> None:
    """Messages that decode, and behind them one that does not."""
    with home.open() as store:
        for number in range(COUNT):
            assert store.put(Message("orders", kind.body(number))).queue_offset == number
        assert store.put(Message("orders", b"\xff\xff\xff")).ok


def values(lake: Path, form: str) -> dict[int, dict[str, Any]]:
    if form == "delta":
        from deltalake import DeltaTable

        rows = DeltaTable(lake).to_pyarrow_table().to_pylist()
    elif form == "iceberg":
        from penstock.pipeline.jobs.export.tables import open_catalog

        spec = Export(to=str(lake), format=form)
        rows = open_catalog(spec).load_table(spec.table).scan().to_arrow().to_pylist()
    else:
        rows = ds.dataset(lake, format="parquet", partitioning="hive").to_table().to_pylist()
    return {row["queue_offset"]: row["value"] for row in rows}


LONG = pytest.mark.slow
CASES = [
    ("avro", "iceberg"),
    pytest.param("avro", "parquet", marks=LONG),
    pytest.param("avro", "delta", marks=LONG),
    pytest.param("protobuf", "iceberg", marks=LONG),
    pytest.param("protobuf", "parquet", marks=LONG),
    pytest.param("protobuf", "delta", marks=LONG),
]


@pytest.mark.parametrize(("kind", "form"), CASES)
def test_decoded_bodies_are_columns_in_each_format(
    spark: SparkSession, home: StoreHome, tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str, form: str
) -> None:
    bodies, lake = Kind(tmp_path, kind), tmp_path / "lake"
    fill(home, bodies)
    arguments = ["pipeline", "export", "--store", str(home.path), "--to", str(lake), "--format", form, "--json"]
    assert main([*arguments, *bodies.arguments]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["rows"], report["undecoded"]) == (COUNT, 1)
    assert values(lake, form) == {number: bodies.value(number) for number in range(COUNT)}
    (bad,) = bad_rows(spark, Export(to=str(lake)))
    assert bad["queue_offset"] == COUNT
    assert "it is no" in bad["reason"]
    assert bytes(bad["body"]) == b"\xff\xff\xff"


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["avro", "protobuf"])
def test_decoded_bodies_are_nested_in_lines_of_json(
    spark: SparkSession, home: StoreHome, tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str
) -> None:
    bodies, lake = Kind(tmp_path, kind), tmp_path / "lake"
    fill(home, bodies)
    arguments = ["pipeline", "export", "--store", str(home.path), "--to", str(lake), "--format", "json", "--json"]
    assert main([*arguments, *bodies.arguments]) == 0
    lines = [line for path in lake.glob("topic=orders/*/*.json") for line in path.read_text().splitlines()]
    found = {row["queue_offset"]: row["value"] for row in map(json.loads, lines)}
    assert sorted(found) == list(range(COUNT))
    for number, value in found.items():
        due = bodies.value(number)
        assert (value["id"], value.get("name")) == (int(due["id"]), due["name"])
        assert datetime.fromisoformat(value["at"]) == AT
        if kind == "avro":
            assert value["lines"] == due["lines"]
            assert value["extra"] == {"a": {"count": number}}
            assert Decimal(str(value["price"])) == due["price"]
        else:
            assert base64.b64decode(value["raw"]) == due["raw"]
            assert value["counts"] == due["counts"]
            assert value["extra"] == {"a": number}


@pytest.mark.slow
def test_an_iceberg_table_is_made_in_a_catalog_of_the_users_own(
    spark: SparkSession, home: StoreHome, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two runs, as pyiceberg's configuration says it."""
    from pyiceberg import catalog
    from pyiceberg.utils.config import Config

    uri = f"sqlite:///{tmp_path}/own.db"
    monkeypatch.setenv("PYICEBERG_CATALOG__SHOP__TYPE", "sql")
    monkeypatch.setenv("PYICEBERG_CATALOG__SHOP__URI", uri)
    monkeypatch.setenv("PYICEBERG_CATALOG__SHOP__WAREHOUSE", (tmp_path / "house").as_uri())
    monkeypatch.setattr(catalog, "_ENV_CONFIG", Config())  # which is read when pyiceberg is imported
    bodies, lake = Kind(tmp_path, "avro"), tmp_path / "lake"
    arguments = ["pipeline", "export", "--store", str(home.path), "--to", str(lake), "--format", "iceberg"]
    arguments += [*bodies.arguments, "--catalog", "shop", "--table", "sales.orders"]
    for run in range(1, 3):
        fill_again(home, bodies)
        assert main(arguments) == 0
        rows = catalog.load_catalog("shop").load_table("sales.orders").scan().to_arrow().to_pylist()
        assert sorted(row["value"]["id"] for row in rows) == sorted([*range(COUNT)] * run)
    assert not (lake / "_penstock" / "iceberg.db").exists()


def fill_again(home: StoreHome, bodies: Kind) -> None:
    with home.open() as store:
        for number in range(COUNT):
            assert store.put(Message("orders", bodies.body(number))).ok
