"""How far a stream is behind, from its progress; and the listener that logs and writes it."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable
from support.pipeline import options_for
from support.stores import StoreHome

from penstock.pipeline.source import schema_of
from penstock.pipeline.stream_source import StreamReader
from penstock.spark import StreamLag, TopicLag, lag


def progress_of(*sources: dict[str, Any], name: str | None = "lake", run: str = "r1") -> Any:
    document = {"id": "q1", "runId": run, "name": name, "timestamp": "2020-09-13T12:26:50.000Z", "sources": sources}
    return SimpleNamespace(json=json.dumps(document), runId=run)


@pytest.fixture
def source(tmp_path: Path) -> dict[str, Any]:
    """What Spark has of a query that has read 4 of 10 messages; the clock of the store stands at 12:26:40."""
    home = StoreHome(tmp_path / "store")
    with home.open() as store:
        home.put_numbered(store, 10)
        size = store.log.max_offset // 10
    options = options_for(home.path, topic="T", startingOffsets="earliest", maxOffsetsPerTrigger=4)
    reader = StreamReader(options, schema_of(options))
    start = reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
    end = reader.latestOffset(start, ReadAllAvailable())
    reader.partitions(start, end)
    latest = reader.reportLatestOffset()
    assert latest["@mean"]["T"] == size
    return {"endOffset": json.dumps(end), "latestOffset": json.dumps(latest), "size": size}


def test_the_lag_is_what_waits_behind_what_was_read(source: dict[str, Any]) -> None:
    assert lag(progress_of(source)) == [TopicLag("lake", "T", 6, 6 * source["size"], 10.0)]
    assert lag(progress_of(source, name=None))[0].query == "q1"
    read = {**source, "endOffset": json.dumps({"T": {"store": {"0": 10}}})}
    assert lag(progress_of(read)) == [TopicLag("lake", "T", 0, 0, 0.0)]
    assert lag(None) == []


def test_other_sources_have_no_lag_here() -> None:
    others: list[dict[str, Any]] = [
        {"endOffset": "7", "latestOffset": None},
        {"endOffset": '{"logOffset": 3}', "latestOffset": '{"logOffset": 5}'},
        {"endOffset": "not json", "latestOffset": "{"},
    ]
    assert lag(progress_of(*others)) == []


def test_a_listener_logs_the_lag_and_writes_it_for_prometheus(
    source: dict[str, Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "lag.prom"
    listener = StreamLag(file)
    with caplog.at_level(logging.INFO, "penstock.pipeline"):
        listener.onQueryProgress(SimpleNamespace(progress=progress_of(source, name='a "b"')))
    bytes_behind = 6 * source["size"]
    assert f"is 6 messages ({bytes_behind} bytes, 10 s) behind in topic T" in caplog.text
    lines = [line for line in file.read_text().splitlines() if not line.startswith("#")]
    labels = '{query="a \\"b\\"",topic="T"}'
    assert lines == [
        f"penstock_stream_lag_messages{labels} 6",
        f"penstock_stream_lag_bytes{labels} {bytes_behind}",
        f"penstock_stream_lag_seconds{labels} 10.0",
    ]
    assert [each.messages for each in listener.lags] == [6]
    listener.onQueryTerminated(SimpleNamespace(runId="r1"))
    assert listener.lags == []
    assert "T" not in file.read_text().replace("TYPE", "")
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []
