"""`penstock store retention`: explains what would go, asks, deletes, and says what went."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import typer
from support import ROOT

from penstock.format.config_tables import ConsumerOffsets
from penstock.store import Message, MessageStore, Settings
from penstock.store.config_files import ConfigFiles
from penstock.store.files.file_io import Files

if TYPE_CHECKING:
    from cli.conftest import Run, StartWriter

FILE_SIZE = 4096
ROOMY = ("--set", "diskSpaceWarningLevelRatio=1", "--set", "diskSpaceCleanForciblyRatio=1")
"""However full this machine's disk is, only age counts."""


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """Five log files of four messages; all but the last were last changed four days ago. A group has read six."""
    path = tmp_path / "store"
    small = {"mapped_file_size_commit_log": FILE_SIZE, "mapped_file_size_consume_queue": 200}
    with MessageStore.open(path, Settings.dev(**small)) as store:
        for number in range(20):
            assert store.put(Message("orders", b"%06d" % number + bytes(890), keys=f"k{number}")).ok
    then = time.time() - 96 * 3600
    for file in sorted((path / "commitlog").iterdir())[:-1]:
        os.utime(file, (then, then))
    ConfigFiles(Files(), path / "config").consumer_offsets.write(ConsumerOffsets(offsets={("orders", "late"): {0: 6}}))
    return path


def log_files(path: Path) -> list[int]:
    return sorted(int(file.name) // FILE_SIZE for file in (path / "commitlog").iterdir())


def test_a_dry_run_tells_what_would_go_and_who_has_not_read_it_and_changes_nothing(run: Run, old: Path) -> None:
    before = {path: path.read_bytes() for path in old.rglob("*") if path.is_file()}
    told: dict[str, Any] = run("store", "retention", old, "--dry-run", "--json", *ROOMY).done().json
    assert [file["cause"] for file in told["files"]] == ["age"] * 4 + [None]
    assert told["now"]["files"] == [f"{number * FILE_SIZE:020d}" for number in range(4)]
    assert told["now"]["size"] == 4 * FILE_SIZE
    (unread,) = told["now"]["unread"]
    size = unread.pop("size")
    assert unread == {"group": "late", "topic": "orders", "queue_id": 0, "next_offset": 6, "messages": 10}
    assert size > 10 * 890
    assert told["deleted"] == {"files": [], "derived_files": 0, "bytes_freed": 0}
    assert told["disk"][0]["used_bytes"] > 0
    assert {path: path.read_bytes() for path in old.rglob("*") if path.is_file()} == before


def test_the_text_names_files_levels_and_groups(run: Run, old: Path) -> None:
    text = run("store", "retention", old, "--dry-run", *ROOMY).done().out
    for part in (
        "4 files to delete, 16.0 KiB; 10 messages unread by 1 groups",
        "delete: older than fileReservedTime",
        "keep: the last file always stays",
        "expired files are deleted above 75%, unexpired ones above 100% with less than 32.0 GiB free; puts",
        "late",
    ):
        assert part in text, part
    assert "deleted:" not in text


def test_it_deletes_when_told_so_and_says_what_went(run: Run, old: Path) -> None:
    told: dict[str, Any] = run("store", "retention", old, "--yes", "--json", *ROOMY).done().json
    assert log_files(old) == [4]
    assert told["deleted"]["files"] == told["now"]["files"]
    assert told["deleted"]["derived_files"] == 1
    assert told["deleted"]["bytes_freed"] == 4 * FILE_SIZE + 200
    page: dict[str, Any] = run("store", "get", old, "--topic", "orders", "--queue", 0, "--offset", 0, "--json").json
    assert (page["status"], page["next_begin_offset"]) == ("OFFSET_TOO_SMALL", 16)
    text = run("store", "retention", old, *ROOMY).done().out
    assert "nothing to delete" in text
    assert "deleted: 0 log files" in text
    assert not (old / "abort").exists()


def test_without_consent_nothing_goes(run: Run, old: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ran = run("store", "retention", old, *ROOMY)
    assert ran.status == 2
    assert "nothing was deleted: give --yes" in ran.err
    asked: list[str] = []

    class Terminal:
        @staticmethod
        def isatty() -> bool:
            return True

    monkeypatch.setattr(sys, "stdin", Terminal())
    for answer in (False, True):
        monkeypatch.setattr(typer, "confirm", lambda question, err: asked.append(question) or answer)  # noqa: B023
        assert log_files(old) == [0, 1, 2, 3, 4]
        assert run("store", "retention", old, *ROOMY).status == (0 if answer else 2)
    assert asked[0] == "Delete 4 files, 16.0 KiB, with 10 messages unread by some group?"
    assert log_files(old) == [4]


def test_the_settings_decide(run: Run, old: Path, tmp_path: Path) -> None:
    conf = tmp_path / "broker.conf"
    conf.write_text("fileReservedTime=120\n")
    told = run("store", "retention", old, "--dry-run", "--json", "--config", conf, *ROOMY).done().json
    assert told["now"]["files"] == []
    assert told["files"][0]["why"] == "not old enough"
    full = ("--set", "diskSpaceWarningLevelRatio=0", "--set", "diskEnoughFreeBytes=0", "--set", "fileReservedTime=120")
    told = run("store", "retention", old, "--dry-run", "--json", *full).done().json
    assert len(told["now"]["files"]) == 4
    assert "diskSpaceWarningLevelRatio" in told["puts_refused"]
    assert told["disk"][0]["level"] == "FULL"
    assert "refused: the disk of" in run("store", "retention", old, "--dry-run", *full).done().out


def test_a_store_in_use_is_only_explained(run: Run, tmp_path: Path, start_writer: StartWriter) -> None:
    writer = start_writer(tmp_path / "store", 3)
    ran = run("store", "retention", tmp_path / "store", "--dry-run", "--json").done()
    assert len(ran.json["files"]) == 1
    said = run("store", "retention", tmp_path / "store", "--yes")
    assert said.status == 2
    assert f"process {writer.pid}, which deletes expired files by itself; use --dry-run" in said.err


def test_offsets_that_cannot_be_read_are_said_and_the_rest_is_told(run: Run, old: Path) -> None:
    for file in (old / "config").iterdir():
        file.write_text("{garbage")
    ran = run("store", "retention", old, "--dry-run", "--json", *ROOMY).done()
    assert len(ran.json["now"]["files"]) == 4
    assert ran.json["now"]["unread"] == []
    assert "consumer offsets are unknown" in ran.err


def test_many_groups_are_cut_in_the_text_and_whole_in_the_json(run: Run, old: Path) -> None:
    offsets = {("orders", f"group{number:02d}"): {0: 0} for number in range(25)}
    ConfigFiles(Files(), old / "config").consumer_offsets.write(ConsumerOffsets(offsets=offsets))
    text = run("store", "retention", old, "--dry-run", *ROOMY).done().out
    assert "and 5 more; --json lists them" in text
    assert len(run("store", "retention", old, "--dry-run", "--json", *ROOMY).done().json["now"]["unread"]) == 25


def test_every_field_is_on_the_reference_page(run: Run, old: Path) -> None:
    page = (ROOT / "docs" / "reference" / "cli.md").read_text()
    about = page.split("## `penstock store retention DIR`")[1].split("\n## ")[0]
    told = run("store", "retention", old, "--dry-run", "--json", *ROOMY).done().json
    parts = (told, told["disk"][0], told["files"][0], told["now"], told["now"]["unread"][0], told["deleted"])
    for field in {field for part in parts for field in part}:
        assert f"`{field}`" in about, field
