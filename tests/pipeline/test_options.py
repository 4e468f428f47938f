"""Options: what each takes and refuses, what contradicts what."""

from __future__ import annotations

import re
from dataclasses import fields
from typing import Any

import pytest
from support.stores import is_one_sentence

from penstock.errors import BadSettings
from penstock.pipeline.options import EARLIEST, LATEST, TABLE, OffsetSpec, Options

PLACE = {"path": "/data/store"}
EMPTY = "it must not be empty"
NUMBER = "it must be a whole number of at least"
BYTES = "it must be a number of bytes such as 1048576, 64m or 1g"
TIME = "it must be milliseconds, a time such as 2026-01-31T23:59, or one such as now-1h"
FLAG = "it must be true or false"
BY_QUEUE = OffsetSpec(by_queue={("o", "", 0): 5})

# What is written, what it becomes, what is refused, and why.
VALUES: dict[str, tuple[str, Any, str, str]] = {
    "path": ("/a, /b*", ("/a", "/b*"), " , ", "it must name at least one"),
    "namesrv": ("h1:9876;h2:9876", "h1:9876;h2:9876", "", EMPTY),
    "subscribe": ("orders, Alerts", ("orders", "Alerts"), "a,b,a", "a name is given twice"),
    "subscribePattern": ("ord.*", re.compile("ord.*"), "ord(", "it is not a regular expression (missing )"),
    "assign": ('{"o": [0, 1]}', (("o", "", 0), ("o", "", 1)), "o", "it is not a JSON object"),
    "topic": ("orders", "orders", "", EMPTY),
    "defaultTopic": ("orders", "orders", "", EMPTY),
    "order": ("LOG", "log", "time", "it must be one of queue, any, log"),
    "tags": ("a || b", "a || b", "", EMPTY),
    "keys": ("k1,k2", ("k1", "k2"), ",", "it must name at least one"),
    "startingOffsets": ("earliest", OffsetSpec(EARLIEST), "begin", "it must be earliest, latest, group:NAME, or JSON"),
    "endingOffsets": ("latest", OffsetSpec(LATEST), "earliest", "it must be latest, or JSON"),
    "startingTimestamp": ("1600000000000", 1_600_000_000_000, "-1", TIME),
    "endingTimestamp": ("2026-01-31T23:59:00Z", 1_769_903_940_000, "now-1y", "it must be a time such as 500ms"),
    "startingOffsetsByTimestamp": (
        '{"o": {"0": "1970-01-01T00:00:00.005Z"}}',
        BY_QUEUE,
        "5",
        "it must be JSON such as",
    ),
    "endingOffsetsByTimestamp": ('{"o": {"0": 5}}', BY_QUEUE, '{"o": {"0": -5}}', "o queue 0: -5 is not a time"),
    "startingOffsetsByTimestampStrategy": ("Latest", "latest", "earliest", "it must be one of error, latest"),
    "maxOffsetsPerTrigger": ("1", 1, "0", f"{NUMBER} 1"),
    "minOffsetsPerTrigger": ("100", 100, "many", f"{NUMBER} 1"),
    "maxTriggerDelay": ("500 ms", 0.5, "500", "it must be a time such as 500ms, 30s or 15m"),
    "maxBytesPerTrigger": ("64m", 64 << 20, "0", BYTES),
    "minPartitions": ("4", 4, "1.5", f"{NUMBER} 1"),
    "maxRecordsPerPartition": ("1000", 1000, "-3", f"{NUMBER} 1"),
    "maxBytesPerPartition": ("1 GiB", 1 << 30, "1 elephant", BYTES),
    "failOnDataLoss": ("FALSE", False, "no", FLAG),
    "schema": ("Kafka", "kafka", "pulsar", "it must be one of rocketmq, kafka"),
    "columns": ("topic,body", ("topic", "body"), "topic,topic", "a name is given twice"),
    "includeBody": ("false", False, "0", FLAG),
    "decompress": ("true", True, "gzip", FLAG),
    "mode": ("failfast", "FAILFAST", "STRICT", "it must be one of PERMISSIVE, FAILFAST, DROPMALFORMED"),
    "columnNameOfCorruptRecord": ("wrong", "wrong", "", EMPTY),
    "consumerGroup": ("readers", "readers", "", EMPTY),
    "progressGroup": ("readers", "readers", "", EMPTY),
    "config": ("/etc/broker.conf", "/etc/broker.conf", "", EMPTY),
    "waitForBrokers": ("5m", 300.0, "5", "it must be a time such as 500ms, 30s or 15m"),
    "trust": ("/etc/ca.pem", "/etc/ca.pem", "", EMPTY),
    "tls": ("true", True, "on", FLAG),
    "tlsCert": ("/etc/me.pem", "/etc/me.pem", "", EMPTY),
    "tlsKey": ("/etc/me.key", "/etc/me.key", "", EMPTY),
    "accessKey": ("me", "me", "", EMPTY),
    "secretKey": ("secret", "secret", "", EMPTY),
    "writeId": ("2026-01-01", "2026-01-01", "", EMPTY),
    "producerGroup": ("writers", "writers", "", EMPTY),
}


def given(name: str, value: str) -> dict[str, str]:
    pair = {"tlsCert": "tlsKey", "tlsKey": "tlsCert"}.get(name)
    more = {pair: "/etc/other.pem"} if pair else {}
    return {name: value} if name in ("path", "namesrv") else {**PLACE, **more, name: value}


def take(options: dict[str, str], *, check: bool) -> None:
    read = Options.read(options)
    if check:
        read.check_reading()


def refusal(options: dict[str, str], *, check: bool = True) -> str:
    """The error for these options."""
    with pytest.raises(BadSettings) as caught:
        take(options, check=check)
    assert is_one_sentence(str(caught.value))
    return str(caught.value)


def test_every_option_is_tried_here() -> None:
    assert set(VALUES) == {option.name for option in TABLE}
    assert {option.attribute for option in TABLE} == {each.name for each in fields(Options)} - {"settings"}


@pytest.mark.parametrize("name", VALUES)
def test_a_good_value_is_taken_whatever_the_case_of_the_name(name: str) -> None:
    text, value, _, _ = VALUES[name]
    for spelling in (name, name.lower(), name.upper()):
        options = given(name, f" {text} ")
        options[spelling] = options.pop(name)
        assert getattr(Options.read(options), TABLE.by_name[name].attribute) == value


@pytest.mark.parametrize("name", VALUES)
def test_a_bad_value_is_refused_with_its_name_and_what_is_allowed(name: str) -> None:
    _, _, text, why = VALUES[name]
    said = refusal(given(name, text), check=False)
    assert said.startswith(f"option {name} is '{text}'; ")
    assert why in said


@pytest.mark.parametrize(("name", "value"), [("size", "7"), ("65_536", ""), ("", "")])
def test_a_name_that_nobody_knows_is_refused(name: str, value: str) -> None:
    assert refusal({**PLACE, name: value}, check=False).startswith(f"there is no option '{name}'")


@pytest.mark.parametrize(
    ("wrong", "right"),
    [("startingOffset", "startingOffsets"), ("subscibe", "subscribe"), ("MAXOFFSETPERTRIGGER", "maxOffsetsPerTrigger")],
)
def test_a_name_that_is_nearly_right_brings_a_suggestion(wrong: str, right: str) -> None:
    assert f"did you mean {right}?" in refusal({**PLACE, wrong: "x"}, check=False)


@pytest.mark.parametrize(
    ("name", "instead"),
    [
        ("kafka.bootstrap.servers", "namesrv for a cluster, or path for a store's files"),
        ("includeHeaders", "schema=kafka always has the column headers"),
        ("kafka.group.id", "consumerGroup"),
        ("groupIdPrefix", "consumerGroup"),
        ("fetchOffset.numRetries", "waitForBrokers"),
        ("kafkaConsumer.pollTimeoutMs", "waitForBrokers"),
        ("kafka.security.protocol", "trust, tls, tlsCert and tlsKey"),
        ("kafka.sasl.jaas.config", "accessKey and secretKey"),
        ("kafka.linger.ms", "have no meaning here: leave it out"),
    ],
)
def test_an_option_of_kafkas_source_brings_what_to_use_instead(name: str, instead: str) -> None:
    said = refusal({**PLACE, name: "x"}, check=False)
    assert said.startswith(f"'{name}' is an option of Spark's Kafka source; ")
    assert instead in said


def test_duplicates_are_no_option_and_the_sentence_says_what_to_use() -> None:
    with pytest.raises(BadSettings, match="dropDuplicates on the column unique_key"):
        Options.read({"path": "/somewhere", "dedupe": "true"})


def test_tls_is_on_if_one_of_its_options_is_given() -> None:
    assert Options.read(PLACE).tls_properties == {}
    assert Options.read({**PLACE, "tls": "true"}).tls_properties == {"tls.enable": "true"}
    given = {"trust": "/ca.pem", "tlsCert": "/me.pem", "tlsKey": "/me.key"}
    assert Options.read({**PLACE, **given}).tls_properties == {
        "tls.enable": "true",
        "tls.client.trustCertPath": "/ca.pem",
        "tls.client.certPath": "/me.pem",
        "tls.client.keyPath": "/me.key",
    }
    assert "only one of tlsCert and tlsKey" in refusal({**PLACE, "tlsKey": "/me.key"}, check=False)


def test_what_spark_adds_by_itself_passes() -> None:
    sparks = {"checkpointLocation": "/c", "provider": "rocketmq", "queryType": "x", "option.path": "/p", "owner": "me"}
    assert Options.read({**PLACE, **sparks}) == Options.read(PLACE)


def test_topics_and_paths_have_another_name() -> None:
    assert Options.read({**PLACE, "topics": "a,b"}).topics == ("a", "b")
    assert Options.read({**PLACE, "topic": "a"}).topics == ("a",)
    assert Options.read({"paths": "/a"}).path == ("/a",)


def test_a_list_of_paths_is_taken_as_spark_writes_it() -> None:
    assert Options.read({"path": '["/a,b", "/c"]'}).path == ("/a,b", "/c")
    assert Options.read({"path": "[ab]*"}).path == ("[ab]*",), "a glob"
    assert "it is not a list of paths" in refusal({"path": '["/a", 1]'}, check=False)


@pytest.mark.parametrize(
    ("text", "size"), [("7", 7), ("7b", 7), ("2k", 2048), ("2 KB", 2048), ("3MiB", 3 << 20), ("1g", 1 << 30)]
)
def test_sizes_have_units(text: str, size: int) -> None:
    assert Options.read({**PLACE, "maxBytesPerTrigger": text}).max_bytes_per_trigger == size


@pytest.mark.parametrize(("text", "seconds"), [("30s", 30), ("15m", 900), ("15 min", 900), ("2h", 7200), ("1d", 86400)])
def test_delays_have_units(text: str, seconds: float) -> None:
    assert Options.read({**PLACE, "maxTriggerDelay": text}).max_trigger_delay == seconds


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"path": "/a", "namesrv": "h:1"}, "path and namesrv are both given"),
        ({"subscribe": "a"}, "neither path nor namesrv is given; a table created with CREATE TABLE loses its options"),
        ({**PLACE}, "no topics are given; set subscribe, subscribePattern or assign, or read the log with order=log"),
        ({**PLACE, "subscribe": "a", "topic": "b"}, "subscribe and topic are given; only one of them may be"),
        (
            {**PLACE, "subscribe": "a", "subscribePattern": "b", "assign": '{"c": [0]}'},
            "subscribe and subscribePattern and assign are given",
        ),
        ({**PLACE, "order": "log", "assign": '{"c": [0]}'}, "assign works by queue; with order=log use subscribe"),
        ({"namesrv": "h:1", "order": "log"}, "order=log reads the files of a store; leave it out with namesrv"),
        ({**PLACE, "order": "log", "keys": "k"}, "keys are looked up in the index"),
        ({**PLACE, "order": "log", "maxOffsetsPerTrigger": "5"}, "limit it with maxBytesPerTrigger"),
        ({**PLACE, "order": "log", "minOffsetsPerTrigger": "5"}, "limit it with maxBytesPerTrigger"),
        ({**PLACE, "order": "log", "maxRecordsPerPartition": "5"}, "limit it with maxBytesPerPartition"),
        ({**PLACE, "topic": "a", "progressGroup": "g"}, "progressGroup needs namesrv"),
        ({**PLACE, "topic": "a", "tags": "a||"}, "option tags is 'a||'; it must be * or tags joined by ||"),
        ({**PLACE, "topic": "a", "columns": "body,topic", "includeBody": "false"}, "includeBody is false"),
        (
            {**PLACE, "topic": "a", "columns": "value", "includeBody": "false", "schema": "kafka"},
            "includeBody is false",
        ),
    ],
)
def test_what_contradicts_itself_is_said(options: dict[str, str], sentence: str) -> None:
    assert sentence in refusal(options)


@pytest.mark.parametrize(
    "options",
    [
        {**PLACE, "subscribePattern": "a.*"},
        {**PLACE, "order": "log"},
        {**PLACE, "order": "log", "subscribe": "a", "tags": "*"},
        {"namesrv": "h:1", "topic": "a", "progressGroup": "g", "keys": "k"},
    ],
)
def test_what_goes_together_is_taken(options: dict[str, str]) -> None:
    Options.read(options).check_reading()


@pytest.mark.parametrize("name", ["endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp"])
def test_a_stream_has_no_end(name: str) -> None:
    options = Options.read(given(name, VALUES[name][0]))
    with pytest.raises(BadSettings, match=f"^{name} is given, and a stream has no end; leave it out"):
        options.check_streaming()
    Options.read(given("startingTimestamp", "5")).check_streaming()


def test_tags_are_names_or_everything() -> None:
    def names(text: str) -> tuple[str, ...] | None:
        return Options.read({**PLACE, "tags": text}).tag_names

    assert names("*") is None
    assert names(" red||  green ") == ("red", "green")
    assert names("a b") == ("a b",)
