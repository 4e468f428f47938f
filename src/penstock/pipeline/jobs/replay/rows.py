"""From rows of any frame to messages that can be sent: chosen, mapped, and those set aside that cannot be.

Frames in, frames out; nothing is run here. Needs pyspark.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from penstock.broker.system_topics import NOT_FOR_SENDING
from penstock.errors import BadMessage, BadSettings
from penstock.format.constants import (
    CLUSTER,
    DELAY,
    MAX_RECONSUME_TIMES,
    MAX_TOPIC_LENGTH,
    PGROUP,
    REAL_QID,
    REAL_TOPIC,
    RECONSUME_TIME,
    RETRY_TOPIC,
    TRAN_MSG,
    UNIQ_KEY,
)
from penstock.pipeline.jobs.streaming import CORRUPT
from penstock.pipeline.sink_rows import check_may_send

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

WHY: Final = "_why"
"""Why a row cannot be sent; null where it can."""
_MADE: Final = ("topic", "body", "tags", "keys", "properties", "queue_id", "delay_level")
_OF_THE_BROKER: Final = (
    CLUSTER, DELAY, MAX_RECONSUME_TIMES, PGROUP, REAL_QID, REAL_TOPIC, RECONSUME_TIME, RETRY_TOPIC, TRAN_MSG,
)  # fmt: skip
"""Properties by which a broker would take a message for what it was: delayed, half of a transaction, retried."""
_PLACE: Final = ("broker", "topic", "queue_id", "queue_offset")


class Mapping(msgspec.Struct, frozen=True, kw_only=True):
    """Which rows are replayed, and what becomes of them. Times are epoch milliseconds of storing."""

    to_topic: str = ""
    """Empty: the topic that a row names, or where it came from if it is a dead letter."""
    where: str = ""
    """A condition in Spark's SQL over the columns of the source."""
    maps: tuple[str, ...] = ()
    """`column=expression`, in Spark's SQL over the columns of the source."""
    keys: tuple[str, ...] = ()
    """One of these, as a key or as the unique key."""
    since_ms: int | None = None
    until_ms: int | None = None

    def check(self) -> None:
        """Raises BadSettings."""
        self.columns()
        if self.to_topic:
            try:
                check_may_send(self.to_topic)
            except BadMessage as error:
                raise BadSettings(f"--to-topic: {error}") from None
        if self.since_ms is not None and self.until_ms is not None and self.since_ms >= self.until_ms:
            raise BadSettings("the replay ends before it begins: --until must be later than --since")

    def columns(self) -> dict[str, str]:
        """The expressions by the column that they make. Raises BadSettings."""
        made: dict[str, str] = {}
        for text in self.maps:
            name, equals, expression = (part.strip() for part in text.partition("="))
            if not equals or not expression:
                raise BadSettings(f"--map '{text}': it must be a column and an expression, as in body=upper(tags)")
            if name not in _MADE:
                raise BadSettings(f"--map '{text}': there is no column '{name}' to make; there are {', '.join(_MADE)}")
            made[name] = expression
        return made


def is_chosen(frame: DataFrame, mapping: Mapping) -> Column:
    """Whether a row is to be replayed; never null."""
    from pyspark.sql import functions as f

    conditions = [f.col(CORRUPT).isNull()] if CORRUPT in frame.columns else []
    if mapping.since_ms is not None:
        conditions.append(f.unix_millis("store_timestamp") >= mapping.since_ms)
    if mapping.until_ms is not None:
        conditions.append(f.unix_millis("store_timestamp") < mapping.until_ms)
    if mapping.keys:
        wanted = f.array(*(f.lit(key) for key in mapping.keys))
        unique = f.col("properties")[UNIQ_KEY]
        conditions.append(f.coalesce(f.arrays_overlap("keys", wanted), f.lit(False)) | unique.isin(*mapping.keys))
    if mapping.where:
        conditions.append(f.expr(f"({mapping.where})"))
    chosen = f.lit(True)
    for condition in conditions:
        chosen = chosen & f.coalesce(condition, f.lit(False))
    return chosen


def made_messages(frame: DataFrame, mapping: Mapping, name: str, *, to_origin: bool = False) -> DataFrame:
    """Chosen rows as the sink takes them, with `_why`. Raises BadSettings if there is no body in them."""
    from pyspark.sql import functions as f

    given = mapping.columns()
    have = set(frame.columns)
    columns: dict[str, Column] = {column: f.expr(text) for column, text in given.items()}
    if "body" not in columns:
        body = next((column for column in ("body", "value") if column in have), None)
        if body is None:
            raise BadSettings("there is neither a column 'body' nor 'value' in it; make one with --map 'body=...'")
        columns["body"] = f.col(body)
    if "topic" not in columns:
        columns["topic"] = _topic(have, mapping, to_origin=to_origin)
    columns["topic"] = columns["topic"].cast("string")
    for column in ("tags", "keys"):
        if column in have:
            columns.setdefault(column, f.col(column))
    properties = columns.get("properties", f.col("properties") if "properties" in have else None)
    made = _properties(properties, have, name)
    if made is not None:
        columns["properties"] = made
    rows = frame.select(*(columns[column].alias(column) for column in _MADE if column in columns))
    return rows.withColumn(WHY, _why())


def _topic(have: set[str], mapping: Mapping, *, to_origin: bool) -> Column:
    from pyspark.sql import functions as f

    if mapping.to_topic:
        return f.lit(mapping.to_topic)
    if to_origin:
        return f.col("properties")[RETRY_TOPIC]
    if "topic" not in have:
        raise BadSettings("which topic? Give --to-topic T, or make one with --map 'topic=...'")
    return f.col("topic")


def _properties(properties: Column | None, have: set[str], name: str) -> Column | None:
    """Without what a broker put there, and with a unique key that is the same whenever the row comes again."""
    from pyspark.sql import functions as f

    kept = None
    if properties is not None:
        kept = f.map_filter(properties, lambda key, value: ~key.isin(*_OF_THE_BROKER) & value.isNotNull())
    if not have.issuperset(_PLACE):
        return kept
    place = f.concat_ws("/", f.lit(name), *(f.col(column).cast("string") for column in _PLACE))
    unique = f.upper(f.substring(f.sha2(place, 256), 1, 32))
    fresh = f.create_map(f.lit(UNIQ_KEY), unique)
    if kept is None:
        return fresh
    return (
        f.when(kept.isNull(), fresh).when(f.map_contains_key(kept, UNIQ_KEY), kept).otherwise(f.map_concat(kept, fresh))
    )


def _why() -> Column:
    from pyspark.sql import functions as f

    topic = f.col("topic")
    return (
        f.when(f.col("body").isNull(), "it has no body")
        .when(topic.isNull(), "nobody knows which topic it came from, or is for")
        .when(topic.isin(*NOT_FOR_SENDING), "its topic is the broker's own")
        .when(~topic.rlike(rf"^[%|a-zA-Z0-9_-]{{1,{MAX_TOPIC_LENGTH}}}$"), "its topic has no legal name")
    )
