"""The verbs that talk to a cluster, against a real broker: text, JSON, and mqadmin's spellings."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

from penstock.client.message import Message, ReceivedMessage
from penstock.client.sync import Producer, PushConsumer
from penstock.testing import LocalBroker, broker

if TYPE_CHECKING:
    from cli.conftest import Ran, Run

Penstock = Callable[..., "Ran"]
_numbers = itertools.count()


@pytest.fixture(scope="module")
def b() -> Iterator[LocalBroker]:
    """One broker for all tests here; each has topics and groups of its own."""
    with broker() as running:
        yield running


@pytest.fixture
def penstock(run: Run, b: LocalBroker) -> Penstock:
    """Runs a verb against the broker."""
    return lambda *arguments: run(*arguments, "-n", b.namesrv)


@pytest.fixture
def filled(b: LocalBroker) -> str:
    """A topic of four queues with ten messages: body and key are their number, tags take turns."""
    topic = f"topic-{next(_numbers)}"
    with b.admin() as admin, Producer("PID", b.namesrv) as producer:
        admin.topics.create(topic, queues=4)
        queues = producer.queues(topic)
        for number in range(10):
            message = Message(topic, b"%d" % number, keys=f"key_{number} all", tags="ab"[number % 2])
            producer.send(message, queue=queues[number % 4])
        b.settle()
    return topic


@pytest.fixture
def consumed(b: LocalBroker, filled: str) -> Iterator[tuple[str, PushConsumer]]:
    """A group that is connected, and has consumed all of that topic."""
    found: list[ReceivedMessage] = []
    group = f"group-of-{filled}"
    with PushConsumer(group, found.append, b.namesrv, subscriptions={filled: "*"}) as consumer:
        while len(found) < 10:
            time.sleep(0.01)
        yield group, consumer


def lines(ran: Ran) -> list[str]:
    return [line for line in ran.done().out.splitlines() if line.strip()]


# -- topics ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("create", "names", "status", "route", "delete"),
    [
        (
            ("topic", "create"),
            ("topic", "list", "--all", "--names"),
            ("topic", "status"),
            ("topic", "route"),
            ("topic", "delete"),
        ),
        (("updateTopic",), ("topicList",), ("topicStatus",), ("topicRoute",), ("deleteTopic",)),
    ],
    ids=["ours", "mqadmin"],
)
def test_topics(
    penstock: Penstock, b: LocalBroker, create: Any, names: Any, status: Any, route: Any, delete: Any
) -> None:
    made = penstock(*create, "-c", "DefaultCluster", "-t", "made", "-r", 3, "-w", 2, "-p", 6).done()
    assert made.out == f"created topic made (3/2 queues) at {b.address}\n"
    assert "made" in lines(penstock(*names))
    assert {"made", "TBW102"} <= set(penstock(*names, "--json").done().json)
    (found,) = penstock(*route, "-t", "made", "--json").done().json["queues"]
    assert (found["read_queues"], found["write_queues"], found["perm"]) == (3, 2, 6)
    assert b.address in penstock(*route, "-t", "made").done().out
    rows = penstock(*status, "-t", "made", "--json").done().json
    assert [(row["queue_id"], row["max_offset"]) for row in rows] == [(0, 0), (1, 0), (2, 0)]
    heading = lines(penstock(*status, "-t", "made"))[0]
    assert " ".join(heading.split()) == "broker queue min offset max offset last updated"
    assert penstock(*delete, "-t", "made", "-c", "DefaultCluster").done().out == f"deleted topic made at {b.address}\n"
    assert "made" not in lines(penstock(*names))


def test_the_list_of_topics_has_figures_and_no_system_topics(penstock: Penstock, filled: str) -> None:
    heading, *rows = lines(penstock("topic", "list"))
    assert heading.split() == ["topic", "queues", "messages", "in/s", "last", "message"]
    assert next(row.split()[:3] for row in rows if row.startswith(filled)) == [filled, "4", "10"]
    assert not any(row.startswith(("TBW102", "%RETRY%", "DefaultCluster", "rmq_sys", "SCHEDULE")) for row in rows)
    (row,) = penstock("topic", "list", filled, "--json").done().json
    figures = {name: row[name] for name in ("topic", "kind", "read_queues", "write_queues", "messages", "brokers")}
    assert figures == {
        "topic": filled,
        "kind": "normal",
        "read_queues": 4,
        "write_queues": 4,
        "messages": 10,
        "brokers": ["broker-a"],
    }
    assert row["last_update_timestamp"] > 0
    kinds = {row["topic"]: row["kind"] for row in penstock("topic", "list", "--all", "--json").done().json}
    assert (kinds["TBW102"], kinds["DefaultCluster"]) == ("system", "system")
    assert "no topic like none-*" in penstock("topic", "list", "none-*").done().err


def test_a_topic_is_described(penstock: Penstock, consumed: tuple[str, PushConsumer], filled: str) -> None:
    consumed[1].close()  # so that its offsets are stored
    shown = penstock("topic", "describe", filled).done().out
    for text in (filled, "read and write", "messages      10", consumed[0], "broker-a      3"):
        assert text in shown, text
    found = penstock("topic", "describe", filled, "--json").done().json
    assert [each["max_offset"] for each in found["queues"]] == [3, 3, 2, 2]
    assert found["groups"] == [{"group": consumed[0], "lag": 0}]
    assert "did you mean" in penstock("topic", "describe", f"{filled}x").refused()


def test_a_group_is_described(penstock: Penstock, consumed: tuple[str, PushConsumer], filled: str) -> None:
    shown = penstock("group", "describe", consumed[0]).done().out
    for text in (consumed[0], "CLUSTERING", filled, "PYTHON", "dead letters  0"):
        assert text in shown, text
    found = penstock("group", "describe", consumed[0], "--json").done().json
    assert (filled, "*") in [(each["topic"], each["expression"]) for each in found["topics"]]
    assert (found["settings"]["groupName"], len(found["clients"]), found["dead_letters"]) == (consumed[0], 1, 0)
    assert "did you mean" in penstock("group", "describe", f"{consumed[0]}x").refused()


def test_how_a_topic_is_set_and_where(penstock: Penstock, b: LocalBroker, filled: str) -> None:
    assert penstock("topic", "config", "-t", filled, "--json").done().json["broker-a"]["readQueueNums"] == 4
    assert "readQueueNums = 4" in penstock("topic", "config", "-t", filled).done().out
    assert lines(penstock("topicClusterList", "-t", filled)) == ["DefaultCluster"]
    penstock("topic", "update", "-t", filled, "-b", b.address, "--perm", 4).done()
    assert penstock("topic", "config", "-t", filled, "--json").done().json["broker-a"]["perm"] == 4


def test_what_is_not_given_of_a_topic_stays(penstock: Penstock, b: LocalBroker) -> None:
    assert (
        penstock("topic", "create", "kept", "-r", 3, "-w", 2).done().out.startswith("created topic kept (3/2 queues)")
    )
    assert penstock("topic", "update", "kept", "--perm", 4).done().out.startswith("changed topic kept (3/2 queues)")
    assert penstock("updateTopic", "-t", "kept", "-b", b.address, "-w", 3).done().out.startswith("changed topic kept")
    config = penstock("topic", "config", "kept", "--json").done().json["broker-a"]
    assert (config["readQueueNums"], config["writeQueueNums"], config["perm"]) == (3, 3, 4)


def test_topics_with_clusters_and_groups(penstock: Penstock, consumed: tuple[str, PushConsumer], filled: str) -> None:
    rows = {row["topic"]: row for row in penstock("topicList", "-c", "--json").done().json}
    assert rows[filled] == {"topic": filled, "clusters": ["DefaultCluster"], "groups": [consumed[0]]}
    assert any(filled in line and consumed[0] in line for line in lines(penstock("topic", "list", "--clusters")))


def test_an_ordered_topic(penstock: Penstock) -> None:
    penstock("updateTopic", "-t", "in-order", "-c", "DefaultCluster", "-w", 2, "-r", 2, "-o", "true").done()
    assert penstock("topic", "route", "-t", "in-order", "--json").done().json["order_conf"] == "broker-a:2"
    assert lines(penstock("cluster", "kv", "-s", "ORDER_TOPIC_CONFIG")) == ["in-order = broker-a:2"]


# -- groups ----------------------------------------------------------------------------------------------------


def test_groups_are_set_listed_and_deleted(penstock: Penstock, b: LocalBroker) -> None:
    penstock("updateSubGroup", "-c", "DefaultCluster", "-g", "made", "-r", 3, "-s", "false").done()
    (made,) = (each for each in penstock("group", "list", "--json").done().json if each["groupName"] == "made")
    assert (made["retryMaxTimes"], made["consumeEnable"], made["retryQueueNums"]) == (3, False, 1)
    penstock("group", "update", "-g", "made", "--consume-enable", "true").done()
    (made,) = (each for each in penstock("group", "list", "--json").done().json if each["groupName"] == "made")
    assert (made["retryMaxTimes"], made["consumeEnable"]) == (3, True)  # what was not given stays
    assert any(line.split()[0] == "made" for line in lines(penstock("group", "list")))
    penstock("deleteSubGroup", "-c", "DefaultCluster", "-g", "made", "-r", "true").done()
    assert not any(each["groupName"] == "made" for each in penstock("group", "list", "--json").done().json)


@pytest.mark.parametrize(
    "asked",
    [
        ("topic", "route", "-t", "oders"),
        ("offset", "show", "-t", "oders"),
        ("message", "print", "-t", "oders"),
        ("message", "by-key", "-t", "oders", "-k", "key_1"),
    ],
)
def test_a_topic_that_nobody_has_is_said(penstock: Penstock, filled: str, asked: tuple[str, ...]) -> None:
    assert "no broker has topic oders yet" in penstock(*asked, "--json").done().err
    right = [filled if each == "oders" else each for each in asked]
    assert penstock(*right, "--json").done().err == ""


def test_a_group_that_nobody_knows_is_no_group_without_lag(penstock: Penstock) -> None:
    assert "no broker knows group 'warehose'" in penstock("group", "progress", "-g", "warehose").refused()
    assert "has consumed nothing yet" in penstock("group", "progress", "-g", "TOOLS_CONSUMER").done().err


@pytest.mark.parametrize("verb", [("group", "progress"), ("consumerProgress",)])
def test_the_progress_of_a_group(
    penstock: Penstock, consumed: tuple[str, PushConsumer], filled: str, verb: tuple[str, ...]
) -> None:
    group, consumer = consumed
    consumer.close()
    found = penstock(*verb, "-g", group, "--json").done().json
    assert found["lag"] == 0
    mine = [row for row in found["queues"] if row["topic"] == filled]
    assert sum(row["consumer_offset"] for row in mine) == 10
    text = lines(penstock(*verb, "-g", group, "-t", filled))
    assert text[-1].startswith("lag 0")
    assert len(text) == 6
    rows = {row["group"]: row for row in penstock(*verb, "--json").done().json}
    assert (rows[group]["lag"], rows[group]["clients"]) == (0, 0)
    assert any(group in line for line in lines(penstock(*verb)))


def test_who_is_connected_and_what_they_have(
    penstock: Penstock, b: LocalBroker, consumed: tuple[str, PushConsumer], filled: str
) -> None:
    group, consumer = consumed
    for verb in (("consumerConnection",), ("group", "connections")):
        found = penstock(*verb, "-g", group, "--json").done().json
        assert [client["client_id"] for client in found["clients"]] == [consumer.client_id]
        assert filled in [each["topic"] for each in found["subscriptions"]]
        assert consumer.client_id in penstock(*verb, "-g", group).done().out
    with Producer("PID_here", b.namesrv) as producer:
        producer.send(Message(filled, b"x"))
        for verb in (("producerConnection",), ("group", "producers")):
            (client,) = penstock(*verb, "-g", "PID_here", "-t", filled, "--json").done().json
            assert (client["language"], client["version"]) == ("PYTHON", "V4_9_8")
            assert "PYTHON" in penstock(*verb, "-g", "PID_here", "-t", filled).done().out
        for every in (("producer", "-b", b.address), ("group", "producers")):
            clients = {each["group"]: each for each in penstock(*every, "--json").done().json}
            assert clients["PID_here"]["client_id"] == client["client_id"]
            assert clients["PID_here"]["address"] == client["address"]
            assert "PID_here" in penstock(*every).done().out
    assert "name the group" in penstock("group", "producers", "-t", filled).refused()
    assert "goes without a group" in penstock("group", "producers", "PID_here", "-b", b.address).refused()
    for verb in (("consumerStatus",), ("group", "status")):
        (state,) = penstock(*verb, "-g", group, "--json").done().json.values()
        assert {queue["topic"] for queue in state["queues"]} >= {filled}
        assert filled in penstock(*verb, "-g", group, "-i", consumer.client_id).done().out
    owners = penstock("consumerProgress", "-g", group, "-s", "true", "--json").done().json["queues"]
    assert {row["client_id"] for row in owners} == {consumer.client_id}


# -- messages --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("send", "consume"), [("message send", "message consume"), ("sendMessage", "consumeMessage")])
def test_a_message_is_sent_and_looked_at(
    penstock: Penstock, b: LocalBroker, filled: str, send: str, consume: str
) -> None:
    call = (
        *send.split(),
        "-t",
        filled,
        "-p",
        "two shirts, grün",
        "-k",
        "k1 k2",
        "-c",
        "paid",
        "-b",
        "broker-a",
        "-i",
        2,
    )
    sent = penstock(*call, "--json").done().json
    assert (sent["status"], sent["broker_name"], sent["queue_id"]) == ("SEND_OK", "broker-a", 2)
    assert "SEND_OK" in penstock(*call).done().out
    b.settle()
    place = ("-b", "broker-a", "-i", 2, "-o", sent["queue_offset"])
    found = penstock(*consume.split(), "-t", filled, *place, "--json").done().objects
    assert [each["queue_offset"] for each in found] == [sent["queue_offset"], sent["queue_offset"] + 1]
    assert (found[0]["properties"]["TAGS"], found[0]["properties"]["KEYS"]) == ("paid", "k1 k2")
    text = lines(penstock(*consume.split(), "-t", filled, *place, "-c", 1))
    assert len(text) == 1
    assert "two shirts, grün" in text[0]
    assert "has no such queue" in penstock(*send.split(), "-t", filled, "-p", "x", "-i", 9).refused()


@pytest.mark.parametrize("verb", ["message print", "printMsg"])
def test_all_messages_of_a_topic_are_printed(penstock: Penstock, filled: str, verb: str) -> None:
    call = (*verb.split(), "-t", filled)
    found = penstock(*call, "--json").done().objects
    assert sorted(each["properties"]["KEYS"] for each in found) == sorted(f"key_{n} all" for n in range(10))
    assert len(penstock(*call, "-s", "a", "--json").done().objects) == 5
    assert "body" not in penstock(*call, "-d", "false", "--json").done().objects[0]
    middle = sorted(each["store_timestamp"] for each in found)[4]
    later = penstock(*call, "-b", middle, "--json").done().objects
    sooner = penstock(*call, "-e", middle - 1, "--json").done().objects
    assert len(later) + len(sooner) == 10
    assert penstock(*call, "-b", "now", "--json").done().objects in ([], later[-1:])
    assert "not a valid time" in penstock(*call, "-b", "yesterday").refused()


@pytest.mark.parametrize("verb", ["message print-queue", "printMsgByQueue"])
def test_the_messages_of_a_queue_are_printed_and_counted(penstock: Penstock, filled: str, verb: str) -> None:
    call = (*verb.split(), "-t", filled, "-a", "broker-a", "-i", 0)
    assert len(penstock(*call, "-p", "true", "-d", "true", "--json").done().objects) == 3
    assert penstock(*call, "-p", "false", "-f", "true", "--json").done().json == {"tags": {"a": 3}}
    assert lines(penstock(*call, "-p", "false", "-f", "true"))[1].split() == ["a", "3"]


def test_messages_are_found(penstock: Penstock, b: LocalBroker, filled: str) -> None:
    for verb in (("message", "by-key"), ("queryMsgByKey",)):
        (found,) = penstock(*verb, "-t", filled, "-k", "key_7", "--json").done().objects
        assert found["properties"]["KEYS"] == "key_7 all"
        assert len(penstock(*verb, "-t", filled, "-k", "all", "-m", 4, "--json").done().objects) == 4
        assert "keys key_7 all" in penstock(*verb, "-t", filled, "-k", "key_7").done().out
    unique = found["properties"]["UNIQ_KEY"]
    for verb in (("message", "by-id"), ("queryMsgById",)):
        assert penstock(*verb, "-i", found["msg_id"], "--json").done().json["msg_id"] == found["msg_id"]
        assert penstock(*verb, "-i", unique, "-t", filled, "--json").done().json["msg_id"] == found["msg_id"]
        missing = penstock(*verb, "-i", found["msg_id"][:-2] + "01").done()
        assert (missing.out, "there is no message" in missing.err) == ("", True)
        assert "is not a message id" in penstock(*verb, "-i", "xyz").refused()
        assert "--resend is not supported" in penstock(*verb, "-i", found["msg_id"], "-s", "true").refused()
    for verb in (("message", "by-unique-key"), ("queryMsgByUniqueKey",)):
        assert penstock(*verb, "-t", filled, "-i", unique, "--json").done().json["msg_id"] == found["msg_id"]
    place = ("-b", "broker-a", "-i", found["queue_id"], "-o", found["queue_offset"])
    for verb in (("message", "at"), ("queryMsgByOffset",)):
        assert penstock(*verb, "-t", filled, *place, "--json").done().json["msg_id"] == found["msg_id"]
        assert "there is no message at offset 99" in penstock(*verb, "-t", filled, *place[:-1], 99).done().err


def test_a_message_is_given_to_a_consumer(penstock: Penstock, consumed: tuple[str, PushConsumer], filled: str) -> None:
    group, consumer = consumed
    (found,) = penstock("message", "by-key", "-t", filled, "-k", "key_1", "--json").done().objects
    call = ("queryMsgById", "-i", found["msg_id"], "-g", group, "-d", consumer.client_id)
    assert penstock(*call, "--json").done().json["result"] == "CR_SUCCESS"
    assert "CR_SUCCESS after" in penstock(*call).done().out


# -- offsets ---------------------------------------------------------------------------------------------------


def test_offsets_are_shown_reset_set_and_cloned(
    penstock: Penstock, consumed: tuple[str, PushConsumer], filled: str
) -> None:
    group, consumer = consumed
    consumer.close()

    def committed(name: str) -> list[int]:
        rows = penstock("offset", "show", "-t", filled, "-g", name, "--json").done().json
        return [row["committed"] for row in rows]

    assert committed(group) == [3, 3, 2, 2]
    rows = penstock("offset", "show", "-t", filled, "--at", 0, "--json").done().json
    assert [(row["min_offset"], row["max_offset"], row["offset_at"]) for row in rows] == [
        (0, 3, 0),
        (0, 3, 0),
        (0, 2, 0),
        (0, 2, 0),
    ]
    assert len(lines(penstock("offset", "show", "-t", filled, "-g", group))) == 5
    moved = penstock("resetOffsetByTime", "-g", group, "-t", filled, "-s", 0, "--json").done().json
    assert [row["offset"] for row in moved] == [0, 0, 0, 0]
    assert committed(group) == [0, 0, 0, 0]
    penstock("offset", "reset", "-g", group, "-t", filled, "--to", -1, "-f", "false").done()
    assert committed(group) == [0, 0, 0, 0]  # without force an offset only moves backwards
    penstock("skipAccumulatedMessage", "-g", group, "-t", filled).done()
    assert committed(group) == [3, 3, 2, 2]
    place = ("-b", "broker-a", "-i", 1)
    assert "next offset" in penstock("offset", "set", "-g", group, "-t", filled, *place, "--to", 1).done().out
    assert committed(group) == [3, 1, 2, 2]
    penstock("cloneGroupOffset", "-s", group, "-d", f"{group}-2", "-t", filled, "-o", "true").done()
    assert committed(f"{group}-2") == [3, 1, 2, 2]


# -- clusters --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("verb", [("cluster", "list"), ("clusterList",)])
def test_brokers_are_listed(penstock: Penstock, b: LocalBroker, verb: tuple[str, ...]) -> None:
    (row,) = penstock(*verb, "--json").done().json
    assert (row["cluster"], row["broker_name"], row["broker_id"], row["address"]) == (
        "DefaultCluster",
        "broker-a",
        0,
        b.address,
    )
    assert "brokerVersionDesc" in row["figures"]
    assert b.address in penstock(*verb).done().out
    assert "bootTimestamp" in penstock(*verb, "-m").done().out


def test_brokers_and_name_servers_are_looked_at_and_set(penstock: Penstock, b: LocalBroker) -> None:
    for verb in (("brokerStatus",), ("cluster", "status")):
        assert "bootTimestamp" in penstock(*verb, "-b", b.address, "--json").done().json[b.address]
        assert "bootTimestamp" in penstock(*verb, "-c", "DefaultCluster").done().out
    penstock("updateBrokerConfig", "-b", b.address, "-k", "transactionCheckMax", "-v", 7).done()
    for verb in (("getBrokerConfig",), ("cluster", "config")):
        assert penstock(*verb, "-b", b.address, "--json").done().json[b.address]["transactionCheckMax"] == "7"
    assert "topics of broker-a lost" in penstock("wipeWritePerm", "-b", "broker-a").done().out
    assert "topics of broker-a regained" in penstock("addWritePerm", "-b", "broker-a").done().out
    assert b.namesrv in penstock("getNamesrvConfig", "--json").done().json
    penstock("updateNamesrvConfig", "-k", "autoCreateTopicEnable", "-v", "true").done()
    penstock("updateKvConfig", "-s", "mine", "-k", "a", "-v", 1).done()
    assert penstock("cluster", "kv", "-s", "mine", "--json").done().json == {"a": "1"}
    penstock("deleteKvConfig", "-s", "mine", "-k", "a").done()
    assert penstock("cluster", "kv", "-s", "mine", "--json").done().json == {}


# -- what does not work ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (("topic", "status", "-t", "%DLQ%nobody"), "no broker has topic '%DLQ%nobody'"),
        (("topic", "create", "-t", "x", "-c", "nowhere"), "no master broker in cluster 'nowhere'"),
        (("group", "connections", "-g", "nobody"), "CONSUMER_NOT_ONLINE"),
        (("cluster", "status", "-b", "127.0.0.1:1"), "cannot connect to 127.0.0.1:1"),
        (("topic", "status"), "--topic"),
        (("offset", "reset", "-g", "g", "-t", "t", "--to", "never"), "not a valid time"),
        (("updateTopic", "-t", "x", "-o", "perhaps"), "perhaps"),
    ],
)
def test_what_does_not_work_is_one_sentence(penstock: Penstock, call: tuple[str, ...], sentence: str) -> None:
    assert sentence in penstock(*call).refused()


def test_a_cluster_that_is_not_there_is_one_sentence(run: Run) -> None:
    assert "Cannot reach name server" in run("topicList", "-n", "127.0.0.1:1").refused()
    assert "must be HOST:PORT" in run("topicList", "-n", "nowhere").refused()
