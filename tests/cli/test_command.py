"""The command as a whole: help, version, exit statuses, pipes."""

from __future__ import annotations

import signal
import subprocess
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from cli.conftest import ENVIRONMENT, PENSTOCK, all_verbs, hear_interrupts, run_as_process

from penstock import __version__
from penstock.store import Message, MessageStore, Settings

if TYPE_CHECKING:
    from cli.conftest import Filled, Run


def test_version(run: Run) -> None:
    assert run("--version").done() == (0, f"penstock {__version__}\n", "")


@pytest.mark.parametrize("call", [["store", verb] for verb in all_verbs(Path())])
def test_every_verb_has_help_with_an_example(run: Run, call: list[str]) -> None:
    text = run(*call, "--help").done().out
    assert f"penstock {' '.join(call)}" in text.split("Examples:")[1]
    assert all(option in text for option in ("--json", "--config", "--set"))


def test_a_group_without_a_verb_shows_its_help(run: Run) -> None:
    assert "Commands:" in run().done().out
    assert "Commands:" in run("store").done().out


def test_as_a_program_it_does_the_same(run: Run, filled: Filled) -> None:
    for verb, call in all_verbs(filled.path).items():
        if verb != "retention":  # it tells the time
            assert run_as_process(*call) == run(*call)


def test_an_error_of_the_program_is_one_sentence_and_status_2(tmp_path: Path) -> None:
    said = run_as_process("store", "dump", tmp_path / "nowhere").refused()
    assert said == f"penstock: {tmp_path / 'nowhere'}: there is no store here: no such folder; check the path.\n"


def started(*arguments: object) -> subprocess.Popen[str]:
    command = [*PENSTOCK, *map(str, arguments)]
    return subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=ENVIRONMENT,
        preexec_fn=hear_interrupts,
    )


def test_a_reader_that_goes_away_ends_it_quietly(tmp_path: Path) -> None:
    with MessageStore.open(tmp_path / "s", Settings.dev()) as store:
        for _ in range(3):
            store.put_many([Message("orders", b"x" * 400) for _ in range(500)])
    for verb in ("dump", "log"):
        with started("store", verb, tmp_path / "s") as process:
            assert process.stdout is not None
            assert process.stderr is not None
            assert "orders/0" in process.stdout.readline()
            process.stdout.close()
            assert process.stderr.read() == ""
            assert process.wait(timeout=30) == 141


def test_interrupted_it_ends_quietly(tmp_path: Path) -> None:
    with MessageStore.open(tmp_path / "s", Settings.dev()) as store:
        for _ in range(12):
            store.put_many([Message("orders", b"x" * 400) for _ in range(500)])
    with started("store", "dump", tmp_path / "s") as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()  # it writes now, and waits for somebody to read on
        process.send_signal(signal.SIGINT)
        process.stdout.read()
        assert process.stderr.read() == ""
        assert process.wait(timeout=30) == 130


def test_a_full_disk_behind_stdout_is_said(filled: Filled) -> None:
    with Path("/dev/full").open("w") as full:
        command = [*PENSTOCK, "store", "info", str(filled.path)]
        ended = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False, env=ENVIRONMENT)
    assert (ended.returncode, ended.stderr) == (2, "penstock: No space left on device.\n")


def test_a_terminal_that_knows_only_ascii_gets_escapes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with MessageStore.open(tmp_path / "s", Settings.dev()) as store:
        store.put(Message("orders", "grün".encode()))
    monkeypatch.setitem(ENVIRONMENT, "PYTHONIOENCODING", "ascii")
    assert "gr\\xfcn" in run_as_process("store", "dump", tmp_path / "s").done().out


def test_a_mistake_of_ours_is_not_hidden(run: Run, filled: Filled, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(view: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(import_module("penstock.cli.store.info"), "collect", broken)
    with pytest.raises(ZeroDivisionError):
        run("store", "info", filled.path)
