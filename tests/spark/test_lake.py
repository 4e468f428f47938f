"""A lake takes in what has come since its last run: nothing is missing, nothing is there twice.

Each run needs a Spark of its own kind, so these tests start processes; what needs no Spark is tested below.
"""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path

import pytest
from support.documents import to_run
from support.spark import LAKE_SETTINGS, finish_lake, lake_command, start_lake, table_rows
from support.stores import StoreHome

from penstock.pipeline.jobs.job_input import JobInput
from penstock.pipeline.lake import init_project
from penstock.store import Message

pytestmark = pytest.mark.timeout(1500)

TWO_RUNS = """
import shlex
import sys
from pathlib import Path
from penstock.cli.main import main
from penstock.store import Message, MessageStore, Settings
lake, store, run = sys.argv[1], Path(sys.argv[2]), sys.argv[3:]
assert main(run) == 0
with MessageStore.open(store, Settings.dev()) as opened:
    for number in range(100, 160):
        body = b'{"id": %d}' % number if number % 10 else b"{no json"
        assert opened.put(Message("orders", body, queue_id=number % 4)).ok
    for number in range(5):
        assert opened.put(Message("new", b"%d" % number)).ok
assert main(run) == 0
"""


@pytest.fixture
def lake(home: StoreHome, tmp_path: Path) -> Path:
    """A lake of a store with orders as JSON, some of it bad, clicks as text, a damaged record, and a consumer group."""
    with home.open() as store:
        for number in range(100):
            body = b'{"id": %d}' % number if number % 10 else b"{no json"
            assert store.put(Message("orders", body, queue_id=number % 4)).ok
            assert store.put(Message("clicks", b"\xff" if number == 7 else b"click %d" % number)).ok
        store.catch_up()
        place = store.queues.find("clicks", 0).unit(50)[0]  # type: ignore[union-attr]
    home.flip(home.log_files()[0], place + 90)
    offsets = {"offsetTable": {"orders@billing": {"0": 5}}}
    (home.path / "config").mkdir(exist_ok=True)
    (home.path / "config" / "consumerOffset.json").write_text(json.dumps(offsets))
    folder = tmp_path / "lake"
    init_project(folder, JobInput(stores=(str(home.path),)), "text")
    settings = folder / "lake.yml"
    text = settings.read_text().replace("orders:\n    decode: text", "orders: {decode: json, schema: id INT}")
    settings.write_text(text)
    return folder


def check(lake: Path, orders: int) -> None:
    """The tables hold the first so many orders, each once."""
    good = [number for number in range(orders) if number % 10]
    assert sorted(row["value"]["id"] for row in table_rows(lake, "topic_orders")) == good
    clicks = {row["value"] for row in table_rows(lake, "topic_clicks")}
    assert clicks == {f"click {number}" for number in range(100) if number not in (7, 50)}
    assert len(table_rows(lake, "topic_clicks")) == 98
    reasons = sorted(row["reason"] for row in table_rows(lake, "bad_messages"))
    bad = orders // 10
    assert reasons == sorted(
        [
            *["the body is not json with id INT"] * bad,
            "the body is not text",
            "the record of queue offset 50 is damaged",
        ]
    )
    assert sum(row["messages"] for row in table_rows(lake, "usage") if row["topic"] == "orders") == orders
    assert {row["topic"]: row["messages"] for row in table_rows(lake, "latency")}["clicks"] == 99
    lag = table_rows(lake, "consumer_lag")
    assert {row["consumer_group"] for row in lag} == {"billing"}
    each = orders // 4
    assert sorted((row["queue_id"], row["behind"]) for row in lag) == [(0, each - 5), (1, each), (2, each), (3, each)]


@pytest.mark.slow
def test_two_runs_with_traffic_in_between_miss_nothing_and_double_nothing(home: StoreHome, lake: Path) -> None:
    run = lake_command(lake, "--json")[3:]
    status, written, said = finish_lake(
        start_lake(lake, sys.executable, "-c", TWO_RUNS, str(lake), str(home.path), *run)
    )
    assert status == 0, written + said[-4000:]
    first, second = (json.loads(line) for line in written.splitlines() if line.startswith("{"))
    assert first["tables"] == {"messages": 200, "topic_clicks": 98, "topic_orders": 90, "bad_messages": 12}
    assert second["tables"] == {"messages": 265, "topic_clicks": 98, "topic_orders": 144, "bad_messages": 18}
    assert (first["without_table"], second["without_table"]) == ([], ["new"])
    check(lake, 160)


@pytest.mark.slow
def test_a_cluster_fills_the_same_tables(lake: Path, cluster: str) -> None:
    """The last `--master` counts."""
    arguments = lake_command(lake, "--json", "--master", cluster, "--conf", "spark.executor.memory=512m")
    status, written, said = finish_lake(start_lake(lake, *arguments))
    assert status == 0, written + said[-4000:]
    tables = {"messages": 200, "topic_clicks": 98, "topic_orders": 90, "bad_messages": 12}
    assert json.loads(written)["tables"] == tables
    check(lake, 100)


@pytest.mark.slow
def test_the_page_runs_as_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    said = ""
    for block in to_run("docs/how-to/lake.md", "py", "sh", "yaml"):
        if block.kind == "py":
            exec(compile(block.text, block.place, "exec"), names)  # the documents are ours
        elif block.kind == "yaml":
            settings = Path("data/lake/lake.yml")
            settings.write_text(settings.read_text().partition("topics:\n ")[0] + block.text)
        for line in block.text.splitlines() if block.kind == "sh" else ():
            words = shlex.split(line)
            order = ["bash", "-ec", f'PATH="{Path(sys.executable).parent}:$PATH"; {line}']  # Spark's own programs
            if words[0] == "penstock":
                order = [
                    sys.executable,
                    "-m",
                    "penstock.cli.main",
                    *words[1:],
                    *(LAKE_SETTINGS if "run" in words else []),
                ]
            status, written, errors = finish_lake(start_lake(tmp_path / "data", *order))
            assert status == 0, line + written + errors[-4000:]
            said += written
    assert "149\t149.5" in said, "the answer to the query in SQL"
    lake = tmp_path / "data" / "lake"
    assert sorted(row["value"]["id"] for row in table_rows(lake, "topic_orders")) == list(range(150))
    assert len(table_rows(lake, "topic_clicks")) == 100
    assert [row["body"] for row in table_rows(lake, "bad_messages")] == [b"this is no JSON"]


@pytest.mark.torture
def test_sparks_own_command_and_ours_go_on_where_the_other_ended(home: StoreHome, lake: Path) -> None:
    spark_pipelines = str(Path(sys.executable).parent / "spark-pipelines")
    own = start_lake(
        lake, "env", f"SPARK_CONF_DIR={lake}/conf", spark_pipelines, "run", "--spec", f"{lake}/spark-pipeline.yml"
    )
    status, written, said = finish_lake(own)
    assert status == 0, written + said[-4000:]
    check(lake, 100)
    with home.open() as store:
        for number in range(100, 120):
            body = b'{"id": %d}' % number if number % 10 else b"{no json"
            assert store.put(Message("orders", body, queue_id=number % 4)).ok
    status, written, said = finish_lake(start_lake(lake, *lake_command(lake)))
    assert status == 0, written + said[-4000:]
    check(lake, 120)
    status, written, said = finish_lake(start_lake(lake, *lake_command(lake, "--full-refresh")))
    assert status == 0, written + said[-4000:]
    check(lake, 120)


@pytest.mark.torture
def test_a_second_run_at_the_same_time_is_told_so(lake: Path) -> None:
    """Both are started at once, so that the first look at the catalog's lock may come too soon."""
    ended = [
        finish_lake(each) for each in [start_lake(lake, *lake_command(lake)), start_lake(lake, *lake_command(lake))]
    ]
    assert sorted(status for status, _, _ in ended) == [0, 2], ended
    (said,) = [said for status, _, said in ended if status == 2]
    assert "catalog" in said.splitlines()[-1]
    check(lake, 100)


@pytest.mark.torture
def test_messages_that_were_deleted_unread_are_one_sentence(home: StoreHome, lake: Path) -> None:
    assert finish_lake(start_lake(lake, *lake_command(lake)))[0] == 0
    with home.open() as store:
        for number in range(6000):
            assert store.put(Message("clicks", b"%04d" % number * 100)).ok
    assert len(home.log_files()) > 2
    for path in home.log_files()[:2]:
        path.unlink()
    status, _, said = finish_lake(start_lake(lake, *lake_command(lake)))
    assert status == 2
    last = said.strip().splitlines()[-1]
    assert "are gone" in last, said[-3000:]
    assert "failOnDataLoss" in last
