"""Administers brokers and name servers: addresses, runtime figures, settings, and KV configuration."""

from __future__ import annotations

from collections.abc import Mapping

from penstock.client.client_instance import ClientInstance
from penstock.errors import NoRoute
from penstock.protocol import fields
from penstock.protocol.bodies.admin import HaRuntimeInfo, KVTable
from penstock.protocol.bodies.routes import MASTER, ClusterInfo
from penstock.protocol.bodies.stats import COUNTERS_KEY, BrokerCounters, BrokerStatsData
from penstock.protocol.codes import RequestCode, ResponseCode
from penstock.protocol.headers.admin import GetBrokerRuntimeInfo, ViewBrokerStats
from penstock.protocol.headers.namesrv import BrokerName, KvKey, KvNamespace, KvReply, PutKv

_FOUND_OR_NOT = frozenset({ResponseCode.SUCCESS, ResponseCode.QUERY_NOT_FOUND})


class ClusterAdmin:
    """Inspects and changes brokers and name servers. Broker addresses are `host:port`."""

    def __init__(self, instance: ClientInstance) -> None:
        self._instance = instance

    async def info(self) -> ClusterInfo:
        """Returns all brokers with their addresses and clusters."""
        reply = await self._instance.name_servers.request(RequestCode.GET_BROKER_CLUSTER_INFO, {})
        return ClusterInfo.from_bytes(reply.body)

    async def masters(self, cluster: str | None = None) -> dict[str, str]:
        """Returns the masters' addresses by broker name, of one cluster or of all clusters. Raises NoRoute if there are
        none.
        """
        info = await self.info()
        names = sorted(info.broker_addr_table) if cluster is None else sorted(info.cluster_addr_table.get(cluster, []))
        masters = {
            name: data.broker_addrs[MASTER]
            for name in names
            if (data := info.broker_addr_table.get(name)) is not None and MASTER in data.broker_addrs
        }
        if not masters:
            where = "" if cluster is None else f" in cluster '{cluster}'"
            raise NoRoute(
                f"no master broker{where}; there are clusters: {', '.join(info.cluster_addr_table) or 'none'}"
            )
        return masters

    async def targets(self, cluster: str | None = None, broker: str | None = None) -> list[str]:
        """Returns `broker` alone if given, else the masters' addresses of `cluster`, else those of all clusters."""
        return [broker] if broker is not None else list((await self.masters(cluster)).values())

    # -- one broker ------------------------------------------------------------------------------------------

    async def runtime_info(self, broker: str) -> dict[str, str]:
        """Returns a broker's runtime figures, under RocketMQ's names."""
        reply = await self._instance.request(broker, RequestCode.GET_BROKER_RUNTIME_INFO)
        return dict(sorted(KVTable.from_bytes(reply.body).table.items()))

    async def counters(self, broker: str) -> BrokerCounters | None:
        """Returns what a broker has counted since its start; None if it is not a Penstock broker."""
        header = GetBrokerRuntimeInfo(penstock_counters=True)
        reply = await self._instance.request(broker, RequestCode.GET_BROKER_RUNTIME_INFO, header)
        text = KVTable.from_bytes(reply.body).table.get(COUNTERS_KEY)
        return None if text is None else BrokerCounters.from_bytes(text.encode())

    async def replication(self, broker: str) -> HaRuntimeInfo:
        """Returns a master's slaves, or a slave's master, with the replication lag. RocketMQ 4 brokers do not support
        this.
        """
        reply = await self._instance.request(broker, RequestCode.GET_BROKER_HA_STATUS)
        return HaRuntimeInfo.from_bytes(reply.body)

    async def broker_config(self, broker: str) -> dict[str, str]:
        """Returns a broker's settings."""
        reply = await self._instance.request(broker, RequestCode.GET_BROKER_CONFIG)
        return _properties(bytes(reply.body))

    async def update_broker_config(self, broker: str, changes: Mapping[str, str]) -> None:
        """Changes a broker's settings while it runs. Raises Refused for a setting that needs a restart."""
        await self._instance.request(broker, RequestCode.UPDATE_BROKER_CONFIG, body=_text(changes))

    async def broker_stats(self, broker: str, name: str, key: str) -> BrokerStatsData:
        """Returns one statistic over the last minute, hour and day. An example of (`name`, `key`) is ("TOPIC_PUT_NUMS",
        "orders").
        """
        header = ViewBrokerStats(stats_name=name, stats_key=key)
        reply = await self._instance.request(broker, RequestCode.VIEW_BROKER_STATS_DATA, header)
        return BrokerStatsData.from_bytes(reply.body)

    async def wipe_write_perm(self, broker_name: str) -> int:
        """Removes a broker's write permission at all name servers. Returns the number of topics affected."""
        header = fields.write(BrokerName(broker_name=broker_name))
        replies = await self._instance.name_servers.request_all(RequestCode.WIPE_WRITE_PERM_OF_BROKER, header)
        return max(int(reply.ext.get("wipeTopicCount", "0")) for reply in replies.values())

    async def add_write_perm(self, broker_name: str) -> int:
        """Restores a broker's write permission at all name servers. Returns the number of topics affected."""
        header = fields.write(BrokerName(broker_name=broker_name))
        replies = await self._instance.name_servers.request_all(RequestCode.ADD_WRITE_PERM_OF_BROKER, header)
        return max(int(reply.ext.get("addTopicCount", "0")) for reply in replies.values())

    # -- name servers ----------------------------------------------------------------------------------------

    async def namesrv_config(self) -> dict[str, dict[str, str]]:
        """Returns the settings of each name server, by its address."""
        replies = await self._instance.name_servers.request_all(RequestCode.GET_NAMESRV_CONFIG, {})
        return {address: _properties(bytes(reply.body)) for address, reply in replies.items()}

    async def update_namesrv_config(self, changes: Mapping[str, str]) -> None:
        """Changes settings of all name servers while they run."""
        await self._instance.name_servers.request_all(RequestCode.UPDATE_NAMESRV_CONFIG, {}, _text(changes))

    async def get_kv(self, namespace: str, key: str) -> str | None:
        """Returns one value of the name servers' KV configuration, or None if the key is missing."""
        header = fields.write(KvKey(namespace=namespace, key=key))
        reply = await self._instance.name_servers.request(RequestCode.GET_KV_CONFIG, header, good=_FOUND_OR_NOT)
        return None if reply.code == ResponseCode.QUERY_NOT_FOUND else reply.read(KvReply).value

    async def list_kv(self, namespace: str) -> dict[str, str]:
        """Returns all KV entries of a namespace."""
        header = fields.write(KvNamespace(namespace=namespace))
        reply = await self._instance.name_servers.request(
            RequestCode.GET_KVLIST_BY_NAMESPACE, header, good=_FOUND_OR_NOT
        )
        return {} if reply.code == ResponseCode.QUERY_NOT_FOUND else dict(KVTable.from_bytes(reply.body).table)

    async def put_kv(self, namespace: str, key: str, value: str) -> None:
        """Stores a KV entry at all name servers."""
        header = fields.write(PutKv(namespace=namespace, key=key, value=value))
        await self._instance.name_servers.request_all(RequestCode.PUT_KV_CONFIG, header)

    async def delete_kv(self, namespace: str, key: str) -> None:
        """Deletes a KV entry at all name servers."""
        header = fields.write(KvKey(namespace=namespace, key=key))
        await self._instance.name_servers.request_all(RequestCode.DELETE_KV_CONFIG, header)


def _properties(body: bytes) -> dict[str, str]:
    """Parses settings from a broker: lines of `name=value`, without escapes."""
    lines = (line.partition("=") for line in body.decode("utf-8", "replace").splitlines())
    return {name.strip(): value for name, equals, value in lines if equals}


def _text(changes: Mapping[str, str]) -> bytes:
    """Encodes settings for a broker: Java properties, where a backslash escapes."""
    lines = (f"{name}={value}".replace("\\", "\\\\").replace("\n", "\\n") for name, value in changes.items())
    return "\n".join(lines).encode()
