"""The benchmark of the store runs from end to end, on small sizes and without Java. How fast is not a test's matter."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.effort import quick_report

from bench.__main__ import main
from bench.report import RESULTS

ROWS = {
    *(f"put-{size}-{threads}" for size in ("1k", "100b") for threads in ("1t", "2t")),
    *(f"lists-{size}" for size in ("1k", "100b")),
    *(f"arrow-{size}" for size in ("1k", "100b", "1k-given", "100b-given")),
    *(f"sync-1k-{how}" for how in ("1t", "16t", "in-flight")),
    *(f"dispatch-{what}" for what in ("lag", "caught-up", "alone", "rebuild")),
    *(f"get-{kind}-{size}" for kind in ("raw", "decoded") for size in ("1k", "100b")),
    *(f"query-{how}" for how in ("single", "many", "many-messages")),
    *(f"walk-{kind}" for kind in ("1k", "100b", "crc-1k", "crc-100b")),
    *(f"log-arrow-{size}" for size in ("1k", "100b")),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("bench")


@pytest.fixture(scope="module")
def report(folder: Path) -> dict[str, Any]:
    """The JSON of a quick run of all rows."""
    return quick_report("store", folder, "--no-java")


def test_every_row_is_there_once_and_measured_unless_it_says_why_not(report: dict[str, Any]) -> None:
    names = [result["row"]["name"] for result in report["results"]]
    assert len(names) == len(set(names))
    assert set(names) == ROWS
    for result in report["results"]:
        if result["status"] == "measured":
            assert len(result["ours"]["rounds"]) == 1
        else:
            assert result["status"] == "not yet"
            assert result["note"]


def test_java_is_left_out_with_a_reason(report: dict[str, Any]) -> None:
    assert report["java_left_out"]
    assert not any(result["java"] or result["ratio"] for result in report["results"])


def test_the_report_says_how_where_and_with_what_it_was_measured(report: dict[str, Any]) -> None:
    assert report["command"] == "python -m bench store --quick --rounds 1 --json PATH --dir PATH --no-java"
    assert report["date"]
    assert report["quick"] is True
    assert report["rounds"] == 1
    assert report["machine"].keys() >= {"cores", "cpu", "kernel", "memory_bytes", "file_system", "load_average"}
    assert report["versions"].keys() >= {"penstock", "python", "kernels", "numpy", "pyarrow"}


def test_every_goal_of_the_project_stands_at_its_row(report: dict[str, Any]) -> None:
    goals = {
        result["row"]["name"]: (result["row"]["goal"]["kind"], result["row"]["goal"]["value"])
        for result in report["results"]
        if result["row"]["goal"]
    }
    assert goals == {
        "put-1k-1t": ("ratio at least", 0.8),
        "put-100b-1t": ("ratio at least", 1),
        "arrow-1k": ("ratio at least", 2),
        "arrow-100b": ("ratio at least", 2),
        "sync-1k-1t": ("ratio at least", 1.2),
        "sync-1k-16t": ("ratio at least", 1),
        "sync-1k-in-flight": ("ratio at least", 1),
        "dispatch-caught-up": ("at most", 0.5),
        "get-raw-1k": ("ratio at least", 1),
        "get-raw-100b": ("ratio at least", 1),
        "get-decoded-1k": ("ratio at least", 0.5),
        "get-decoded-100b": ("ratio at least", 0.5),
        "query-single": ("ratio at least", 0.5),
        "query-many": ("ratio at least", 5),
        "query-many-messages": ("ratio at least", 1),
        "walk-crc-1k": ("at least", 1),
        "walk-crc-100b": ("at least", 1),
    }


def test_nothing_is_left_behind(report: dict[str, Any], folder: Path) -> None:
    assert [path.name for path in folder.iterdir()] == ["report.json"]


def test_a_report_can_be_shown_again(report: dict[str, Any], folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["store", "--from", str(folder / "report.json")]) == 0
    shown = capsys.readouterr().out
    assert all(result["row"]["title"] in shown for result in report["results"])
    assert "Quick sizes" in shown


def test_a_name_that_nothing_has_is_refused_with_the_names_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["store", "--quick", "--only", "putt"]) == 2
    said = capsys.readouterr().err
    assert "'putt'" in said
    assert "dispatch" in said


def test_a_quick_run_is_not_kept(report: dict[str, Any]) -> None:
    assert "store" not in {path.stem for path in RESULTS.glob("*.json") if b'"quick": true' in path.read_bytes()}
