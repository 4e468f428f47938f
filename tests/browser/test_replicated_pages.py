"""The Overview of a pair of brokers: who follows whom."""

from __future__ import annotations

from pathlib import Path

import pytest
from browser.browsing import Browser
from support.clients import ConsoleProcess
from support.clusters import member, name_server
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
