"""Every option of `format("rocketmq")`: its name, its use (read, batch, stream, write), its default and its meaning.

`Options.read(given)` returns the typed, frozen object that the rest of the pipeline takes. After a change, update the
reference page with `python -m penstock.config.reference_pages docs/reference/spark.md`.

Offsets are written as in Kafka; `plan` resolves them against the queues that exist:

    earliest, latest                     all queues
    group:NAME                           the committed offsets of a consumer group (starting only)
    {"orders": {"0": 12, "1": -2}}       by topic and queue; -2 is earliest, -1 is latest
    {"orders": {"broker-a": {"0": 12}}}  by topic, broker and queue, for several brokers or stores
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, Final

import msgspec

from penstock.config.setting_parser import LONG_MAX, Origin, Section, SettingTable, nearest
from penstock.errors import BadSettings
from penstock.human_units import parse_duration, parse_size, parse_time

EARLIEST: Final = -2
LATEST: Final = -1

PLACE: Final = "@from"
"""The name beside a stream's offsets under which they say the stores or the cluster that the stream reads."""
MEAN_SIZES: Final = "@mean"
"""The name beside the reported ends of a stream's queues under which they have the mean bytes of a message by topic."""
ANY_BROKER: Final = ""
"""In place of a broker's name: matches any broker that has the queue."""


# -- values of options -----------------------------------------------------------------------------------------------


class OffsetSpec(msgspec.Struct, frozen=True):
    """Offsets as the user gave them, not yet resolved against the queues that exist."""

    everywhere: int | None = None
    """EARLIEST or LATEST for all queues."""
    group: str = ""
    by_queue: dict[tuple[str, str, int], int] = {}


def _text(value: str) -> str:
    if not value:
        raise ValueError("it must not be empty")
    return value


def _words(value: str) -> tuple[str, ...]:
    """Parses names that are joined by commas."""
    words = tuple(word.strip() for word in value.split(",") if word.strip())
    if not words:
        raise ValueError("it must name at least one")
    if len(set(words)) != len(words):
        raise ValueError("a name is given twice")
    return words


def _one_of(*allowed: str) -> Callable[[str], str]:
    """Returns a parser that accepts the words of `allowed` in any case, and returns the spelling in `allowed`."""
    known = {word.lower(): word for word in allowed}

    def parse(value: str) -> str:
        if value.lower() not in known:
            raise ValueError(f"it must be one of {', '.join(allowed)}")
        return known[value.lower()]

    return parse


def _pattern(value: str) -> re.Pattern[str]:
    try:
        return re.compile(_text(value))
    except re.error as error:
        raise ValueError(f"it is not a regular expression ({error})") from None


def _paths(value: str) -> tuple[str, ...]:
    """Parses paths and globs that are joined by commas, or the JSON list that Spark passes for `load([...])`."""
    if value.startswith('["'):  # a glob may begin with a bracket too
        try:
            return tuple(msgspec.json.decode(value, type=list[str]))
        except msgspec.MsgspecError as error:
            raise ValueError(f"it is not a list of paths ({error})") from None
    return _words(value)


def parse_offsets(value: str, *, starting: bool) -> OffsetSpec:
    """Parses startingOffsets or, if `starting` is false, endingOffsets. Raises ValueError with the allowed forms."""
    lowered = value.lower()
    if lowered == "earliest" and starting:
        return OffsetSpec(EARLIEST)
    if lowered == "latest":
        return OffsetSpec(LATEST)
    if lowered.startswith("group:") and starting:
        if not value[6:].strip():
            raise ValueError("the name of the group is missing after 'group:'")
        return OffsetSpec(group=value[6:].strip())
    if value.startswith("{"):
        numbers = _by_queue(value)
        for (topic, _, queue_id), number in numbers.items():
            if number < (EARLIEST if starting else LATEST) or (not starting and number == EARLIEST):
                raise ValueError(f"{topic} queue {queue_id}: {number} is not an offset; -2 is earliest, -1 is latest")
        return OffsetSpec(by_queue=numbers)
    allowed = "earliest, latest, group:NAME" if starting else "latest"
    raise ValueError(f'it must be {allowed}, or JSON such as {{"orders": {{"0": 12}}}}')


def parse_times(value: str) -> OffsetSpec:
    """Parses times by topic, broker and queue; `by_queue` of the result holds them in epoch ms. Raises ValueError."""
    if not value.startswith("{"):
        raise ValueError('it must be JSON such as {"orders": {"0": 1700000000000, "1": "2026-01-31T23:59"}}')
    numbers = _by_queue(value, times=True)
    for (topic, _, queue_id), number in numbers.items():
        if number < 0:
            raise ValueError(f"{topic} queue {queue_id}: {number} is not a time in milliseconds")
    return OffsetSpec(by_queue=numbers)


def parse_assign(value: str) -> tuple[tuple[str, str, int], ...]:
    """Parses `{"orders": [0, 1]}` or `{"orders": {"broker-a": [0, 1]}}`. Raises ValueError.

    Returns a tuple of topic, broker and queue id for each queue.
    """
    assigned: list[tuple[str, str, int]] = []
    for topic, inner in _object(value).items():
        by_broker = inner if isinstance(inner, dict) else {ANY_BROKER: inner}
        for broker, queues in by_broker.items():
            if not isinstance(queues, list) or not all(type(each) is int and each >= 0 for each in queues):
                raise ValueError('it must be JSON such as {"orders": [0, 1]}')
            assigned += [(topic, broker, queue_id) for queue_id in queues]
    if not assigned:
        raise ValueError("it must name at least one queue")
    if len(set(assigned)) != len(assigned):
        raise ValueError("a queue is given twice")
    return tuple(assigned)


def _by_queue(value: str, *, times: bool = False) -> dict[tuple[str, str, int], int]:
    numbers: dict[tuple[str, str, int], int] = {}
    for topic, inner in _object(value).items():
        if topic.startswith("@"):
            continue  # the proof beside the offsets of a stream's progress, which can be given as they are
        if not isinstance(inner, dict) or not inner:
            raise ValueError(f'topic {topic}: it must have numbers by queue, as in {{"{topic}": {{"0": 12}}}}')
        by_broker = inner if any(isinstance(each, dict) for each in inner.values()) else {ANY_BROKER: inner}
        for broker, queues in by_broker.items():
            if not isinstance(queues, dict):
                raise ValueError(f"topic {topic}: brokers and queues are mixed")
            for queue_id, number in queues.items():
                number = parse_time(number) if times and isinstance(number, str) else number
                numbers[topic, broker, _queue_id(topic, queue_id)] = _number(topic, queue_id, number)
    if not numbers:
        raise ValueError("it must name at least one queue")
    return numbers


def _object(value: str) -> dict[str, Any]:
    try:
        return msgspec.json.decode(value, type=dict[str, Any])
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise ValueError(f"it is not a JSON object ({error})") from None


def _queue_id(topic: str, queue_id: str) -> int:
    if not (queue_id.isascii() and queue_id.isdecimal()):
        raise ValueError(f"topic {topic}: '{queue_id}' is not a queue id")
    return int(queue_id)


def _number(topic: str, queue_id: str, number: Any) -> int:
    if type(number) is not int or number >= 1 << 63:
        raise ValueError(f"topic {topic} queue {queue_id}: {number!r} is not a whole number")
    return number


# -- the options -----------------------------------------------------------------------------------------------------

ALL, READ, BATCH, STREAM, WRITE = (Section(use, Origin.PENSTOCK) for use in ("all", "read", "batch", "stream", "write"))
_SPARKS_OWN: Final = re.compile(
    r"owner|provider|location|option\..*|checkpointlocation|querytype|serialization\.format|mergeschema|header"
)
"""Matches option names that Spark itself adds."""


_KAFKAS: Final = (
    (r"kafka\.bootstrap\.servers", "here use namesrv for a cluster, or path for a store's files"),
    (r"includeheaders", "here schema=kafka always has the column headers: leave it out"),
    (r"kafka\.group\.id|groupidprefix", "here use consumerGroup; a read moves no offsets, progressGroup mirrors them"),
    (r"fetchoffset\..*|kafkaconsumer\..*|kafka\.(retries|request\.timeout\.ms)", "here use waitForBrokers"),
    (r"kafka\.(ssl|security)\..*", "here use trust, tls, tlsCert and tlsKey"),
    (r"kafka\.sasl\..*", "here use accessKey and secretKey"),
    (r"kafka\.max\.poll\.records", "here use maxOffsetsPerTrigger"),
    (r"kafka\..*", "settings of Kafka's clients have no meaning here: leave it out"),
)
"""Patterns of the names of Spark's Kafka source that are not options here, and what to use instead."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The options of one source or sink. `read` checks each value; the `check_*` methods check combinations."""

    path: Annotated[
        tuple[str, ...],
        ALL("folder of a store; several joined by commas, or a glob", parser=_paths, aliases=("paths",)),
    ] = ()
    namesrv: Annotated[str, ALL("name servers of a cluster, `host:port;host:port`", parser=_text)] = ""
    subscribe: Annotated[tuple[str, ...], READ("topics joined by commas", parser=_words, aliases=("topics",))] = ()
    subscribe_pattern: Annotated[
        re.Pattern[str] | None, READ("regular expression that must match the whole topic name", parser=_pattern)
    ] = None
    assign: Annotated[
        tuple[tuple[str, str, int], ...], READ('queues: `{"orders": [0, 1]}`, or by broker', parser=parse_assign)
    ] = ()
    topic: Annotated[str, ALL("reading: as `subscribe`; writing: the topic of all rows", parser=_text)] = ""
    default_topic: Annotated[str, WRITE("the topic of rows whose column `topic` is null or missing", parser=_text)] = ""
    order: Annotated[
        str,
        READ(
            "`queue`: by consume queue; `any`: the same messages as is cheapest; `log`: every record of the log",
            parser=_one_of("queue", "any", "log"),
        ),
    ] = "queue"
    tags: Annotated[str, READ("tags joined by `\\|\\|`; compared as text", parser=_text)] = "*"
    keys: Annotated[
        tuple[str, ...], READ("only messages with one of these keys, found through the index", parser=_words)
    ] = ()
    starting_offsets: Annotated[
        OffsetSpec | None,
        READ("where to begin", parser=partial(parse_offsets, starting=True), shown="batch `earliest`, stream `latest`"),
    ] = None
    ending_offsets: Annotated[
        OffsetSpec | None,
        BATCH("where to end, exclusive", parser=partial(parse_offsets, starting=False), shown="`latest`"),
    ] = None
    starting_timestamp: Annotated[
        int | None,
        READ("begin at the first message stored at or after it: ms, ISO or `now-1h`", parser=parse_time, high=LONG_MAX),
    ] = None
    ending_timestamp: Annotated[
        int | None,
        BATCH("end before the first message stored at or after it: the same", parser=parse_time, high=LONG_MAX),
    ] = None
    starting_offsets_by_timestamp: Annotated[
        OffsetSpec | None, READ("the same, by topic, broker and queue", parser=parse_times)
    ] = None
    ending_offsets_by_timestamp: Annotated[
        OffsetSpec | None, BATCH("the same, by topic, broker and queue", parser=parse_times)
    ] = None
    starting_offsets_by_timestamp_strategy: Annotated[
        str,
        READ(
            "a queue without a message at or after the time: fail, or start at its end",
            parser=_one_of("error", "latest"),
        ),
    ] = "error"
    max_offsets_per_trigger: Annotated[
        int | None, STREAM("maximum messages of a micro-batch", low=1, high=LONG_MAX)
    ] = None
    min_offsets_per_trigger: Annotated[
        int | None, STREAM("minimum messages of a micro-batch", low=1, high=LONG_MAX)
    ] = None
    max_trigger_delay: Annotated[
        float, STREAM("maximum wait for `minOffsetsPerTrigger`", parser=parse_duration, shown="`15m`")
    ] = 900.0
    max_bytes_per_trigger: Annotated[
        int | None,
        STREAM("maximum bytes of a micro-batch", parser=parse_size, shown="`1g`, unless messages are limited"),
    ] = None
    min_partitions: Annotated[int | None, READ("minimum number of tasks; splits queues", low=1, high=LONG_MAX)] = None
    max_records_per_partition: Annotated[int | None, READ("maximum messages of a task", low=1, high=LONG_MAX)] = None
    max_bytes_per_partition: Annotated[
        int | None,
        READ("approximate bytes of a task", parser=parse_size, shown="`128m`; `512m` of a store without bodies"),
    ] = None
    fail_on_data_loss: Annotated[bool, READ("fail if messages to be read were deleted")] = True
    schema: Annotated[str, READ("column names: RocketMQ's or Kafka's", parser=_one_of("rocketmq", "kafka"))] = (
        "rocketmq"
    )
    columns: Annotated[
        tuple[str, ...],
        READ("only these columns, joined by commas; Spark itself does not prune", parser=_words, shown="all"),
    ] = ()
    include_body: Annotated[bool, READ("`false`: without the column `body` (or `value`)")] = True
    decompress: Annotated[bool, READ("decompress bodies that a client compressed")] = True
    mode: Annotated[
        str,
        READ(
            "what damage becomes: a row, an error, or nothing",
            parser=_one_of("PERMISSIVE", "FAILFAST", "DROPMALFORMED"),
            shown="batch `PERMISSIVE`, stream `FAILFAST`",
        ),
    ] = ""
    column_name_of_corrupt_record: Annotated[
        str, READ("name of the column with the reason, if selected", parser=_text)
    ] = "_corrupt"
    consumer_group: Annotated[
        str, READ("consumer group for reading a cluster; its offsets do not change", parser=_text)
    ] = "TOOLS_CONSUMER"
    progress_group: Annotated[
        str, STREAM("consumer group to which progress is mirrored (`namesrv` only)", parser=_text)
    ] = ""
    config: Annotated[str, ALL("the store's broker.conf, if its file sizes are not the defaults", parser=_text)] = ""
    settings: tuple[str, ...] = ()
    """Store settings as `name=value`. Penstock's jobs set them; Spark's users cannot."""
    wait_for_brokers: Annotated[
        float, ALL("how long brokers that were reachable may be away", parser=parse_duration, shown="`30s`")
    ] = 30.0
    trust: Annotated[
        str, ALL("PEM file of the authorities to trust; turns TLS on. The file must exist on all hosts", parser=_text)
    ] = ""
    tls: Annotated[bool, ALL("TLS with the system's authorities, if `trust` is not given")] = False
    tls_cert: Annotated[str, ALL("PEM file of the client's certificate", parser=_text)] = ""
    tls_key: Annotated[str, ALL("PEM file of its key", parser=_text)] = ""
    access_key: Annotated[str, ALL("access key, if the cluster requires an account", parser=_text)] = ""
    secret_key: Annotated[str, ALL("secret key", parser=_text)] = ""
    write_id: Annotated[
        str, WRITE("id of a batch write; a write with the same id is stored only once", parser=_text)
    ] = ""
    producer_group: Annotated[str, WRITE("producer group in a cluster", parser=_text)] = "penstock-spark"

    @classmethod
    def read(cls, given: Mapping[str, str]) -> Options:
        """Parses Spark's options. Raises BadSettings for an unknown option or an invalid value."""
        values: dict[str, Any] = {}
        for name, value in given.items():
            option = _BY_NAME.get(name.lower())
            if option is not None:
                values[option.attribute] = option.check(option.parse(value))
            elif not _SPARKS_OWN.fullmatch(name.lower()):
                if kafkas := next((say for pattern, say in _KAFKAS if re.fullmatch(pattern, name.lower())), None):
                    page = "docs/how-to/from-kafka.md"
                    raise BadSettings(f"'{name}' is an option of Spark's Kafka source; {kafkas}; see {page}")
                if name.lower() == "dedupe":
                    raise BadSettings(
                        "there is no option 'dedupe', because the two of a pair may be in different tasks; use "
                        "penstock.spark.table(..., dedupe=True), or dropDuplicates on the column unique_key"
                    )
                near = nearest(name, TABLE.by_name)
                hint = f"; did you mean {TABLE.by_name[near].name}?" if near else ""
                raise BadSettings(f"there is no option '{name}'{hint}; see docs/reference/spark.md")
        options = cls(**values)
        options._check_place()
        return options

    def _check_place(self) -> None:
        if self.path and self.namesrv:
            raise BadSettings("path and namesrv are both given; use path for files or namesrv for a cluster")
        if bool(self.tls_cert) != bool(self.tls_key):
            raise BadSettings("only one of tlsCert and tlsKey is given; give both, or none of them")
        if not self.path and not self.namesrv:
            raise BadSettings(
                "neither path nor namesrv is given; a table created with CREATE TABLE loses its options in Spark: use "
                "CREATE TEMPORARY VIEW, or WITH (path='DIR') in the query"
            )

    def check_reading(self) -> None:
        """Raises BadSettings if options for reading contradict each other."""
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
        if not chosen and self.order != "log":
            raise BadSettings(
                "no topics are given; set subscribe, subscribePattern or assign, or read the log with order=log"
            )
        if self.order == "log" and self.assign:
            raise BadSettings(
                "assign works by queue; with order=log use subscribe, or leave it out to read every topic"
            )
        if self.order == "log" and self.namesrv:
            raise BadSettings(
                "order=log reads the files of a store; leave it out with namesrv, a cluster is read by queue"
            )
        if self.order == "log" and self.keys:
            raise BadSettings("keys are looked up in the index by topic; leave order=log out")
        if self.order == "log" and (self.max_offsets_per_trigger or self.min_offsets_per_trigger):
            raise BadSettings("order=log counts bytes, not offsets; limit it with maxBytesPerTrigger")
        if self.order == "log" and self.max_records_per_partition:
            raise BadSettings("order=log counts bytes, not records; limit it with maxBytesPerPartition")
        if self.progress_group and not self.namesrv:
            raise BadSettings("progressGroup needs namesrv: the offsets in a store's files belong to its broker")
        if not all(name.strip() for name in self.tags.split("||")):
            raise TABLE["tags"].wrong(self.tags, "it must be * or tags joined by ||, as in red || green")
        if self.columns and not self.include_body and {"body", "value"} & set(self.columns):
            raise BadSettings("columns names the body and includeBody is false; leave one of them out")

    def check_streaming(self) -> None:
        """Raises BadSettings if an ending option is set, because a stream has no end."""
        for attribute in ("ending_offsets", "ending_timestamp", "ending_offsets_by_timestamp"):
            if getattr(self, attribute) is not None:
                raise BadSettings(
                    f"{TABLE[attribute].name} is given, and a stream has no end; leave it out, or read a batch"
                )

    @property
    def tls_properties(self) -> dict[str, str]:
        """RocketMQ's `tls.*` properties for the clients of a cluster; empty for plain connections."""
        if not (self.tls or self.trust or self.tls_cert):
            return {}
        given = {
            "tls.client.trustCertPath": self.trust,
            "tls.client.certPath": self.tls_cert,
            "tls.client.keyPath": self.tls_key,
        }
        return {"tls.enable": "true", **{name: value for name, value in given.items() if value}}

    @property
    def tag_names(self) -> tuple[str, ...] | None:
        """The wanted tags, or None for all messages."""
        names = tuple(name.strip() for name in self.tags.split("||"))
        return None if names == ("*",) else names

    @property
    def topics(self) -> tuple[str, ...]:
        """The topics that `subscribe` or `topic` names."""
        return (self.topic,) if self.topic else self.subscribe


TABLE: Final = SettingTable(Options, noun="option")
_BY_NAME: Final = {name.lower(): option for name, option in TABLE.by_name.items()}
