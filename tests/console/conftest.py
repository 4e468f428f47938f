"""One broker with traffic and one console for the whole folder."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest
from support.clients import ConsoleProcess, fill_cluster, until_dead_letters

from penstock.testing import LocalBroker, broker

pytest.importorskip("nicegui")


@pytest.fixture(scope="session")
def cluster() -> Iterator[LocalBroker]:
    topics = {"orders": 4, "oddities": 1, "refunds": 1, "empty": 2}
    with broker(topics, settings={"messageDelayLevel": "1s"}) as running:
        fill_cluster(running)
        until_dead_letters(running, "returns", 2)
        yield running


@pytest.fixture(scope="session")
def console(cluster: LocalBroker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConsoleProcess]:
    folder = tmp_path_factory.mktemp("console")
    with ConsoleProcess(cluster.namesrv, "--store", str(cluster.store_path), folder=folder) as running:
        yield running


@pytest.fixture
def client(console: ConsoleProcess) -> Iterator[httpx.Client]:
    with console.client() as client:
        yield client
