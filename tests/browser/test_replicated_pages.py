"""The Overview of a pair of brokers: who follows whom; and of an elected set: its replicas and masters."""

from __future__ import annotations

from pathlib import Path

import pytest
from browser.browsing import Browser
from support.clients import ConsoleProcess
from support.clusters import member, name_server
from support.elections import elected_set
from support.loopback import free_port

pytestmark = pytest.mark.browser


def test_the_overview_shows_who_follows_whom(chromium: Browser, tmp_path: Path) -> None:
    with name_server() as namesrv:
        master = member(tmp_path / "m", namesrv, brokerRole="ASYNC_MASTER", haListenPort=free_port())
        slave = member(tmp_path / "s", namesrv, brokerRole="SLAVE", brokerId=1)
        with master, slave, ConsoleProcess(namesrv, folder=tmp_path) as console:
            chromium.come_in(console)
            chromium.open("/")
            chromium.until_text("broker-a is followed by 127.0.0.1", "[data-mark=replication]")
            chromium.until_text("broker-a (slave 1) follows 127.0.0.1", "[data-mark=replication]")
            chromium.until_text("in sync", "[data-mark=replication]")
            assert chromium.complaints() == []
        chromium.leave()


@pytest.mark.etcd
def test_the_overview_shows_the_replicas_of_an_elected_set_and_its_last_masters(
    chromium: Browser, tmp_path: Path
) -> None:
    with elected_set(tmp_path) as brokers:
        master = brokers.wait_for_master()
        slaves = [each for each in brokers.brokers if each is not master]
        with ConsoleProcess(brokers.namesrv, folder=tmp_path) as console:
            chromium.come_in(console)
            chromium.open("/")
            chromium.until_text(f"{master.address} master {brokers.epoch} yes", "[data-mark=replicas]")
            for slave in slaves:
                chromium.until_text(f"{slave.address} slave {brokers.epoch} yes", "[data-mark=replicas]")
            chromium.until_text("the first replica", "[data-mark=masters]")
            slaves[0].kill()
            chromium.until_text("it is not running", "[data-mark=replicas]")
            brokers.switch_over()
            successor = brokers.wait_for_master(other_than=master)
            assert successor is slaves[1]
            chromium.until_text(f"{successor.address} master {brokers.epoch} yes", "[data-mark=replicas]")
            chromium.until_text("the last master's lease has ended", "[data-mark=masters]")
            assert chromium.complaints() == []
        chromium.leave()
