"""What a person has at a terminal: colours, and the completion of words by the shell."""

from __future__ import annotations

import os
import pty
import shlex
import subprocess
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from cli.conftest import ENVIRONMENT, PENSTOCK

from penstock.testing import LocalBroker, broker

if TYPE_CHECKING:
    from cli.conftest import Run

YELLOW, RED = "\x1b[33m", "\x1b[31m"


@pytest.fixture(scope="module")
def b() -> Iterator[LocalBroker]:
    with broker() as running:
        yield running


def at_a_terminal(*words: object, environment: dict[str, str] | None = None) -> str:
    """Runs a verb whose output is a terminal. Returns what is shown there."""
    ours, theirs = pty.openpty()
    command = [*PENSTOCK, *map(str, words)]
    variables = {**ENVIRONMENT, "TERM": "xterm", **(environment or {})}
    running = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=theirs, stderr=theirs, env=variables)
    os.close(theirs)
    shown = b""
    try:
        while chunk := os.read(ours, 65536):
            shown += chunk
    except OSError:  # the terminal's other end is closed
        pass
    os.close(ours)
    running.wait(60)
    return shown.decode()


def test_a_lag_is_yellow_at_a_terminal_and_plain_in_a_pipe(run: Run, b: LocalBroker) -> None:
    place = ("-n", b.namesrv)
    run("group", "update", "late", *place).done()
    run("produce", "orders", "text", "--count", 3, *place).done()
    run("consume", "orders", "--group", "late", "--count", 1, *place).done()
    progress = ("group", "progress", "late", *place)
    assert YELLOW in at_a_terminal(*progress)
    assert YELLOW not in at_a_terminal(*progress, environment={"NO_COLOR": "1"})
    assert "\x1b" not in run(*progress).done().out


def test_an_error_begins_red_at_a_terminal_only(run: Run) -> None:
    wrong = ("topic", "list", "-n", "nowhere")
    assert at_a_terminal(*wrong).startswith(f"{RED}penstock:\x1b[0m ")
    assert at_a_terminal(*wrong, environment={"NO_COLOR": "1"}).startswith("penstock: ")
    assert run(*wrong).refused().startswith("penstock: ")


def complete(line: str, **environment: str) -> set[str]:
    """What bash offers for a line."""
    asked = {
        **ENVIRONMENT,
        "_PENSTOCK_COMPLETE": "complete_bash",
        "COMP_WORDS": line,
        "COMP_CWORD": str(len(line.split(" ")) - 1),
        **environment,
    }
    ended = subprocess.run([*PENSTOCK], capture_output=True, text=True, timeout=60, check=False, env=asked)
    assert ended.stderr == ""
    return set(ended.stdout.split())


def test_bash_completes_names_of_topics_and_groups(run: Run, b: LocalBroker) -> None:
    run("topic", "create", "payments", "-n", b.namesrv).done()
    run("group", "update", "payers", "-n", b.namesrv).done()
    assert complete("penstock topic describe pay", NAMESRV_ADDR=b.namesrv) == {"payments"}
    assert complete("penstock produce pay", NAMESRV_ADDR=b.namesrv) == {"payments"}
    assert complete("penstock topic status -t pay", NAMESRV_ADDR=b.namesrv) == {"payments"}
    assert complete("penstock group delete pay", NAMESRV_ADDR=b.namesrv) == {"payers"}
    assert complete("penstock topic describe pay", NAMESRV_ADDR="127.0.0.1:1") == set()


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("penstock pro", {"produce"}),
        ("penstock topic de", {"delete", "describe"}),
        ("penstock topic list --na", {"--names", "--namesrv", "--namesrvAddr"}),
        ("penstock store ver", {"verify"}),
    ],
)
def test_bash_completes_verbs_and_options(line: str, words: set[str]) -> None:
    assert complete(line) == words


def test_the_script_of_the_shell_is_shown() -> None:
    command = f"{shlex.join(PENSTOCK)} --show-completion; true"  # not the last command, or bash would become it
    shown = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=True, env=ENVIRONMENT)
    assert "COMPLETE=complete_bash" in shown.stdout, shown.stderr
