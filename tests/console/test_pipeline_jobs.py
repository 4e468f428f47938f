"""The jobs as the page Pipeline starts them: what comes out of the real verbs, on a store with a broker, and where they
run.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from support.clients import ORDERS, ConsoleProcess

from penstock.testing import LocalBroker

SOON_S = 280.0
HIDING = """
import sys

class Hiding:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("pyarrow", "pyspark"):
            raise ModuleNotFoundError(f"No module named {name}", name=name)

sys.meta_path.insert(0, Hiding())
"""
"""Hides packages from a process that runs it, as `sitecustomize` does in every process."""


@pytest.fixture
def exports(tmp_path: Path) -> Path:
    return tmp_path / "exports"


@pytest.fixture
def console_of_store(cluster: LocalBroker, exports: Path, tmp_path: Path) -> Iterator[ConsoleProcess]:
    """A console that may start jobs."""
    options = ("--store", str(cluster.store_path), "--exports", str(exports))
    with ConsoleProcess(cluster.namesrv, *options, folder=tmp_path) as console:
        yield console


@pytest.fixture
def starting(console_of_store: ConsoleProcess) -> Iterator[httpx.Client]:
    with console_of_store.client() as client:
        yield client


def to_its_end(client: httpx.Client, verb: str, fields: dict[str, str] | None = None) -> dict[str, Any]:
    """Starts a job and waits for it; returns what the console tells of it."""
    started = client.post("/api/jobs", json={"verb": verb, "fields": fields or {}})
    assert started.status_code == 201, started.text
    number, deadline = started.json()["number"], time.monotonic() + SOON_S
    while True:
        job: dict[str, Any] = client.get(f"/api/jobs/{number}").json()
        if job["state"] != "running":
            return job
        assert time.monotonic() < deadline, job
        time.sleep(0.1)


def test_a_rebuild_is_refused_while_the_broker_has_the_store(starting: httpx.Client) -> None:
    job = to_its_end(starting, "rebuild", {"topic": "orders"})
    assert (job["state"], job["status"], job["results"]) == ("failed", 2, [])
    assert "the store is in use; stop its broker first" in job["said"][-1]
    assert job["arguments"] == ["--topic=orders"]


def test_jobs_on_a_small_store_run_to_their_results_without_spark(starting: httpx.Client, exports: Path) -> None:
    pytest.importorskip("pyarrow")
    verified = to_its_end(starting, "verify")
    assert (verified["state"], verified["status"], verified["share"]) == ("done", 0, 100), verified["said"]
    assert verified["way"].startswith("without Spark (")
    [report] = verified["results"]
    assert report["errors"] == 0
    assert len(report["stores"]) == 1
    [usage] = to_its_end(starting, "usage")["results"]
    assert usage["messages"] > ORDERS
    found = to_its_end(starting, "search", {"topic": "orders", "key": "order_7\norder_8"})
    assert [each["keys"] for each in found["results"]] == [["order_7"], ["order_8"]]
    given = {"topic": "orders", "format": "json", "folder": "mine", "once": "true"}
    exported = to_its_end(starting, "export", given)
    assert (exported["state"], exported["status"]) == ("done", 0), exported["said"]
    assert exported["way"].startswith("without Spark (")
    lines = [line for file in (exports / "mine").rglob("*.json") for line in file.read_text().splitlines()]
    messages = [json.loads(line) for line in lines if '"physical_offset"' in line]  # the others are the export's notes
    assert len({message["physical_offset"] for message in messages}) == len(messages) == ORDERS


@pytest.mark.rest
def test_spark_that_one_job_started_serves_the_next_and_ends_with_a_killed_console(
    console_of_store: ConsoleProcess, starting: httpx.Client
) -> None:
    pytest.importorskip("pyspark")
    first = to_its_end(starting, "verify", {"on-spark": "true"})
    assert (first["state"], first["way"]) == ("done", "on Spark, as the form asks for"), first["said"]
    assert "verify: on Spark, as --master asks for" in first["said"]
    [process] = children_of(console_of_store.process.pid)
    [java] = children_of(process)
    second = to_its_end(starting, "usage", {"on-spark": "true"})
    assert (second["state"], second["results"][0]["flaws"]) == ("done", 0), second["said"]
    assert to_its_end(starting, "usage")["way"].startswith("without Spark (")
    assert children_of(console_of_store.process.pid) == [process]
    assert children_of(process) == [java]
    console_of_store.process.kill()
    console_of_store.stop()
    deadline = time.monotonic() + 60
    while any(Path(f"/proc/{pid}/exe").exists() for pid in (process, java)):
        assert time.monotonic() < deadline, "a process is left"
        time.sleep(0.05)


def children_of(parent: int) -> list[int]:
    """The ids of a process's living children."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, of, *_ = stat.read_text().rpartition(")")[2].split()
        except OSError:  # it has ended
            continue
        if int(of) == parent and state != "Z":
            found.append(int(stat.parent.name))
    return found


def test_cards_of_jobs_whose_packages_are_missing_say_so_and_the_jobs_fail(
    cluster: LocalBroker, tmp_path: Path
) -> None:
    (tmp_path / "sitecustomize.py").write_text(HIDING)
    planted = f"import os\nos.environ['PYTHONPATH'] = {os.pathsep.join((str(tmp_path), *sys.path))!r}\n{HIDING}"
    options = ("--store", str(cluster.store_path))
    with (
        ConsoleProcess(cluster.namesrv, *options, folder=tmp_path, planted=planted) as console,
        console.client() as client,
    ):
        page = client.get("/pipeline").text
        for title in ("Usage", "Search", "Export"):
            assert f"{title} needs the package pyarrow: pip install 'penstock[arrow]'" in page
        assert "Spark needs the packages pyspark, pyarrow: pip install 'penstock[spark]'" in page
        job = to_its_end(client, "usage")
        assert (job["state"], job["status"]) == ("failed", 2), job
        assert job["said"][-1].endswith("needs the package pyarrow, which is not installed: pip install "
                                        "'penstock[arrow]'.")  # fmt: skip
        job = to_its_end(client, "verify", {"on-spark": "true"})
        assert (job["state"], job["status"]) == ("failed", 2), job
        assert "pip install 'penstock[spark]'" in job["said"][-1]
        assert to_its_end(client, "verify")["state"] == "done"
    with ConsoleProcess(cluster.namesrv, folder=tmp_path, planted=planted) as console, console.client() as client:
        assert "Search needs the packages pyspark, pyarrow: pip install 'penstock[spark]'" in (
            client.get("/pipeline").text
        )


def test_the_page_offers_spark_by_a_switch_unless_every_job_runs_on_it(
    starting: httpx.Client, cluster: LocalBroker, tmp_path: Path
) -> None:
    pytest.importorskip("pyspark")
    assert '"On Spark"' in starting.get("/pipeline").text
    assert "needs the package" not in starting.get("/pipeline").text
    options = ("--store", str(cluster.store_path), "--master", "local[2]")
    with ConsoleProcess(cluster.namesrv, *options, folder=tmp_path) as console, console.client() as client:
        page = client.get("/pipeline").text
        assert "Runs on Spark, as the console's --master asks for." in page.replace("\\u0027", "'")
        assert '"On Spark"' not in page
