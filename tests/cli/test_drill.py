"""`penstock cluster drill`: it shows what a failover does to a client, counts honestly, and leaves nothing behind."""

from __future__ import annotations

import http.client
import json
import re
import shutil
import signal
import subprocess
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from cli.conftest import ENVIRONMENT, PENSTOCK, hear_interrupts
from support.etcd import EtcdNode, need_etcd, running_etcd

from penstock.client.config import ClientConfig
from penstock.client.sync import Admin
from penstock.demo import drill
from penstock.demo.drill_clusters import MadeCluster

if TYPE_CHECKING:
    from cli.conftest import Run


@pytest.fixture
def own_temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the drill's folder is, so that what it leaves can be found."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    monkeypatch.setitem(ENVIRONMENT, "TMPDIR", str(folder))
    return folder


def left_by(folder: Path) -> list[str]:
    """Command lines of processes that work in a folder, and what is in it."""
    lines = []
    for each in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            lines.append(each.read_bytes().replace(b"\0", b" ").decode(errors="replace"))
        except OSError:
            continue  # it has ended meanwhile
    return [line for line in lines if str(folder) in line] + [str(each) for each in folder.iterdir()]


def keys_in(node: EtcdNode) -> int:
    """How many keys etcd has."""
    connection = http.client.HTTPConnection(*node.address, timeout=30)
    connection.request("POST", "/v3/kv/range", '{"key": "AA==", "range_end": "AA==", "count_only": true}')
    answer = json.loads(connection.getresponse().read())
    connection.close()
    return int(answer.get("count", 0))


# -- on a cluster that it makes --------------------------------------------------------------------------------------


@pytest.mark.etcd
def test_a_killed_and_a_replaced_master_cost_no_acknowledged_message(
    run: Run, tmp_path: Path, own_temporary: Path
) -> None:
    need_etcd()
    page = tmp_path / "drill.html"
    done = run("cluster", "drill", "--rounds", "1", "--kill", "--switchover", "--json", "--html", page).done()
    found = done.json
    assert [each["kind"] for each in found["strikes"]] == ["kill", "switchover"]
    for each, epoch in zip(found["strikes"], (2, 3), strict=True):
        assert each["epoch"] == epoch
        assert each["master"]["id"] != each["struck"]["id"]
        assert each["outage_seconds"] > 0
        assert each["acknowledged"] >= drill._AROUND
        assert (each["lost"], each["doubled"]) == (0, 0)
    assert found["ok"]
    assert found["acknowledged"] == sum(each["acknowledged"] for each in found["strikes"])
    assert re.search(r"1 of 2: replica 1 at \S+ was killed; replica [23] at \S+ is master in epoch 2", done.err)
    html = page.read_text(encoding="utf-8")
    assert "no acknowledged message was lost" in html
    assert html.count("class='away'") == 2, "both outages are marked"
    assert not re.search(r"<script|<link|src=|https?://", html), "the page needs nothing but itself"
    assert left_by(own_temporary) == []


@pytest.mark.etcd
def test_a_paused_master_is_replaced_and_a_foreign_etcd_keeps_no_key(
    run: Run, tmp_path: Path, own_temporary: Path
) -> None:
    with running_etcd(tmp_path) as (node,):
        host, port = node.address
        ttl = ("--set", "failoverTtlMillis=2000")
        done = run("cluster", "drill", "--rounds", "1", "--pause", "--dcs", f"{host}:{port}", *ttl).done()
        assert re.search(r"^pause +1 +\d+\.\d\d s +[23] +2 +\d+ +0 +0$", done.out, re.M), done.out
        assert re.search(r"^all [\d,]+ acknowledged messages are there, each once; ", done.out, re.M)
        assert keys_in(node) == 0
        assert left_by(own_temporary) == []


@pytest.mark.etcd
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_everything_that_it_started(number: signal.Signals, own_temporary: Path) -> None:
    need_etcd()
    command = [*PENSTOCK, "cluster", "drill", "--rounds", "100"]
    with subprocess.Popen(
        command, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT, preexec_fn=hear_interrupts
    ) as process:
        assert process.stderr is not None
        said = ""
        while "is master in epoch" not in said:
            line = process.stderr.readline()
            assert line, said
            said += line
        assert len(left_by(own_temporary)) >= 4, "etcd and three brokers run"
        process.send_signal(number)
        assert process.wait(60) == 130
    assert left_by(own_temporary) == []


# -- on a cluster that exists ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def existing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[ClientConfig, list[str]]]:
    """A cluster that is not the drill's, and the options that name it."""
    folder = tmp_path_factory.mktemp("existing")
    with running_etcd(folder) as (node,):
        dcs = "{}:{}".format(*node.address)
        with MadeCluster(folder, dcs, ["dcsPrefix=/existing"]) as made:
            drill.Drill(made, print)._wait_until_whole()
            settings = ("failover=etcd", f"dcsAddr={dcs}", "dcsPrefix=/existing")
            options = ["--namesrv", made.config.namesrv, *(f"--set={each}" for each in settings)]
            yield made.config, options


@pytest.mark.etcd
def test_an_existing_cluster_is_switched_over_and_keeps_its_brokers(
    run: Run, existing: tuple[ClientConfig, list[str]]
) -> None:
    config, options = existing
    found = run("cluster", "drill", *options, "--rounds", "2", "--switchover", "--yes", "--json").done().json
    assert [each["kind"] for each in found["strikes"]] == ["switchover", "switchover"]
    with Admin(config) as admin:
        table = admin.cluster.info().broker_addr_table["broker-a"].broker_addrs
        assert table[0] == found["strikes"][-1]["master"]["address"], "the brokers are there, and the last master leads"
        assert not [name for name in admin.topics.names() if "drill" in name], "its topic is removed"


@pytest.mark.etcd
def test_a_lost_and_a_doubled_message_are_reported_by_the_exit_status(
    run: Run, existing: tuple[ClientConfig, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    read = drill.read_keys

    def read_badly(config: ClientConfig, topic: str) -> Counter[str]:
        keys = read(config, topic)
        first, second, *_ = sorted(keys)
        del keys[first]
        keys[second] += 1
        return keys

    monkeypatch.setattr(drill, "read_keys", read_badly)
    monkeypatch.setattr(drill, "_READ_WITHIN_S", 1.0)
    done = run("cluster", "drill", *existing[1], "--rounds", "1", "--switchover", "--yes", "--json")
    assert done.status == 1
    found = done.json
    assert not found["ok"]
    assert (found["lost"], found["doubled"]) == (1, 1)
    assert (found["strikes"][0]["lost"], found["strikes"][0]["doubled"]) == (1, 1)


# -- what it refuses -------------------------------------------------------------------------------------------------


def test_without_etcd_it_says_what_to_do(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    said = run("cluster", "drill").err
    assert "there is no program `etcd` here; install it" in said
    assert "--dcs HOST:PORT" in said


def test_an_engine_that_does_not_answer_is_told_in_a_sentence(run: Run, own_temporary: Path) -> None:
    done = run("cluster", "drill", "--dcs", "127.0.0.1:1")
    assert done.status == 2
    assert "no node of etcd answers" in done.err
    assert left_by(own_temporary) == []


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (["--namesrv", "127.0.0.1:1"], "only brokers that it started itself"),
        (["--namesrv", "127.0.0.1:1", "--switchover", "--kill"], "only brokers that it started itself"),
        (["--namesrv", "127.0.0.1:1", "--switchover"], "repeat it with --yes"),
        (["--namesrv", "127.0.0.1:1", "--switchover", "--yes", "--dcs", "127.0.0.1:2"], "--dcs is for a cluster"),
        (["--namesrv", "127.0.0.1:1", "--switchover", "--yes", "--set", "failover=off"], "failover is off"),
        (["--config", "broker.conf"], "name it with --namesrv"),
        (["--html", "no/such/folder/page.html"], "the folder of the page does not exist"),
    ],
)
def test_a_drill_that_would_harm_others_or_cannot_run_is_refused(run: Run, options: list[str], why: str) -> None:
    assert why in run("cluster", "drill", *options).refused()
