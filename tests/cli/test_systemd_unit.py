"""The unit for systemd: its command line is run and stopped as systemd would, and its limits fit the broker's."""

from __future__ import annotations

import configparser
import json
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from support import ROOT
from support.clients import kill_with_console
from support.documents import to_run
from support.loopback import free_port

from penstock.broker.settings import BrokerSettings
from penstock.cli import exit_codes as exit_codes_module
from penstock.store import Message, MessageStore, Settings
from penstock.store.external_dispatch.queue_and_index_builder import Builder

UNIT = ROOT / "deploy" / "penstock.service"
JOB_UNIT = ROOT / "deploy" / "penstock-dispatch.service"
PAGE = ROOT / "docs" / "how-to" / "systemd.md"
PROGRAM = Path(sys.executable).with_name("penstock")


def service(unit: Path = UNIT) -> configparser.SectionProxy:
    """The last of settings that are given several times; that suits those asked for here."""
    parser = configparser.ConfigParser(strict=False, interpolation=None)
    parser.optionxform = str  # type: ignore[assignment,method-assign]  # names are as they are written
    parser.read(unit)
    return parser["Service"]


def command_in(folder: Path) -> list[str]:
    """ExecStart with this machine's program, folders of the test and free ports."""
    config = folder / "broker.conf"
    config.touch()
    put = {
        "/opt/penstock/bin/penstock": str(PROGRAM),
        "/var/lib/penstock/store": str(folder / "store"),
        "/etc/penstock/broker.conf": str(config),
        "127.0.0.1:10911": f"127.0.0.1:{free_port()}",
        "127.0.0.1:9876": f"127.0.0.1:{free_port()}",
    }
    words = shlex.split(service()["ExecStart"])
    assert put.keys() <= set(words)
    return [put.get(word, word) for word in words]


def test_its_command_serves_and_ends_cleanly_on_its_signal_in_its_time(tmp_path: Path) -> None:
    command = [*command_in(tmp_path), "--profile", "dev", "--console", f"127.0.0.1:{free_port()}"]  # small files
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        lines = [process.stdout.readline() for _ in range(7)]
        assert lines[-1] == "Stop with Ctrl-C or SIGTERM.\n", lines
        process.send_signal(signal.Signals[service()["KillSignal"]])
        assert process.wait(int(service()["TimeoutStopSec"])) == exit_codes_module.OK
    finally:
        kill_with_console(process, tmp_path / "store")
        process.communicate()
    assert not (tmp_path / "store" / "abort").exists(), "it was a clean stop"


@pytest.mark.slow
def test_the_changes_on_the_page_serve_too(tmp_path: Path) -> None:
    (block,) = to_run("docs/how-to/systemd.md", "ini")
    parser = configparser.ConfigParser(strict=False, interpolation=None)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read_string(block.text)
    found = parser["Service"]
    words = shlex.split(found["ExecStart"])
    assert found["ReadWritePaths"] == words[words.index("--store") + 1], "what is served may be written"
    config = tmp_path / "broker.conf"
    config.touch()
    put = {
        "/opt/penstock/bin/penstock": str(PROGRAM),
        "/srv/messages": str(tmp_path / "store"),
        "/etc/penstock/broker.conf": str(config),
        "10.0.0.7:10911": f"127.0.0.1:{free_port()}",
        "10.0.0.7:9876": f"127.0.0.1:{free_port()}",
    }
    assert put.keys() <= set(words)
    command = [*(put.get(word, word) for word in words), "--profile", "dev", "--console", "off"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        while (line := process.stdout.readline()) and "Stop with" not in line:
            pass
        process.terminate()
        assert process.wait(30) == exit_codes_module.OK


def test_it_says_when_it_serves_that_it_is_alive_and_when_it_stops(tmp_path: Path) -> None:
    found = service()
    assert (found["Type"], found["NotifyAccess"]) == ("notify", "main")
    assert found["TimeoutStartSec"] == "infinity", "a recovery is not cut short"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        manager.settimeout(60)
        environment = {**os.environ, "NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "100000"}
        command = [*command_in(tmp_path), "--profile", "dev", "--console", "off"]
        with subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment
        ) as process:
            try:
                said: list[str] = []
                while not said or "READY=1" not in said[-1]:
                    said.append(manager.recv(4096).decode())
                assert said[-1].startswith("READY=1\nSTATUS=serving at 127.0.0.1:")
                assert [manager.recv(4096) for _ in range(2)] == [b"WATCHDOG=1"] * 2
                process.send_signal(signal.SIGTERM)
                while (last := manager.recv(4096)) == b"WATCHDOG=1":
                    pass
                assert last == b"STOPPING=1\nSTATUS=stopping"
                assert process.wait(60) == exit_codes_module.OK
            finally:
                process.kill()


def test_spark_jobs_of_the_console_start_under_it() -> None:
    """Java needs memory that it writes and executes, and Spark writes to its working directory."""
    found = service()
    assert "MemoryDenyWriteExecute" not in found
    assert found["WorkingDirectory"] == f"%S/{found['StateDirectory']}"


def test_systemd_waits_longer_than_the_broker_takes_to_stop() -> None:
    assert int(service()["TimeoutStopSec"]) * 1000 >= BrokerSettings().stop_limit_millis + 2000


def test_what_cannot_start_is_not_started_again(tmp_path: Path) -> None:
    assert service()["Restart"] == "on-failure"
    command = [*command_in(tmp_path), "--set", "noSuchSetting=1"]
    refused = subprocess.run(command, capture_output=True, timeout=60, check=False)
    assert str(refused.returncode) == service()["RestartPreventExitStatus"] == str(exit_codes_module.NOT_RUN)
    page = PAGE.read_text(encoding="utf-8")
    for status in (exit_codes_module.OK, exit_codes_module.PROBLEM, exit_codes_module.NOT_RUN):
        assert f"\n| {status} |" in page


def test_it_does_not_run_as_root_and_writes_to_its_own_folder_only() -> None:
    found = service()
    assert found["User"] == found["StateDirectory"] == "penstock"
    assert found["ProtectSystem"] == "strict"
    assert found["NoNewPrivileges"] == "true"
    assert int(found["LimitNOFILE"]) > 16_384, "as many connections as the broker takes, and its files"


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")
@pytest.mark.parametrize("unit", [UNIT, JOB_UNIT], ids=lambda unit: unit.stem)
def test_systemd_understands_every_line(tmp_path: Path, unit: Path) -> None:
    copy = tmp_path / unit.name
    copy.write_text(unit.read_text().replace("/opt/penstock/bin/penstock", str(PROGRAM)))
    found = subprocess.run(["systemd-analyze", "verify", copy], capture_output=True, text=True, timeout=60, check=False)
    said = [line for line in (found.stdout + found.stderr).splitlines() if unit.name in line]
    assert said == []


# -- the dispatch job ------------------------------------------------------------------------------------------------


def test_the_dispatch_job_is_always_started_again_and_sees_the_same_store() -> None:
    job, broker = service(JOB_UNIT), service()
    assert (job["Restart"], "RestartPreventExitStatus" in job) == ("always", False)
    assert "StartLimitIntervalSec=0" in JOB_UNIT.read_text(), "it never stays down"
    assert (job["User"], job["StateDirectory"]) == (broker["User"], broker["StateDirectory"])
    words, of_broker = shlex.split(job["ExecStart"]), shlex.split(broker["ExecStart"])
    assert words[words.index("--store") + 1] == of_broker[of_broker.index("--store") + 1]
    assert int(job["OOMScoreAdjust"]) > int(broker["OOMScoreAdjust"])


def test_the_dispatch_job_says_when_it_builds_and_ends_cleanly_while_spark_starts(tmp_path: Path) -> None:
    pytest.importorskip("pyspark", reason="this test needs the extra `spark`")
    with MessageStore.open(tmp_path / "store", Settings.dev(dispatch="external")) as store:
        store.put(Message("T", b"x"))
    put = {"/opt/penstock/bin/penstock": str(PROGRAM), "/var/lib/penstock/store": str(tmp_path / "store")}
    command = [put.get(word, word) for word in shlex.split(service(JOB_UNIT)["ExecStart"])]
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        manager.settimeout(120)
        environment = {**os.environ, "NOTIFY_SOCKET": str(tmp_path / "notify")}
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment) as process:
            try:
                assert manager.recv(4096).decode() == f"READY=1\nSTATUS=dispatching {tmp_path / 'store'}"
                process.send_signal(signal.Signals[service(JOB_UNIT)["KillSignal"]])
                _, said = process.communicate(timeout=int(service(JOB_UNIT)["TimeoutStopSec"]))
            finally:
                process.kill()
    assert process.returncode == exit_codes_module.OK
    lines = [json.loads(line) for line in said.splitlines()]
    assert {"time", "level", "message"} <= lines[0].keys()
    assert "dispatching from offset 0" in lines[0]["message"]
    with Builder.open(tmp_path / "store") as builder:
        assert builder.position == builder.published, "it had built what was there, without Spark"


STOPPED_WHEN_READY = """
import os, signal, sys
from penstock.cli.main import main
from penstock.cli.service_manager import ServiceManager
ServiceManager.ready = lambda self, status: os.kill(os.getpid(), signal.SIGTERM)
sys.exit(main(["pipeline", "dispatch", "--store", sys.argv[1]]))
"""


def test_the_dispatch_job_ends_cleanly_if_it_is_stopped_the_moment_it_is_ready(tmp_path: Path) -> None:
    pytest.importorskip("pyspark", reason="this test needs the extra `spark`")
    MessageStore.open(tmp_path / "store", Settings.dev(dispatch="external")).close()
    ended = subprocess.run(
        [sys.executable, "-c", STOPPED_WHEN_READY, tmp_path / "store"], capture_output=True, timeout=120, check=False
    )
    assert ended.returncode == exit_codes_module.OK, ended.stderr
