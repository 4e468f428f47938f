"""`penstock store recover` does what a start does, reports it, and leaves a store that was closed cleanly."""

from __future__ import annotations

import os
import pty
import re
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from cli.conftest import ENVIRONMENT, PENSTOCK, all_verbs

from penstock.cli import progress as progress_module
from penstock.cli.progress import ProgressLine
from penstock.store import Message, MessageStore, Settings

if TYPE_CHECKING:
    from cli.conftest import Filled, Run, StartWriter


def tear(filled: Filled) -> None:
    with (filled.path / "commitlog" / ("0" * 20)).open("r+b") as log:
        log.seek(filled.acks[-1].end_offset)
        log.write(b"torn!")
    (filled.path / "abort").write_bytes(b"")


def damage(filled: Filled, number: int = 1) -> None:
    with (filled.path / "commitlog" / ("0" * 20)).open("r+b") as log:
        log.seek(filled.acks[number].physical_offset + 4)
        log.write(b"\xff")


# -- what it does --------------------------------------------------------------------------------------------------


def test_a_sound_store_is_left_as_it_is(run: Run, filled: Filled) -> None:
    shown = {verb: run(*call).done().out for verb, call in all_verbs(filled.path).items() if verb in ("dump", "query")}
    ran = run("store", "recover", filled.path, "--json").done()
    assert ran.err == ""
    assert (ran.json["path"], ran.json["clean_exit"], ran.json["messages"]) == (str(filled.path), True, 6)
    assert (ran.json["damage"], ran.json["notes"], ran.json["kept_aside"]) == ([], [], [])
    assert shown == {verb: run(*call).done().out for verb, call in all_verbs(filled.path).items() if verb in shown}


def test_a_torn_tail_is_cut_off_kept_aside_and_reported(run: Run, filled: Filled) -> None:
    tear(filled)
    ran = run("store", "recover", filled.path, "--json").done()
    assert (ran.json["clean_exit"], ran.json["torn_bytes"]) == (False, 5)
    (kept,) = ran.json["kept_aside"]
    assert Path(kept).read_bytes() == b"torn!"
    assert not (filled.path / "abort").exists(), "it was closed cleanly"
    again = run("store", "recover", filled.path, "--json").done().json
    assert (again["clean_exit"], again["torn_bytes"], again["notes"]) == (True, 0, [])


def test_damage_is_no_reason_not_to_serve(run: Run, filled: Filled) -> None:
    damage(filled)
    for _ in range(2):
        ran = run("store", "recover", filled.path, "--json").done()
        assert [each["physical_offset"] for each in ran.json["damage"]] == [filled.acks[1].physical_offset]
        text = run("store", "recover", filled.path).done().out
        assert "can be served" in " ".join(text.split())
        assert f"`penstock store repair {filled.path}`" in text


def test_the_text_for_people_names_the_essentials(run: Run, filled: Filled) -> None:
    tear(filled)
    text = run("store", "recover", filled.path).done().out
    for words in ("can be served", "last exit   crashed", "6 messages", "5 bytes at the end", "penstock/quarantine/"):
        assert words in text
    assert "\x1b" not in text


def test_a_missing_log_file_is_named(run: Run, tmp_path: Path) -> None:
    settings = Settings.dev(mapped_file_size_commit_log=4096)
    with MessageStore.open(tmp_path / "s", settings) as store:
        for _ in range(200):
            store.put(Message("orders", b"x" * 100))
    path = sorted((tmp_path / "s" / "commitlog").iterdir())[2]
    path.unlink()
    out = run("store", "recover", tmp_path / "s").done().out
    assert f"{path}: the file is missing" in out
    assert path.stat().st_size == 4096


# -- exit status ---------------------------------------------------------------------------------------------------


def test_a_store_that_cannot_be_served_is_status_1(run: Run, filled: Filled) -> None:
    foreign = filled.path / "commitlog" / "notes.txt"
    foreign.write_text("mine")
    ran = run("store", "recover", filled.path)
    assert (ran.status, ran.out) == (1, "")
    assert ran.err.startswith(f"penstock: the store cannot be served: {foreign}: ")
    assert ran.err.count("\n") == 1


def test_a_log_file_of_the_wrong_size_is_status_1_and_repair_is_named(run: Run, filled: Filled) -> None:
    with (filled.path / "commitlog" / ("0" * 20)).open("ab") as log:
        log.write(b"x")
    ran = run("store", "recover", filled.path, "--set", "mappedFileSizeCommitLog=1048576")
    assert ran.status == 1
    assert "`penstock store repair`" in ran.err


def test_a_store_in_use_is_status_2(run: Run, start_writer: StartWriter, tmp_path: Path) -> None:
    start_writer(tmp_path / "s", 5)
    assert "in use by another process" in run("store", "recover", tmp_path / "s").refused()


def test_where_there_is_no_store_is_status_2(run: Run, tmp_path: Path) -> None:
    assert "there is no store here" in run("store", "recover", tmp_path).refused()
    assert "unknown setting" in run("store", "recover", tmp_path, "--set", "nonsense=1").refused()


# -- asking --------------------------------------------------------------------------------------------------------


LITTLE = ("--set", "quarantineMaxBytes=1")


def test_nobody_to_ask_means_no(run: Run, filled: Filled) -> None:
    tear(filled)
    ran = run("store", "recover", filled.path, *LITTLE)
    assert ran.status == 1
    assert "quarantineMaxBytes allows 1" in ran.err
    assert (filled.path / "abort").exists()
    assert not (filled.path / "penstock" / "quarantine").exists()


def test_yes_means_yes(run: Run, filled: Filled) -> None:
    tear(filled)
    assert run("store", "recover", filled.path, *LITTLE, "--yes", "--json").done().json["torn_bytes"] == 5


@pytest.mark.parametrize(("answer", "status"), [(b"y\n", 0), (b"n\n", 1)])
def test_a_person_at_a_terminal_is_asked(filled: Filled, answer: bytes, status: int) -> None:
    tear(filled)
    here, there = pty.openpty()
    command = [*PENSTOCK, "store", "recover", str(filled.path), *LITTLE]
    with subprocess.Popen(command, stdin=there, stdout=subprocess.PIPE, stderr=there, env=ENVIRONMENT) as process:
        os.close(there)
        said = b""
        while b"Continue?" not in said:
            said += os.read(here, 1000)
        os.write(here, answer)
        assert process.wait(30) == status
    os.close(here)
    assert b"5 B must be quarantined" in said
    assert (filled.path / "abort").exists() is bool(status)


# -- progress ------------------------------------------------------------------------------------------------------


class Seconds:
    """A clock for the progress line."""

    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def seconds(monkeypatch: pytest.MonkeyPatch) -> Seconds:
    clock = Seconds()
    monkeypatch.setattr(progress_module, "time", clock)
    return clock


def test_a_job_that_is_done_soon_shows_nothing(seconds: Seconds, capsys: pytest.CaptureFixture[str]) -> None:
    with ProgressLine() as line:
        for done in range(100):
            line("walking the log", done, 100)
            seconds.now += 0.004
    assert capsys.readouterr() == ("", "")


def test_a_long_job_says_every_few_seconds_how_far_it_is(seconds: Seconds, capsys: pytest.CaptureFixture[str]) -> None:
    with ProgressLine() as line:
        for done in range(121):
            line("walking the log", done << 20, 120 << 20)
            seconds.now += 0.1
    said = capsys.readouterr()
    assert said.out == ""
    lines = said.err.splitlines()
    assert len(lines) == 2
    assert re.fullmatch(r"penstock: walking the log: 4[12] % of 120.0 MiB, about 7 s left …", lines[0])
    assert re.search("8[3-5] %", lines[1])
