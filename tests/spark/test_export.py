"""Exports hold every message once, by topic and day, whatever the format and whatever was killed when."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from support.spark import bad_rows, files_of, fill_days, held
from support.stores import StoreHome

from penstock.cli.main import main
from penstock.errors import BadSettings, PenstockError
from penstock.pipeline.decode import Decode
from penstock.pipeline.jobs.export import Export, export
from penstock.pipeline.jobs.export import job as export_batch
from penstock.pipeline.jobs.export import spec as spec_module
from penstock.pipeline.jobs.job_input import JobInput
from penstock.store import Message


class Killed(Exception):
    """Stands for a process that ends here."""


def kill(*given: Any) -> None:
    raise Killed


LONG = [pytest.param(form, marks=pytest.mark.torture) for form in ("parquet", "json")]
"""What the how-to page runs twice, too."""


@pytest.mark.parametrize("form", ["delta", "iceberg", *LONG])
def test_two_runs_with_traffic_between_and_a_kill_miss_and_double_nothing(
    form: str, spark: SparkSession, home: StoreHome, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    where, spec = JobInput(stores=(str(home.path),)), Export(to=str(tmp_path / "lake"), format=form)
    put = fill_days(home, 0, 40)
    with monkeypatch.context() as patched:
        for step in ("commit_delta", "commit_iceberg"):  # written and noted and moved, but not committed
            patched.setattr(export_batch, step, kill)
        if form in ("parquet", "json"):  # written and noted, and only the first file moved
            patched.setattr(export_batch, "move", lambda root, files: (spec_module.move(root, files[:1]), kill()))
        with pytest.raises(PenstockError):
            export(spark, spec, where)
    put += fill_days(home, 40, 20)
    done = export(spark, spec, where)
    assert held(spark, spec) == sorted(put)
    assert (done.rows, done.unread, done.undecoded, done.all_rows) == (60, 0, 0, 60)
    assert done.by_topic == {"%RETRY%g": 30, "orders": 30}
    assert not list((tmp_path / "lake" / "_penstock" / "staged").iterdir())


def test_a_small_topic_of_many_queues_is_one_file_a_day(spark: SparkSession, home: StoreHome, tmp_path: Path) -> None:
    with home.open() as store:
        for number in range(64):
            assert store.put(Message("orders", b"{}", queue_id=number % 16)).ok
    done = export(spark, Export(to=str(tmp_path / "lake")), JobInput(stores=(str(home.path),)))
    assert done.rows == 64
    assert len(list((tmp_path / "lake").rglob("topic=*/*/*.parquet"))) == 1


def damaged(home: StoreHome, bodies: list[bytes]) -> None:
    """A store with these messages, the fourth of which cannot be read."""
    with home.open() as store:
        for body in bodies:
            assert store.put(Message("T", body)).ok
        store.catch_up()
        place = store.queues.find("T", 0).unit(3)[0]  # type: ignore[union-attr]
    home.flip(home.log_files()[0], place + 90)


def test_what_cannot_be_read_or_decoded_is_kept_aside_with_its_reason(
    spark: SparkSession, home: StoreHome, tmp_path: Path
) -> None:
    """Two stores, one of them damaged and one of them without a message, as JSON lines with nested values."""
    damaged(home, [b'{"id": 1}', b"{broken", b"\xff", b'{"id": 4}', b'{"id": {"x": 5}}'])
    empty = StoreHome(tmp_path / "empty")
    empty.open().close()
    where = JobInput(stores=(str(home.path), str(empty.path)))
    spec = Export(to=str(tmp_path / "lake"), format="json", decode=Decode.of("json"), once=True)
    done = export(spark, spec, where)
    assert (done.rows, done.undecoded, done.unread) == (2, 2, 1)
    lines = [json.loads(line) for path in files_of(spec.to) if not path.startswith("_") for line in
             (tmp_path / "lake" / path).read_text(encoding="utf-8").splitlines()]  # fmt: skip
    assert sorted((line["queue_offset"], json.dumps(line["value"])) for line in lines) == [
        (0, '{"id": 1}'),
        (4, '{"id": {"x": 5}}'),
    ]
    bad = bad_rows(spark, spec)
    assert [row["queue_offset"] for row in bad] == [1, 2, 3]
    assert "it is not JSON" in bad[0]["reason"]
    assert "it is not UTF-8" in bad[1]["reason"]
    assert "is damaged" in bad[2]["reason"]
    with pytest.raises(BadSettings, match="there is an export already"):
        export(spark, spec, where)


def test_the_command_exports_columns_of_json_and_says_what_it_did(
    spark: SparkSession, home: StoreHome, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fill_days(home, 0, 6)
    with home.open() as store:
        assert store.put(Message("orders", b'{"id": "seven"}')).ok
    (tmp_path / "columns").write_text("id bigint, name string", encoding="utf-8")
    lake = tmp_path / "lake"
    arguments = ["pipeline", "export", "--store", str(home.path), "--to", str(lake), "--topic", "orders"]
    arguments += ["--decode", "json", "--schema", str(tmp_path / "columns"), "--set", "fileReservedTime=72"]
    assert main(arguments) == 0
    shown = capsys.readouterr()
    assert "3 messages in" in shown.out
    assert "1 messages did not decode" in shown.err
    frame = spark.read.parquet(str(lake))
    assert sorted((row.id, row.name) for row in frame.select("value.*").collect()) == [(0, "n0"), (2, "n2"), (4, "n4")]
    assert [row["reason"] for row in bad_rows(spark, Export(to=str(lake)))] == [
        "it is JSON of another shape than the schema's"
    ]
    for more, expected in (
        (["--format", "json"], "started with a different --format"),
        (["--until", "2026-11-16"], "give --once"),
        (["--topic", "%RETRY%g"], "started with a different --topic"),
        (["--to", str(tmp_path / "new"), "--topic", "none"], "there is no topic 'none'"),
    ):
        assert main([*arguments, *more]) == 2
        assert expected in capsys.readouterr().err
