"""The source and every job run on a standalone cluster and in a Connect session, and give what they give here."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow.dataset as ds
import pytest
from support import TESTS
from support.stores import StoreHome

import penstock
from penstock.cli.main import main
from penstock.store import Dispatch, Message


class Job(NamedTuple):
    """A command, the exit status that it should have, and whether what it wrote is right."""

    arguments: list[str]
    status: int
    is_right: Callable[[str], bool]


def run(master: str, jobs: list[Job], folder: Path) -> None:
    """Runs all of them in one session of a process of its own."""
    paths = [str(Path(penstock.__file__).parents[1]), str(TESTS)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    commands = json.dumps([job.arguments for job in jobs])
    script = [sys.executable, str(TESTS / "spark" / "run_commands.py"), master, commands]
    done = subprocess.run(script, capture_output=True, text=True, timeout=840, env=environment, cwd=folder)
    assert done.returncode == 0, done.stdout + done.stderr[-4000:]
    results = json.loads(done.stdout.splitlines()[-1])
    for job, (status, text) in zip(jobs, results, strict=True):
        assert status == job.status, (job.arguments, text, done.stderr[-4000:])
        assert job.is_right(text), (job.arguments, text)


def fill(home: StoreHome, count: int) -> None:
    with home.open(mapped_file_size_commit_log=65_536) as store:
        for number in range(count):
            message = Message("T", b'{"id": %d}' % number, queue_id=number % 3, keys=(f"k{number}",))
            assert store.put(message).ok


def here(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    """What the command that needs no Spark says."""
    main(["store", *arguments, "--json"])
    return json.loads(capsys.readouterr().out)


def small_store(path: Path) -> str:
    """A store whose files are small, for who will write into it."""
    home = StoreHome(path)
    with home.open() as store:
        assert store.put(Message("first", b"")).ok
    return str(path)


def source(store: str, folder: Path) -> Job:
    """A batch of the source, an error, and a stream into a sink."""

    def is_right(text: str) -> bool:
        rows, said, copied = text.splitlines()
        return (rows, copied) == ("rows 150", "copied 150") and "there is no topic 'none'" in said

    return Job(["source", store, small_store(folder / "target"), str(folder / "checkpoint")], 0, is_right)


def counts(document: Any) -> Any:
    """Usage without the disk, which others use too."""
    return {name: value for name, value in document.items() if name != "stores"}


@pytest.fixture
def other(home: StoreHome, tmp_path: Path) -> StoreHome:
    """Of 150 messages, a copy to which three have come."""
    fill(home, 150)
    copy = home.copy_to(tmp_path / "other")
    fill(copy, 3)
    return copy


def small_jobs(home: StoreHome, other: StoreHome, capsys: pytest.CaptureFixture[str]) -> list[Job]:
    """Those that only look."""
    store, both = str(home.path), (str(home.path), str(other.path))
    usage, lag = here(capsys, "usage", store), here(capsys, "lag", store)
    diff, diff_bytes = here(capsys, "diff", *both), here(capsys, "diff", *both, "--by", "bytes")
    return [
        Job(
            ["pipeline", "usage", "--store", store, "--json"], 0, lambda text: counts(json.loads(text)) == counts(usage)
        ),
        Job(["pipeline", "diff", *both, "--json"], 1, lambda text: json.loads(text) == diff),
        Job(["pipeline", "diff", *both, "--by", "bytes", "--json"], 1, lambda text: json.loads(text) == diff_bytes),
        Job(["pipeline", "lag", "--store", store, "--json"], 0, lambda text: json.loads(text) == lag),
        Job(
            ["pipeline", "search", "--store", store, "--json", "--key", "k7", "--topic", "T"],
            0,
            lambda text: json.loads(text)["keys"] == ["k7"],
        ),
    ]


def large_jobs(home: StoreHome, other: StoreHome, folder: Path, capsys: pytest.CaptureFixture[str]) -> list[Job]:
    """Those that go over everything, or write."""
    store, copy = str(home.path), str(other.path)
    sound = here(capsys, "verify", store)
    external = StoreHome(folder / "external")
    with external.open(dispatch=Dispatch.EXTERNAL) as opened:
        assert opened.put(Message("T", b"undispatched")).ok
    before = units(other)

    def verified(text: str) -> bool:
        (found,) = json.loads(text)["stores"]
        return all(found[name] == sound[name] for name in ("errors", "notes", "figures", "findings"))

    def exported(text: str) -> bool:
        table = ds.dataset(folder / "export", format="parquet", partitioning="hive")
        return sorted(table.to_table().column("queue_offset").to_pylist()) == sorted([*range(50)] * 3)

    export = ["--to", str(folder / "export"), "--topic", "T", "--json"]
    replay = ["--topic", "T", "--to-store", small_store(folder / "replayed"), "--to-topic", "again", "--json"]
    rows = folder / "rows"
    rows.mkdir()
    (rows / "some.json").write_text("".join(f'{{"value": "{number}"}}\n' for number in range(20)), encoding="utf-8")
    imported = ["--format", "json", "--to-store", small_store(folder / "imported"), "--to-topic", "again", "--json"]
    return [
        Job(["pipeline", "verify", "--store", store, "--json"], 0, verified),
        Job(["pipeline", "rebuild", "--store", copy, "--json"], 0, lambda text: units(other) == before),
        Job(["pipeline", "export", "--store", store, *export], 0, exported),
        Job(["pipeline", "replay", "--store", store, *replay], 0, lambda text: bodies(folder / "replayed") == 150),
        Job(["pipeline", "import", "--from", str(rows), *imported], 0, lambda text: bodies(folder / "imported") == 20),
        Job(
            ["pipeline", "dispatch", "--store", str(external.path), "--once", "--json"],
            0,
            lambda text: json.loads(text)["position"] == json.loads(text)["published"] > 0,
        ),
    ]


def units(home: StoreHome) -> list[bytes]:
    """What the queues' files hold."""
    return [path.read_bytes() for queue_id in range(3) for path in home.queue_files("T", queue_id)]


def bodies(store: Path) -> int:
    """How many different messages of the topic `again` there are."""
    home = StoreHome(store)
    with home.open(read_only=True) as opened:
        queues = [queue for queue in opened.queues if queue.topic == "again"]
        found = [body for queue in queues for body in home.bodies(opened, "again", queue.queue_id)]
    assert len(found) == len(set(found))
    return len(found)


@pytest.mark.parametrize("few", [True, pytest.param(False, marks=pytest.mark.slow)], ids=["a few jobs", "others"])
@pytest.mark.timeout(900)
def test_jobs_run_on_a_cluster_of_separate_executors(
    cluster: str, home: StoreHome, other: StoreHome, tmp_path: Path, capsys: pytest.CaptureFixture[str], few: bool
) -> None:
    small, large = small_jobs(home, other, capsys), large_jobs(home, other, tmp_path, capsys)
    jobs = [source(str(home.path), tmp_path), small[0]] if few else small[1:] + large
    run(cluster, jobs, tmp_path)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_jobs_run_in_a_connect_session(
    home: StoreHome, other: StoreHome, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("grpc", reason="Spark Connect needs grpcio")
    *large, dispatch = large_jobs(home, other, tmp_path, capsys)
    refused = dispatch._replace(status=2, is_right=lambda text: text == "")
    jobs = [source(str(home.path), tmp_path), *small_jobs(home, other, capsys)[:2], *large, refused]
    run("connect", jobs, tmp_path)
