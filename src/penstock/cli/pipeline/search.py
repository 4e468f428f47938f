"""`search`, for `penstock`, `penstock pipeline` and `penstock store`: finds messages by key, id, body, tag and time."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

from penstock.cli.options import AsJson, Config, Folder, Pairs, number, option
from penstock.cli.output import plain, write, write_json, write_note
from penstock.cli.verbs_on_spark import (
    EitherCall,
    JobCall,
    MaybeNamesrv,
    Paths,
    Stores,
    check_input,
    either_way,
    job_input,
    on_spark,
    time_option,
)
from penstock.errors import BadSettings

if TYPE_CHECKING:
    from penstock.pipeline.jobs.job_input import JobInput
    from penstock.pipeline.jobs.search import Coverage, SearchQuery

_PREVIEW = 80
_CORRUPT = "_corrupt"


Topic = Annotated[str, option("--topic", "T", "Only this topic; with a key, through the index.")]
Keys = Annotated[list[str] | None, option("--key", "K", "A key or unique key; repeatable (any matches).")]
MsgId = Annotated[str, option("--id", "ID", "An offset message id.")]
Text = Annotated[str, option("--text", "TEXT", "The body contains this text.")]
Pattern = Annotated[str, option("--regex", "R", "The body matches this regular expression.")]
JsonPath = Annotated[
    list[str] | None, option("--json-path", "P=V", "A value in a JSON body, as in order.id=7; repeatable.")
]
Properties = Annotated[list[str] | None, option("--property", "N=V", "A property; repeatable.")]
Tag = Annotated[str, option("--tag", "T", "The tag.")]
Since = Annotated[str, option("--since", "TIME", "Stored at or after: 2026-11-16T08:00, or milliseconds.")]
Until = Annotated[str, option("--until", "TIME", "Stored before this time.")]
Limit = Annotated[int, number("--limit", "N", "At most N messages.", low=1, default=True)]


@on_spark
def search(
    call: JobCall,
    stores: Stores = None,
    namesrv: MaybeNamesrv = "",
    topic: Topic = "",
    key: Keys = None,
    msg_id: MsgId = "",
    text: Text = "",
    pattern: Pattern = "",
    json_path: JsonPath = None,
    properties: Properties = None,
    tag: Tag = "",
    since: Since = "",
    until: Until = "",
    limit: Limit = 100,
) -> None:
    """Find messages by key, content, property, tag or time.

    All given conditions must match. With a topic its queues are searched, otherwise the whole logs. Messages that
    cannot be read are counted and reported. Exit status 0: done, even without a match; 2: could not run.

    Examples:

    \b
      penstock pipeline search --store data/store --topic orders --key order_7
      penstock pipeline search --store '/stores/*' --text 'order 7' --since 2026-11-15
      penstock pipeline search --namesrv 127.0.0.1:9876 --topic orders --json-path customer.id=42 --json
    """
    where = call.input(stores, namesrv)
    wanted = _query(topic, key, msg_id, text, pattern, json_path, properties, tag, since, until)
    check_input(where, [topic] if topic else [])
    _search_on_spark(call, wanted, where, limit)
    if stores and not call.as_json:
        write_note(f"for small stores, `penstock search {stores[0]}` with the same options prints the same at once")


@either_way
def search_stores(
    call: EitherCall,
    paths: Paths,
    topic: Topic = "",
    key: Keys = None,
    msg_id: MsgId = "",
    text: Text = "",
    pattern: Pattern = "",
    json_path: JsonPath = None,
    properties: Properties = None,
    tag: Tag = "",
    since: Since = "",
    until: Until = "",
    limit: Limit = 100,
) -> None:
    """Find messages by key, content, property, tag or time.

    All given conditions must match. With a topic its queues are searched, otherwise the whole logs. Messages that
    cannot be read are counted and reported. Runs in this process if the logs are small, and otherwise on Spark; stderr
    says which. `penstock pipeline search` searches a cluster. Exit status 0: done, even without a match; 2: could not
    run.

    Examples:

    \b
      penstock search data/store --text 'order 7'
      penstock search data/store --topic orders --key order_7 --json
      penstock search data/store --json-path customer.id=42 --since 2026-11-15
    """
    where = call.input(paths)
    wanted = _query(topic, key, msg_id, text, pattern, json_path, properties, tag, since, until)
    check_input(where, [topic] if topic else [])
    if call.uses_spark("search", where.folders().values()):
        _search_on_spark(call, wanted, where, limit)
    else:
        _search_here(wanted, where, limit, call.as_json)


def search_here(
    folder: Folder,
    topic: Topic = "",
    key: Keys = None,
    msg_id: MsgId = "",
    text: Text = "",
    pattern: Pattern = "",
    json_path: JsonPath = None,
    properties: Properties = None,
    tag: Tag = "",
    since: Since = "",
    until: Until = "",
    limit: Limit = 100,
    as_json: AsJson = False,
    config: Config = None,
    pairs: Pairs = None,
) -> None:
    """Find messages by key, content, property, tag or time.

    The same as `penstock pipeline search`, in this process and without Spark. Exit status 0: done, even without a
    match; 2: could not run.

    Examples:

    \b
      penstock store search data/store --text 'order 7'
      penstock store search data/store --tag paid --property colour=red --json
    """
    where = job_input([str(folder)], config=config, pairs=pairs)
    wanted = _query(topic, key, msg_id, text, pattern, json_path, properties, tag, since, until)
    check_input(where, [topic] if topic else [])
    _search_here(wanted, where, limit, as_json)


def _query(
    topic: str,
    key: Sequence[str] | None,
    msg_id: str,
    text: str,
    pattern: str,
    json_path: Sequence[str] | None,
    properties: Sequence[str] | None,
    tag: str,
    since: str,
    until: str,
) -> SearchQuery:
    """Returns the conditions that the options give. Raises BadSettings."""
    from penstock.pipeline.jobs.search import SearchQuery

    wanted = SearchQuery(
        topic=topic,
        keys=tuple(key or ()),
        msg_id=msg_id,
        text=text,
        pattern=pattern,
        json=_pairs("--json-path", json_path),
        properties=_pairs("--property", properties),
        tag=tag,
        since_ms=time_option("--since", since),
        until_ms=time_option("--until", until),
    )
    wanted.check()
    return wanted


def _search_on_spark(call: JobCall, wanted: SearchQuery, where: JobInput, limit: int) -> None:
    from penstock.pipeline.jobs.search import search as find

    with call.session("search", light_java=True) as spark:
        result = find(spark, wanted, where)
        rows = (row.asDict(recursive=True) for row in result.frame.toLocalIterator())
        hits = _Hits.take(rows, limit)
    _print_hits(hits, result.coverage, call.as_json)


def _search_here(wanted: SearchQuery, where: JobInput, limit: int, as_json: bool) -> None:
    from penstock.pipeline.jobs.search import search_here as find

    result = find(wanted, where)
    _print_hits(_Hits.take(result.rows, limit), result.coverage, as_json)


class _Hits(NamedTuple):
    """The messages that were found, how many rows could not be read, and a remark if there are more messages."""

    messages: list[dict[str, Any]]
    unread: int
    more: str

    @classmethod
    def take(cls, rows: Iterable[dict[str, Any]], limit: int) -> _Hits:
        """Reads rows until there are `limit` messages and one more."""
        unread = 0
        messages: list[dict[str, Any]] = []
        for row in rows:
            if row[_CORRUPT] is not None and not _is_message(row):
                unread += 1
            elif len(messages) < limit:
                messages.append(row)
            else:
                more = f", and there are more: stopped at --limit {limit}, so the following was not searched completely"
                return cls(messages, unread, more)
        return cls(messages, unread, "")


def _print_hits(hits: _Hits, coverage: Coverage, as_json: bool) -> None:
    from penstock.pipeline.jobs.search import describe

    for hit in hits.messages:
        write_json(_object(hit)) if as_json else write(_line(hit) + "\n")
    write_note(f"{len(hits.messages)} found{hits.more}; {'; '.join(describe(coverage))}")
    if hits.unread:
        write_note(f"{hits.unread} messages or ranges were not searched: unreadable; `penstock store verify` shows why")


def _is_message(row: Any) -> bool:
    """Whether a row is a message, and not an unreadable range. A message's body may still have failed to decompress."""
    return row["msg_id"] is not None


def _pairs(name: str, given: Sequence[str] | None) -> tuple[tuple[str, str], ...]:
    pairs = []
    for text in given or ():
        left, equals, right = text.partition("=")
        if not equals or not left:
            raise BadSettings(f"{name} '{text}': it must be NAME=VALUE")
        pairs.append((left, right))
    return tuple(pairs)


def _object(row: dict[str, Any]) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    for name, value in row.items():
        if isinstance(value, datetime):
            fields[name] = round(value.timestamp() * 1000)  # without a zone it is local time
        else:
            fields[name] = b64encode(value).decode() if isinstance(value, bytes | bytearray) else value
    return fields


def _line(row: dict[str, Any]) -> str:
    body = bytes(row["body"] or b"")[:_PREVIEW]
    text = body.decode("utf-8", "backslashreplace")
    parts = [
        str(row["store_timestamp"]),
        f"{row['broker']}: {row['topic']}/{row['queue_id']}",
        f"offset {row['queue_offset']}",
        row["msg_id"] or "",
        f"tag {row['tags']}" if row["tags"] else "",
        f"keys {' '.join(row['keys'])}" if row["keys"] else "",
        text if len(row["body"] or b"") <= _PREVIEW else f"{text}…",
    ]
    return plain("  ".join(part for part in parts if part))
