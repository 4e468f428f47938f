"""A store that crashed is shown as a start would serve it."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from cli.conftest import Writer, all_verbs

from penstock.store import MessageStore, Settings

if TYPE_CHECKING:
    from cli.conftest import Run

COUNT = 300


@pytest.fixture
def crashed(crashed_model: Path, tmp_path: Path) -> Path:
    """A store whose writer was killed."""
    return Path(shutil.copytree(crashed_model, tmp_path / "store"))


@pytest.fixture(scope="module")
def crashed_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("crashed") / "store"
    writer = Writer(path, COUNT)
    writer.wait_until_ready()
    writer.kill()
    return path


def lose_queues(path: Path) -> None:
    for file in (path / "consumequeue").rglob("0*"):
        if file.is_file():
            file.write_bytes(bytes(file.stat().st_size))


def lose_index(path: Path) -> None:
    for file in (path / "index").iterdir():
        file.unlink()


def tear_the_last_record(path: Path) -> None:
    log = path / "commitlog" / ("0" * 20)
    data = log.read_bytes()
    end = len(data.rstrip(b"\0"))
    log.write_bytes(data[: end - 50].ljust(len(data), b"\0"))


@pytest.mark.parametrize("more", [None, lose_queues, lose_index, tear_the_last_record])
def test_every_verb_shows_what_a_start_then_serves(
    run: Run, crashed: Path, more: Callable[[Path], None] | None
) -> None:
    if more is not None:
        more(crashed)
    different = ("info", "log", "conf", "retention")  # they tell of files or of the time
    asked = {verb: call for verb, call in all_verbs(crashed).items() if verb not in different}
    shown = {verb: run(*call).done().out for verb, call in asked.items()}
    MessageStore.open(crashed, Settings.dev()).close()
    served = {verb: run(*call).done() for verb, call in asked.items()}
    assert shown == {verb: ran.out for verb, ran in served.items()}
    assert all(ran.err == "" for ran in served.values())
    kept = COUNT - (more is tear_the_last_record)
    assert shown["dump"].count("\n") == kept


def test_it_says_that_the_store_was_not_closed(run: Run, crashed: Path) -> None:
    for verb, call in all_verbs(crashed).items():
        if verb != "conf":
            err = run(*call).done().err
            assert err.startswith(f"penstock: {crashed} was not closed cleanly: ")
            assert err.count("\n") == 1


def test_it_says_what_a_start_would_find(run: Run, crashed: Path) -> None:
    tear_the_last_record(crashed)
    ran = run("store", "info", crashed, "--json").done()
    recovery = ran.json["recovery"]
    assert recovery["torn_bytes"] > 0
    assert recovery["log_end"] == ran.json["commit_log"]["max_offset"]
    assert recovery["notes"]
    assert ran.err.splitlines()[1].startswith("penstock: a start would report: ")
    assert not (crashed / "penstock").exists()


def test_it_says_how_much_was_not_dispatched(run: Run, crashed: Path) -> None:
    lose_queues(crashed)
    found = run("store", "info", crashed, "--json").done().json
    assert found["dispatch_behind_messages"] == COUNT
    assert found["dispatch_behind_bytes"] == found["commit_log"]["max_offset"]
    assert found["last_exit"] == "crashed"
    assert sum(topic["count"] for topic in found["topics"]) == COUNT
