"""The stream of published ranges of a log, as Spark asks for it; no Spark runs here."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from support.loopback import free_port
from support.stores import StoreHome, derived_files, eventually, put_mixed

pytest.importorskip("pyspark", reason="these tests need the extra `spark`")

from penstock.cli.main import main
from penstock.errors import BadStore, StoreFailed
from penstock.pipeline import session
from penstock.pipeline.jobs.dispatch import DispatchJob
from penstock.pipeline.jobs.dispatch_source import DerivedLogReader
from penstock.pipeline.stream_source import LogSlice, PublishedLogReader
from penstock.store import Dispatch
from penstock.store.external_dispatch import files_shared_with_job
from penstock.store.external_dispatch.files_shared_with_job import DispatchAgreement, read_agreement
from penstock.store.external_dispatch.packed_units_and_keys import unpack
from penstock.store.external_dispatch.queue_and_index_builder import Builder, why_not_yet
from penstock.store.files.file_io import Files
from penstock.store.files.layout import Layout


def made(tmp_path: Path, count: int = 200) -> tuple[StoreHome, int]:
    home = StoreHome(tmp_path / "store")
    with home.open(dispatch=Dispatch.EXTERNAL, mapped_file_size_commit_log=16_384) as store:
        put_mixed(home, store, count)
        end = store.log.max_offset
    return home, end


def test_batches_follow_each_other_up_to_what_is_published(tmp_path: Path) -> None:
    home, end = made(tmp_path)
    reader = PublishedLogReader({"path": str(home.path), "start": "0", "maxbytes": "10000"})
    at, ranges = reader.initialOffset(), []
    while (following := reader.latestOffset(at, reader.getDefaultReadLimit())) != at:
        ranges += reader.partitions(at, following)
        at = following
    assert at == reader.reportLatestOffset() == {"position": end}
    borders = [(each.start, each.stop) for each in ranges if isinstance(each, LogSlice)]
    assert borders[0][0] == 0
    assert [stop for _, stop in borders[:-1]] == [start for start, _ in borders[1:]]
    assert borders[-1][1] == end
    assert reader.partitions(at, at) == []


def test_available_now_ends_at_what_was_published_when_it_began(tmp_path: Path) -> None:
    home, end = made(tmp_path)
    reader = PublishedLogReader({"path": str(home.path), "start": "0"})
    reader.prepareForTriggerAvailableNow()
    with home.open(dispatch=Dispatch.EXTERNAL, mapped_file_size_commit_log=16_384) as store:
        put_mixed(home, store, 50, 200)
    assert reader.latestOffset(reader.initialOffset(), reader.getDefaultReadLimit()) == {"position": end}
    assert reader.reportLatestOffset()["position"] > end


def test_a_piece_is_a_row(tmp_path: Path) -> None:
    home, end = made(tmp_path)
    reader = PublishedLogReader({"path": str(home.path), "start": "0"})
    (piece,) = reader.partitions({"position": 0}, {"position": end})
    (batch,) = reader.read(piece)
    assert batch.to_pylist() == [{"start": 0, "stop": end, "exact": True}]


def test_the_job_needs_no_settings(tmp_path: Path) -> None:
    home, _ = made(tmp_path)
    terms = read_agreement(Files(), Layout(home.path, home.path / "commitlog"))
    assert terms is not None
    assert DispatchAgreement.of(terms.settings(home.path)) == terms
    assert terms.sizes.commit_log == 16_384


def test_a_bad_trigger_is_said_before_spark_starts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["pipeline", "dispatch", "--store", str(tmp_path), "--trigger", "-1"]) == 2
    assert "--trigger" in capsys.readouterr().err
    assert main(["pipeline", "dispatch", "--store", str(tmp_path), "--trigger", "1", "--once"]) == 2


# -- the derived log ---------------------------------------------------------------------------------------------------


def derived_reader(home: StoreHome, **options: str) -> DerivedLogReader:
    place = {
        "path": str(home.path),
        "log": str(home.path / "commitlog"),
        "filesize": "16384",
        "delaylevels": "1000,5000",
    }
    return DerivedLogReader({**place, "start": "0", **options})


def test_the_derived_log_is_what_the_builder_needs(tmp_path: Path) -> None:
    home, end = made(tmp_path)
    reader = derived_reader(home)
    assert [(each.start, each.stop) for each in slices(reader, 0, end)] == [(0, end)]
    with Builder.open(home.path) as builder:
        rows = [row for part in slices(reader, 0, end) for batch in reader.read(part) for row in batch.to_pylist()]
        assert {row["stop"] for row in rows} == {end}
        assert [row["piece"] for row in rows].count(b"") == 1
        builder.build(end, [unpack(row["piece"]) for row in rows if row["piece"]])
        assert builder.position == builder.published == end


def test_what_the_driver_has_built_is_not_read_again(tmp_path: Path) -> None:
    home, end = made(tmp_path)
    reader = derived_reader(home, maxbytes="10000")
    with Builder.open(home.path) as builder:
        builder.build(20_000)
        built = builder.position
        assert reader.latestOffset({"position": 0}, reader.getDefaultReadLimit()) == {"position": built + 10_000}
        (first,) = slices(reader, 0, built + 10_000)
        assert (first.start, first.stop, first.exact) == (built, built + 10_000, True)
        builder.build(end)
        (whole,) = slices(reader, 0, end)
        assert (whole.start, whole.stop) == (0, end), "workers start although nothing is left for them"
    assert slices(reader, end, end) == []


def slices(reader: DerivedLogReader, start: int, stop: int) -> list[LogSlice]:
    found = reader.partitions({"position": start}, {"position": stop})
    return [each for each in found if isinstance(each, LogSlice)]


# -- the job, without Spark --------------------------------------------------------------------------------------------


def test_a_connect_address_is_refused_before_anything_starts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    home, _ = made(tmp_path)
    monkeypatch.setattr(session, "start_session", lambda *arguments: pytest.fail("Spark starts"))
    assert main(["pipeline", "dispatch", "--store", str(home.path), "--master", "sc://127.0.0.1"]) == 2
    assert "use a --master other than sc://" in capsys.readouterr().err


def test_a_dead_master_is_told_before_spark_starts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    home, _ = made(tmp_path)
    monkeypatch.setattr(session, "start_session", lambda *arguments: pytest.fail("Spark starts"))
    address = f"spark://127.0.0.1:{free_port()}"
    assert main(["pipeline", "dispatch", "--store", str(home.path), "--master", address]) == 2
    assert f"no Spark answers at {address}" in capsys.readouterr().err


def test_a_silent_master_is_told_before_spark_starts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    home, _ = made(tmp_path)
    monkeypatch.setattr(session, "start_session", lambda *arguments: pytest.fail("Spark starts"))
    monkeypatch.setattr(session, "_MASTER_TIMEOUT_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"spark://127.0.0.1:{silent.getsockname()[1]}"
        assert main(["pipeline", "dispatch", "--store", str(home.path), "--master", address]) == 2
    assert f"no Spark answers at {address}" in capsys.readouterr().err


def test_once_with_nothing_left_to_build_does_not_start_spark(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    home, end = made(tmp_path)
    with Builder.open(home.path) as builder:
        builder.build(end)
    monkeypatch.setattr(session, "start_session", lambda *arguments: pytest.fail("Spark starts"))
    assert main(["pipeline", "dispatch", "--store", str(home.path), "--once", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["start"], report["position"], report["batches"], report["driver_bytes"]) == (end, end, 0, 0)


def test_the_driver_builds_while_spark_starts(tmp_path: Path) -> None:
    home = StoreHome(tmp_path / "store")
    twin = StoreHome(tmp_path / "twin")
    with twin.open(mapped_file_size_commit_log=16_384) as store:
        put_mixed(twin, store, 400)
    with home.open(dispatch=Dispatch.EXTERNAL, mapped_file_size_commit_log=16_384) as store:
        put_mixed(home, store, 200)
        with DispatchJob.open(home.path) as job:
            eventually(lambda: store.dispatcher.behind == 0, "what was there is built")
            put_mixed(home, store, 200, 200)
            eventually(lambda: store.dispatcher.behind == 0, "what came meanwhile is built, too")
            assert not job.wait(0)
        assert (job.report().driver_bytes, job.report().batches) == (store.log.max_offset, 0)
    assert derived_files(home.path) == derived_files(twin.path)


JOB = """
import sys
from penstock.pipeline.jobs.dispatch import DispatchJob
with DispatchJob.open(sys.argv[1], on_wait=lambda reason: print(reason, flush=True)) as job:
    print("builds", flush=True)
    sys.stdin.read()
"""


def test_a_job_started_before_its_broker_waits_and_says_so_once(tmp_path: Path) -> None:
    home, end = made(tmp_path)
    home.mark_crashed()
    command = [sys.executable, "-c", JOB, str(home.path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as job:
        assert job.stdout is not None
        assert "start the store first" in job.stdout.readline()
        with home.open(dispatch=Dispatch.EXTERNAL, mapped_file_size_commit_log=16_384) as store:
            assert job.stdout.readline() == "builds\n"
            eventually(lambda: store.dispatcher.position == end, "it builds once the store has started")
            job.communicate(timeout=60)
    assert job.returncode == 0


def test_a_job_waits_for_a_store_that_recovers_after_a_power_loss(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home, _ = made(tmp_path)
    boot = files_shared_with_job.boot_number() + 1
    with home.open(dispatch=Dispatch.EXTERNAL, mapped_file_size_commit_log=16_384):
        monkeypatch.setattr(files_shared_with_job, "boot_number", lambda: boot)
        assert "still starting, or is open on another host" in why_not_yet(Files(), home.path)
        with pytest.raises(BadStore, match="still starting"):
            Builder.open(home.path)
    assert why_not_yet(Files(), home.path) == ""


def test_a_driver_thread_that_fails_ends_the_job_with_its_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home, _ = made(tmp_path)

    def fail(*arguments: object) -> None:
        raise RuntimeError("out of order")

    monkeypatch.setattr(Builder, "build", fail)
    with DispatchJob.open(home.path) as job, pytest.raises(StoreFailed, match="out of order"):
        job.wait(30)
