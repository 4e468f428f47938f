"""The project of a lake: what it holds, and what is said where it makes no sense. Runs of it are tested with Spark."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from support.pipeline import send
from support.stores import StoreHome

from penstock.cli.main import main
from penstock.client.message import Message as Sent
from penstock.errors import BadSettings, BadStore, StoreInUse
from penstock.pipeline.jobs.job_input import JobInput
from penstock.pipeline.lake import Lake, LakeTable, init_project, run_project
from penstock.pipeline.lake.run import _sentence
from penstock.store import Message
from penstock.testing import LocalBroker


@pytest.fixture
def home(tmp_path: Path) -> StoreHome:
    made = StoreHome(tmp_path / "store")
    with made.open() as store:
        for topic in ("orders", "Clicks-2", "%RETRY%group"):
            assert store.put(Message(topic, b"{}")).ok
        assert store.put(Message("orders", b"{}", delay_level=3)).ok
    return made


def test_a_new_lake_has_a_table_for_each_topic(home: StoreHome, tmp_path: Path) -> None:
    made = init_project(tmp_path / "lake", JobInput(stores=(str(home.path),)), "json")
    assert [(each.topic, each.table, each.decode) for each in made.topics] == [
        ("Clicks-2", "topic_clicks_2", "json"),
        ("orders", "topic_orders", "json"),
    ], "neither the broker's own topics nor those of retries"
    assert Lake.read(tmp_path / "lake") == made
    spec = yaml.safe_load((tmp_path / "lake" / "spark-pipeline.yml").read_text())
    assert (spec["name"], spec["libraries"]) == ("lake", [{"glob": {"include": "transformations/**"}}])
    conf = (tmp_path / "lake" / "conf" / "spark-defaults.conf").read_text()
    assert f"spark.sql.warehouse.dir {tmp_path}/lake/tables\n" in conf
    for path in (tmp_path / "lake" / "transformations").iterdir():
        text = path.read_text()
        assert ast.get_docstring(ast.parse(text))
        assert len(text.splitlines()) < 40


def test_a_lake_of_a_cluster(b: LocalBroker, tmp_path: Path) -> None:
    send(b, [Sent("orders", b"1")])
    made = init_project(tmp_path / "lake", JobInput(namesrv=b.namesrv))
    assert "orders" in [each.topic for each in made.topics]
    assert Lake.read(tmp_path / "lake").job_input == JobInput(namesrv=b.namesrv)


def test_what_is_there_is_not_overwritten(home: StoreHome, tmp_path: Path) -> None:
    where = JobInput(stores=(str(home.path),))
    before = home.listing()
    with pytest.raises(BadSettings, match="this folder is not empty"):
        init_project(home.path, where)
    assert home.listing() == before
    (tmp_path / "empty").mkdir()
    init_project(tmp_path / "empty", where)
    with pytest.raises(BadSettings, match="this folder is not empty"):
        init_project(tmp_path / "empty", where)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("store: [", "it must be YAML, and is not"),
        ("[]", "it must name the input of the lake"),
        ("topics: {}", "it must name either a store or a namesrv"),
        ("store: a\nnamesrv: b", "it must name either a store or a namesrv"),
        ("store: a\nshop: b", "there is no setting 'shop'; there are config, fail_on_data_loss"),
        ("store: a\ntopics: [orders]", "topics must be names with what they hold"),
        ("store: a\ntopics: {orders: {decode: xml}}", "must be one of json, text, none"),
        ("store: a\ntopics: {orders: {decode: text, schema: a INT}}", "a schema needs decode: json"),
        ("store: a\ntopics: {a-b: , a_b: }", "topics a-b and a_b would have the same table"),
        ("store: a\nfail_on_data_loss: 7", "Expected `bool`, got `int`"),
    ],
)
def test_a_file_that_makes_no_sense_is_one_sentence(text: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "lake.yml").write_text(text)
    with pytest.raises(BadSettings) as error:
        Lake.read(tmp_path)
    assert said in str(error.value)
    assert str(tmp_path / "lake.yml") in str(error.value)


def test_a_topic_may_leave_out_what_it_holds(tmp_path: Path) -> None:
    (tmp_path / "lake.yml").write_text("store: a\ntopics:\n  orders:\n  7: {decode: text}\n")
    assert Lake.read(tmp_path).topics == (LakeTable(topic="orders"), LakeTable(topic="7", decode="text"))


def test_a_run_says_what_is_missing_before_spark_is_started(home: StoreHome, tmp_path: Path) -> None:
    with pytest.raises(BadSettings, match="this is not a lake; create one with `penstock pipeline lake init`"):
        run_project(tmp_path)
    init_project(tmp_path / "lake", JobInput(stores=(str(home.path),)))
    home.path.rename(tmp_path / "elsewhere")
    with pytest.raises(BadStore, match=r"there is no store here; correct the path in lake\.yml"):
        run_project(tmp_path / "lake")
    (tmp_path / "elsewhere").rename(home.path)
    (tmp_path / "lake" / "spark-pipeline.yml").unlink()
    with pytest.raises(BadSettings, match=r"spark-pipeline\.yml is missing"):
        run_project(tmp_path / "lake")


def test_a_run_beside_another_one_is_told_so_before_spark_is_started(home: StoreHome, tmp_path: Path) -> None:
    init_project(tmp_path / "lake", JobInput(stores=(str(home.path),)))
    lock = tmp_path / "lake" / "catalog" / "metastore" / "dbex.lck"
    lock.parent.mkdir()
    hold = (
        "import fcntl, sys; held = open(sys.argv[1], 'w'); fcntl.lockf(held, fcntl.LOCK_EX); print('held', flush=True)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", f"{hold}; input()", str(lock)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "held\n"
        with pytest.raises(StoreInUse, match=rf"has this lake's catalog open \(process {other.pid}\)"):
            run_project(tmp_path / "lake")
        other.communicate("\n")


def test_of_what_spark_says_the_sources_own_words_are_told() -> None:
    failed = (
        "Flow 'messages' has FAILED.\nError: [STREAM_FAILED] ... rocketmq: messages 0 to 7 are gone SQLSTATE: 38000"
    )
    assert _sentence([failed, "[RUN_FAILED] see above"]) == "messages 0 to 7 are gone"
    assert _sentence(["Flow x FAILED.\nError: [BAD] no"]) == "Spark could not run it: [BAD] no"
    assert _sentence([""]) == ""


def test_the_command_makes_a_lake(home: StoreHome, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lake = str(tmp_path / "lake")
    assert main(["pipeline", "lake", "init", lake, "--store", str(home.path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["tables"] == {"topic_clicks_2": "Clicks-2", "topic_orders": "orders"}
    assert main(["pipeline", "lake", "init", str(tmp_path / "other"), "--store", str(home.path)]) == 0
    assert "topic_orders" in capsys.readouterr().out
    for arguments, expected in (
        (["init", lake, "--store", str(home.path)], "this folder is not empty"),
        (["init", str(tmp_path / "new")], "give either --store DIR or --namesrv"),
        (["init", str(tmp_path / "new"), "--store", str(tmp_path / "none")], "there is no store here"),
        (["init", str(tmp_path / "new"), "--store", str(home.path), "--decode", "xml"], "it must be one of json, text"),
        (["run", str(tmp_path)], "this is not a lake"),
        (["run", lake, "--conf", "x"], "it must be NAME=VALUE"),
    ):
        assert main(["pipeline", "lake", *arguments]) == 2
        assert expected in capsys.readouterr().err
    assert not (tmp_path / "new").exists()


def test_a_lake_without_a_topic_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with StoreHome(tmp_path / "store").open():
        pass
    assert main(["pipeline", "lake", "init", str(tmp_path / "lake"), "--store", str(tmp_path / "store")]) == 0
    assert "there is no topic yet" in capsys.readouterr().err
