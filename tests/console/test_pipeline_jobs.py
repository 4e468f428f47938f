"""The pipeline's jobs as the page Pipeline starts them: what comes out of the real verbs, on a store with a broker."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from support.clients import ORDERS, ConsoleProcess

from penstock.testing import LocalBroker

pytest.importorskip("pyspark")

SOON_S = 280.0
SMALL = ("--master", "local[2]", "--conf", "spark.driver.memory=1g")


@pytest.fixture
def exports(tmp_path: Path) -> Path:
    return tmp_path / "exports"


@pytest.fixture
def starting(cluster: LocalBroker, exports: Path, tmp_path: Path) -> Iterator[httpx.Client]:
    """Somebody at a console that may start jobs."""
    options = ("--store", str(cluster.store_path), "--exports", str(exports), *SMALL)
    with ConsoleProcess(cluster.namesrv, *options, folder=tmp_path) as console, console.client() as client:
        yield client


def to_its_end(client: httpx.Client, verb: str, **fields: str) -> dict[str, Any]:
    """Starts a job and waits for it; returns what the console tells of it."""
    started = client.post("/api/jobs", json={"verb": verb, "fields": fields})
    assert started.status_code == 201, started.text
    number, deadline = started.json()["number"], time.monotonic() + SOON_S
    while True:
        job: dict[str, Any] = client.get(f"/api/jobs/{number}").json()
        if job["state"] != "running":
            return job
        assert time.monotonic() < deadline, job
        time.sleep(0.1)


def test_a_rebuild_is_refused_while_the_broker_has_the_store(starting: httpx.Client) -> None:
    job = to_its_end(starting, "rebuild", topic="orders")
    assert (job["state"], job["status"], job["results"]) == ("failed", 2, [])
    assert "the store is in use; stop its broker first" in job["said"][-1]


@pytest.mark.slow
def test_verify_and_export_run_to_their_results(starting: httpx.Client, exports: Path) -> None:
    verified = to_its_end(starting, "verify")
    assert (verified["state"], verified["status"], verified["share"]) == ("done", 0, 100), verified["said"]
    [report] = verified["results"]
    assert report["errors"] == 0
    assert len(report["stores"]) == 1
    exported = to_its_end(starting, "export", topic="orders", format="json", folder="mine", once="true")
    assert (exported["state"], exported["status"]) == ("done", 0), exported["said"]
    lines = [line for file in (exports / "mine").rglob("*.json") for line in file.read_text().splitlines()]
    messages = [json.loads(line) for line in lines if '"physical_offset"' in line]  # the others are the export's notes
    assert len({message["physical_offset"] for message in messages}) == len(messages) == ORDERS
