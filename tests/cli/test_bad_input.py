"""Bad input is one sentence on stderr and exit status 2, never a traceback."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from cli.conftest import all_verbs, run_as_process

if TYPE_CHECKING:
    from cli.conftest import Filled, Run

VERBS = list(all_verbs(Path()))


@pytest.mark.parametrize("verb", VERBS)
def test_a_missing_folder_is_said(run: Run, tmp_path: Path, verb: str) -> None:
    missing = tmp_path / "nowhere"
    assert f"{missing}: there is no store here: no such folder" in run(*all_verbs(missing)[verb]).refused()
    assert not missing.exists()


@pytest.mark.parametrize("verb", VERBS)
def test_a_folder_without_a_store_is_said(run: Run, tmp_path: Path, verb: str) -> None:
    assert "there is no store here" in run(*all_verbs(tmp_path)[verb]).refused()
    file = tmp_path / "file"
    file.write_text("hello")
    assert "this is a file" in run(*all_verbs(file)[verb]).refused()


@pytest.mark.parametrize("verb", VERBS)
def test_an_unknown_setting_names_the_nearest(run: Run, filled: Filled, verb: str) -> None:
    said = run(*all_verbs(filled.path)[verb], "--set", "mapedFileSizeComitLog=1").refused()
    assert "unknown setting 'mapedFileSizeComitLog'; did you mean 'mapedFileSizeCommitLog'?" in said


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--set", "maxIndexNum"], "'maxIndexNum' is not a setting; write name=value"),
        (["--set", "maxIndexNum=many"], "setting maxIndexNum is 'many'; it must be a whole number"),
        (["--set", "storePathCommitLog=/a,/b"], "a store has one commitlog folder"),
        (["--config", "/nowhere/broker.conf"], "/nowhere/broker.conf: cannot read the settings: No such file"),
        (["--nonsense"], "No such option: --nonsense"),
        (["--set"], "Option '--set' requires an argument"),
    ],
)
def test_a_bad_option_is_said(run: Run, filled: Filled, options: list[str], sentence: str) -> None:
    assert sentence in run("store", "info", filled.path, *options).refused()


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["nonsense"], "No such command 'nonsense'"),
        (["store", "inf"], "No such command 'inf'"),
        (["store", "info"], "Missing argument 'DIR'"),
        (["store", "get", ".", "--topic", "T", "--offset", "0"], "Missing option '--queue'"),
        (
            ["store", "get", ".", "--topic", "T", "--queue", "x", "--offset", "0"],
            "--queue: Input should be a valid integer",
        ),
        (["store", "dump", ".", "--limit", "-1"], "-1 is out of range, it must be from 0 on"),
        (["store", "dump", ".", "--from", str(2**63)], "is out of range, it must be at most 9223372036854775807"),
        (["store", "query", ".", "--topic", "T", "--key", "K", "--max", "0"], "0 is out of range"),
        (
            ["store", "offset", ".", "--topic", "T", "--queue", "0", "--timestamp", "0", "--boundary", "middle"],
            "'middle' is not one of 'nearest', 'lower', 'upper'",
        ),
    ],
)
def test_a_wrong_call_is_said_with_where_to_look(run: Run, arguments: list[str], sentence: str) -> None:
    said = run(*arguments).refused()
    assert sentence in said
    assert "--help`)" in said


@pytest.mark.parametrize(
    "foreign", ["commitlog/notes.txt", "consumequeue/notes.txt", "consumequeue/orders/0/notes.txt", "index/notes.txt"]
)
def test_a_foreign_file_is_named(run: Run, filled: Filled, foreign: str) -> None:
    path = filled.path / foreign
    path.write_text("hello")
    for verb in ("info", "dump"):
        assert str(path) in run("store", verb, filled.path).refused()
    ran = run("store", "log", filled.path)
    if foreign.startswith("commitlog"):
        assert str(path) in ran.refused()
    else:
        assert len(ran.done().out.splitlines()) == len(filled.acks)


def test_a_folder_in_place_of_a_file_is_named(run: Run, filled: Filled) -> None:
    path = filled.path / "commitlog" / f"{1 << 20:020d}"
    path.mkdir()
    assert str(path) in run("store", "log", filled.path).refused()


def test_files_that_are_missing_in_between_are_counted_and_the_next_is_named(run: Run, filled: Filled) -> None:
    path = filled.path / "commitlog" / f"{10 << 20:020d}"
    path.write_bytes(bytes(1 << 20))
    for verb in ("log", "info"):
        said = run("store", verb, filled.path).refused()
        assert f"{path}: 9 files are missing before this one" in said


def test_an_empty_log_file_is_a_log_without_messages(run: Run, filled: Filled) -> None:
    (filled.path / "commitlog" / ("0" * 20)).write_bytes(b"")
    assert run("store", "log", filled.path).done().out == ""
    ran = run("store", "dump", filled.path).done()
    assert ran.out == ""
    assert "there is no commit log" in ran.err


def test_garbage_in_a_config_file_is_a_note_where_its_backup_is_good(run: Run, filled: Filled) -> None:
    config = filled.path / "config"
    config.mkdir()
    (config / "topics.json").write_text("}garbage{")
    (config / "topics.json.bak").write_text(json.dumps({"topicConfigTable": {}}))
    (config / "delayOffset.json").write_text("\x00\x01")
    (config / "consumerOffset.json").write_text('{"offsetTable":{"T@G":{0:5}}}')
    files = {file["name"]: file for file in run("store", "info", filled.path, "--json").done().json["config"]}
    assert list(files) == ["topics.json", "consumerOffset.json", "delayOffset.json"]
    assert "its backup topics.json.bak was read instead" in files["topics.json"]["note"]
    assert "neither the file nor its backup can be read" in files["delayOffset.json"]["note"]
    assert files["consumerOffset.json"] == {
        "name": "consumerOffset.json",
        "present": True,
        "backup": False,
        "note": "",
    }
    assert "topics.json.bak was read instead" in run("store", "info", filled.path).done().out


def test_arguments_that_are_not_utf8_are_no_traceback(filled: Filled) -> None:
    ran = run_as_process("store", "get", filled.path, "--topic", "T", "--queue", 0, "--offset", 0, "--tags", "\udcff")
    assert ran.status in (0, 2)
    assert "Traceback" not in ran.err


def test_a_file_that_may_not_be_read_is_named(run: Run, filled: Filled, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path) -> bytes:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "read_bytes", refuse)
    path = filled.path / "penstock" / "dispatched.json"
    assert run("store", "info", filled.path).refused() == f"penstock: {path}: Permission denied.\n"
