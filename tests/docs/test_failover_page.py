"""docs/how-to/failover.md as printed, on the loopback interface: three brokers, etcd, and a master that is killed."""

from __future__ import annotations

import contextlib
import os
import random
import re
import shlex
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from support.clusters import name_server, wait_for
from support.documents import to_run
from support.etcd import BINARY, need_etcd, running_etcd
from support.loopback import free_port

from penstock.broker.failover.consensus_engine import View
from penstock.broker.failover.etcd import EtcdNodes, EtcdSession
from penstock.broker.settings import BrokerSettings
from penstock.store import Settings

PAGE = "docs/how-to/failover.md"


@pytest.mark.etcd
def test_three_brokers_elect_a_master_as_the_page_says(tmp_path: Path) -> None:
    of_broker, of_etcd = (block.text for block in to_run(PAGE, "ini"))
    (command,) = to_run(PAGE, "sh")
    Settings.load(None, of_etcd.split())
    BrokerSettings.of(Settings.load(None, ["failover=etcd", "dcsAddr=127.0.0.1:1", *of_etcd.split()]))
    processes: list[subprocess.Popen[bytes]] = []
    addresses: list[str] = []
    (tmp_path / "etcd").mkdir()
    with running_etcd(tmp_path / "etcd") as (node,), name_server() as namesrv:
        engine = EtcdSession(EtcdNodes(addresses=[node.address]), "/penstock/DefaultCluster/broker-a", 0)
        try:
            for number in range(3):
                lines = [line for line in of_broker.splitlines() if line and not line.startswith("#")]
                changes = {
                    "brokerIP2": "127.0.0.1",
                    "haListenPort": str(free_port()),
                    "haAllowFrom": "loopback",
                    "namesrvAddr": namesrv,
                    "dcsAddr": f"{node.address[0]}:{node.address[1]}",
                }
                names = [line.partition("=")[0] for line in lines]
                assert changes.keys() <= set(names)
                config = tmp_path / f"broker{number}.conf"
                values = [changes.get(name, line.partition("=")[2]) for name, line in zip(names, lines, strict=True)]
                config.write_text("".join(f"{name}={value}\n" for name, value in zip(names, values, strict=True)))
                addresses.append(f"127.0.0.1:{free_port()}")
                words = shlex.split(command.text)
                assert words[:2] == ["penstock", "serve"]
                exchanged = {"/srv/store": str(tmp_path / f"store{number}"), "broker.conf": str(config)}
                words = [exchanged.get(word, addresses[-1] if word.startswith("10.0.0.7:") else word) for word in words]
                words += ["--console", "off", "--profile", "dev"]
                with (tmp_path / f"{number}.log").open("wb") as log:
                    process = subprocess.Popen(
                        [sys.executable, "-m", "penstock.cli.main", *words[1:]], stdout=log, stderr=log
                    )
                processes.append(process)

            def view() -> View:
                assert all(each.poll() is None for each in processes), _said(tmp_path)
                return engine.view()

            wait_for(lambda: (found := view().state) is not None and len(found.sync) == 3, lambda: _said(tmp_path))
            leader = view().leader
            assert leader is not None
            dead = processes.pop(addresses.index(leader.address))
            dead.kill()
            dead.wait()
            wait_for(lambda: (now := view().leader) is not None and now.epoch > leader.epoch, lambda: _said(tmp_path))
        finally:
            for process in processes:
                process.send_signal(signal.SIGKILL)
                process.wait()
            engine.close()


@pytest.mark.etcd
def test_a_reader_kills_a_master_on_one_machine_as_the_page_says(tmp_path: Path) -> None:
    """The blocks are typed into one shell, at other ports, which may be in use here."""
    need_etcd()
    (tmp_path / "bin").mkdir()
    program = tmp_path / "bin" / "penstock"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m penstock.cli.main "$@"\n')
    program.chmod(0o755)
    (tmp_path / "bin" / "etcd").symlink_to(BINARY)
    blocks = [block.text for block in to_run(PAGE, "bash")]
    # A mark behind each block shows what it printed; the shell ends with the first command that fails.
    typed = "set -e -o pipefail\n" + "".join(f"{text}\necho -- end of block --\n" for text in blocks)
    for printed in ("2379", "2380", "9876"):
        assert f"127.0.0.1:{printed}" in typed
        typed = typed.replace(f"127.0.0.1:{printed}", f"127.0.0.1:{free_port()}")
    assert re.search(r"\b109\$\{1\}1\b", typed)
    prefix = _free_prefix()
    typed = typed.replace("109${1}", f"{prefix}${{1}}").replace("127.0.0.1:10911", f"127.0.0.1:{prefix}11")
    environment = {**os.environ, "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}"}
    with (tmp_path / "errors").open("wb") as errors:
        shell = subprocess.Popen(
            ["bash", "-c", typed],
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            env=environment,
            process_group=0,
        )
        try:
            out, _ = shell.communicate(timeout=300)
        finally:
            with contextlib.suppress(ProcessLookupError):  # what the shell started, too
                os.killpg(shell.pid, signal.SIGKILL)
            shell.wait()
    logs = "\n".join(each.read_text() for each in [tmp_path / "errors", *sorted((tmp_path / "try").glob("*.log"))])
    assert shell.returncode == 0, f"{out}\n{logs}"
    drilled, founded, joined, killed, back, ended, _ = out.split("-- end of block --\n")
    assert re.search(r"^all [\d,]+ acknowledged messages are there, each once", drilled, re.M), drilled
    assert "acknowledged" in (tmp_path / "drill.html").read_text(encoding="utf-8")
    assert re.search(rf"^ *1 +127\.0\.0\.1:{prefix}11 +leads", founded, re.M), founded
    assert '"sync": [1, 2, 3]' in joined
    assert re.search(rf"^ *[23] +127\.0\.0\.1:{prefix}[23]1 +leads", killed, re.M), killed
    assert "two shirts" in killed
    assert "replica 1 is master in epoch 3" in back, back
    assert "two shirts" in back
    assert "a hat" in back
    assert ended == ""


def _free_prefix() -> int:
    """Three digits such that the page's ports of brokers are free behind them: 11 to 13 for the first, and so on."""
    for prefix in random.Random().sample(range(110, 320), 50):
        try:
            for port in (prefix * 100 + broker * 10 + use for broker in (1, 2, 3) for use in (1, 2, 3)):
                with socket.socket() as probe:
                    probe.bind(("127.0.0.1", port))
        except OSError:
            continue
        return prefix
    raise AssertionError("no free ports")


def _said(folder: Path) -> str:
    return "\n".join(each.read_text() for each in sorted(folder.glob("*.log")))
