"""What makes an export whole and single, below Spark: staged files, notes, moves, and the commits of tables."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from penstock.errors import BadSettings, BadStore, StoreInUse
from penstock.pipeline.decode import Decode
from penstock.pipeline.jobs.export import Export, export
from penstock.pipeline.jobs.export import job as export_batch
from penstock.pipeline.jobs.export.job import ExportBatch
from penstock.pipeline.jobs.export.spec import ExportedBatch, ExportFolder, staged_files
from penstock.pipeline.jobs.export.tables import open_catalog
from penstock.pipeline.jobs.job_input import BatchLog, JobInput

DAY = datetime.datetime(2026, 11, 16, 8, tzinfo=datetime.UTC)
TOPICS = ("orders", "%DLQ%a-group-with-quite-a-long-name-that-statistics-would-cut")


class Killed(Exception):
    """Stands for a process that ends here."""


def stage(spec: Export, number: int, query: str = "q") -> ExportedBatch:
    """What Spark leaves: a file for each topic and day, with two rows each."""
    folder = ExportFolder(spec.to)
    staged = folder.staged / str(number)
    mark = "_of_" if spec.format == "iceberg" else ""
    for topic in TOPICS:
        columns: dict[str, Any] = {
            "queue_offset": pa.array([2 * number, 2 * number + 1], pa.int64()),
            "properties": pa.array([[("a", "b")], []], pa.map_(pa.string(), pa.string())),
            "store_timestamp": pa.array([DAY, DAY], pa.timestamp("us", "UTC")),
        }
        if mark:
            columns["topic"] = [topic, topic]
        place = staged / "good" / f"{mark}topic={topic.replace('%', '%25')}" / f"{mark}date=2026-11-16"
        place.mkdir(parents=True)
        pq.write_table(pa.table(columns), place / "part-00000-x.c000.snappy.parquet")
    (staged / "good" / "_SUCCESS").touch()
    files = tuple(staged_files(folder.root, staged / "good", number, ".parquet", is_bad=False))
    return ExportedBatch(number=number, query=query, files=files, rows=4, undecoded=0, unread=0)


def rows(spec: Export) -> list[tuple[str, int]]:
    if spec.format == "delta":
        from deltalake import DeltaTable

        table = DeltaTable(spec.to).to_pyarrow_table()
    elif spec.format == "iceberg":
        table = open_catalog(spec).load_table(spec.table).scan().to_arrow()
    else:
        table = ds.dataset(spec.to, format="parquet", partitioning="hive").to_table()
    return sorted((row["topic"], row["queue_offset"]) for row in table.select(["topic", "queue_offset"]).to_pylist())


@pytest.mark.parametrize("form", ["parquet", "delta", "iceberg"])
def test_a_batch_that_is_published_again_after_any_kill_is_there_once(
    form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = Export(to=str(tmp_path / "lake"), format=form)
    folder, each = ExportFolder(spec.to), ExportBatch(spec)
    for number in range(4):
        batch = stage(spec, number)
        for step in ("move", *([] if form == "parquet" else [f"commit_{form}"]), "clear"):
            for is_done_first in (False, True):
                with monkeypatch.context() as patched:
                    patched.setattr(export_batch, step, ending(getattr(export_batch, step), is_done_first))
                    with pytest.raises(Killed):
                        each.publish(folder, batch)
        each.publish(folder, batch)
        assert rows(spec) == sorted((topic, offset) for topic in TOPICS for offset in range(2 * number + 2))
    assert not list(folder.staged.iterdir())


def ending(step: Callable[..., None], is_done_first: bool) -> Callable[..., None]:
    def end(*given: Any) -> None:
        if is_done_first:
            step(*given)
        raise Killed

    return end


def test_files_are_named_by_their_batch_and_counted(tmp_path: Path) -> None:
    batch = stage(Export(to=str(tmp_path)), 7)
    assert [(file.path, file.rows, file.topic, file.date) for file in batch.files] == [
        (
            f"topic={TOPICS[1].replace('%', '%25')}/date=2026-11-16/batch-00000007-00000.parquet",
            2,
            TOPICS[1],
            "2026-11-16",
        ),
        ("topic=orders/date=2026-11-16/batch-00000007-00000.parquet", 2, "orders", "2026-11-16"),
    ]


def test_json_lines_are_counted_and_an_unknown_day_has_no_name(tmp_path: Path) -> None:
    place = tmp_path / "staged" / "topic=a" / "date=__HIVE_DEFAULT_PARTITION__"
    place.mkdir(parents=True)
    (place / "part-0.json").write_text('{"a": 1}\n{"a": 2}\n', encoding="utf-8")
    (file,) = staged_files(tmp_path, tmp_path / "staged", 0, ".json", is_bad=True)
    assert (file.rows, file.date, file.is_bad) == (2, "", True)
    assert file.path.startswith("_bad/topic=a/")


def test_a_file_that_is_nowhere_ends_the_export(tmp_path: Path) -> None:
    spec = Export(to=str(tmp_path / "lake"))
    batch = stage(spec, 0)
    (ExportFolder(spec.to).root / batch.files[0].staged).unlink()
    with pytest.raises(BadStore, match="is gone"):
        ExportBatch(spec).publish(ExportFolder(spec.to), batch)


def test_a_batch_of_another_checkpoint_is_refused(tmp_path: Path) -> None:
    spec = Export(to=str(tmp_path / "lake"))
    folder = ExportFolder(spec.to)
    BatchLog(folder.batches, ExportedBatch).write(0, stage(spec, 0, "the first"))
    folder.checkpoint.mkdir()
    (folder.checkpoint / "metadata").write_text('{"id": "another"}', encoding="utf-8")
    with pytest.raises(BadStore, match="a different checkpoint than at its start"):
        ExportBatch(spec)(None, 0)  # type: ignore[arg-type]  # no row is looked at


def test_a_folder_belongs_to_one_export_at_a_time(tmp_path: Path) -> None:
    spec = Export(to=str(tmp_path / "lake"), topics=("a",))
    folder = ExportFolder(spec.to)
    with folder.owned(spec), pytest.raises(StoreInUse, match="another export"), folder.owned(spec):
        pass
    for changed, named in (
        (Export(to=spec.to), "--topic"),
        (Export(to=spec.to, topics=("a",), format="json"), "--format"),
        (Export(to=spec.to, topics=("a",), since_ms=5), "--since"),
        (Export(to=spec.to, topics=("a",), decode=Decode.of("text")), "--decode"),
    ):
        with pytest.raises(BadSettings, match=f"started with a different {named};"), folder.owned(changed):
            pass
    assert folder.spec() == spec
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "file").touch()
    with pytest.raises(BadSettings, match="something else"), ExportFolder(str(tmp_path / "other")).owned(spec):
        pass


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"format": "orc"}, "it must be one of"),
        ({"to": "s3://bucket"}, "not an address"),
        ({"until_ms": 5}, "give --once"),
        ({"since_ms": 5, "until_ms": 5, "once": True}, "ends before it begins"),
        ({"catalog": "x"}, "is for --format iceberg"),
        ({"table": "x"}, "must have a namespace"),
    ],
)
def test_what_does_not_go_together_is_said(changes: dict[str, Any], expected: str) -> None:
    with pytest.raises(BadSettings, match=expected):
        Export(**{"to": "lake", **changes}).check()


def test_a_catalog_that_cannot_be_opened_is_a_sentence_and_begins_nothing(tmp_path: Path) -> None:
    nobodys = Export(to=str(tmp_path / "lake"), format="iceberg", catalog="nobodys")
    no_spark: Any = None
    with pytest.raises(BadSettings, match=r"--catalog nobodys cannot be used: .*; check its settings"):
        export(no_spark, nobodys, JobInput(stores=(str(tmp_path),)))
    assert not (tmp_path / "lake").exists(), "the folder may be used with another catalog"


def test_a_note_that_cannot_be_read_is_not_taken_for_a_missing_one(tmp_path: Path) -> None:
    batch_log = BatchLog(tmp_path / "notes", ExportedBatch)
    assert batch_log.find(3) is None
    batch_log.write(3, ExportedBatch(number=3, query="q", files=(), rows=1, undecoded=0, unread=0))
    assert [(number, note.rows) for number, note in batch_log.all()] == [(3, 1)]
    path = tmp_path / "notes" / "00000003.json"
    path.write_bytes(path.read_bytes().replace(b'"rows": 1', b'"rows": 2'))
    with pytest.raises(BadStore, match="cannot be read"):
        batch_log.find(3)
