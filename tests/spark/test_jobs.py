"""Jobs on Spark give what the same code gives without it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from support.spark import sentence
from support.stores import StoreHome

from penstock.cli.main import main
from penstock.errors import BadSettings, BadStore
from penstock.pipeline.jobs.job_input import JobInput
from penstock.pipeline.jobs.search import SearchQuery, SearchResult, describe, search
from penstock.pipeline.jobs.usage import usage, usage_here
from penstock.pipeline.session import map_in_workers
from penstock.store import Message


def fill(home: StoreHome) -> None:
    with home.open(mapped_file_size_commit_log=65_536) as store:
        for number in range(300):
            tags = "red" if number % 3 else "green"
            body = b"%d" % number * 100
            assert store.put(Message(f"T{number % 2}", body, tags=tags, queue_id=number % 4, keys=(f"k{number}",))).ok


@pytest.mark.smoke
def test_usage_on_spark_is_usage_here(spark: SparkSession, home: StoreHome, tmp_path: Path) -> None:
    fill(home)
    other = home.copy_to(tmp_path / "copy")
    both = JobInput(stores=(str(home.path), str(other.path)))
    found, here = usage(spark, both), usage_here(both)
    assert found.tally == here.tally
    assert found.messages == 600


def test_what_a_worker_meets_is_one_sentence(spark: SparkSession, home: StoreHome) -> None:
    def fail(piece: int) -> object:
        raise BadStore(f"piece {piece} is no good", path="somewhere")

    with pytest.raises(Exception) as error:
        map_in_workers(spark, [7], fail, "x int").collect()  # type: ignore[arg-type]
    assert sentence(error) == "somewhere: piece 7 is no good"


def bodies(found: SearchResult) -> list[bytes]:
    return sorted(bytes(row.body) for row in found.frame.collect())


@pytest.mark.smoke
def test_search_finds_by_what_messages_hold(spark: SparkSession, home: StoreHome) -> None:
    with home.open(mapped_file_size_commit_log=65_536) as store:
        for number in range(200):
            home.clock.now += 1000
            message = Message(
                f"T{number % 2}",
                b'{"order": {"id": %d, "name": "n%d"}}' % (number, number),
                tags="red" if number % 10 else "green",
                keys=(f"k{number}",),
                properties={"color": f"c{number % 7}"},
            )
            assert store.put(message).ok
        (hit,) = store.query("T1", "k77")
    where = JobInput(stores=(str(home.path),))
    begin = home.clock.now - 199_000

    def numbers(**wanted: Any) -> list[int]:
        found = search(spark, SearchQuery(**wanted), job_input=where)
        return sorted(int(json.loads(body)["order"]["id"]) for body in bodies(found))

    assert numbers(topic="T1", keys=("k77", "k78")) == [77]
    assert numbers(keys=("k77", "k78")) == [77, 78], "without a topic every topic is searched"
    assert numbers(msg_id=hit.msg_id) == [77]
    assert numbers(text='"n19"') == [19]
    assert numbers(pattern=r'"n1[0-2]"', topic="T0") == [10, 12]
    assert numbers(json=(("$.order.id", "42"),)) == [42]
    assert numbers(json=(("order.name", "n5"), ("order.id", "6"))) == []
    assert numbers(properties=(("color", "c3"),), tag="green") == [10, 80, 150]
    assert numbers(since_ms=begin + 195_000) == [195, 196, 197, 198, 199]
    assert numbers(since_ms=begin, until_ms=begin + 1000) == [0]
    with pytest.raises(BadSettings, match="nothing to search for"):
        search(spark, SearchQuery(), job_input=where)


def test_search_tells_of_what_it_could_not_read(spark: SparkSession, home: StoreHome) -> None:
    with home.open() as store:
        home.put_numbered(store, 20)
        place = store.queues.find("T", 0).unit(7)[0]  # type: ignore[union-attr]
    home.flip(home.log_files()[0], place + 90)
    for wanted in (SearchQuery(text="0003"), SearchQuery(text="0003", topic="T")):
        found = search(spark, wanted, job_input=JobInput(stores=(str(home.path),)))
        rows = found.frame.select("body", "_corrupt").collect()
        assert sorted(row.body for row in rows if row.body is not None) == [b"0003"]
        assert len([row for row in rows if row._corrupt is not None]) == 1
    assert describe(found.coverage) == ["searched 20 messages of 1 queues"]


def test_the_commands_run_on_spark(
    spark: SparkSession, home: StoreHome, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    fill(home)
    where = ["--store", str(home.path)]
    assert main(["pipeline", "usage", *where, "--by", "tag", "--html", str(tmp_path / "page.html")]) == 0
    shown = capsys.readouterr()
    assert "300 messages" in shown.out
    assert "penstock usage" in shown.err, "the instant twin is named"
    assert main(["pipeline", "search", *where, "--topic", "T1", "--key", "k7", "--json"]) == 0
    shown = capsys.readouterr()
    assert json.loads(shown.out)["keys"] == ["k7"]
    assert "1 found; searched through the index" in shown.err
    assert main(["pipeline", "search", *where, "--tag", "green", "--limit", "3"]) == 0
    shown = capsys.readouterr()
    assert len(shown.out.splitlines()) == 3
    assert "3 found, and there are more: stopped at --limit 3" in shown.err
    assert main(["pipeline", "search", *where, "--topic", "T1", "--key", "k7", "--limit", "1"]) == 0
    shown = capsys.readouterr()
    assert "there are more" not in shown.err, "there is one, and one was asked for"
    assert "penstock search" in shown.err, "the instant twin is named"
    for arguments, expected in (
        (["search", *where], "nothing to search for"),
        (["search", "--text", "x"], "give either --store DIR or --namesrv"),
        (["search", *where, "--since", "yesterday"], "not a valid time"),
        (["search", *where, "--property", "color"], "it must be NAME=VALUE"),
        (["search", *where, "--regex", "("], "it must be a regular expression"),
        (["usage", *where, "--conf", "x"], "it must be NAME=VALUE"),
        (["usage", "--store", str(tmp_path / "none")], "there is no store here"),
    ):
        assert main(["pipeline", *arguments]) == 2
        assert expected in capsys.readouterr().err
    assert spark.range(3).count() == 3, "a session that was there before is left alone"
