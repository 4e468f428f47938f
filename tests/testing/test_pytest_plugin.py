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


def test_the_fixtures_are_a_broker_for_each_test_and_one_for_all(tmp_path: Path) -> None:
    (tmp_path / "test_mine.py").write_text(SUITE)
    command = [sys.executable, "-m", "pytest", "-q", "-W", "error", "-p", "penstock.testing.pytest_plugin"]
    environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONPATH": str(ROOT / "src")}
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, env=environment)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "2 passed" in ran.stdout


def test_pytest_finds_the_plugin_where_penstock_is_installed() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["entry-points"]["pytest11"] == {"penstock": "penstock.testing.pytest_plugin"}


def test_the_plugin_alone_imports_nothing_of_penstock() -> None:
    code = "import sys, penstock.testing.pytest_plugin; print([m for m in sys.modules if m.startswith('penstock.b')])"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert ran.stdout.strip() == "[]"
