"""The metrics of brokers: their names, their labels, and the text format as Prometheus' own parser reads it."""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families

from penstock.observation.metrics import (
    BrokerAvailability,
    CountedNode,
    Family,
    Latencies,
    NodeFigures,
    TopicLag,
    availability,
    counter_metrics,
    is_internal_group,
    is_internal_topic,
    lag_metrics,
    node_labels,
    node_metrics,
    render,
)
from penstock.protocol.bodies.stats import BrokerCounters

NODE = ["c", "broker", "a"]


def values(family: Family) -> list[tuple[list[str], float]]:
    return [(list(sample.labels.values()), sample.value) for sample in family.samples]


def test_the_text_is_what_prometheus_reads_back() -> None:
    forged = 'orders"} 7\nevil_total 1\\'
    gauge = Family("some_gauge", "gauge", "About it.", ["topic"])
    gauge.add([forged], 0.25)
    gauge.add(["订单"], 3)
    counter = Family("some_total", "counter", "Counted.")
    counter.add((), 1 << 52)
    found = list(text_string_to_metric_families(render([gauge, counter]).decode()))
    assert [(each.name, each.type) for each in found] == [("some_gauge", "gauge"), ("some", "counter")]
    assert [(each.labels["topic"], each.value) for each in found[0].samples] == [(forged, 0.25), ("订单", 3.0)]
    assert [each.value for each in found[1].samples] == [float(1 << 52)]


def test_every_latency_is_in_a_bucket_and_in_the_sum() -> None:
    node = NodeFigures(
        cluster="c",
        name="a",
        broker_id=0,
        state=BrokerAvailability.SERVING,
        is_healthy=True,
        put_latency=Latencies({1: 6, 5: 2}, above=7, seconds=9.5),
    )
    text = render(node_metrics(True, [node])).decode()
    (put,) = [each for each in text_string_to_metric_families(text) if each.name == "penstock_put_latency_milliseconds"]
    assert [(each.labels.get("le", each.name.rpartition("_")[2]), each.value) for each in put.samples] == [
        ("1.0", 6.0),
        ("5.0", 8.0),
        ("+Inf", 15.0),
        ("count", 15.0),
        ("sum", 9500.0),
    ]


def test_a_deleted_topic_and_a_reset_group_lower_no_counter() -> None:
    """Nothing is derived from offsets: the counters are what the broker has counted."""
    counters = BrokerCounters(
        messages_in={"gone": (7, 70), "TBW102": (1, 1), "%DLQ%g": (2, 2)},
        messages_out={"gone@g": (5, 50), "%RETRY%g@g": (1, 1)},
        requests_refused={"310": 2},
    )
    shown = {each.name: values(each) for each in counter_metrics([CountedNode(NODE, counters)], is_internal_topic)}
    assert shown == {
        "rocketmq_messages_in_total": [([*NODE, "gone", "false"], 7), ([*NODE, "%DLQ%g", "false"], 2)],
        "rocketmq_send_to_dlq_messages_total": [([*NODE, "g"], 2)],
        "rocketmq_messages_out_total": [([*NODE, "gone", "g", "false"], 5), ([*NODE, "%RETRY%g", "g", "true"], 1)],
        "penstock_requests_refused_total": [([*NODE, "310"], 2)],
    }


def test_an_unreachable_broker_has_a_state_and_no_figures() -> None:
    gone = NodeFigures(
        cluster="c", name="a", broker_id=1, state=BrokerAvailability.UNREACHABLE, is_healthy=False, log_bytes=9
    )
    shown = {each.name: values(each) for each in node_metrics(False, [gone])}
    assert ([*node_labels("c", "a", 1), "unreachable"], 1.0) in shown["penstock_broker_state"]
    assert shown["penstock_ready"] == [([], 0.0)]
    assert shown["rocketmq_storage_size"] == []


def test_lag_and_numbers_have_rocketmq_5s_names() -> None:
    shown = {each.name: values(each) for each in lag_metrics([TopicLag(NODE, "orders", "g", 3, 40)], 2, 5)}
    assert shown == {
        "rocketmq_consumer_lag_messages": [([*NODE, "orders", "g", "false"], 3)],
        "rocketmq_consumer_lag_latency": [([*NODE, "orders", "g", "false"], 40)],
        "rocketmq_consumer_group_number": [([], 2)],
        "rocketmq_topic_number": [([], 5)],
    }


def test_why_puts_are_refused_makes_the_state() -> None:
    assert availability("", 0.99) is BrokerAvailability.SERVING
    assert availability("the disk of the store is 97% full", None) is BrokerAvailability.FULL
    assert availability("a sync failed", 0.5) is BrokerAvailability.READ_ONLY


def test_names_of_brokers_and_tools_are_internal() -> None:
    assert is_internal_topic("DefaultCluster", frozenset({"DefaultCluster"}))
    assert [is_internal_topic(name) for name in ("SCHEDULE_TOPIC_XXXX", "rmq_sys_x", "c_REPLY_TOPIC", "orders")] == [
        True,
        True,
        True,
        False,
    ]
    assert is_internal_group("TOOLS_CONSUMER")
    assert not is_internal_group("warehouse")
