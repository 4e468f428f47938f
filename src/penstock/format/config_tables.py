"""The JSON files under `config/` as typed values.

Brokers and tools also send each other these tables: topics, groups and data versions have the same form in a file and
in the body of a command. Each table has `from_json` and `to_json`. Unknown fields, such as those of 5.x, are kept in
`extra` and written back, so a round trip loses nothing. `from_json` raises ValueError or msgspec.ValidationError with a
phrase that says what is wrong.
"""

from __future__ import annotations

import functools
from typing import Any, Self, TypeVar

import msgspec

from penstock.format.constants import Int32, Int64
from penstock.format.msgspec_warm_up import prepared

Json = dict[str, Any]
"""A JSON object. Maps by queue id or delay level have int keys when written, and int or text keys when read."""

_NOT_JSON = "*"
"""The encoded name of `extra`. No JSON field has this name."""


@functools.cache
def _names(kind: type[Bean]) -> tuple[tuple[str, str], ...]:
    """Returns the JSON and Python names of a bean's fields. Cached, because a table has thousands of beans."""
    return tuple((field.encode_name, field.name) for field in msgspec.structs.fields(kind))


class Bean(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """An object that writes all its fields, sorted by name, like RocketMQ."""

    extra: Json = msgspec.field(default_factory=dict, name=_NOT_JSON)

    @classmethod
    def from_json(cls, document: object) -> Self:
        bean = msgspec.convert(document, prepared(cls))
        assert isinstance(document, dict)  # convert accepts nothing else
        known = [encoded for encoded, _ in _names(cls)]
        return msgspec.structs.replace(bean, extra=_rest(document, *known))

    def to_json(self) -> Json:
        known = {encoded: getattr(self, name) for encoded, name in _names(type(self)) if encoded != _NOT_JSON}
        return _sorted({**self.extra, **known})


class DataVersion(Bean, frozen=True, kw_only=True):
    """The version of a table, which other brokers compare with their own."""

    counter: Int64 = 0
    timestamp: Int64 = 0

    def next(self, now_ms: int) -> DataVersion:
        return msgspec.structs.replace(self, counter=self.counter + 1, timestamp=now_ms)

    @property
    def state_version(self) -> int:
        """The epoch of the master that sends the table, as since RocketMQ 5; 0 if there is none."""
        value = self.extra.get("stateVersion", 0)
        return value if isinstance(value, int) else 0

    def in_epoch(self, epoch: int) -> DataVersion:
        """Returns this version with the epoch of a master; without one if it is 0, as for RocketMQ 4.9."""
        others = {name: value for name, value in self.extra.items() if name != "stateVersion"}
        return msgspec.structs.replace(self, extra={**others, "stateVersion": epoch} if epoch else others)


class TopicConfig(Bean, frozen=True, kw_only=True):
    """One topic.

    The bits of `perm` are 1 inherit, 2 write, 4 read, 8 priority. The bits of `sys_flag` are 1 unit, 2 unit
    subscription.
    """

    name: str = msgspec.field(name="topicName")
    read_queue_nums: Int32 = 16
    write_queue_nums: Int32 = 16
    perm: Int32 = 6
    order: bool = False
    filter_type: str = msgspec.field(default="SINGLE_TAG", name="topicFilterType")
    sys_flag: Int32 = msgspec.field(default=0, name="topicSysFlag")


class SubscriptionGroup(Bean, frozen=True, kw_only=True):
    """One consumer group."""

    name: str = msgspec.field(name="groupName")
    consume_enable: bool = True
    consume_from_min_enable: bool = True
    consume_broadcast_enable: bool = True
    retry_queue_nums: Int32 = 1
    retry_max_times: Int32 = 16
    broker_id: Int64 = 0
    which_broker_when_consume_slowly: Int64 = 1
    notify_consumer_ids_changed_enable: bool = True


class TopicConfigs(msgspec.Struct, kw_only=True):
    """topics.json: the topics by name."""

    topics: dict[str, TopicConfig] = {}
    version: DataVersion = DataVersion()
    extra: Json = {}

    @classmethod
    def from_json(cls, document: Json) -> TopicConfigs:
        topics = _beans(TopicConfig, document, "topicConfigTable", "topicName")
        rest = _rest(document, "topicConfigTable", "dataVersion")
        return cls(topics=topics, version=_version(document), extra=rest)

    def to_json(self) -> Json:
        table = {name: topic.to_json() for name, topic in self.topics.items()}
        return _sorted({**self.extra, "dataVersion": self.version.to_json(), "topicConfigTable": table})


class SubscriptionGroups(msgspec.Struct, kw_only=True):
    """subscriptionGroup.json: the consumer groups by name."""

    groups: dict[str, SubscriptionGroup] = {}
    version: DataVersion = DataVersion()
    extra: Json = {}

    @classmethod
    def from_json(cls, document: Json) -> SubscriptionGroups:
        groups = _beans(SubscriptionGroup, document, "subscriptionGroupTable", "groupName")
        rest = _rest(document, "subscriptionGroupTable", "dataVersion")
        return cls(groups=groups, version=_version(document), extra=rest)

    def to_json(self) -> Json:
        table = {name: group.to_json() for name, group in self.groups.items()}
        return _sorted({**self.extra, "dataVersion": self.version.to_json(), "subscriptionGroupTable": table})


class ConsumerOffsets(msgspec.Struct, kw_only=True):
    """consumerOffset.json: the next queue offset to consume, by (topic, group) and queue id."""

    offsets: dict[tuple[str, str], dict[int, int]] = {}
    extra: Json = {}

    @classmethod
    def from_json(cls, document: Json) -> ConsumerOffsets:
        offsets = {}
        for name, queues in _named(_table(document, "offsetTable")).items():
            topic, _, group = name.partition("@")
            offsets[topic, group] = _numbers(queues, name)
        return cls(offsets=offsets, extra=_rest(document, "offsetTable"))

    def to_json(self) -> Json:
        table = {f"{topic}@{group}" if group else topic: queues for (topic, group), queues in self.offsets.items()}
        return _sorted({**self.extra, "offsetTable": table})


class DelayOffsets(msgspec.Struct, kw_only=True):
    """delayOffset.json: the next queue offset to deliver in SCHEDULE_TOPIC_XXXX, by delay level."""

    offsets: dict[int, int] = {}
    extra: Json = {}

    @classmethod
    def from_json(cls, document: Json) -> DelayOffsets:
        offsets = _numbers(_table(document, "offsetTable"), "offsetTable")
        return cls(offsets=offsets, extra=_rest(document, "offsetTable"))

    def to_json(self) -> Json:
        return _sorted({**self.extra, "offsetTable": self.offsets})


class ConsumerFilters(msgspec.Struct, kw_only=True):
    """consumerFilter.json: consumers' filters by topic. Penstock keeps them, but does not interpret them."""

    topics: Json = {}
    extra: Json = {}

    @classmethod
    def from_json(cls, document: Json) -> ConsumerFilters:
        name = "filterDataByTopic"
        return cls(topics=_table(document, name), extra=_rest(document, name))

    def to_json(self) -> Json:
        return _sorted({**self.extra, "filterDataByTopic": self.topics})


B = TypeVar("B", bound=Bean)


def _beans(kind: type[B], document: Json, table: str, name_field: str) -> dict[str, B]:
    beans = {}
    for name, fields in _named(_table(document, table)).items():
        named = {name_field: name, **fields} if isinstance(fields, dict) else fields
        beans[name] = kind.from_json(named)
    return beans


def _version(document: Json) -> DataVersion:
    return DataVersion.from_json(document.get("dataVersion", {}))


def _table(document: Json, name: str) -> Json:
    table = document.get(name, {})
    if not isinstance(table, dict):
        raise ValueError(f"{name} is not an object")
    return table


def _numbers(table: object, name: str) -> dict[int, int]:
    if not isinstance(table, dict) or not all(type(value) is int for value in table.values()):
        raise ValueError(f"{name} is not a map of numbers")
    return {int(str(key)): value for key, value in table.items()}


def _named(table: Json) -> Json:
    if not all(isinstance(name, str) for name in table):
        raise ValueError("a name is not in quotes")
    return table


def _rest(document: Json, *known: str) -> Json:
    return {name: value for name, value in _named(document).items() if name not in known}


def _sorted(document: Json) -> Json:
    return dict(sorted(document.items()))
