"""Queries of clients and tools."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from namesrv.conftest import TEMPLATE, identity, name_server, peer, topics

from penstock.format.config_tables import DataVersion, TopicConfigs
from penstock.namesrv import RegisteredBroker
from penstock.protocol.codes import RequestCode, ResponseCode
from penstock.remoting.event_loop import run

A = RegisteredBroker(name="broker-a", address="127.0.0.1:10911")
B = RegisteredBroker(name="broker-b", address="127.0.0.1:10921")


def with_template(counter: int = 1, perm: int = 7, queues: int = 8) -> TopicConfigs:
    template = msgspec.structs.replace(TEMPLATE, perm=perm, read_queue_nums=queues, write_queue_nums=queues)
    table = topics("T").topics | {"TBW102": template}
    return TopicConfigs(topics=table, version=DataVersion(counter=counter))


def test_a_route_is_strict_json_with_the_ids_in_quotes() -> None:
    async def main() -> None:
        async with name_server() as (server, address), peer(address) as client:
            server.register_local(A, topics("T"))
            for extra in ({}, {"acceptStandardJsonOnly": "true"}):
                reply = await client.ok(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "T"} | extra)
                assert b'"brokerAddrs":{"0":"127.0.0.1:10911"}' in reply.body
                assert msgspec.json.decode(reply.body) == {
                    "brokerDatas": [
                        {
                            "brokerAddrs": {"0": "127.0.0.1:10911"},
                            "brokerName": "broker-a",
                            "cluster": "DefaultCluster",
                            "enableActingMaster": False,
                        }
                    ],
                    "filterServerTable": {},
                    "queueDatas": [
                        {
                            "brokerName": "broker-a",
                            "perm": 6,
                            "readQueueNums": 4,
                            "writeQueueNums": 4,
                            "topicSysFlag": 0,
                        }
                    ],
                }

    run(main())


def test_the_order_of_an_ordered_topic_stands_in_its_route() -> None:
    async def main() -> None:
        async with name_server() as (server, address), peer(address) as client:
            server.register_local(A, topics("T", "U"))
            order = {"namespace": "ORDER_TOPIC_CONFIG", "key": "T", "value": "broker-a:4"}
            await client.ok(RequestCode.PUT_KV_CONFIG, order)
            found = [await client.route(topic) for topic in ("T", "U")]
            assert [route and route.order_topic_conf for route in found] == ["broker-a:4", None]
            reply = await client.register("broker-b", topics())
            assert msgspec.json.decode(reply.body) == {"table": {"T": "broker-a:4"}}

    run(main())


def test_an_unknown_topic_gets_the_route_that_a_send_would_give_it() -> None:
    async def main() -> None:
        async with name_server() as (server, address), peer(address) as client:
            assert await client.route("new") is None  # no broker offers the template
            server.register_local(A, with_template())
            await client.register("broker-b", with_template(queues=2))
            await client.register("broker-c", topics("T"))
            route = await client.route("new")
            assert route is not None
            assert [
                (each.broker_name, each.read_queue_nums, each.write_queue_nums, each.perm) for each in route.queue_datas
            ] == [("broker-a", 4, 4, 6), ("broker-b", 2, 2, 6)]
            assert "new" not in server.routes.topics()

    run(main())


@pytest.mark.parametrize(
    "topic",
    ["%RETRY%group", "%DLQ%group", "SCHEDULE_TOPIC_XXXX", "RMQ_SYS_TRANS_HALF_TOPIC", "a b", "../up", "", "x" * 128],
)
def test_names_that_mean_something_to_a_broker_or_are_illegal_get_no_default_route(topic: str) -> None:
    async def main() -> None:
        async with name_server() as (server, address), peer(address) as client:
            server.register_local(A, with_template())
            assert await client.route(topic) is None
            assert await client.brokers_of("x" * 127) == ["broker-a"]

    run(main())


def test_without_auto_creation_there_is_no_default_route() -> None:
    async def main() -> None:
        async with name_server(auto_create_topic_enable=False) as (server, address), peer(address) as client:
            server.register_local(A, with_template())
            assert await client.route("new") is None
            assert await client.brokers_of("TBW102") == ["broker-a"]
        async with name_server() as (server, address), peer(address) as client:
            server.register_local(A, with_template(perm=6))  # a template that may not be inherited from
            assert await client.route("new") is None

    run(main())


def test_topics_are_listed_by_unit() -> None:
    async def main() -> None:
        async with name_server() as (server, address), peer(address) as client:

            async def ask(code: int) -> list[str]:
                found: list[str] = msgspec.json.decode((await client.ok(code)).body)["topicList"]
                return found

            flags = {"none": 0, "unit": 1, "subscribed": 2, "both": 3}
            table = {name: msgspec.structs.replace(TEMPLATE, name=name, sys_flag=flag) for name, flag in flags.items()}
            server.register_local(A, TopicConfigs(topics=table, version=DataVersion(counter=1)))
            assert await ask(RequestCode.GET_UNIT_TOPIC_LIST) == ["both", "unit"]
            assert await ask(RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST) == ["both", "subscribed"]
            assert await ask(RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST) == ["subscribed"]

    run(main())


def test_the_lists_of_brokers_and_topics() -> None:
    async def main() -> None:
        async with name_server() as (server, address), peer(address) as client:

            async def ask(code: int, **ext: str) -> Any:
                return msgspec.json.decode((await client.ok(code, ext)).body)

            assert await ask(RequestCode.GET_BROKER_CLUSTER_INFO) == {"brokerAddrTable": {}, "clusterAddrTable": {}}
            assert await ask(RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS) == {"topicList": []}
            server.register_local(A, topics("T", "U"))
            await client.register("broker-b", topics("T", "W"), clusterName="Other", brokerAddr=B.address)
            assert await ask(RequestCode.GET_BROKER_CLUSTER_INFO) == {
                "brokerAddrTable": {
                    name: {
                        "brokerAddrs": {"0": where},
                        "brokerName": name,
                        "cluster": cluster,
                        "enableActingMaster": False,
                    }
                    for name, where, cluster in (
                        ("broker-a", A.address, "DefaultCluster"),
                        ("broker-b", B.address, "Other"),
                    )
                },
                "clusterAddrTable": {"DefaultCluster": ["broker-a"], "Other": ["broker-b"]},
            }
            assert await ask(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER) == {"topicList": ["T", "U", "W"]}
            assert await ask(RequestCode.GET_TOPICS_BY_CLUSTER, cluster="Other") == {"topicList": ["T", "W"]}
            assert await ask(RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS) == {
                "topicList": ["DefaultCluster", "broker-a", "Other", "broker-b"],
                "brokerAddr": A.address,
            }

    run(main())


@pytest.mark.parametrize("code", [105, 224, 216, 100, 101, 102, 219, 205, 327, 103, 104, 322])
def test_a_request_without_its_fields_is_told_which(code: int) -> None:
    async def main() -> None:
        async with name_server() as (_, address), peer(address) as client:
            reply = await client.ask(code)
            assert reply.code == ResponseCode.SYSTEM_ERROR
            assert f"({code}) needs the field '" in (reply.remark or "")

    run(main())


def test_a_data_version_that_is_none_is_refused() -> None:
    async def main() -> None:
        async with name_server() as (_, address), peer(address) as client:
            for body in (b"", b"garbage", b'{"counter":"many"}', b"[]"):
                reply = await client.ask(RequestCode.QUERY_DATA_VERSION, identity("broker-a"), body)
                assert reply.code == ResponseCode.SYSTEM_ERROR

    run(main())
