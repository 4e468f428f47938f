"""`penstock.spark.table`: messages as a table that reads only what a query needs. Needs pyspark.

    orders = table(spark, "data/shop", topics="orders")
    orders.where("tags = 'paid'").groupBy("queue_id").count().show()

Spark tells a Python source neither the columns nor the filters of a query. So a query is planned twice: first over a
stand-in with the same columns, whose optimised plan shows what the query takes of it, then over the source with the
options that follow: `columns`, `tags`, `keys`, `subscribePattern`, `startingTimestamp` and `endingTimestamp`. Spark
still applies all filters itself, so an option may let more rows pass, but never fewer. The stand-in has no rows.

A table has no order (order=any). Under Spark Connect the plan is not visible: there only the options count.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from penstock.errors import BadSettings
from penstock.human_units import parse_time
from penstock.pipeline.options import Options
from penstock.pipeline.session import is_connect
from penstock.pipeline.source import schema_of
from penstock.pipeline.source_rows import UNIQUE_KEY

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame, GroupedData, SparkSession
    from pyspark.sql.types import StructType

Build = Callable[["DataFrame"], "DataFrame"]
_CHEAPEST: Final = {"rocketmq": "queue_id", "kafka": "partition"}
_TIME: Final = {"rocketmq": "store_timestamp", "kafka": "timestamp"}
_CLOCK_STEP_MS: Final = 600_000
"""How far the broker's clock may have been set back: the store times of a queue are searched this much wider."""
_ALL_TOPICS: Final = ".*"
_SAME_LIMIT: Final = {
    f"{end}Timestamp": (f"{end}timestamp", f"{end}offsets", f"{end}offsetsbytimestamp")
    for end in ("starting", "ending")
}
"""The options, in lower case, that say where a read begins or ends. Of these, the timestamp takes precedence."""


class MessageTable:
    """The messages of some topics. Its methods return data frames that read no more than they need; see the module.

    Columns are given by name or as expressions over names (`pyspark.sql.functions.col`), as for a data frame.
    """

    def __init__(
        self, spark: SparkSession, options: Mapping[str, str], conditions: Sequence[Any] = (), *, dedupe: bool = False
    ) -> None:
        self._spark = spark
        self._given = dict(options)
        self._conditions = tuple(conditions)
        self._dedupe = dedupe
        self._options = Options.read(self._given)
        self._options.check_reading()
        self._schema = schema_of(self._options)
        if dedupe and UNIQUE_KEY not in self._schema.names:
            self._schema = self._schema.add(UNIQUE_KEY, "string")

    # -- queries ---------------------------------------------------------------------------------------------

    def where(self, condition: Column | str) -> MessageTable:
        """Returns the table of the messages for which the condition holds."""
        return MessageTable(self._spark, self._given, (*self._conditions, condition), dedupe=self._dedupe)

    filter = where

    def select(self, *columns: Column | str) -> DataFrame:
        return self.query(lambda frame: frame.select(*columns))

    def selectExpr(self, *expressions: str) -> DataFrame:  # noqa: N802  # as Spark spells it
        return self.query(lambda frame: frame.selectExpr(*expressions))

    def groupBy(self, *columns: Column | str) -> MessageGroups:  # noqa: N802
        return MessageGroups(self, columns)

    def agg(self, *expressions: Any) -> DataFrame:
        return self.query(lambda frame: frame.agg(*expressions))

    def count(self) -> int:
        """Returns the number of messages."""
        from pyspark.sql.functions import count, lit

        return int(self.agg(count(lit(1))).collect()[0][0])

    def sql(self, query: str) -> DataFrame:
        """Returns the result of an SQL query, in which `{messages}` is the table."""
        return self.query(lambda frame: self._spark.sql(query, messages=frame))

    def frame(self) -> DataFrame:
        """Returns all columns as a data frame."""
        return self.query(lambda frame: frame)

    def query(self, build: Build) -> DataFrame:
        """Returns what `build` makes of the table's data frame, which is loaded with what the result needs.

        `build` is called twice, first with a stand-in without rows, so it must not run a query: give `pivot` values.
        """
        return self._built(self._load(self.options_for(build)), build)

    # -- plans -----------------------------------------------------------------------------------------------

    def options_for(self, build: Build) -> dict[str, str]:
        """Returns the options with which `query` loads the source."""
        options = {"order": "any", **self._given}
        if is_connect(self._spark):
            return {**options, "columns": ",".join(self._schema.names)}
        stand_in = self._spark.range(1).mapInArrow(_penstock_stand_in, self._schema)
        frame: Any = self._built(stand_in, build)
        needs = list(_needs_of(frame._jdf.queryExecution().optimizedPlan(), self._schema))
        names = [name for name in self._schema.names if any(name in need.columns for need in needs)]
        options["columns"] = ",".join(names or [_CHEAPEST[self._options.schema]])
        return options | (self._from_filters(needs[0].filters) if len(needs) == 1 else {})

    def _built(self, frame: DataFrame, build: Build) -> DataFrame:
        for condition in self._conditions:
            frame = frame.where(condition)
        return build(frame.dropDuplicates([UNIQUE_KEY]).drop(UNIQUE_KEY) if self._dedupe else frame)

    def _load(self, options: Mapping[str, str]) -> DataFrame:
        return self._spark.read.format("rocketmq").options(**options).load()

    def _from_filters(self, filters: Iterable[Any]) -> dict[str, str]:
        """Returns the options that follow from filters of a plan. An option that the user gave stays as it is."""
        options: dict[str, str] = {}
        given = {name.lower() for name, value in self._given.items() if value != _ALL_TOPICS}
        for condition in filters:
            for name, value in self._from_filter(condition).items():
                if given.isdisjoint(_SAME_LIMIT.get(name, (name.lower(),))):
                    options.setdefault(name, value)
        if "subscribePattern" in options and not self._reads_all_topics:
            del options["subscribePattern"]
        if "startingTimestamp" in options:
            options.setdefault("startingOffsetsByTimestampStrategy", "latest")
        return options

    @property
    def _reads_all_topics(self) -> bool:
        return self._given.get("subscribePattern") == _ALL_TOPICS

    def _from_filter(self, condition: Any) -> dict[str, str]:
        kind = _kind_of(condition)
        if kind in _COMPARISONS:
            return self._from_time(kind, condition)
        if kind == "ArrayContains":
            wanted = _texts([condition.right()]) if _name_of(condition.left()) == "keys" else None
            return {} if not wanted or wanted[0] != wanted[0].strip() or "," in wanted[0] else {"keys": wanted[0]}
        name, wanted = _membership(kind, condition)
        if not wanted:
            return {}
        if name == "topic":
            return {"subscribePattern": "|".join(map(re.escape, wanted))}
        if name == "tags" and not any(tag != tag.strip() or "||" in tag or tag in ("", "*") for tag in wanted):
            return {"tags": "||".join(wanted)}
        return {}

    def _from_time(self, kind: str, condition: Any) -> dict[str, str]:
        left, right = condition.left(), condition.right()
        if _kind_of(left) == "Literal":
            left, right, kind = right, left, _MIRRORED[kind]
        is_time = _name_of(left) == _TIME[self._options.schema] and _kind_of(right) == "Literal"
        if not is_time or right.dataType().typeName() != "timestamp" or right.value() is None:
            return {}
        moment = int(right.value()) // 1000
        if kind in ("GreaterThan", "GreaterThanOrEqual"):
            return {"startingTimestamp": str(max(moment - _CLOCK_STEP_MS, 0))}
        return {"endingTimestamp": str(max(moment + 1 + _CLOCK_STEP_MS, 0))}


class MessageGroups:
    """The messages of a table, grouped by columns."""

    def __init__(self, messages: MessageTable, columns: Sequence[Any]) -> None:
        self._messages = messages
        self._columns = columns

    def agg(self, *expressions: Any) -> DataFrame:
        return self._query(lambda groups: groups.agg(*expressions))

    def count(self) -> DataFrame:
        return self._query(lambda groups: groups.count())

    def _query(self, finish: Callable[[GroupedData], DataFrame]) -> DataFrame:
        return self._messages.query(lambda frame: finish(frame.groupBy(*self._columns)))


# -- plans of Spark ----------------------------------------------------------------------------------------------------

_COMPARISONS: Final = ("GreaterThan", "GreaterThanOrEqual", "LessThan", "LessThanOrEqual")
_MIRRORED: Final = dict(zip(_COMPARISONS, (*_COMPARISONS[2:], *_COMPARISONS[:2]), strict=True))


def _penstock_stand_in(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The function of the stand-in, which a plan shows by its name. It has no rows, should a query read it."""
    yield from islice(batches, 0)


class _Need:
    """What one use of a table takes of it: columns, and filters as expressions of Spark's plan."""

    def __init__(self, columns: set[str], filters: list[Any]) -> None:
        self.columns = columns
        self.filters = filters


def _needs_of(plan: Any, schema: StructType) -> Iterator[_Need]:
    """Yields what each use of the stand-in in an optimised plan needs.

    The optimiser puts the filters right above the stand-in, and above them what takes only the needed columns of it. In
    any other case all columns are needed.
    """
    everything = set(schema.names)
    found = list(_uses(plan, []))
    if plan.toString().count(_penstock_stand_in.__name__) != len(found):
        found = [[]]  # a use that is hidden in a subquery
    for parents in found:
        columns: set[str] = set()
        filters: list[Any] = []
        for node in reversed(parents):
            columns |= {each.name() for each in _each(node.references().toSeq())}
            if node.nodeName() == "Filter":
                filters += _conjuncts(node.condition())
                continue
            if node.nodeName() in ("Project", "Aggregate"):
                yield _Need(columns & everything, filters)
                break
            yield _Need(everything, filters)
            break
        else:
            yield _Need(everything, filters)


def _uses(node: Any, parents: list[Any]) -> Iterator[list[Any]]:
    """Yields the nodes above each use of the stand-in, the root first."""
    if node.nodeName() == "MapInArrow" and _penstock_stand_in.__name__ in node.toString():
        yield parents
        return
    for child in _each(node.children()):
        yield from _uses(child, [*parents, node])


def _each(sequence: Any) -> list[Any]:
    return [sequence.apply(number) for number in range(sequence.size())]


def _conjuncts(condition: Any) -> list[Any]:
    if _kind_of(condition) == "And":
        return [*_conjuncts(condition.left()), *_conjuncts(condition.right())]
    return [condition]


def _kind_of(expression: Any) -> str:
    return str(expression.getClass().getSimpleName())


def _name_of(expression: Any) -> str:
    return str(expression.name()) if _kind_of(expression) == "AttributeReference" else ""


def _membership(kind: str, condition: Any) -> tuple[str, list[str]]:
    """Returns the column that must have one of some texts, and the texts. Both are empty for other conditions."""
    if kind == "EqualTo":
        sides = condition.left(), condition.right()
        column, literals = sides if _kind_of(sides[1]) == "Literal" else sides[::-1]
        return _name_of(column), _texts([literals]) or []
    if kind == "In":
        return _name_of(condition.value()), _texts(_each(condition.list())) or []
    if kind == "InSet":
        values = _each(condition.hset().toSeq())
        return _name_of(condition.child()), [] if None in values else [str(value) for value in values]
    return "", []


def _texts(literals: Sequence[Any]) -> list[str] | None:
    """Returns the values of text literals; None if an expression is something else."""
    texts = []
    for literal in literals:
        if _kind_of(literal) != "Literal" or literal.dataType().typeName() != "string" or literal.value() is None:
            return None
        texts.append(str(literal.value()))
    return texts


# -- the public function -----------------------------------------------------------------------------------------------


def table(
    spark: SparkSession,
    path: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | None = None,
    *,
    namesrv: str | None = None,
    topics: str | Sequence[str] | None = None,
    since: str | int | datetime | None = None,
    until: str | int | datetime | None = None,
    dedupe: bool = False,
    **options: str,
) -> MessageTable:
    """Returns the messages of stores (`path`) or of a cluster (`namesrv`) as a table that reads what a query needs.

    Without `topics` these are all topics of the stores. `since` (inclusive) and `until` (exclusive) limit the store
    time: a datetime, epoch milliseconds, or a text such as 2026-11-16T08:00 or now-1h. With `dedupe`, of several
    messages with one unique key that `where` leaves only one is there. `options` are those of the source. Raises
    BadSettings.
    """
    given = dict(options)
    if path is not None:
        paths = [path] if isinstance(path, str | os.PathLike) else list(path)
        given["path"] = ",".join(os.fspath(each) for each in paths)
    if namesrv is not None:
        given["namesrv"] = namesrv
    if topics is not None:
        given["subscribe"] = topics if isinstance(topics, str) else ",".join(topics)
    elif not {name.lower() for name in options} & {"subscribe", "topics", "topic", "subscribepattern", "assign"}:
        given["subscribePattern"] = _ALL_TOPICS
    for name, moment in (("startingTimestamp", since), ("endingTimestamp", until)):
        if moment is not None:
            given[name] = str(_milliseconds(name, moment))
    if since is not None:
        given.setdefault("startingOffsetsByTimestampStrategy", "latest")
    return MessageTable(spark, given, dedupe=dedupe)


def _milliseconds(name: str, moment: str | int | datetime) -> int:
    if isinstance(moment, datetime):
        return int(moment.timestamp() * 1000)
    try:
        return moment if isinstance(moment, int) else parse_time(moment)
    except ValueError:
        raise BadSettings(
            f"{name}: not a valid time: '{moment}'; it must be like 2026-11-16T08:00, now-1h, or milliseconds"
        ) from None
