"""What a broker answers about itself on its own port: metrics from its counters, health from its state."""

from __future__ import annotations

import asyncio
import http.client
import json
import re
import subprocess
import sys
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families
from support import ROOT
from support.brokers import BrokerHome, RunningBroker, ok

from penstock.broker import metrics_and_health as module
from penstock.broker.metrics_and_health import Observation
from penstock.broker.settings import BrokerSettings
from penstock.observation import process_metrics
from penstock.observation.http_responder import HttpResponder
from penstock.protocol.bodies.admin import HaElections, HaRuntimeInfo
from penstock.protocol.codes import RequestCode
from penstock.remoting.sockets import listen

if TYPE_CHECKING:
    from broker.conftest import Run

NODE = {"cluster": "DefaultCluster", "node_type": "broker", "node_id": "broker-a"}


class Watcher:
    """A program that watches a broker over its port."""

    def __init__(self, observation: Observation) -> None:
        self.observation = observation
        self.responder = HttpResponder(listen("127.0.0.1", 0), observation.answer)
        self.responder.start()

    def fetch(self, path: str) -> tuple[int, str]:
        connection = http.client.HTTPConnection("127.0.0.1", self.responder.port, timeout=60)
        try:
            connection.request("GET", path)
            answer = connection.getresponse()
            return answer.status, answer.read().decode()
        finally:
            connection.close()

    async def get(self, path: str) -> tuple[int, str]:
        return await asyncio.to_thread(self.fetch, path)

    async def state(self, path: str) -> tuple[int, dict[str, Any]]:
        status, text = await self.get(path)
        return status, json.loads(text)

    async def metrics(self) -> dict[str, list[tuple[dict[str, str], float]]]:
        status, text = await self.get("/metrics")
        assert status == 200
        found: dict[str, list[tuple[dict[str, str], float]]] = {}
        for family in text_string_to_metric_families(text):
            for each in family.samples:
                found.setdefault(each.name, []).append((each.labels, each.value))
        return found


@asynccontextmanager
async def watched(broker: RunningBroker) -> AsyncIterator[Watcher]:
    observation = Observation(broker.state.settings.now)
    observation.serve(broker.broker)
    watcher = Watcher(observation)
    try:
        yield watcher
    finally:
        await asyncio.to_thread(watcher.responder.stop)


@pytest.fixture(autouse=True)
def _fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_KEPT_S", 0.0)


def test_metrics_are_the_brokers_own_counters_and_never_fall(home: BrokerHome, run: Run) -> None:
    async def check() -> None:
        async with home.running() as broker, watched(broker) as watcher:
            client = await broker.client()
            for _ in range(5):
                ok(await client.send("orders", queueId=0))
            ok(await client.pull("orders", consumerGroup="CID", queueId=0))
            broker.state.groups.find_or_create("CID")
            broker.state.offsets.commit("CID", "orders", 0, 2)
            found = await watcher.metrics()
            group = {**NODE, "topic": "orders", "consumer_group": "CID", "is_retry": "false"}
            assert ({**NODE, "topic": "orders", "is_system": "false"}, 5.0) in found["rocketmq_messages_in_total"]
            assert (group, 5.0) in found["rocketmq_messages_out_total"]
            assert (group, 3.0) in found["rocketmq_consumer_lag_messages"]
            [(_, late)] = [each for each in found["rocketmq_consumer_lag_latency"] if each[0] == group]
            assert late >= 0
            assert found["penstock_broker_healthy"] == [(NODE, 1.0)]
            assert ({**NODE, "state": "serving"}, 1.0) in found["penstock_broker_state"]
            assert found["penstock_connections"] == [(NODE, 1.0)]
            puts = {labels["le"]: value for labels, value in found["penstock_put_latency_milliseconds_bucket"]}
            assert puts["+Inf"] == found["penstock_put_latency_milliseconds_count"][0][1] == 5.0
            assert found["rocketmq_topic_number"] == [({}, 1.0)]
            assert found["rocketmq_consumer_group_number"] == [({}, 1.0)]
            broker.state.offsets.commit("CID", "orders", 0, 0)
            ok(await client.ask(RequestCode.DELETE_TOPIC_IN_BROKER, topic="orders"))
            ok(await client.ask(RequestCode.DELETE_SUBSCRIPTIONGROUP, groupName="CID"))
            after = await watcher.metrics()
            for name in (name for name in found if name.endswith(("_total", "_bucket", "_count"))):
                before = {tuple(labels.items()): value for labels, value in found[name]}
                now = {tuple(labels.items()): value for labels, value in after[name]}
                assert all(now[labels] >= value for labels, value in before.items()), name
            assert "rocketmq_consumer_lag_messages" not in after

    run(check())


def test_a_broker_that_serves_is_healthy_and_ready(home: BrokerHome, run: Run) -> None:
    async def check() -> None:
        async with home.running() as broker, watched(broker) as watcher:
            assert await watcher.state("/healthz") == (200, {"status": "ok", "why": ""})
            assert await watcher.state("/readyz") == (200, {"state": "serving", "ready": True, "why": ""})
            assert (await watcher.get("/nothing"))[0] == 404
            broker.state.tasks.failed("expiry of clients", MemoryError("planted"))
            status, health = await watcher.state("/healthz")
            assert (status, health["why"]) == (200, "expiry of clients: MemoryError('planted')"), (
                "a restart helps little"
            )
            assert (await watcher.metrics())["penstock_broker_healthy"] == [(NODE, 0.0)]

    run(check())


def test_a_store_that_refuses_messages_is_not_ready_and_hides_its_path(home: BrokerHome, run: Run) -> None:
    async def check() -> None:
        async with home.running() as broker, watched(broker) as watcher:
            broker.store._threads.died("penstock-flush", OSError(5, f"planted in {home.path}"))
            status, state = await watcher.state("/readyz")
            assert (status, state["state"]) == (503, "read-only")
            status, health = await watcher.state("/healthz")
            assert (status, health["status"]) == (503, "failed"), "only a restart helps"
            assert "planted" in health["why"]
            assert str(home.path) not in json.dumps([state, health])

    run(check())


def test_recovery_and_stopping_are_states(run: Run) -> None:
    async def check() -> None:
        observation = Observation(BrokerSettings())
        watcher = Watcher(observation)
        observation.recover("walking the log", 5, 20)
        assert (await watcher.state("/healthz"))[0] == 200, "a recovery must not be cut short"
        status, state = await watcher.state("/readyz")
        assert (status, state["state"], state["why"]) == (503, "recovering", "walking the log: 25 %")
        found = await watcher.metrics()
        assert ({**NODE, "state": "recovering"}, 1.0) in found["penstock_broker_state"]
        assert found["penstock_ready"] == [({}, 0.0)]
        assert "rocketmq_storage_size" not in found, "nothing is known yet"
        assert found["process_resident_memory_bytes"][0][1] > 1e6
        observation.stop()
        status, state = await watcher.state("/readyz")
        assert (status, state["why"]) == (503, "this broker is stopping")
        assert (await watcher.state("/healthz"))[0] == 200
        await asyncio.to_thread(watcher.responder.stop)

    run(check())


def test_a_loop_that_hangs_is_said_by_the_thread_that_does_not(
    home: BrokerHome, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process_metrics, "LOOP_S", 0.2)

    async def check() -> None:
        async with home.running() as broker, watched(broker) as watcher:
            answers: list[tuple[int, str]] = []

            def ask() -> None:
                answers.extend(watcher.fetch(path) for path in ("/healthz", "/readyz", "/metrics"))

            asking = threading.Thread(target=ask)
            asking.start()
            asking.join(60)  # holds up the loop meanwhile
            (health, why), (ready, state), (_, metrics) = answers
            assert (health, ready) == (503, 503)
            assert "the event loop has not answered" in why
            assert '"unreachable"' in state
            assert 'state="unreachable"} 1' in metrics

    run(check())


def test_readers_at_the_same_time_share_one_rendering(
    home: BrokerHome, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    copies: list[int] = []
    real = module._copy
    monkeypatch.setattr(module, "_KEPT_S", 3600.0)
    monkeypatch.setattr(module, "_copy", lambda broker: copies.append(1) or real(broker))

    async def check() -> None:
        async with home.running() as broker, watched(broker) as watcher:
            texts = await asyncio.gather(*(watcher.get("/metrics") for _ in range(5)))
            assert len(set(texts)) == 1

    run(check())
    assert len(copies) == 1


def metric_names(home: BrokerHome, run: Run) -> set[str]:
    async def names() -> set[str]:
        async with home.running() as broker, watched(broker) as watcher:
            watcher.observation.elect(HaElections)
            text = (await watcher.get("/metrics"))[1]
            kinds = dict(re.findall(r"^# TYPE (\S+) (\S+)$", text, re.MULTILINE))
            parts = {f"{name}_{part}" for name, kind in kinds.items() if kind == "histogram" for part in PARTS}
            return {*kinds, *parts}

    found: set[str] = run(names())
    return found


PARTS = ("bucket", "sum", "count")


def test_the_grafana_board_asks_for_metrics_that_there_are(home: BrokerHome, run: Run) -> None:
    board = (ROOT / "deploy" / "grafana" / "penstock.json").read_text(encoding="utf-8")
    asked = set(re.findall(r"(?:rocketmq|penstock)_\w+", " ".join(re.findall(r'"expr": "(.*?)",\n', board))))
    assert len(asked) > 8
    assert asked <= metric_names(home, run)


def test_the_alerts_ask_for_metrics_that_there_are_and_say_what_is_wrong(home: BrokerHome, run: Run) -> None:
    text = (ROOT / "deploy" / "prometheus" / "penstock-alerts.yml").read_text(encoding="utf-8")
    [group] = yaml.safe_load(text)["groups"]
    asked = {name for rule in group["rules"] for name in re.findall(r"(?:rocketmq|penstock|process)_\w+", rule["expr"])}
    assert len(asked) > 10
    assert asked <= metric_names(home, run)
    for rule in group["rules"]:
        assert rule["labels"]["severity"] in ("warning", "critical")
        assert rule["annotations"]["summary"]
    names = [rule["alert"] for rule in group["rules"]]
    assert len(set(names)) == len(names)


def test_a_missing_dispatch_job_is_in_health_and_metrics(home: BrokerHome, run: Run) -> None:
    async def check() -> None:
        async with home.running(store={"dispatch": "external"}) as broker, watched(broker) as watcher:
            ok(await (await broker.client()).send("orders"))
            while not broker.store.dispatcher.lag().behind_ms:
                await asyncio.sleep(0.005)
            status, answer = await watcher.state("/healthz")
            assert (status, answer["status"]) == (200, "ok"), "a restart of the broker would not help"
            assert "no job builds the queues" in answer["why"]
            assert str(home.path) not in answer["why"]
            metrics = await watcher.metrics()
            ((labels, seconds),) = metrics["penstock_dispatch_behind_seconds"]
            assert labels == NODE
            assert seconds > 0
            assert metrics["penstock_broker_healthy"] == [(NODE, 0.0)]

    run(check())


ENGINE_AWAY = HaElections(id=2, role="slave", problem="the engine does not answer: timed out", epoch=3, master=1)


def test_a_broker_whose_engine_is_away_says_so_and_goes_on(home: BrokerHome, run: Run) -> None:
    async def check() -> None:
        options = {"elections": lambda: ENGINE_AWAY}
        async with home.running(options=options) as broker, watched(broker) as watcher:
            watcher.observation.elect(options["elections"])
            assert await watcher.state("/healthz") == (200, {"status": "ok", "why": ENGINE_AWAY.problem})
            assert (await watcher.state("/readyz"))[0] == 200
            metrics = await watcher.metrics()
            assert metrics["penstock_broker_healthy"] == [(NODE, 0.0)]
            assert metrics["penstock_failover_engine_answers"] == [(NODE, 0.0)]
            assert ({**NODE, "role": "slave"}, 1.0) in metrics["penstock_failover_role"]
            assert ({**NODE, "role": "master"}, 0.0) in metrics["penstock_failover_role"]
            assert metrics["penstock_failover_epoch"] == [(NODE, 3.0)]
            reply = ok(await (await broker.client()).ask(RequestCode.GET_BROKER_RUNTIME_INFO))
            assert json.loads(bytes(reply.body))["table"]["brokerHealth"] == ENGINE_AWAY.problem
            reply = ok(await (await broker.client()).ask(RequestCode.GET_BROKER_HA_STATUS))
            assert HaRuntimeInfo.from_bytes(reply.body).elections == ENGINE_AWAY

    run(check())


def test_a_fenced_master_is_not_ready(home: BrokerHome, run: Run) -> None:
    async def check() -> None:
        why = "another broker may be the master"
        options = {"elections": lambda: HaElections(role="master", engine_answers=True, fenced=why)}
        async with home.running(options=options) as broker, watched(broker) as watcher:
            watcher.observation.elect(options["elections"])
            assert await watcher.state("/readyz") == (503, {"state": "read-only", "ready": False, "why": why})
            assert await watcher.state("/healthz") == (200, {"status": "ok", "why": why})
            metrics = await watcher.metrics()
            assert metrics["penstock_failover_fenced"] == [(NODE, 1.0)]
            assert ({**NODE, "state": "read-only"}, 1.0) in metrics["penstock_broker_state"]
            reply = ok(await (await broker.client()).ask(RequestCode.GET_BROKER_RUNTIME_INFO))
            assert json.loads(bytes(reply.body))["table"]["putsRefused"] == why

    run(check())


def test_before_its_engine_was_reached_a_broker_says_what_it_waits_for() -> None:
    async def check() -> None:
        watcher = Watcher(Observation(BrokerSettings()))
        try:
            watcher.observation.elect(lambda: ENGINE_AWAY)
            assert await watcher.state("/healthz") == (200, {"status": "ok", "why": ENGINE_AWAY.problem})
            status, answer = await watcher.state("/readyz")
            assert (status, answer["why"]) == (503, ENGINE_AWAY.problem)
            assert "penstock_failover_engine_answers" in await watcher.metrics()
        finally:
            await asyncio.to_thread(watcher.responder.stop)

    asyncio.run(check())


WITHOUT = """
import asyncio, sys, tempfile
from pathlib import Path
from penstock.broker.broker import Broker
from penstock.broker.metrics_and_health import Observation
from penstock.broker.settings import BrokerSettings
from penstock.store import MessageStore, Settings

async def main():
    with tempfile.TemporaryDirectory() as folder:
        broker = Broker(MessageStore.open(Path(folder), Settings.dev()))
        await broker.start("127.0.0.1", 0)
        observation = Observation(BrokerSettings())
        observation.serve(broker)
        answer = await observation.answer("/metrics")
        print(b"failover" in answer.body, b"lections" in broker.replication.status.now().to_bytes())
        await broker.stop()

asyncio.run(main())
print([name for name in sys.modules if "failover" in name])
"""


def test_without_failover_nothing_of_it_is_shown_or_imported() -> None:
    ended = subprocess.run([sys.executable, "-c", WITHOUT], capture_output=True, text=True, check=False)
    assert ended.stdout.splitlines() == ["False False", "[]"], ended.stderr
