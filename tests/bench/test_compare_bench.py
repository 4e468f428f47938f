"""Two source trees are compared by their CPU time, each in processes of its own."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench.__main__ import main
from bench.compare import CompareSuite, Tree
from bench.run import measure
from bench.workspace import BenchFailed
from penstock.format import kernels

PROJECT = Path(__file__).parents[2]

needs_kernels = pytest.mark.skipif(kernels.active != "compiled", reason="the kernels are not compiled")


@needs_kernels
def test_a_tree_is_found_by_its_folder_or_its_sources() -> None:
    tree = Tree.find(PROJECT)
    assert tree == Tree.find(PROJECT / "src")
    assert tree.src == (PROJECT / "src").resolve()
    assert tree.entry.startswith("penstock.")


def test_a_folder_without_sources_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", "--before", str(tmp_path), "--after", str(tmp_path)]) == 2
    assert "is not a source tree" in capsys.readouterr().err


def test_a_tree_without_compiled_kernels_is_refused(tmp_path: Path) -> None:
    (tmp_path / "src" / "penstock").mkdir(parents=True)
    (tmp_path / "pyproject.toml").write_text("")
    with pytest.raises(BenchFailed, match="no compiled kernels"):
        Tree.find(tmp_path)


@needs_kernels
def test_a_turn_that_fails_leaves_the_rows_without_figures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    suite = CompareSuite(PROJECT, PROJECT)
    monkeypatch.setattr("bench.compare._SETTINGS", {"flushDiskType": "NEVER"})
    results = measure(suite.tasks(tmp_path, quick=True)[0], 1, lambda step: None)
    assert {result.status for result in results} == {"failed"}
    assert "a turn of" in results[0].note


@pytest.mark.rest
@needs_kernels
def test_a_setting_can_be_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    both = ["compare", "--before", str(PROJECT), "--after", str(PROJECT), "--quick", "--rounds", "1"]
    only = ["--only", "put-128b", "--dir", str(tmp_path)]
    assert main([*both, *only, "--set", "enabledAppendPropCRC=true"]) == 0
    assert main([*both, *only, "--set", "noSuchSetting=true"]) == 1
    assert "noSuchSetting" in capsys.readouterr().out


@pytest.mark.rest
@needs_kernels
def test_put_get_send_and_pull_are_measured_on_both_trees(tmp_path: Path) -> None:
    file = tmp_path / "report.json"
    tree = str(PROJECT)
    rows = "put-128b,send-128b"
    options = ["--quick", "--rounds", "1", "--only", rows, "--dir", str(tmp_path), "--json", str(file)]
    assert main(["compare", "--before", tree, "--after", tree, *options]) == 0
    report = json.loads(file.read_text())
    assert report["sides"] == ["After", "Before"]
    names = [result["row"]["name"] for result in report["results"]]
    assert names == ["put-128b", "put-caller-128b", "get-128b", "send-128b", "pull-128b"]
    assert all(result["ours"]["least"] > 0 and result["ratio"]["value"] > 0 for result in report["results"])
    assert [path.name for path in tmp_path.iterdir()] == ["report.json"]
