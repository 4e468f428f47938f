"""The admin client: inspects and changes topics, groups, offsets, messages and brokers of a cluster.

    async with Admin("127.0.0.1:9876") as admin:
        await admin.topics.create("orders", queues=8)
        progress = await admin.groups.progress("warehouse")

Each method queries the brokers or name servers that have the data, and merges their answers. Every method can raise
Unreachable, NoAnswer, NoRoute, or Refused, which has the response code. The client is not thread-safe: use it from its
event loop's thread only.
"""

from __future__ import annotations

from typing import Self

from penstock.client.admin.brokers import ClusterAdmin
from penstock.client.admin.groups import GroupAdmin
from penstock.client.admin.messages import MessageAdmin
from penstock.client.admin.topics import OffsetAdmin, TopicAdmin
from penstock.client.client_instance import ClientInstance, ClientLifecycle
from penstock.client.config import Namesrv


class Admin(ClientLifecycle):
    """The admin client. Start it once and close it once; `async with` does both."""

    def __init__(self, namesrv: Namesrv = None) -> None:
        self._instance = instance = ClientInstance(namesrv)
        self.cluster = ClusterAdmin(instance)
        self.topics = TopicAdmin(instance, self.cluster)
        self.groups = GroupAdmin(instance, self.cluster, self.topics)
        self.offsets = OffsetAdmin(instance)
        self.messages = MessageAdmin(instance)

    async def start(self) -> Self:
        """Does nothing: connections are opened on first use."""
        return self

    async def close(self) -> None:
        await self._instance.close()
