"""`penstock doctor`: what it says about this machine and a store."""

from __future__ import annotations

import resource
import shutil
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from penstock.cli import doctor
from penstock.format.checkpoint import Checkpoint

if TYPE_CHECKING:
    from cli.conftest import Filled, Ran, Run, StartWriter


def of(ran: Ran, check: str) -> list[tuple[str, str]]:
    """State and text of the results of one check."""
    return [(each["state"], each["found"]) for each in ran.json if each["check"] == check]


class Usage(NamedTuple):
    total: int
    used: int
    free: int


@pytest.fixture
def free_port() -> str:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return f"127.0.0.1:{taken.getsockname()[1]}"


def test_all_checks_are_reported(run: Run, tmp_path: Path, free_port: str) -> None:
    text = run("doctor", "--store", tmp_path / "new", "--port", free_port)
    assert text.status in (0, 1)
    for check in ("version", "port", "disk", "limits", "clock", "java", "extras", "store"):
        assert check in text.out, check
    assert f"{tmp_path / 'new'} does not exist yet" in text.out
    assert not (tmp_path / "new").exists()
    assert text.out.splitlines()[-1].endswith("notes")


def test_a_port_that_is_taken_is_a_note(run: Run, tmp_path: Path, free_port: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        busy = f"127.0.0.1:{taken.getsockname()[1]}"
        found = of(run("doctor", "--store", tmp_path / "new", "--port", busy, "--port", free_port, "--json"), "port")
    assert [state for state, _ in found] == ["note", "ok"]
    assert busy in found[0][1]


@pytest.mark.parametrize(("free", "state"), [(50, "ok"), (20, "note"), (5, "problem")])
def test_a_disk_that_fills_is_reported(
    run: Run, tmp_path: Path, free_port: str, monkeypatch: pytest.MonkeyPatch, free: int, state: str
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(100, 100 - free, free))
    ran = run("doctor", "--store", tmp_path / "new", "--port", free_port, "--json")
    assert [each for each, _ in of(ran, "disk")] == [state]
    assert ran.status == (1 if state == "problem" else 0)


def test_limits_that_are_low_are_notes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda what: (1024, 4096))
    (tmp_path / "max_map_count").write_text("65000\n")
    found = list(doctor.check_limits(tmp_path / "max_map_count"))
    assert [(each.state.value, each.found) for each in found] == [
        ("note", "open files: 1024"),
        ("note", "mapped files: 65000"),
    ]
    assert all(each.advice for each in found)


def test_java_is_looked_for(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    java = tmp_path / "bin" / "java"
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    (missing,) = doctor.check_java()
    assert (missing.state.value, "not found" in missing.found) == ("note", True)
    java.parent.mkdir()
    for version, state in (("1.8.0_392", "note"), ("21.0.1", "ok")):
        java.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\"' >&2\n")
        java.chmod(0o755)
        assert [each.state.value for each in doctor.check_java()] == [state]


def test_an_extra_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "EXTRAS", {"console": (), "arrow": ()})
    monkeypatch.setattr(doctor, "missing_modules", lambda extra: ["pyarrow"] if extra == "arrow" else [])
    there, missing = doctor.check_extras()
    assert there.found == "installed: console"
    assert missing.found == "arrow is not installed (no pyarrow)"
    assert missing.advice.endswith("pip install 'penstock[arrow]'")


def test_the_lock_and_the_last_exit_of_a_store(
    run: Run, tmp_path: Path, filled: Filled, free_port: str, start_writer: StartWriter
) -> None:
    def states(path: Path) -> dict[str, Any]:
        ran = run("doctor", "--store", path, "--port", free_port, "--json")
        return {each["check"]: (each["state"], each["found"]) for each in ran.json}

    assert states(filled.path)["last exit"] == ("ok", "the store was closed cleanly")
    assert states(filled.path)["store lock"] == ("ok", f"{filled.path} is not in use")
    writer = start_writer(tmp_path / "live", 1)
    assert states(tmp_path / "live")["store lock"] == ("ok", f"{tmp_path / 'live'} is in use by process {writer.pid}")
    writer.kill()
    assert states(tmp_path / "live")["last exit"] == ("note", "the store was not closed cleanly")
    (tmp_path / "no store").mkdir()
    assert states(tmp_path / "no store")["store"][0] == "problem"


def test_a_clock_behind_the_newest_message_is_a_problem(run: Run, filled: Filled, free_port: str) -> None:
    with (filled.path / "checkpoint").open("r+b") as file:
        file.write(Checkpoint(physic=4_000_000_000_000).pack())
    ran = run("doctor", "--store", filled.path, "--port", free_port, "--json")
    assert ("problem", True) in [(state, "in the future" in found) for state, found in of(ran, "clock")]
    assert ran.status == 1


def test_what_cannot_be_checked_is_one_sentence(run: Run, tmp_path: Path) -> None:
    assert "HOST:PORT" in run("doctor", "--port", "here").refused()
    assert "nothing.conf" in run("doctor", "--store", tmp_path, "--config", tmp_path / "nothing.conf").refused()
    assert list(tmp_path.iterdir()) == []


def test_the_ports_and_stores_of_several_brokers_are_checked(run: Run, filled: Filled, tmp_path: Path) -> None:
    for name in ("broker-a", "broker-b", "broker-c"):
        shutil.copytree(filled.path, tmp_path / "stores" / name)
    ran = run("doctor", "--store", tmp_path / "stores", "--json")
    ports = " ".join(text for _, text in of(ran, "port"))
    assert "broker-a 127.0.0.1:10911" in ports
    assert "broker-c 127.0.0.1:10931" in ports
    assert [text for _, text in of(ran, "store lock")] == [
        f"{tmp_path / 'stores' / name} is not in use" for name in ("broker-a", "broker-b", "broker-c")
    ]
    assert not of(ran, "store")
    fewer = run("doctor", "--store", tmp_path / "stores", "--brokers", 2, "--json")
    assert fewer.status == 1
    assert of(fewer, "store") == [("problem", "3 stores (broker-a, broker-b, broker-c), and 2 brokers to serve them")]
    assert "--brokers is 0; it must be 1 to 26" in run("doctor", "--brokers", 0).refused()
