"""`penstock pipeline search`: messages by key, id, body, property, tag and time."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Annotated, Any

from penstock.cli.options import AsJson, Config, Pairs, number, option
from penstock.cli.output import plain, say, write, write_json
from penstock.cli.spark import Confs, Master, MaybeNamesrv, Stores, check, milliseconds, place, session
from penstock.errors import BadSettings

_PREVIEW = 80


def search(
    stores: Stores = None,
    namesrv: MaybeNamesrv = "",
    topic: Annotated[str, option("--topic", "T", "Only in this topic; with a key, its index is used.")] = "",
    key: Annotated[list[str] | None, option("--key", "K", "A key or unique key; repeatable: any of them.")] = None,
    msg_id: Annotated[str, option("--id", "ID", "An offset message id.")] = "",
    text: Annotated[str, option("--text", "TEXT", "Somewhere in the body.")] = "",
    pattern: Annotated[str, option("--regex", "R", "A regular expression that matches in the body.")] = "",
    json_path: Annotated[
        list[str] | None, option("--json-path", "P=V", "The body is JSON and has this, as in order.id=7; repeatable.")
    ] = None,
    properties: Annotated[list[str] | None, option("--property", "N=V", "A property; repeatable.")] = None,
    tag: Annotated[str, option("--tag", "T", "The tag.")] = "",
    since: Annotated[str, option("--since", "TIME", "Stored at or after: 2026-11-16T08:00, or milliseconds.")] = "",
    until: Annotated[str, option("--until", "TIME", "Stored before.")] = "",
    limit: Annotated[int, number("--limit", "N", "Show so many at most.", low=1, default=True)] = 100,
    as_json: AsJson = False,
    master: Master = None,
    conf: Confs = None,
    config: Config = None,
    pairs: Pairs = None,
) -> None:
    """Find messages by what they hold, and say what was searched.

    All that is given must hold. With a topic its queues are searched; without one the logs, with all topics in them. A
    message that cannot be read is counted, never passed over in silence. Exit status 0: done, whatever was found; 2: it
    could not be run.

    Examples:

    \b
      penstock pipeline search --store data/store --topic orders --key order_7
      penstock pipeline search --store '/stores/*' --text 'order 7' --since 2026-11-15
      penstock pipeline search --namesrv 127.0.0.1:9876 --topic orders --json-path customer.id=42 --json
    """
    from penstock.pipeline.jobs.search import CORRUPT, SearchQuery, describe
    from penstock.pipeline.jobs.search import search as find

    where = place(stores, namesrv, config, pairs)
    wanted = SearchQuery(
        topic=topic,
        keys=tuple(key or ()),
        msg_id=msg_id,
        text=text,
        pattern=pattern,
        json=_pairs("--json-path", json_path),
        properties=_pairs("--property", properties),
        tag=tag,
        since_ms=milliseconds("--since", since),
        until_ms=milliseconds("--until", until),
    )
    wanted.check()
    check(where, [topic] if topic else [])
    with session("search", master, conf, light_java=True) as spark:
        found = find(spark, wanted, where)
        unread, more = 0, ""
        hits: list[dict[str, Any]] = []
        for row in found.frame.toLocalIterator():
            if row[CORRUPT] is not None and not _holds(row):
                unread += 1
            elif len(hits) < limit:
                hits.append(row.asDict(recursive=True))
            else:
                more = f", and there are more: it ended at --limit {limit}, so not all of what follows was looked at"
                break
    for hit in hits:
        write_json(_object(hit)) if as_json else write(_line(hit) + "\n")
    say(f"{len(hits)} found{more}; {'; '.join(describe(found.coverage))}")
    if found.coverage.through_index and len(wanted.keys) == 1 and stores and not as_json:
        say(f"`penstock store query {stores[0]} --topic {topic} --key {wanted.keys[0]}` asks that index at once")
    if unread:
        say(f"{unread} messages or ranges could not be read, and so not searched; `penstock store verify` says why")


def _holds(row: Any) -> bool:
    """Whether a row is a message, though perhaps one whose body could not be unpacked."""
    return row["msg_id"] is not None


def _pairs(name: str, given: Sequence[str] | None) -> tuple[tuple[str, str], ...]:
    pairs = []
    for text in given or ():
        left, equals, right = text.partition("=")
        if not equals or not left:
            raise BadSettings(f"{name} '{text}': it must be a name and a value, joined by =")
        pairs.append((left, right))
    return tuple(pairs)


def _object(row: dict[str, Any]) -> dict[str, Any]:
    made: dict[str, Any] = {}
    for name, value in row.items():
        if isinstance(value, datetime):
            made[name] = int(value.replace(tzinfo=value.tzinfo or UTC).timestamp() * 1000)
        else:
            made[name] = b64encode(value).decode() if isinstance(value, bytes | bytearray) else value
    return made


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
