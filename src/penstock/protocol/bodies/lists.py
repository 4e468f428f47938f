"""Bodies that are a list or a table of texts: topics, groups, clients, KV."""

from __future__ import annotations

from penstock.protocol.bodies.base import Body


class TopicList(Body, kw_only=True):
    """206, 224, 304, 305, 343. `broker_addr` is given by 304 only."""

    topic_list: list[str] = []
    broker_addr: str | None = None


class GroupList(Body, kw_only=True):
    """300."""

    group_list: list[str] = []


class ConsumerList(Body, kw_only=True):
    """38: the ids of a group's clients."""

    consumer_id_list: list[str] = []


class KVTable(Body, kw_only=True):
    """28, 219, and the reply to 103."""

    table: dict[str, str] = {}
