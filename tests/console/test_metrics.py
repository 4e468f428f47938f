"""What machines watch: metrics by RocketMQ 5's names, and whether the console and its brokers are well."""

from __future__ import annotations

import asyncio
from pathlib import Path

import httpx
from prometheus_client.parser import text_string_to_metric_families
from support.clients import ORDERS, ConsoleProcess

from penstock.client.admin import Admin
from penstock.console.cached_cluster import ClusterView
from penstock.console.cluster_figures import BrokerFigures, TopicKind, percentile, read_latency
from penstock.console.health import Parent, check_health
from penstock.console.metrics import node_figures
from penstock.observation.metrics import BrokerAvailability, node_metrics

NODE = {"cluster": "DefaultCluster", "node_type": "broker", "node_id": "broker-a"}


def samples(client: httpx.Client) -> dict[str, list[tuple[dict[str, str], float]]]:
    answer = client.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain")
    found: dict[str, list[tuple[dict[str, str], float]]] = {}
    for family in text_string_to_metric_families(answer.text):
        for each in family.samples:
            found.setdefault(each.name, []).append((each.labels, each.value))
    return found


def test_metrics_have_rocketmq_5s_names_and_labels(client: httpx.Client) -> None:
    found = samples(client)
    came = {labels["topic"]: value for labels, value in found["rocketmq_messages_in_total"]}
    assert came["orders"] == ORDERS
    assert found["rocketmq_messages_in_total"][0][0].keys() >= {*NODE, "topic"}
    group = {**NODE, "topic": "orders", "consumer_group": "warehouse", "is_retry": "false"}
    assert (group, float(ORDERS)) in found["rocketmq_messages_out_total"]
    assert group in [labels for labels, _ in found["rocketmq_consumer_lag_messages"]]
    assert ({**NODE, "consumer_group": "returns"}, 2.0) in found["rocketmq_send_to_dlq_messages_total"]
    disk = {**NODE, "storage_type": "local", "storage_medium": "disk"}
    assert [labels for labels, _ in found["rocketmq_storage_size"]] == [disk]
    assert ({**NODE, "state": "serving"}, 1.0) in found["penstock_broker_state"]


def test_every_put_is_in_a_bucket_and_latencies_have_a_sum(client: httpx.Client) -> None:
    found = samples(client)
    for kind in ("put", "get"):
        name = f"penstock_{kind}_latency_milliseconds"
        buckets = {labels["le"]: value for labels, value in found[f"{name}_bucket"]}
        assert buckets["+Inf"] == found[f"{name}_count"][0][1] > 0
        assert found[f"{name}_sum"][0][1] > 0
    slow = broker_figures(putMessageDistributeTime="[<=1ms]:6 [1ms~]:7", putMessageSeconds="9.5")
    (put,) = [
        each for each in node_metrics(True, [node_figures(slow)]) if each.name == "penstock_put_latency_milliseconds"
    ]
    assert {each.name.rpartition("_")[2]: each.value for each in put.samples} == {
        "bucket": 13,
        "count": 13,
        "sum": 9500,
    }


def test_health_is_a_gauge_and_a_reason(client: httpx.Client) -> None:
    assert samples(client)["penstock_broker_healthy"] == [(NODE, 1.0)]
    ill = broker_figures(brokerHealth="expiry of clients: MemoryError('planted')")
    assert (ill.state, ill.is_healthy) == (BrokerAvailability.SERVING, False)
    assert ill.why == "expiry of clients: MemoryError('planted')"
    (gauge,) = [each for each in node_metrics(True, [node_figures(ill)]) if each.name == "penstock_broker_healthy"]
    assert [each.value for each in gauge.samples] == [0.0]


def test_ready_means_that_all_brokers_serve(client: httpx.Client) -> None:
    assert client.get("/healthz").json() == {"status": "ok", "why": ""}
    answer = client.get("/readyz")
    assert (answer.status_code, answer.json()["state"]) == (200, "serving")


def test_a_cluster_that_is_gone_is_told_not_hidden(tmp_path: Path) -> None:
    with ConsoleProcess("127.0.0.1:9", folder=tmp_path) as lonely, lonely.client() as client:
        assert client.get("/healthz").status_code == 200
        answer = client.get("/readyz")
        assert (answer.status_code, answer.json()["state"]) == (503, "unreachable")
        assert samples(client)["penstock_ready"] == [({}, 0.0)]
        assert client.get("/api/topics").status_code == 503
        assert lonely.stop() == 0


def test_recovery_is_a_state_of_its_own() -> None:
    parent = Parent()
    parent.update(b'{"phase": "walking the log", "done": 5, "total": 20}\n')

    async def ask() -> tuple[BrokerAvailability, str]:
        async with Admin("127.0.0.1:9") as admin:
            found = await check_health(ClusterView(admin), parent)
        return found.state, found.why

    assert asyncio.run(ask()) == (BrokerAvailability.RECOVERING, "walking the log: 25 %")
    parent.update(b'{"phase": ""}\n')
    assert parent.phase == ""


def broker_figures(**more: str) -> BrokerFigures:
    return BrokerFigures.of("a", "c", "127.0.0.1:1", 0, more)


def test_why_puts_are_refused_makes_the_state() -> None:
    assert broker_figures().state is BrokerAvailability.SERVING
    assert broker_figures(putsRefused="the disk of the store is 97% full, 12 MiB free").state is BrokerAvailability.FULL
    assert broker_figures(putsRefused="a sync failed").state is BrokerAvailability.READ_ONLY


def test_javas_figures_are_read_as_well_as_ours() -> None:
    java = broker_figures(
        putTps="12.5 10.0 9.1",
        remainHowManyDataToFlush="1,024 B",
        commitLogDiskRatio="NaN",
        putMessageDistributeTime="[<=0ms]:10 [0~10ms]:5 [3~4s]:1 [10s~]:0 ",
    )
    assert (java.put_per_second, java.flush_behind_bytes) == (12.5, 1024)
    assert (java.put_latency, java.put_latency_above, java.put_seconds) == ({0: 10, 10: 5, 4000: 1}, 0, None)
    ours = broker_figures(putMessageDistributeTime="[<=0ms]:1", penstockPutLatencies="[<=1ms]:6 [1ms~]:7")
    assert (ours.put_latency, ours.put_latency_above) == ({1: 6}, 7), "the finer classes, since the start"
    assert percentile(java.put_latency, 0, 0.5) == 0
    assert percentile(java.put_latency, 0, 0.99) == 4000
    assert percentile(java.put_latency, 1, 0.99) == 4001, "beyond the last bound"
    assert percentile(*read_latency("[<=1ms]:0"), 0.5) is None
    assert read_latency("[0~10ms]:5 [10s~]:3") == ({10: 5}, 3)


def test_topics_are_told_apart_by_name() -> None:
    assert TopicKind.of("%RETRY%g") is TopicKind.RETRY
    assert TopicKind.of("%DLQ%g") is TopicKind.DEAD_LETTERS
    assert TopicKind.of("DefaultCluster", frozenset({"DefaultCluster"})) is TopicKind.SYSTEM
    assert TopicKind.of("orders") is TopicKind.NORMAL
