"""The fixtures, as a test suite of somebody else uses them."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path

from support import ROOT

SUITE = """
from penstock.client.sync import Message, Producer

addresses = []

def names(b):
    with b.admin() as admin:
        return admin.topics.names()

def test_one(penstock_broker, penstock_broker_session):
    with Producer("PID", penstock_broker.namesrv) as producer:
        assert producer.send(Message("orders", b"x")).ok
    with Producer("PID", penstock_broker_session.namesrv) as producer:
        assert producer.send(Message("kept", b"x")).ok
    addresses.append((penstock_broker_session.address, penstock_broker.store_path))

def test_two(penstock_broker, penstock_broker_session):
    assert "orders" not in names(penstock_broker)
    assert "kept" in names(penstock_broker_session)
    [(session, path)] = addresses
    assert session == penstock_broker_session.address
    assert not path.exists()
"""


MARKED = """
import asyncio
import pytest
from penstock.client import Message, Producer

pytestmark = pytest.mark.penstock(topics={"orders": 2}, settings={"autoCreateTopicEnable": False})

async def order(namesrv, topic, *bodies):
    async with Producer("PID", namesrv) as producer:
        for body in bodies:
            await producer.send(Message(topic, body))

def test_the_module(penstock_broker):
    asyncio.run(order(penstock_broker.namesrv, "orders", *(b"%d" % number for number in range(5))))
    assert [message.text for message in penstock_broker.messages("orders")] == list("01234")
    assert {message.queue_id for message in penstock_broker.messages("orders")} == {0, 1}
    assert penstock_broker.messages("unknown") == []

@pytest.mark.penstock(topics=["refunds"])
def test_the_test_itself(penstock_broker):
    async def inside_a_loop():
        await order(penstock_broker.namesrv, "refunds", b"x")
        return penstock_broker.messages("refunds")

    assert [message.body for message in asyncio.run(inside_a_loop())] == [b"x"]
    with pytest.raises(Exception, match="no broker has topic 'orders'"):
        asyncio.run(order(penstock_broker.namesrv, "orders", b"x"))
"""
WRONG = """
import pytest

@pytest.mark.penstock(topic=["orders"])
def test_it(penstock_broker):
    pass
"""


def pytest_of(folder: Path, suite: str) -> subprocess.CompletedProcess[str]:
    """Runs a suite as somebody else's project has it."""
    (folder / "test_mine.py").write_text(suite)
    command = [sys.executable, "-m", "pytest", "-q", "-W", "error", "--strict-markers"]
    command += ["-p", "penstock.testing.pytest_plugin"]
    environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONPATH": str(ROOT / "src")}
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120, env=environment)


def test_the_fixtures_are_a_broker_for_each_test_and_one_for_all(tmp_path: Path) -> None:
    ran = pytest_of(tmp_path, SUITE)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "2 passed" in ran.stdout


def test_a_marker_gives_the_broker_topics_and_settings(tmp_path: Path) -> None:
    ran = pytest_of(tmp_path, MARKED)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "2 passed" in ran.stdout


def test_a_marker_with_another_argument_is_an_error_of_one_sentence(tmp_path: Path) -> None:
    ran = pytest_of(tmp_path, WRONG)
    assert ran.returncode == 1
    assert "the marker penstock takes topics and settings by name; found topic" in ran.stdout


def test_pytest_finds_the_plugin_where_penstock_is_installed() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["entry-points"]["pytest11"] == {"penstock": "penstock.testing.pytest_plugin"}


def test_the_plugin_alone_imports_nothing_of_penstock() -> None:
    code = "import sys, penstock.testing.pytest_plugin; print([m for m in sys.modules if m.startswith('penstock.b')])"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert ran.stdout.strip() == "[]"
