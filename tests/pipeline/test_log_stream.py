"""The stream of published ranges of a log, as Spark asks for it; no Spark runs here."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.stores import StoreHome, put_mixed

pytest.importorskip("pyspark", reason="these tests need the extra `spark`")

from penstock.cli.main import main
from penstock.pipeline.stream_source import LogSlice, PublishedLogReader
from penstock.store import Dispatch
from penstock.store.external_dispatch.coordination import DispatchAgreement, read_agreement
from penstock.store.file_io import Files
from penstock.store.layout import Layout


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
