"""A short verb prints the same in this process as on Spark, row by row, and says where it ran."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from support.spark import fill_days, held
from support.stores import StoreHome

from penstock.cli.main import main
from penstock.pipeline.jobs.export import Export
from penstock.store import Message

HERE, ON_SPARK = "in this process, without Spark", "on Spark, as --master asks for"
BothWays = Callable[..., tuple[Any, int]]


def fill(home: StoreHome, count: int = 300) -> None:
    with home.open(mapped_file_size_commit_log=65_536) as store:
        for number in range(count):
            home.clock.now += 60_000
            message = Message(
                f"T{number % 2}",
                b'{"order": %d}' % number * 10,
                tags="red" if number % 3 else "green",
                queue_id=number % 4,
                keys=(f"k{number}",),
                properties={"color": f"c{number % 7}"},
            )
            assert store.put(message).ok


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """This process is in a time zone other than Spark's."""
    monkeypatch.setenv("TZ", "Asia/Shanghai")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.fixture
def both_ways(spark: SparkSession, capsys: pytest.CaptureFixture[str]) -> BothWays:
    """Runs a short verb both ways with --json. What it printed, which must be equal, and its status."""

    def run(
        verb: str,
        *arguments: object,
        before: Callable[[], object] = lambda: None,
        rounded: Callable[[Any], object] = lambda found: None,
    ) -> tuple[Any, int]:
        printed = []
        for master, sentence in (((), HERE), (("--master", "local[2]"), ON_SPARK)):
            before()
            capsys.readouterr()
            status = main([verb, *map(str, arguments), *master, "--json"])
            out, err = capsys.readouterr()
            assert f"{verb}: {sentence}" in err
            printed.append(([json.loads(line) for line in out.splitlines()], status))
            for found in printed[-1][0]:
                rounded(found)
        assert printed[0] == printed[1]
        return printed[0]

    return run


@pytest.mark.smoke
def test_verify_finds_the_same(both_ways: BothWays, home: StoreHome, tmp_path: Path) -> None:
    fill(home)
    damaged, nothing = home.copy_to(tmp_path / "damaged"), tmp_path / "nothing"
    with (damaged.path / "commitlog" / f"{65_536:020d}").open("r+b") as file:
        file.seek(5_000)
        file.write(bytes(200))
    (found,), status = both_ways("verify", home.path, damaged.path)
    assert status == 1
    assert [(each["store"], bool(each["errors"])) for each in found["stores"]] == [("damaged", True), ("store", False)]
    assert found["stores"][1]["figures"]["records"] == 300
    (found,), status = both_ways("verify", home.path, nothing)
    assert status == 2
    assert "there is no store here" in found["stores"][0]["problem"]


@pytest.mark.smoke
def test_usage_counts_the_same(both_ways: BothWays, home: StoreHome, tmp_path: Path) -> None:
    fill(home)
    other = home.copy_to(tmp_path / "other")
    free = shutil.disk_usage(home.path).free
    (found,), _ = both_ways("usage", home.path, other.path, rounded=lambda found: _without_free(found, free))
    assert found["messages"] == 600
    assert {each["by"] for each in found["counts"]} == {"topic", "queue", "tag", "producer", "day", "hour"}


def _without_free(found: dict[str, Any], free: int) -> None:
    """The space that is free changes while the test runs."""
    for disk in found["stores"]:
        assert 0.5 < disk.pop("free_bytes") / free < 2
        assert disk.pop("days_left") > 0


@pytest.mark.smoke
def test_lag_is_the_same(both_ways: BothWays, home: StoreHome, tmp_path: Path) -> None:
    fill(home)
    config = home.path / "config"
    config.mkdir(exist_ok=True)
    offsets = {"offsetTable": {"T0@billing": {"0": 10, "2": 75}, "T1@billing": {"1": 1}, "T1@mail": {"3": 60}}}
    (config / "consumerOffset.json").write_text(json.dumps(offsets))
    other = home.copy_to(tmp_path / "other")
    (found,), _ = both_ways("lag", home.path, other.path)
    behind = {(each["broker"], each["group"], each["topic"], each["queue_id"]): each for each in found["queues"]}
    assert behind["other", "billing", "T0", 0]["behind"] == 65
    assert behind["store", "mail", "T1", 3]["behind"] == 15
    assert any(each["stuck"] for each in found["queues"])
    (found,), _ = both_ways("lag", home.path, "--group", "mail")
    assert {each["group"] for each in found["queues"]} == {"mail"}


@pytest.mark.parametrize("by", ["place", "key", "bytes"])
def test_diff_finds_the_same(both_ways: BothWays, home: StoreHome, tmp_path: Path, by: str) -> None:
    fill(home)
    other = home.copy_to(tmp_path / "other")
    with other.open(mapped_file_size_commit_log=65_536) as store:
        assert store.put(Message("T0", b"one more", queue_id=2)).ok
    with (other.path / "commitlog" / f"{65_536:020d}").open("r+b") as file:
        file.seek(5_000)
        file.write(bytes(200))
    (found,), status = both_ways("diff", home.path, other.path, "--by", by)
    assert (status, found["same"]) == (1, False)
    (found,), status = both_ways("diff", home.path, home.copy_to(tmp_path / "twin").path, "--by", by)
    assert (status, found["same"]) == (0, True)


@pytest.mark.smoke
@pytest.mark.usefixtures("elsewhere")
def test_search_finds_the_same(both_ways: BothWays, home: StoreHome) -> None:
    fill(home)
    until = home.clock.now
    rows, _ = both_ways("search", home.path, "--tag", "green", "--limit", 1000)
    assert len(rows) == 100
    assert max(row["store_timestamp"] for row in rows) == until - 2 * 60_000
    assert rows[0]["properties"]["color"] == "c0"
    for conditions, count in (
        (["--topic", "T1", "--key", "k77"], 1),
        (["--key", "k77", "--key", "k78"], 2),
        (["--text", "order", "--limit", 7], 7),
        (["--regex", "^.{10}2[0-9]{2}", "--topic", "T0"], 50),
        (["--property", "color=c3", "--since", until - 3_600_000], 9),
        (["--text", "nowhere"], 0),
    ):
        rows, status = both_ways("search", home.path, *conditions)
        assert (status, len(rows)) == (0, count), conditions


def test_search_reports_the_same_unreadable_ranges(
    both_ways: BothWays, home: StoreHome, capsys: pytest.CaptureFixture[str]
) -> None:
    fill(home)
    with (home.path / "commitlog" / f"{65_536:020d}").open("r+b") as file:
        file.seek(5_000)
        file.write(bytes(200))
    rows, _ = both_ways("search", home.path, "--text", "order", "--limit", 1000)
    assert 290 < len(rows) < 300
    for master in ((), ("--master", "local[2]")):
        capsys.readouterr()
        assert main(["search", str(home.path), "--text", "order", "--limit", "1000", *master]) == 0
        assert "1 messages or ranges were not searched: unreadable" in capsys.readouterr().err


@pytest.mark.smoke
@pytest.mark.parametrize("what", [[], ["--topic", "T0", "--queue", 2], ["--index"]], ids=["all", "queue", "index"])
def test_rebuild_makes_the_same_files(both_ways: BothWays, home: StoreHome, tmp_path: Path, what: list[object]) -> None:
    fill(home)
    sound = derived(home.path)
    lost = next((home.path / "index").iterdir()) if "--index" in what else home.path / "consumequeue" / "T0" / "2"
    shutil.rmtree(lost) if lost.is_dir() else lost.unlink()
    model = home.copy_to(tmp_path / "model")
    made: list[dict[str, bytes]] = []

    def start_again() -> None:
        shutil.rmtree(home.path)
        shutil.copytree(model.path, home.path)

    def note(found: list[dict[str, Any]]) -> None:
        made.append(derived(home.path))
        for report in found:
            report.pop("ranges")  # how the log is cut depends on the workers
            for each in report["rebuilt"]:
                each["kept"] = bool(each["kept"])  # the path has the time

    ((found,),), status = both_ways("rebuild", home.path, *what, before=start_again, rounded=note)
    assert (status, bool(found["rebuilt"])) == (0, True)
    assert made == [sound, sound]


def derived(path: Path) -> dict[str, bytes]:
    """The queue files and index files of a store; the names of the latter have the time."""
    queues = {str(each.relative_to(path)): each.read_bytes() for each in sorted(path.glob("consumequeue/*/*/*"))}
    return queues | {f"index {at}": each.read_bytes() for at, each in enumerate(sorted(path.glob("index/*")))}


def test_what_cannot_be_rebuilt_is_refused_in_the_same_words(
    spark: SparkSession, home: StoreHome, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fill(home, 3)
    other = home.copy_to(tmp_path / "other")
    for arguments, status, sentence in (
        ([home.path, "--topic", "none"], 1, "has no such queue"),
        ([home.path, "--index", "--topic", "T0"], 2, "--index goes without --topic and --queue"),
        ([home.path, other.path, "--into", tmp_path / "into"], 2, "--into takes one store"),
        ([tmp_path / "nowhere"], 2, "there is no store here"),
        ([home.path, "--spark-above", "much"], 2, "--spark-above 'much': it must be a number of bytes"),
    ):
        for master in ((), ("--master", "local[2]")):
            capsys.readouterr()
            assert main(["rebuild", *map(str, arguments), *master]) == status
            assert sentence in capsys.readouterr().err


def test_large_logs_go_to_spark(
    both_ways: BothWays, home: StoreHome, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fill(home, 3)
    assert main(["usage", str(home.path), "--spark-above", "1k"]) == 0
    assert "usage: on Spark, the logs have " in capsys.readouterr().err
    monkeypatch.setenv("PENSTOCK_SPARK_ABOVE", "1k")
    assert main(["usage", str(home.path)]) == 0
    assert "more than 1.0 KiB" in capsys.readouterr().err


@pytest.mark.smoke
@pytest.mark.parametrize(
    ("form", "decode"),
    [("parquet", ""), ("parquet", "json"), ("json", ""), ("json", "json"), ("json", "text"), ("delta", ""),
     ("iceberg", "text")],
)  # fmt: skip
def test_an_export_has_the_same_rows(
    both_ways: BothWays, spark: SparkSession, home: StoreHome, tmp_path: Path, form: str, decode: str
) -> None:
    fill_days(home, 0, 40)
    with home.open() as store:
        for body in (b"{broken", b"\xff", b'{"id": {"x": [5, null, "\xc3\xa9"]}}'):
            assert store.put(Message("a|b%c", body)).ok
        assert store.put(Message("damaged", b"some text", tags="t")).ok
        store.catch_up()
        place = store.queues.find("damaged", 0).unit(0)[0]  # type: ignore[union-attr]
    home.flip(home.log_files()[0], place + 90)
    targets = [tmp_path / "here", tmp_path / "on-spark"]
    specs = [Export(to=str(target), format=form) for target in targets]
    rest = ["--once", "--format", form, *(["--decode", decode] if decode else [])]

    def start_again() -> None:
        if (tmp_path / "lake").exists():
            (tmp_path / "lake").rename(targets[0])

    def forget_files(found: dict[str, Any]) -> None:
        found.pop("files")  # Spark writes one per task

    (found,), _ = both_ways(
        "export", home.path, "--to", tmp_path / "lake", *rest, before=start_again, rounded=forget_files
    )
    (tmp_path / "lake").rename(targets[1])
    undecoded = {"": 0, "text": 1, "json": 2}[decode]
    assert (found["rows"], found["undecoded"], found["unread"]) == (43 - undecoded, undecoded, 1)
    here, on_spark = (rows_in(target) for target in targets)
    assert here == on_spark
    assert len(here) == 44
    assert {types_in(target) for target in targets} == {types_in(targets[0])}
    if form == "delta":
        assert held(spark, specs[0]) == held(spark, specs[1])


def rows_in(folder: Path) -> list[tuple[str, str]]:
    """The rows of an export's files, good and bad, each with the folder of its file."""
    rows = []
    for path in sorted(folder.rglob("batch-*")):
        at = str(path.parent.relative_to(folder))
        lines: list[dict[str, Any]] = []
        if path.suffix == ".json" and "_penstock" not in path.parts:
            lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        elif path.suffix == ".parquet":
            lines = pq.ParquetFile(path).read().to_pylist()
        rows += [(at, repr(sorted(line.items()))) for line in lines]
    return sorted(rows)


def types_in(folder: Path) -> tuple[str, ...]:
    """The names and types of the columns in an export's Parquet files, without the metadata of their writer."""
    found = {str(pq.read_schema(path).remove_metadata()) for path in folder.rglob("batch-*.parquet")}
    return tuple(sorted(found))
