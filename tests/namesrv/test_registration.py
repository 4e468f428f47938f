"""Brokers that register over the network, expire and unregister."""

from __future__ import annotations

import struct
import zlib

import msgspec
import pytest
from namesrv.conftest import Clock, crc, identity, name_server, peer, topics
from support.loopback import until

from penstock.namesrv import RegisteredBroker
from penstock.protocol.bodies.routes import RegisterBrokerBody
from penstock.protocol.codes import RequestCode, ResponseCode
from penstock.remoting.event_loop import run


@pytest.mark.parametrize("compressed", [False, True])
def test_two_brokers_register_and_are_found(compressed: bool) -> None:
    async def main() -> None:
        async with name_server() as (_, address), peer(address) as a, peer(address) as b, peer(address) as client:
            reply = await a.register("broker-a", topics("T", "U"), compressed=compressed)
            assert (reply.ext, msgspec.json.decode(reply.body)) == ({}, {"table": {}})
            await b.register("broker-b", topics("T"), compressed=compressed)
            assert await client.brokers_of("T") == ["broker-a", "broker-b"]
            assert await client.brokers_of("U") == ["broker-a"]

    run(main())


def test_brokers_of_this_machine_may_have_a_port_of_their_own_for_nothing_else() -> None:
    async def main() -> None:
        async with name_server() as (server, address):
            own = await server.start_registration()
            async with peer(own) as a, peer(address) as client:
                await a.register("broker-a", topics("T"))
                assert await client.brokers_of("T") == ["broker-a"]
                reply = await a.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "T"})
                assert reply.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
            await until(lambda: not server.routes.brokers)

    run(main())


def test_a_broker_that_falls_silent_is_forgotten_after_two_minutes(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        clock = Clock()
        async with name_server(clock) as (server, address), peer(address) as a, peer(address) as b:
            await a.register("broker-a", topics("T"))
            await b.register("broker-b", topics("T"))
            clock.now += 100
            await b.register("broker-b", topics("T"))
            clock.now += 20
            server.expire()
            assert await a.brokers_of("T") == ["broker-a", "broker-b"]  # 120 s and not one more
            clock.now += 1
            server.expire()
            assert await a.brokers_of("T") == ["broker-b"]
            await a.register("broker-a", topics("T"))
            assert await a.brokers_of("T") == ["broker-a", "broker-b"]

    run(main())
    assert "broker broker-a (id 0) expired: silent for 120 s" in caplog.text


def test_a_broker_whose_connection_closes_is_gone_at_once() -> None:
    async def main() -> None:
        async with name_server() as (server, address), peer(address) as client:
            async with peer(address) as a:
                await a.register("broker-a", topics("T"))
                await a.register("broker-a", topics("T"))
                assert await client.brokers_of("T") == ["broker-a"]
            await until(lambda: not server.routes.brokers)
            assert await client.brokers_of("T") == []

    run(main())


def test_a_broker_that_came_back_on_a_new_connection_stays_when_the_old_one_ends() -> None:
    async def main() -> None:
        async with name_server() as (server, address), peer(address) as old, peer(address) as new:
            await old.register("broker-a", topics("T"))
            await new.register("broker-a", topics("T"))
            [its_end] = [each for each in server._server.connections if each.peer == old.connection.local]
            old.connection.close()
            await until(lambda: its_end.closed)
            assert await new.brokers_of("T") == ["broker-a"]

    run(main())


def test_a_broker_unregisters() -> None:
    async def main() -> None:
        async with name_server() as (_, address), peer(address) as a:
            await a.register("broker-a", topics("T"))
            await a.ok(RequestCode.UNREGISTER_BROKER, identity("broker-b"))
            assert await a.brokers_of("T") == ["broker-a"]
            await a.ok(RequestCode.UNREGISTER_BROKER, identity("broker-a"))
            assert await a.brokers_of("T") == []

    run(main())


def test_a_slave_is_told_where_its_master_is() -> None:
    async def main() -> None:
        async with name_server() as (_, address), peer(address) as a:
            alone = await a.register("broker-a", topics(), brokerId="1", brokerAddr="127.0.0.1:5")
            assert alone.ext == {}
            await a.register("broker-a", topics("T"))
            reply = await a.register("broker-a", topics(), brokerId="1", brokerAddr="127.0.0.1:5")
            master = identity("broker-a")
            assert reply.ext == {"haServerAddr": master["haServerAddr"], "masterAddr": master["brokerAddr"]}

    run(main())


def test_a_broker_asks_whether_it_has_to_register() -> None:
    async def main() -> None:
        clock = Clock()
        async with name_server(clock) as (server, address), peer(address) as a:
            version = {"counter": 7, "timestamp": 1}

            async def ask(**changes: int) -> tuple[str, bytes]:
                body = msgspec.json.encode(version | changes)
                reply = await a.ok(RequestCode.QUERY_DATA_VERSION, identity("broker-a"), body)
                return reply.ext["changed"], bytes(reply.body)

            assert await ask() == ("true", b"")
            await a.register("broker-a", topics("T", counter=7))
            changed, known = await ask(counter=8)
            assert (changed, msgspec.json.decode(known)) == ("true", version)
            clock.now += 100
            assert (await ask())[0] == "false"  # which also says that it is still there
            clock.now += 100
            server.expire()
            assert await a.brokers_of("T") == ["broker-a"]

    run(main())


def test_nobody_takes_the_address_of_the_broker_of_this_process_under_another_name() -> None:
    async def main() -> None:
        async with name_server() as (server, address), peer(address) as client:
            local = RegisteredBroker(name="broker-a", address="127.0.0.1:10911")
            server.register_local(local, topics("T"))
            for name, number in (("other", "0"), ("broker-a", "1")):
                fields = identity(name, brokerAddr=local.address, brokerId=number)
                for code in (RequestCode.REGISTER_BROKER, RequestCode.UNREGISTER_BROKER):
                    reply = await client.ask(code, fields, RegisterBrokerBody(topics=topics("U")).to_bytes())
                    assert reply.code == ResponseCode.NO_PERMISSION
            assert await client.brokers_of("T") == ["broker-a"]
            assert server.routes.brokers == [local]

    run(main())


def test_the_broker_of_this_process_registers_directly_and_nobody_takes_its_name() -> None:
    async def main() -> None:
        clock = Clock()
        async with name_server(clock) as (server, address), peer(address) as client:
            local = RegisteredBroker(name="broker-a", address="127.0.0.1:10911")
            server.register_local(local, topics("T", "U"))
            server.register_local(local, topics("T", counter=2))
            clock.now += 1e9
            server.expire()
            assert await client.brokers_of("T") == ["broker-a"]
            assert await client.brokers_of("U") == []
            for code in (RequestCode.REGISTER_BROKER, RequestCode.UNREGISTER_BROKER):
                reply = await client.ask(code, identity("broker-a"))
                assert reply.code == ResponseCode.NO_PERMISSION
            assert await client.brokers_of("T") == ["broker-a"]
            server.unregister_local(local)
            assert await client.brokers_of("T") == []

    run(main())


GOOD = RegisterBrokerBody(topics=topics("T")).to_bytes()
BAD_BODIES = {
    "no JSON": (b"garbage", "false"),
    "a list": (b"[]", "false"),
    "wrong types": (b'{"topicConfigSerializeWrapper":{"topicConfigTable":{"T":{"perm":"much"}}}}', "false"),
    "topics that are a list": (b'{"topicConfigSerializeWrapper":{"topicConfigTable":[]}}', "false"),
    "filter servers that are a number": (b'{"filterServerList":7}', "false"),
    "deep nesting": (b'{"topicConfigSerializeWrapper":' + b"[" * 5000, "false"),
    "not compressed": (GOOD, "true"),
    "cut off": (RegisterBrokerBody(topics=topics("T")).to_bytes(compressed=True)[:-8], "true"),
    "a bomb": (zlib.compress(bytes(80 << 20)), "true"),
    "a length beyond its end": (zlib.compress(struct.pack(">i", 1 << 30)), "true"),
    "a negative length": (zlib.compress(struct.pack(">i", -5)), "true"),
    "a number of topics beyond its end": (
        zlib.compress(struct.pack(">i", 2) + b"{}" + struct.pack(">i", 1 << 30)),
        "true",
    ),
    "a topic without numbers": (
        zlib.compress(struct.pack(">i", 2) + b"{}" + struct.pack(">ii", 1, 6) + b"a b c " + struct.pack(">i", 0)),
        "true",
    ),
}


@pytest.mark.parametrize("name", BAD_BODIES)
def test_a_malformed_registration_is_refused_and_changes_nothing(name: str) -> None:
    body, compressed = BAD_BODIES[name]

    async def main() -> None:
        async with name_server() as (server, address), peer(address) as a:
            reply = await a.ask(RequestCode.REGISTER_BROKER, identity("broker-a", compressed=compressed), body)
            assert reply.code == ResponseCode.SYSTEM_ERROR
            assert reply.remark
            assert server.routes.brokers == []
            await a.register("broker-a", topics("T"))

    run(main())


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"bodyCrc32": str(int(crc(GOOD)) ^ 1)}, "the registration of broker-a is damaged: its CRC differs"),
        ({"brokerName": "../etc"}, "'../etc' is not a valid broker or cluster name"),
        ({"clusterName": ""}, "'' is not a valid broker or cluster name"),
        ({"brokerAddr": "[::1]:10911"}, "is not an address that all clients can use"),
        ({"brokerAddr": "127.0.0.1"}, "is not an address that all clients can use"),
        ({"brokerAddr": "127.0.0.1:0"}, "is not an address that all clients can use"),
        ({"brokerAddr": "127.0.0.1:65536"}, "is not an address that all clients can use"),
        ({"brokerId": "-1"}, "a broker's id is 0 for a master"),
        ({"brokerId": "first"}, "wrong field 'brokerId'"),
    ],
)
def test_a_broker_that_clients_could_not_use_is_refused(fields: dict[str, str], sentence: str) -> None:
    async def main() -> None:
        async with name_server() as (server, address), peer(address) as a:
            reply = await a.ask(RequestCode.REGISTER_BROKER, identity("broker-a", **fields), GOOD)
            assert reply.code == ResponseCode.SYSTEM_ERROR
            assert sentence in (reply.remark or "")
            assert server.routes.brokers == []

    run(main())


def test_the_crc_is_javas_and_0_means_none() -> None:
    async def main() -> None:
        async with name_server() as (server, address), peer(address) as a:
            for value in ("0", crc(GOOD)):
                await a.ok(RequestCode.REGISTER_BROKER, identity("broker-a", bodyCrc32=value), GOOD)
            assert len(server.routes.brokers) == 1

    run(main())


def test_a_broker_without_a_body_and_topics_without_a_legal_name_are_taken_as_they_are() -> None:
    async def main() -> None:
        async with name_server() as (server, address), peer(address) as a:
            await a.ok(RequestCode.REGISTER_BROKER, identity("broker-a"))
            await a.register("broker-b", topics("T", "../../etc", "a b"))
            assert [broker.name for broker in server.routes.brokers] == ["broker-a", "broker-b"]
            assert server.routes.topics() == ["T"]

    run(main())
