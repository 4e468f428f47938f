"""`penstock pipeline search`: finds messages by key, id, body, property, tag and time."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Annotated, Any

from penstock.cli.options import number, option
from penstock.cli.output import plain, write, write_json, write_note
from penstock.cli.spark import JobCall, MaybeNamesrv, Stores, check_input, on_spark, time_option
from penstock.errors import BadSettings

_PREVIEW = 80


@on_spark
def search(
    call: JobCall,
    stores: Stores = None,
    namesrv: MaybeNamesrv = "",
    topic: Annotated[str, option("--topic", "T", "Only this topic; with a key, through the index.")] = "",
    key: Annotated[list[str] | None, option("--key", "K", "A key or unique key; repeatable (any matches).")] = None,
    msg_id: Annotated[str, option("--id", "ID", "An offset message id.")] = "",
    text: Annotated[str, option("--text", "TEXT", "The body contains this text.")] = "",
    pattern: Annotated[str, option("--regex", "R", "The body matches this regular expression.")] = "",
    json_path: Annotated[
        list[str] | None, option("--json-path", "P=V", "A value in a JSON body, as in order.id=7; repeatable.")
    ] = None,
    properties: Annotated[list[str] | None, option("--property", "N=V", "A property; repeatable.")] = None,
    tag: Annotated[str, option("--tag", "T", "The tag.")] = "",
    since: Annotated[str, option("--since", "TIME", "Stored at or after: 2026-11-16T08:00, or milliseconds.")] = "",
    until: Annotated[str, option("--until", "TIME", "Stored before this time.")] = "",
    limit: Annotated[int, number("--limit", "N", "At most N messages.", low=1, default=True)] = 100,
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
    from penstock.pipeline.jobs.search import CORRUPT, SearchQuery, describe
    from penstock.pipeline.jobs.search import search as find

    where = call.input(stores, namesrv)
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
    check_input(where, [topic] if topic else [])
    with call.session("search", light_java=True) as spark:
        result = find(spark, wanted, where)
        unread, more = 0, ""
        hits: list[dict[str, Any]] = []
        for row in result.frame.toLocalIterator():
            if row[CORRUPT] is not None and not _is_message(row):
                unread += 1
            elif len(hits) < limit:
                hits.append(row.asDict(recursive=True))
            else:
                more = f", and there are more: stopped at --limit {limit}, so the following was not searched completely"
                break
    for hit in hits:
        write_json(_object(hit)) if call.as_json else write(_line(hit) + "\n")
    write_note(f"{len(hits)} found{more}; {'; '.join(describe(result.coverage))}")
    if result.coverage.through_index and len(wanted.keys) == 1 and stores and not call.as_json:
        write_note(f"`penstock store query {stores[0]} --topic {topic} --key {wanted.keys[0]}` does the same at once")
    if unread:
        write_note(f"{unread} messages or ranges were not searched: unreadable; `penstock store verify` shows why")


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
            fields[name] = int(value.replace(tzinfo=value.tzinfo or UTC).timestamp() * 1000)
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
