"""Which messages a search wants: by what they hold, compared column by column. Pure; needs pyarrow; runs on workers."""

from __future__ import annotations

import re
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import BadSettings
from penstock.format.message_id import decode_message_id

Mask = npt.NDArray[np.bool_]


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """What a message must have; all of it. Times are epoch milliseconds of storing, the end exclusive."""

    topic: str = ""
    keys: tuple[str, ...] = ()
    """One of these, as a key or as the unique key."""
    msg_id: str = ""
    text: str = ""
    """Somewhere in the body, as UTF-8."""
    pattern: str = ""
    """A regular expression that matches somewhere in the body."""
    json: tuple[tuple[str, str], ...] = ()
    """(path, value): the body is JSON, and what lies at the path is the value, as JSON or as text."""
    properties: tuple[tuple[str, str], ...] = ()
    tag: str = ""
    since_ms: int | None = None
    until_ms: int | None = None

    def check(self) -> None:
        """Raises BadSettings for what cannot be searched for."""
        if self == Wanted():
            raise BadSettings(
                "what is to be found? Give one of --key, --id, --text, --regex, --property, --tag, --since and --until"
            )
        if self.pattern:
            try:
                re.compile(self.pattern.encode())
            except re.error as error:
                raise BadSettings(f"--regex '{self.pattern}': it must be a regular expression ({error})") from None
        if self.msg_id:
            decode_message_id(self.msg_id)
        if self.since_ms is not None and self.until_ms is not None and self.since_ms >= self.until_ms:
            raise BadSettings("the search ends before it begins: --until must be later than --since")

    def matches(self, batch: pa.RecordBatch) -> Mask:
        """Which rows have all of it. The batch has the columns of messages, with bodies unpacked."""
        mask = np.ones(batch.num_rows, np.bool_)
        if self.topic:
            mask &= _true(pc.equal(batch.column("topic"), self.topic))
        if self.tag:
            mask &= _true(pc.equal(batch.column("tags"), self.tag))
        if self.msg_id:
            mask &= _true(pc.equal(batch.column("msg_id"), self.msg_id.upper()))
        mask &= self._in_time(batch)
        for name, value in self.properties:
            mask &= _true(pc.equal(pc.map_lookup(batch.column("properties"), name, "first"), value))
        bodies = batch.column("body")
        if self.text and mask.any():
            mask &= _true(pc.match_substring(bodies, self.text.encode()))
        if (self.pattern or self.json) and mask.any():
            mask[np.flatnonzero(mask)] = [self._body_matches(bodies[row].as_py()) for row in np.flatnonzero(mask)]
        return mask

    def _in_time(self, batch: pa.RecordBatch) -> Mask:
        if self.since_ms is None and self.until_ms is None:
            return np.ones(batch.num_rows, np.bool_)
        micros = batch.column("store_timestamp").cast(pa.int64()).to_numpy(zero_copy_only=False)
        low = -(2**62) if self.since_ms is None else self.since_ms * 1000
        high = 2**62 if self.until_ms is None else self.until_ms * 1000
        return np.asarray((micros >= low) & (micros < high))

    def _body_matches(self, body: bytes | None) -> bool:
        if body is None or (self.pattern and re.search(self.pattern.encode(), body) is None):
            return False
        if not self.json:
            return True
        try:
            document = msgspec.json.decode(body)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return False
        return all(_is(at_path(document, path), value) for path, value in self.json)


def _true(column: pa.Array) -> Mask:
    return np.asarray(column.fill_null(False).to_numpy(zero_copy_only=False))


class _Nothing:
    """What lies where nothing lies: not even null."""


def at_path(document: Any, path: str) -> Any:
    """What lies at `a.b.0`, or `$.a.b[0]`, in a JSON document."""
    for step in re.findall(r"[^.\[\]$]+", path):
        if isinstance(document, dict) and step in document:
            document = document[step]
        elif isinstance(document, list) and step.isdecimal() and int(step) < len(document):
            document = document[int(step)]
        else:
            return _Nothing()
    return document


def _is(found: Any, value: str) -> bool:
    if isinstance(found, _Nothing):
        return False
    if isinstance(found, str):
        return found == value
    try:
        wanted = msgspec.json.decode(value)
    except msgspec.DecodeError:
        return False
    return type(found) is type(wanted) and found == wanted
