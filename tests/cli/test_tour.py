"""The tour works, leaves nothing behind unless asked to, and says when a step does not check out."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from penstock.store import MessageStore

if TYPE_CHECKING:
    from cli.conftest import Run


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "tmp"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


def test_the_tour_shows_each_step_and_leaves_nothing_behind(run: Run, temporary: Path) -> None:
    text = run("tour").done().out
    assert [line[2:6] for line in text.splitlines() if line.startswith("* ")] == [
        *("Open", "Put ", "Get ", "Ask ", "Look", "Clos", "Open", "Look"),
    ]
    assert "PUT_OK" in text
    assert "last exit        clean" in text
    assert list(temporary.iterdir()) == []


def test_the_tour_keeps_a_store_where_it_is_told_and_names_commands_that_work(run: Run, tmp_path: Path) -> None:
    folder = tmp_path / "my tour"
    text = run("tour", "--dir", folder).done().out
    assert text.count(f"penstock store dump '{folder}' --json") == 1
    assert run("store", "dump", folder, "--json").done().out.count("\n") == 13
    assert run("store", "query", folder, "--topic", "orders", "--key", "order_1").done().out.count("\n") == 2


def test_the_tour_does_not_touch_a_folder_that_is_not_empty(run: Run, tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("precious")
    assert f"{tmp_path}: the tour makes a new store" in run("tour", "--dir", tmp_path).refused()
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


def test_a_step_that_does_not_check_out_ends_the_tour_with_status_1(
    run: Run, temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(MessageStore, "query", lambda *_: [])
    ran = run("tour")
    assert ran.status == 1
    assert ran.err == "penstock: the tour stopped: the query did not find both messages.\n"
    assert list(temporary.iterdir()) == []
