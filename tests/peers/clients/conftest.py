"""The real clients, each in an environment of its own, made on first use; where it cannot be had the tests skip."""

from __future__ import annotations

import base64
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.brokers import Served
from support.peers import JAVA, Talker, built

PEERS = JAVA.parent
WAIT_S = 60

Connect = Callable[[str], Talker]


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    """A broker whose first delay levels are short, so that retries do not take minutes."""
    settings = (
        "messageDelayLevel=1s 2s 1s 1s 1s 1s 1s 1s 1s 1s 1s 1s 1s 1s 1s 1s 1s 1s",
        "enablePropertyFilter=true",
        "transactionCheckInterval=500",
        "transactionTimeOut=500",
    )
    with Served(tmp_path / "store", *settings) as broker:
        yield broker


@pytest.fixture(scope="session")
def java_jars() -> list[Path]:
    return built(JAVA / "client")


@pytest.fixture(scope="session")
def java_broker_jars() -> list[Path]:
    return built(JAVA / "broker")


@pytest.fixture
def java(java_jars: list[Path]) -> Iterator[Connect]:
    """Starts Java clients; they end with the test."""
    path, home = ":".join(map(str, java_jars)), f"-Drocketmq.home.dir={JAVA / 'client'}"
    with _Started(lambda namesrv: ["java", "-Xmx256m", home, "-cp", path, "penstock.Client", namesrv]) as started:
        yield started.connect


@pytest.fixture(scope="session")
def cpp_python() -> Path:
    """A Python with the C++ client, which comes as a package of its own."""
    folder = PEERS / "env-cpp"
    python = folder / "bin" / "python"
    if not (folder / "ready").exists():
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
        made = subprocess.run([python, "-m", "pip", "install", "-q", "rocketmq==0.4.4"], capture_output=True, text=True)
        loads = subprocess.run([python, "-c", "import rocketmq.client"], capture_output=True, text=True)
        if made.returncode or loads.returncode:
            said = (made.stderr or loads.stderr).strip().splitlines() or ["?"]
            pytest.skip(f"the package rocketmq 0.4.4 cannot be had or does not load: {said[-1]}")
        (folder / "ready").touch()
    return python


@pytest.fixture
def cpp(cpp_python: Path, tmp_path: Path) -> Iterator[Connect]:
    """Starts C++ clients; their logs go into the test's folder."""
    script = str(PEERS / "cpp" / "client.py")
    with _Started(lambda namesrv: [str(cpp_python), script, namesrv], env={"HOME": str(tmp_path)}) as started:
        yield started.connect


@pytest.fixture(scope="session")
def node_folder() -> Path:
    folder = PEERS / "node"
    for tool in ("node", "npm"):
        if shutil.which(tool) is None:
            pytest.skip(f"{tool} is not installed")
    if not (folder / "node_modules" / "ali-ons").exists():
        made = subprocess.run(
            ["npm", "install", "--no-package-lock", "--no-audit", "--no-fund", "--silent"],
            cwd=folder,
            capture_output=True,
            text=True,
        )
        if made.returncode:
            pytest.skip(f"npm cannot fetch ali-ons: {(made.stderr.strip().splitlines() or ['?'])[-1]}")
    return folder


@pytest.fixture
def node(node_folder: Path) -> Iterator[Connect]:
    with _Started(lambda namesrv: ["node", str(node_folder / "client.js"), namesrv]) as started:
        yield started.connect


class _Started:
    """The client processes of one test."""

    def __init__(self, command: Callable[[str], list[str]], **how: Any) -> None:
        self._command = command
        self._how = how
        self._talkers: list[Talker] = []

    def connect(self, namesrv: str) -> Talker:
        talker = Talker(self._command(namesrv), **self._how)
        self._talkers.append(talker)
        return talker

    def __enter__(self) -> _Started:
        return self

    def __exit__(self, *error: object) -> None:
        for talker in self._talkers:
            with talker:
                pass


# -- what the tests share --------------------------------------------------------------------------------------


def message(topic: str, body: str | bytes, **more: Any) -> dict[str, Any]:
    data = body.encode() if isinstance(body, str) else body
    return {"topic": topic, "body": base64.b64encode(data).decode(), **more}


def bodies(messages: list[dict[str, Any]]) -> list[str]:
    return [base64.b64decode(each["body"]).decode() for each in messages]


def wait_for(client: Talker, name: str, done: Callable[[list[dict[str, Any]]], bool]) -> list[dict[str, Any]]:
    """What a consumer has got, once it is enough; what there is when time is up."""
    deadline = time.monotonic() + WAIT_S
    while True:
        found: list[dict[str, Any]] = client.ask("consumed", name=name)
        if done(found) or time.monotonic() > deadline:
            return found
        time.sleep(0.1)


def wait_for_count(client: Talker, name: str, count: int) -> list[dict[str, Any]]:
    return wait_for(client, name, lambda found: len(found) >= count)
