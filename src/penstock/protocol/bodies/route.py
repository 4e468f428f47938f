"""Routes: which brokers have a topic, and how many queues there (105); the cluster as a whole (106)."""

from __future__ import annotations

from typing import Final

from penstock.format.java_ints import Int32, Int64
from penstock.protocol.bodies.base import Body

MASTER: Final = 0
"""The broker id that a producer sends to."""

PERM_PRIORITY: Final = 8
PERM_READ: Final = 4
PERM_WRITE: Final = 2
PERM_INHERIT: Final = 1


class BrokerData(Body, kw_only=True):
    """A broker's addresses by broker id."""

    broker_addrs: dict[Int64, str] = {}
    broker_name: str
    cluster: str = ""
    enable_acting_master: bool = False


class QueueData(Body, kw_only=True):
    """A topic's queues at one broker."""

    broker_name: str
    perm: Int32
    read_queue_nums: Int32
    write_queue_nums: Int32
    topic_sys_flag: Int32 = 0


class TopicRouteData(Body, kw_only=True):
    """105. `order_topic_conf` is `broker-a:4;broker-b:4` for a topic that is ordered across brokers."""

    broker_datas: list[BrokerData] = []
    filter_server_table: dict[str, list[str]] = {}
    queue_datas: list[QueueData] = []
    order_topic_conf: str | None = None


class ClusterInfo(Body, kw_only=True):
    """106: brokers by name, and their names by cluster."""

    broker_addr_table: dict[str, BrokerData] = {}
    cluster_addr_table: dict[str, list[str]] = {}
