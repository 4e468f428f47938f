"""The route table on its own."""

from __future__ import annotations

import pytest
from namesrv.conftest import topics

from penstock.format.config_tables import TopicConfigs
from penstock.namesrv.route_table import FOREVER, RegisteredBroker, RouteTable
from penstock.protocol.codes import Refusal

A = RegisteredBroker(name="broker-a", address="127.0.0.1:1", ha_address="127.0.0.1:11")
SLAVE = RegisteredBroker(name="broker-a", address="127.0.0.1:2", broker_id=1)
B = RegisteredBroker(name="broker-b", address="127.0.0.1:3")
ELSEWHERE = RegisteredBroker(name="broker-c", address="127.0.0.1:4", cluster="Other")


@pytest.fixture
def table() -> RouteTable:
    return RouteTable()


def test_a_route_names_the_brokers_of_a_topic_and_their_queues(table: RouteTable) -> None:
    table.register(B, topics("T", read_queue_nums=2, write_queue_nums=3, perm=4, sys_flag=1), now=0)
    table.register(A, topics("T", "U"), now=0)
    route = table.route("T")
    assert route is not None
    assert [(each.broker_name, each.broker_addrs, each.cluster) for each in route.broker_datas] == [
        ("broker-a", {0: A.address}, "DefaultCluster"),
        ("broker-b", {0: B.address}, "DefaultCluster"),
    ]
    assert [
        (each.broker_name, each.read_queue_nums, each.write_queue_nums, each.perm, each.topic_sys_flag)
        for each in route.queue_datas
    ] == [("broker-a", 4, 4, 6, 0), ("broker-b", 2, 3, 4, 1)]
    assert table.route("unknown") is None


def test_a_slave_adds_its_address_and_learns_its_master(table: RouteTable) -> None:
    assert table.register(SLAVE, topics("ignored"), now=0) is None
    assert table.topics() == []
    assert table.register(A, topics("T"), now=0) is None
    assert table.register(SLAVE, topics("ignored", counter=2), now=0) == A
    route = table.route("T")
    assert route is not None
    assert route.broker_datas[0].broker_addrs == {0: A.address, 1: SLAVE.address}


def test_a_registration_adds_topics_and_a_new_version_changes_them(table: RouteTable) -> None:
    table.register(A, topics("T", "U", counter=1), now=0)
    table.register(A, topics("V", counter=2), now=0)  # brokers register single topics when they are made
    assert table.topics() == ["T", "U", "V"]
    table.register(A, topics("T", counter=2, perm=4), now=0)
    assert table.queues("T")["broker-a"].perm == 6  # the same version: nothing new
    table.register(A, topics("T", counter=3, perm=4), now=0)
    assert table.queues("T")["broker-a"].perm == 4


def test_a_whole_table_takes_away_what_is_not_in_it(table: RouteTable) -> None:
    table.register(B, topics("T"), now=0)
    table.register(A, topics("T", "U"), now=FOREVER, whole=True)
    table.register(A, topics("U", "V", counter=2), now=FOREVER, whole=True)
    assert table.topics() == ["T", "U", "V"]
    assert list(table.queues("T")) == ["broker-b"]


def test_a_broker_that_leaves_takes_its_topics_along(table: RouteTable) -> None:
    table.register(A, topics("T", "U"), now=0)
    table.register(B, topics("T"), now=0)
    assert not table.unregister(RegisteredBroker(name="broker-a", address=B.address))
    assert not table.unregister(RegisteredBroker(name="unknown", address="127.0.0.1:9"))
    assert table.unregister(A)
    assert table.topics() == ["T"]
    assert list(table.queues("T")) == ["broker-b"]
    assert table.cluster_info().cluster_addr_table == {"DefaultCluster": ["broker-b"]}


def test_topics_stay_while_a_slave_is_left(table: RouteTable) -> None:
    table.register(A, topics("T"), now=0)
    table.register(SLAVE, topics(), now=0)
    table.unregister(A)
    route = table.route("T")
    assert route is not None
    assert route.broker_datas[0].broker_addrs == {1: SLAVE.address}
    table.unregister(SLAVE)
    assert table.route("T") is None
    assert table.clusters() == []


def test_silent_brokers_expire_and_those_of_this_process_never_do(table: RouteTable) -> None:
    table.register(A, topics("T"), now=100)
    table.register(B, topics("T"), now=FOREVER)
    table.register(ELSEWHERE, topics("T"), now=100)
    table.touch(A.address, 150)
    table.touch(B.address, 150)
    table.touch("127.0.0.1:99", 150)
    assert table.expire(before=120) == [ELSEWHERE]
    assert table.expire(before=1e9) == [A]
    assert table.brokers == [B]
    assert (table.is_local(B), table.is_local(A)) == (True, False)


def test_brokers_go_with_the_connection_on_which_they_registered_last(table: RouteTable) -> None:
    first, second = object(), object()
    table.register(A, topics("T"), now=0, owner=first)
    table.register(B, topics("T"), now=0, owner=first)
    table.register(A, topics("T"), now=0, owner=second)
    assert table.drop_owner(first) == [B]
    assert table.drop_owner(second) == [A]
    assert table.topics() == []


def test_a_slave_at_the_same_address_becomes_master(table: RouteTable) -> None:
    table.register(SLAVE, topics(), now=0)
    promoted = RegisteredBroker(name="broker-a", address=SLAVE.address)
    table.register(promoted, topics("T"), now=0)
    assert table.cluster_info().broker_addr_table["broker-a"].broker_addrs == {0: SLAVE.address}


def test_a_master_that_comes_back_elsewhere_replaces_itself(table: RouteTable) -> None:
    table.register(A, topics("T"), now=0)
    moved = RegisteredBroker(name="broker-a", address="127.0.0.1:77", cluster="Other")
    table.register(moved, topics("U", counter=5), now=0)
    assert table.brokers == [moved]
    assert table.topics() == ["T", "U"]
    assert table.cluster_info().cluster_addr_table == {"Other": ["broker-a"]}
    assert not table.unregister(A)


def test_lists_by_cluster(table: RouteTable) -> None:
    table.register(A, topics("T"), now=0)
    table.register(B, topics("U"), now=0)
    table.register(ELSEWHERE, topics("T", "W"), now=0)
    assert table.topics_of("DefaultCluster") == ["T", "U"]
    assert table.topics_of("Other") == ["T", "W"]
    assert table.topics_of("nowhere") == []
    assert table.system_topics() == ["DefaultCluster", "broker-a", "broker-b", "Other", "broker-c"]


def test_a_topic_is_deleted_everywhere_or_in_one_cluster(table: RouteTable) -> None:
    for broker in (A, B, ELSEWHERE):
        table.register(broker, topics("T", "U"), now=0)
    table.delete_topic("T", "Other")
    assert list(table.queues("T")) == ["broker-a", "broker-b"]
    table.delete_topic("T")
    table.delete_topic("never heard of")
    assert table.topics() == ["U"]


def test_write_permission_is_wiped_and_given_back(table: RouteTable) -> None:
    table.register(A, topics("T", "U", perm=7), now=0)
    table.register(B, topics("T"), now=0)
    assert table.wipe_write_perm("broker-a") == 2
    assert {name: queues.perm for name, queues in table.queues("T").items()} == {"broker-a": 5, "broker-b": 6}
    assert table.wipe_write_perm("unknown") == 0
    assert table.add_write_perm("broker-a") == 2
    assert table.queues("U")["broker-a"].perm == 7


def test_filter_servers_are_passed_on(table: RouteTable) -> None:
    table.register(A, topics("T"), now=0, filter_servers=["127.0.0.1:5"])
    table.register(B, topics("T"), now=0)
    route = table.route("T")
    assert route is not None
    assert route.filter_server_table == {A.address: ["127.0.0.1:5"]}


def in_epoch(epoch: int) -> TopicConfigs:
    table = topics("T")
    table.version = table.version.in_epoch(epoch)
    return table


def test_a_master_that_was_replaced_in_a_later_epoch_is_refused_and_changes_nothing(table: RouteTable) -> None:
    other = RegisteredBroker(name=A.name, address="127.0.0.1:9")
    table.register(A, in_epoch(3), now=0)
    table.register(other, in_epoch(4), now=0)
    for late in (in_epoch(3), topics("T")):
        with pytest.raises(Refusal, match=r"has the master 127\.0\.0\.1:9 in epoch 4"):
            table.register(A, late, now=0)
    assert table.master_of(A.name) == other
    table.register(other, in_epoch(4), now=1)
    table.register(A, in_epoch(5), now=1)
    assert table.master_of(A.name) == A


def test_without_epochs_the_last_master_to_register_is_the_master(table: RouteTable) -> None:
    other = RegisteredBroker(name=A.name, address="127.0.0.1:9")
    table.register(A, topics("T"), now=0)
    table.register(other, topics("T"), now=0)
    assert table.master_of(A.name) == other
