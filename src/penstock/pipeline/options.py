"""Every option of `format("rocketmq")`, once: its name, where it counts, its default and what it means.

`Options.read(given)` makes the one typed object that everything else takes. The table in docs/reference/spark.md is
made from `OPTIONS`: `python -m penstock.pipeline.option_page` prints it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import partial
from typing import Any, Final

import msgspec

from penstock.errors import BadSettings
from penstock.pipeline.offset_words import Wish, parse_assign, parse_offsets, parse_times
from penstock.pipeline.option_spec import (
    Option,
    Use,
    at_least,
    duration,
    flag,
    one_of,
    pattern,
    size,
    text,
    words,
)

_READ, _BATCH, _STREAM, _WRITE, _ALL = Use.READ, Use.BATCH, Use.STREAM, Use.WRITE, Use.ALL
_MODES = ("PERMISSIVE", "FAILFAST", "DROPMALFORMED")
_starting, _ending = partial(parse_offsets, starting=True), partial(parse_offsets, starting=False)


def _paths(value: str) -> tuple[str, ...]:
    """One path or glob, several joined by commas, or what Spark makes of `load([...])`."""
    if value.startswith('["'):  # a glob may begin with a bracket too
        try:
            return tuple(msgspec.json.decode(value, type=list[str]))
        except msgspec.MsgspecError as error:
            raise ValueError(f"it is no list of paths ({error})") from None
    return words(value)


_NOT_SET: Final = "not set"

OPTIONS: Final = (
    Option("path", _ALL, _paths, _NOT_SET, "folder of a store; several joined by commas, or a glob", ("paths",)),
    Option("namesrv", _ALL, text, _NOT_SET, "name servers of a cluster, `host:port;host:port`"),
    Option("subscribe", _READ, words, _NOT_SET, "topics joined by commas", ("topics",)),
    Option("subscribePattern", _READ, pattern, _NOT_SET, "regular expression that topics match as a whole"),
    Option("assign", _READ, parse_assign, _NOT_SET, 'queues: `{"orders": [0, 1]}`, or by broker'),
    Option("topic", _ALL, text, _NOT_SET, "reading: `subscribe`; writing: where rows go that name no topic"),
    Option("order", _READ, one_of("queue", "log"), "queue", "by consume queue, or every record of the log"),
    Option("tags", _READ, text, "`*`", "tags joined by `\\|\\|`; compared as text"),
    Option("keys", _READ, words, _NOT_SET, "only messages with one of these keys, found through the index"),
    Option("startingOffsets", _READ, _starting, "batch `earliest`, stream `latest`", "where to begin"),
    Option("endingOffsets", _BATCH, _ending, "`latest`", "where to end, exclusive"),
    Option("startingTimestamp", _READ, at_least(0), _NOT_SET, "begin at the first message stored at or after it, ms"),
    Option("endingTimestamp", _BATCH, at_least(0), _NOT_SET, "end before the first message stored at or after it, ms"),
    Option("startingOffsetsByTimestamp", _READ, parse_times, _NOT_SET, "the same, by topic, broker and queue"),
    Option("endingOffsetsByTimestamp", _BATCH, parse_times, _NOT_SET, "the same, by topic, broker and queue"),
    Option(
        "startingOffsetsByTimestampStrategy",
        _READ,
        one_of("error", "latest"),
        "`error`",
        "what a queue without a message at or after the time does",
    ),
    Option("maxOffsetsPerTrigger", _STREAM, at_least(1), _NOT_SET, "messages of one micro-batch at most"),
    Option("minOffsetsPerTrigger", _STREAM, at_least(1), _NOT_SET, "wait until so many messages are there"),
    Option("maxTriggerDelay", _STREAM, duration, "`15m`", "but never longer than this"),
    Option("maxBytesPerTrigger", _STREAM, size, "`1g`, unless messages are limited", "bytes of a micro-batch at most"),
    Option("minPartitions", _READ, at_least(1), _NOT_SET, "split queues until there are so many tasks"),
    Option("maxRecordsPerPartition", _READ, at_least(1), _NOT_SET, "messages of one task at most"),
    Option("maxBytesPerPartition", _READ, size, "`128m`", "bytes of one task, about"),
    Option("failOnDataLoss", _READ, flag, "`true`", "an error where messages are gone that should be read"),
    Option("schema", _READ, one_of("rocketmq", "kafka"), "`rocketmq`", "which columns there are"),
    Option("columns", _READ, words, "all", "only these columns, joined by commas: Spark itself prunes none"),
    Option("includeBody", _READ, flag, "`true`", "`false`: without the column `body` (or `value`)"),
    Option("decompress", _READ, flag, "`true`", "unpack bodies that a client has compressed"),
    Option("mode", _READ, one_of(*_MODES), "`PERMISSIVE`", "what is done about damage: a row, an error, nothing"),
    Option("columnNameOfCorruptRecord", _READ, text, "`_corrupt`", "column that says what is wrong, if asked for"),
    Option("consumerGroup", _READ, text, "`TOOLS_CONSUMER`", "group in whose name a cluster is read; its offsets stay"),
    Option("progressGroup", _STREAM, text, _NOT_SET, "consumer group to which progress is mirrored (`namesrv` only)"),
    Option("config", _ALL, text, _NOT_SET, "broker.conf of the store, where its file sizes are not the usual ones"),
    Option("accessKey", _ALL, text, _NOT_SET, "account of a cluster that asks for one"),
    Option("secretKey", _ALL, text, _NOT_SET, "its secret"),
    Option("writeId", _WRITE, text, _NOT_SET, "name of a batch write: the same is stored once, however often it runs"),
    Option("producerGroup", _WRITE, text, "`penstock-spark`", "producer group in a cluster"),
)
_BY_NAME: Final = {name.lower(): option for option in OPTIONS for name in (option.name, *option.aliases)}

_SPARKS_OWN: Final = re.compile(
    r"owner|provider|location|option\..*|checkpointlocation|querytype|serialization\.format|mergeschema|header"
)
"""Keys that Spark itself puts among the options."""


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """The options of one source or sink, checked one by one; what they mean together is checked by who uses them."""

    path: tuple[str, ...] = ()
    namesrv: str = ""
    subscribe: tuple[str, ...] = ()
    subscribe_pattern: re.Pattern[str] | None = None
    assign: tuple[tuple[str, str, int], ...] = ()
    topic: str = ""
    order: str = "queue"
    tags: str = "*"
    keys: tuple[str, ...] = ()
    starting_offsets: Wish | None = None
    ending_offsets: Wish | None = None
    starting_timestamp: int | None = None
    ending_timestamp: int | None = None
    starting_offsets_by_timestamp: Wish | None = None
    ending_offsets_by_timestamp: Wish | None = None
    starting_offsets_by_timestamp_strategy: str = "error"
    max_offsets_per_trigger: int | None = None
    min_offsets_per_trigger: int | None = None
    max_trigger_delay: float = 900.0
    max_bytes_per_trigger: int | None = None
    min_partitions: int | None = None
    max_records_per_partition: int | None = None
    max_bytes_per_partition: int = 128 << 20
    fail_on_data_loss: bool = True
    schema: str = "rocketmq"
    columns: tuple[str, ...] = ()
    include_body: bool = True
    decompress: bool = True
    mode: str = "PERMISSIVE"
    column_name_of_corrupt_record: str = "_corrupt"
    consumer_group: str = "TOOLS_CONSUMER"
    progress_group: str = ""
    config: str = ""
    settings: tuple[str, ...] = ()
    """`name=value` pairs, for whoever makes options by hand: not an option of Spark's users."""
    access_key: str = ""
    secret_key: str = ""
    write_id: str = ""
    producer_group: str = "penstock-spark"

    @classmethod
    def read(cls, given: Mapping[str, str]) -> Options:
        """Raises BadSettings for an option that nobody knows, or whose value is no good."""
        values: dict[str, Any] = {}
        for name, value in given.items():
            option = _BY_NAME.get(name.lower())
            if option is None:
                if _SPARKS_OWN.fullmatch(name.lower()):
                    continue
                raise BadSettings(f"there is no option '{name}'{_similar(name)}; docs/reference/spark.md has them all")
            values[attribute(option.name)] = option.read(value)
        options = cls(**values)
        options._check_place()
        return options

    def _check_place(self) -> None:
        if self.path and self.namesrv:
            raise BadSettings("path and namesrv are both given; say where the messages are: in files, or in a cluster")
        if not self.path and not self.namesrv:
            raise BadSettings(
                "neither path nor namesrv is given; a table made with CREATE TABLE loses its options in Spark: use "
                "CREATE TEMPORARY VIEW, or .option(...)"
            )

    def check_reading(self) -> None:
        """Raises BadSettings where options for reading contradict each other."""
        chosen = [
            name
            for name, value in (
                ("subscribe", self.subscribe),
                ("subscribePattern", self.subscribe_pattern),
                ("assign", self.assign),
                ("topic", self.topic),
            )
            if value
        ]
        if len(chosen) > 1:
            raise BadSettings(f"{' and '.join(chosen)} are given; only one of them may be")
        if not chosen and self.order == "queue":
            raise BadSettings("which messages? Give subscribe, subscribePattern or assign, or read the log: order=log")
        if self.order == "log" and self.assign:
            raise BadSettings("assign goes by queue; with order=log use subscribe, or leave it out for every topic")
        if self.order == "log" and self.namesrv:
            raise BadSettings(
                "order=log reads the files of a store; leave it out with namesrv, a cluster is read by queue"
            )
        if self.order == "log" and self.keys:
            raise BadSettings("keys are found through the index, which knows topics; leave order=log out")
        if self.order == "log" and (self.max_offsets_per_trigger or self.min_offsets_per_trigger):
            raise BadSettings("order=log goes by bytes, not by offsets; limit it with maxBytesPerTrigger")
        if self.order == "log" and self.max_records_per_partition:
            raise BadSettings("order=log goes by bytes, not by records; limit it with maxBytesPerPartition")
        if self.progress_group and not self.namesrv:
            raise BadSettings("progressGroup needs namesrv: the offsets in a store's files belong to its broker")
        if not all(name.strip() for name in self.tags.split("||")):
            raise BadSettings(f"option tags='{self.tags}': it must be * or tags joined by ||, as in red || green")
        if self.columns and not self.include_body and {"body", "value"} & set(self.columns):
            raise BadSettings("columns names the body and includeBody is false; leave one of them out")

    def check_streaming(self) -> None:
        """Raises BadSettings for what only a batch can do: a stream has no end."""
        for name in ("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp"):
            if getattr(self, attribute(name)) is not None:
                raise BadSettings(f"{name} is given, and a stream has no end; leave it out, or read a batch")

    @property
    def tag_names(self) -> tuple[str, ...] | None:
        """The tags that are wanted, None for all."""
        names = tuple(name.strip() for name in self.tags.split("||"))
        return None if names == ("*",) else names

    @property
    def topics(self) -> tuple[str, ...]:
        """Topics named one by one."""
        return (self.topic,) if self.topic else self.subscribe


def attribute(name: str) -> str:
    """`startingOffsets` is `starting_offsets`."""
    return re.sub(r"(?<!^)([A-Z])", r"_\1", name).lower()


def _similar(name: str) -> str:
    import difflib

    near = difflib.get_close_matches(name.lower(), _BY_NAME, 1)
    return f"; did you mean {_BY_NAME[near[0]].name}?" if near else ""
