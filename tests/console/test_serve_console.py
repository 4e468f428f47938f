"""The console that `penstock serve` starts: it comes and goes with the broker, and never keeps it from serving."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import httpx
import pytest
from client.test_access import ACCOUNTS
from support.clients import kill_with_console
from support.loopback import free_port
from support.stores import eventually

from penstock.cli import console as verb
from penstock.cli.console_child import ConsoleChild
from penstock.console.console_login import make_token
from penstock.console.end_previous_console import take_over
from penstock.errors import MissingPackage
from penstock.store import Settings

SERVE = (sys.executable, "-m", "penstock.cli.main", "serve", "--profile", "dev", "--json", "--log-level", "warning")
SOON_S = 60.0


def serve(store: Path, *options: str) -> tuple[subprocess.Popen[str], dict[str, Any]]:
    order = [*SERVE, "--store", str(store), "--listen", "127.0.0.1:0", "--namesrv", "127.0.0.1:0", *options]
    process = subprocess.Popen(order, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line, process.communicate()[1]
    return process, json.loads(line)


def ready(link: str) -> dict[str, Any]:
    """What /readyz says, once it answers and the broker serves."""
    address, _, token = link.partition("/?token=")
    deadline = time.monotonic() + SOON_S
    while True:
        assert time.monotonic() < deadline
        try:
            answer = httpx.get(f"{address}/readyz", headers={"authorization": f"Bearer {token}"}, verify=False)
        except httpx.TransportError:
            time.sleep(0.05)
            continue
        if answer.status_code == 200:
            found: dict[str, Any] = answer.json()
            return found
        time.sleep(0.05)


def until_refused(link: str) -> None:
    host, _, port = link.partition("/?")[0].removeprefix("http://").rpartition(":")
    deadline = time.monotonic() + SOON_S
    while True:
        assert time.monotonic() < deadline, "the console is still there"
        try:
            socket.create_connection((host, int(port)), 1).close()
        except ConnectionRefusedError:
            return
        time.sleep(0.05)


def test_it_is_there_while_the_broker_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    token = make_token()
    monkeypatch.setenv(verb.TOKEN_VARIABLE, token)
    process, output = serve(tmp_path / "store", "--console", "127.0.0.1:0")
    assert output["console"].endswith(f"/?token={token}")
    assert ready(output["console"])["brokers"][0]["address"] == output["broker"]
    process.send_signal(signal.SIGTERM)
    _, said = process.communicate(timeout=SOON_S)
    assert process.returncode == 0, said
    until_refused(output["console"])
    assert said == ""


def test_when_its_broker_is_killed_it_stays_and_says_so_until_the_next_one_replaces_it(tmp_path: Path) -> None:
    store = tmp_path / "store"
    process, output = serve(store, "--console", "127.0.0.1:0", "--log-format", "json")
    try:
        ready(output["console"])
        process.send_signal(signal.SIGKILL)
        _, said = process.communicate(timeout=SOON_S)  # the console keeps nobody who reads the broker's log waiting
        lines = [json.loads(line) for line in said.splitlines()]  # its log has the format of the broker's
        assert lines[-1]["message"].startswith("the broker that started this console ended unexpectedly at ")
        address, _, token = output["console"].partition("/?token=")
        as_owner = {"authorization": f"Bearer {token}"}

        def ask() -> httpx.Response:
            return httpx.get(f"{address}/readyz", headers=as_owner, verify=False)

        eventually(lambda: ask().status_code == 503, "the console says that its broker serves")
        assert ask().json()["state"] == "unreachable"
        assert "ended unexpectedly" in ask().json()["why"]
        again, told = serve(store, "--console", address.removeprefix("http://"))
        try:
            assert told["console"].startswith(address), "the old console gave its port to the new one"
            assert ready(told["console"])["brokers"][0]["state"] == "serving"
            assert ask().status_code == 401, "the new one has a token of its own"
        finally:
            again.terminate()
            again.communicate(timeout=SOON_S)
        until_refused(told["console"])
    finally:
        kill_with_console(process, store)
        take_over(store)


SLOW_RECOVERY = """
import sys, time
from penstock.cli import broker_process
from penstock.cli.main import main

def opens(*arguments, **more):
    print("recovering", flush=True)
    time.sleep(600)

broker_process.MessageStore.open = opens
raise SystemExit(main())
"""


@pytest.mark.usefixtures("hangup_ends")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_during_recovery_ends_the_console_too(tmp_path: Path, number: signal.Signals) -> None:
    port = free_port()
    order = [sys.executable, "-c", SLOW_RECOVERY, *SERVE[3:], "--store", str(tmp_path / "store"), "--listen"]
    order += ["127.0.0.1:0", "--namesrv", "127.0.0.1:0", "--console", f"127.0.0.1:{port}"]
    with subprocess.Popen(order, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "recovering\n"
            process.send_signal(number)
            _, said = process.communicate(timeout=SOON_S)
        finally:
            kill_with_console(process, tmp_path / "store")
    assert process.returncode == -number, said
    until_refused(f"http://127.0.0.1:{port}/?")
    assert said == ""


def test_a_port_that_is_taken_does_not_stop_the_broker(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        process, output = serve(tmp_path / "store", "--console", f"127.0.0.1:{port}")
        assert (output["console"], bool(output["broker"])) == ("", True)
        process.terminate()
        _, said = process.communicate(timeout=SOON_S)
    assert process.returncode == 0
    assert f"WARNING penstock.serve: no web console: cannot listen at 127.0.0.1:{port}" in said
    assert said.count("\n") == 1


def test_with_access_control_it_needs_an_account_and_says_so(tmp_path: Path) -> None:
    (tmp_path / "plain_acl.yml").write_text(ACCOUNTS)
    controlled = ("--set", "aclEnable=true", "--set", f"aclFile={tmp_path / 'plain_acl.yml'}")
    process, output = serve(tmp_path / "store", "--console", "127.0.0.1:0", *controlled)
    assert output["console"] == ""
    process.terminate()
    _, said = process.communicate(timeout=SOON_S)
    assert "no web console: with aclEnable it needs an administrator's account, from --console-account FILE\n" in said


def test_with_an_account_it_is_an_administrator_where_access_is_controlled(tmp_path: Path) -> None:
    (tmp_path / "plain_acl.yml").write_text(ACCOUNTS)
    (tmp_path / "account").write_text("accessKey: operator\nsecretKey: operator-secret\n")
    controlled = ("--set", "aclEnable=true", "--set", f"aclFile={tmp_path / 'plain_acl.yml'}")
    account = ("--console-account", str(tmp_path / "account"))
    process, output = serve(tmp_path / "store", "--console", "127.0.0.1:0", *controlled, *account)
    try:
        assert ready(output["console"])["brokers"][0]["state"] == "serving"
        address, _, token = output["console"].partition("/?token=")
        as_owner = {"authorization": f"Bearer {token}"}
        made = httpx.put(f"{address}/api/topics/orders", json={"queues": 2}, headers=as_owner, verify=False)
        assert made.status_code == 200, made.text
        for line in Path("/proc").glob("[0-9]*/cmdline"):
            with contextlib.suppress(OSError):
                assert b"operator-secret" not in line.read_bytes()
    finally:
        process.terminate()
        process.communicate(timeout=SOON_S)


def test_an_account_that_cannot_be_read_is_said_before_anything_starts(tmp_path: Path) -> None:
    order = [*SERVE, "--store", str(tmp_path / "store"), "--listen", "127.0.0.1:0", "--namesrv", "127.0.0.1:0"]
    done = subprocess.run(
        [*order, "--console-account", str(tmp_path / "nothing")], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert "the account cannot be read" in done.stderr
    assert not (tmp_path / "store" / "commitlog").exists()


def test_without_the_extra_one_sentence_says_how_to_get_it(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "nicegui" else find(name))
    with ConsoleChild("127.0.0.1:0", Settings.dev(), None, None) as child:
        assert child.link == ""
    [said] = caplog.messages
    assert said == f"no web console: {verb.HOW_TO_GET_IT}, or disable it with --console off"
    with pytest.raises(MissingPackage, match=r"penstock\[console\]"):
        verb.console()


def test_off_starts_nothing_and_says_nothing(
    capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    with ConsoleChild("off", Settings.dev(), None, None) as child:
        child.notify("recovering", 1, 2)
        assert child.link == ""
    assert (capsys.readouterr().err, caplog.messages) == ("", [])
