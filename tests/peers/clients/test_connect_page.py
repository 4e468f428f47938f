"""The snippets of the page on connecting clients, run as printed but for the addresses."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
from peers.clients.conftest import Connect, message, wait_for_count
from support import ROOT
from support.brokers import Served

PAGE = ROOT / "docs" / "how-to" / "connect.md"

pytestmark = pytest.mark.timeout(240)


def snippet(served: Served, heading: str) -> str:
    """The first block below a heading."""
    text = PAGE.read_text(encoding="utf-8").split(f"\n## {heading}\n", 1)[1]
    found = re.search(r"^```\w*\n(.*?)^```", text, re.M | re.S)
    assert found is not None
    return found[1].replace("127.0.0.1:9876", served.namesrv).replace("127.0.0.1:10911", served.address)


def run(command: list[str], folder: Path, home: Path) -> str:
    done = subprocess.run(
        command, cwd=folder, env={"HOME": str(home)}, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.java
def test_the_java_class_sends_and_consumes(served: Served, java_jars: list[Path], tmp_path: Path) -> None:
    source = tmp_path / "Hello.java"
    source.write_text(snippet(served, "Java"))
    java = subprocess.run(["which", "java"], capture_output=True, text=True, check=True).stdout.strip()
    said = run([java, "-cp", ":".join(map(str, java_jars)), str(source)], tmp_path, tmp_path)
    assert "sendStatus=SEND_OK" in said
    assert "\ntwo shirts\n" in said


@pytest.mark.cpp
def test_the_c_plus_plus_client_sends_and_consumes(served: Served, cpp_python: Path, tmp_path: Path) -> None:
    said = run([str(cpp_python), "-c", snippet(served, "C++, from Python")], tmp_path, tmp_path)
    assert "two shirts" in said


@pytest.mark.node
def test_the_node_client_sends_and_consumes(served: Served, node_folder: Path, tmp_path: Path) -> None:
    node = subprocess.run(["which", "node"], capture_output=True, text=True, check=True).stdout.strip()
    assert "two shirts\n" in run([node, "-e", snippet(served, "Node")], node_folder, tmp_path)


@pytest.mark.java
def test_the_lines_for_mqadmin_do_what_they_say(served: Served, java: Connect) -> None:
    client = java(served.namesrv)
    client.ask("send", group="p", how="sync", messages=[message("orders", "two shirts", keys="order_1")])
    client.ask("consume", name="c", group="warehouse", topic="orders")
    wait_for_count(client, "c", 1)
    for line in snippet(served, "mqadmin").splitlines():
        words = line.removeprefix("mqadmin ").split()
        said = client.ask("mqadmin", arguments=words)["said"]
        assert "Exception" not in said, (line, said)
