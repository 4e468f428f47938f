"""onMaster and onSlave: run once for each change, in order, one at a time, and never in anyone's way."""

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.loopback import SOON_S

from penstock.broker.failover.role_change_commands import RoleChange, RoleCommands, commands_of
from penstock.broker.settings import BrokerSettings
from penstock.errors import BadSettings

MASTER = RoleChange(True, 7, "broker-a", 2, "10.0.0.7:10911")
SLAVE = MASTER._replace(is_master=False)
Script = Callable[..., str]


@pytest.fixture(autouse=True)
def _log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "penstock.failover")


@pytest.fixture
def script(tmp_path: Path) -> Script:
    """Makes an executable of the lines of a shell script."""

    def make(text: str, name: str = "command") -> str:
        path = tmp_path / name
        path.write_text(f"#!/bin/sh\ncd {shlex.quote(str(tmp_path))}\n{text}\n")
        path.chmod(0o755)
        return str(path)

    return make


class Commands:
    """Commands that are stopped at the end of a test."""

    def __init__(self) -> None:
        self.opened: list[RoleCommands] = []

    def __call__(self, on_master: str | None = None, on_slave: str | None = None, limit_s: float = 60) -> RoleCommands:
        found = commands_of(BrokerSettings(on_master=on_master, on_slave=on_slave))
        self.opened.append(RoleCommands(found, limit_s))
        return self.opened[-1]


@pytest.fixture
def commands() -> Iterator[Commands]:
    made = Commands()
    yield made
    for each in made.opened:
        each.stop(0.0)


def wait_for(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + SOON_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def is_running(pid: int) -> bool:
    try:
        return "(sleep) Z" not in Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False


def test_a_command_gets_the_role_in_its_environment_and_its_output_is_logged(
    commands: Commands, script: Script, caplog: pytest.LogCaptureFixture
) -> None:
    text = 'echo "$PENSTOCK_ROLE $PENSTOCK_EPOCH $PENSTOCK_BROKER_NAME $PENSTOCK_BROKER_ID $PENSTOCK_ADDRESS"; exit 3'
    running = commands(on_master=script(text))
    running.became(MASTER)
    wait_for(lambda: "onMaster of epoch 7 ended with status 3" in caplog.text)
    assert "onMaster of epoch 7 says: master 7 broker-a 2 10.0.0.7:10911" in caplog.text


def test_no_shell_reads_a_command(commands: Commands, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    running = commands(on_slave=f"echo '$HOME and' more; touch {tmp_path}/made")
    running.became(SLAVE)
    running.stop()
    assert f"says: $HOME and more; touch {tmp_path}/made" in caplog.text
    assert not (tmp_path / "made").exists()


def test_a_command_that_takes_too_long_is_killed_with_its_children(
    commands: Commands, script: Script, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    running = commands(on_master=script("sleep 600 & echo $! $$ > pids; sync; wait"), limit_s=1.0)
    running.became(MASTER)
    wait_for(lambda: "was killed" in caplog.text)
    pids = [int(each) for each in (tmp_path / "pids").read_text().split()]
    assert len(pids) == 2
    wait_for(lambda: not any(is_running(pid) for pid in pids))


def test_what_a_command_leaves_in_the_background_is_not_waited_for(
    commands: Commands, script: Script, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    running = commands(on_master=script("sleep 600 & echo $! > pid"))
    running.became(MASTER)
    wait_for(lambda: "onMaster of epoch 7 is done" in caplog.text)
    pid = int((tmp_path / "pid").read_text())
    assert is_running(pid)
    os.kill(pid, 9)


def test_of_a_long_output_the_beginning_is_logged(
    commands: Commands, script: Script, caplog: pytest.LogCaptureFixture
) -> None:
    running = commands(on_master=script("echo first; head -c 3000000 /dev/zero | tr '\\0' x; printf '\\033[2J'"))
    running.became(MASTER)
    wait_for(lambda: "is done" in caplog.text)
    assert "says: first" in caplog.text
    assert "bytes more" in caplog.text
    assert len(caplog.text) < 10_000


def test_commands_run_one_at_a_time_and_a_newer_change_replaces_one_that_waits(
    commands: Commands, script: Script, tmp_path: Path
) -> None:
    held, done = tmp_path / "held", tmp_path / "done"
    waits = f"while [ -e {held} ]; do sleep 0.01; done"
    text = f"echo begin $PENSTOCK_ROLE $PENSTOCK_EPOCH >> {done}; {waits}; echo end >> {done}"
    held.touch()
    running = commands(on_master=script(text, "m"), on_slave=script(text, "s"))
    running.became(MASTER)
    wait_for(done.exists)
    running.became(SLAVE._replace(epoch=8))
    running.became(MASTER._replace(epoch=9))
    running.became(SLAVE._replace(epoch=10))
    held.unlink()
    running.stop(SOON_S)
    assert done.read_text().splitlines() == ["begin master 7", "end", "begin slave 10", "end"]


def test_a_change_that_has_no_command_still_replaces_one_that_waits(
    commands: Commands, script: Script, tmp_path: Path
) -> None:
    held, done = tmp_path / "held", tmp_path / "done"
    held.touch()
    running = commands(on_master=script(f"echo $PENSTOCK_EPOCH >> {done}; while [ -e {held} ]; do sleep 0.01; done"))
    running.became(MASTER)
    wait_for(done.exists)
    running.became(MASTER._replace(epoch=9))
    running.became(SLAVE._replace(epoch=10))
    held.unlink()
    running.stop(SOON_S)
    assert done.read_text().splitlines() == ["7"]


def test_a_slave_that_is_one_again_is_no_change(commands: Commands, script: Script, tmp_path: Path) -> None:
    running = commands(on_slave=script("echo $PENSTOCK_EPOCH >> done"))
    running.became(SLAVE)
    wait_for((tmp_path / "done").exists)
    running.became(SLAVE._replace(epoch=8))
    running.stop()
    assert (tmp_path / "done").read_text() == "7\n"


def test_a_master_that_stops_runs_the_command_for_slaves(commands: Commands, script: Script, tmp_path: Path) -> None:
    running = commands(on_slave=script("echo $PENSTOCK_ROLE $PENSTOCK_EPOCH >> done"))
    running.became(MASTER)
    running.stop(SOON_S)
    assert (tmp_path / "done").read_text() == "slave 7\n"


def test_a_command_that_cannot_be_started_is_logged_and_the_next_one_runs(
    commands: Commands, script: Script, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    gone = script("true", "gone")
    running = commands(on_master=gone, on_slave=script("echo >> done"))
    Path(gone).unlink()
    running.became(MASTER)
    wait_for(lambda: "onMaster of epoch 7 could not be started" in caplog.text)
    running.became(SLAVE)
    running.stop(SOON_S)
    assert (tmp_path / "done").exists()


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("/nowhere/move --up", "not there or is not executable"),
        ("no-such-command-here", "not there or is not executable"),
        ("/etc/passwd", "not there or is not executable"),
        ("move 'it", "check its quotes"),
        ("''", "not there or is not executable"),
        (" ", "is empty"),
    ],
)
def test_a_wrong_command_is_refused_in_one_sentence(text: str, why: str) -> None:
    for name, settings in (("onMaster", BrokerSettings(on_master=text)), ("onSlave", BrokerSettings(on_slave=text))):
        with pytest.raises(BadSettings, match=f"{name} .*{why}"):
            commands_of(settings)
