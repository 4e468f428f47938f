"""docs/how-to/failover.md as printed, on the loopback interface: three brokers, etcd, and a master that is killed."""

from __future__ import annotations

import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from support.clusters import name_server, wait_for
from support.documents import to_run
from support.etcd import running_etcd
from support.loopback import free_port

from penstock.broker.failover.dcs import View
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


def _said(folder: Path) -> str:
    return "\n".join(each.read_text() for each in sorted(folder.glob("*.log")))
