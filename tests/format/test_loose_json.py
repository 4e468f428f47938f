from __future__ import annotations

import json
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import CorruptData
from penstock.format.fastjson import dumps, loads

TOPICS = """{
\t"dataVersion":{
\t\t"counter":2,
\t\t"timestamp":1600000000000
\t},
\t"topicConfigTable":{
\t\t"TopicTest":{
\t\t\t"order":false,
\t\t\t"perm":6,
\t\t\t"readQueueNums":4,
\t\t\t"topicFilterType":"SINGLE_TAG",
\t\t\t"topicName":"TopicTest",
\t\t\t"topicSysFlag":0,
\t\t\t"writeQueueNums":4
\t\t}
\t}
}"""
CONSUMER_OFFSETS = """{
\t"offsetTable":{
\t\t"%RETRY%group_a@group_a":{0:3
\t\t},
\t\t"TopicTest@group_a":{0:250,1:249
\t\t}
\t}
}"""
DELAY_OFFSETS = """{
\t"offsetTable":{1:10,3:7
\t}
}"""


@pytest.mark.parametrize("text", [TOPICS, CONSUMER_OFFSETS, DELAY_OFFSETS])
def test_a_config_file_survives_a_round_trip_to_the_byte(text: str) -> None:
    assert dumps(loads(text)) == text


def test_unquoted_number_keys_are_numbers_and_quoted_ones_text() -> None:
    assert loads(DELAY_OFFSETS) == {"offsetTable": {1: 10, 3: 7}}
    assert loads('{"offsetTable":{"1":10, -3 : 7}}') == {"offsetTable": {"1": 10, -3: 7}}


def test_what_looks_like_a_bare_key_inside_a_string_is_left_alone() -> None:
    assert loads('{"a":"{0:1,2:3}",1:"x{5:6"}') == {"a": "{0:1,2:3}", 1: "x{5:6"}


def test_an_object_may_be_a_key() -> None:
    key = (("brokerName", "a"), ("queueId", 0), ("topic", "T"))
    table = loads('{{"brokerName":"a","queueId":0,"topic":"T"}:{"maxOffset":5}, 1:[]}')
    assert table == {key: {"maxOffset": 5}, 1: []}
    assert loads(dumps(table)) == table


def test_keys_may_contain_what_marks_them_while_they_are_read() -> None:
    signs = "".join(map(chr, range(0xE000, 0xE03D)))
    assert loads(f'{{0:1,"{signs[0]}0{signs[0]}":2,"\\ue001":3,{{"a":"\\uE002\\""}}:4}}') == {
        0: 1,
        f"{signs[0]}0{signs[0]}": 2,
        "\ue001": 3,
        (("a", '\ue002"'),): 4,
    }
    assert loads(f'{{0:"{signs}"}}') == {0: signs}
    with pytest.raises(CorruptData, match="private use"):
        loads(f'{{0:"{signs}\ue03d"}}')


@pytest.mark.parametrize("piece", ['"\\', '"', "{", "0:", " ", "9", "-", "[0,", '{"a":', "{0:0},", "{}:0,", "\\", '""'])
def test_the_work_is_linear_in_the_length(piece: str) -> None:
    """A quadratic reader would need minutes for each of these."""
    with suppress(CorruptData):
        loads("{0:" + piece * (400_000 // len(piece)))


def test_fields_are_sorted_on_demand() -> None:
    assert dumps({"b": 1, "a": {"d": [], "c": {}}}, sort_keys=True) == (
        '{\n\t"a":{\n\t\t"c":{},\n\t\t"d":[]\n\t},\n\t"b":1\n}'
    )


keys = st.text() | st.integers(-(2**31), 2**31)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text() | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(keys, inner, max_size=4),
    max_leaves=20,
)


@given(values)
def test_whatever_is_written_is_read(value: object) -> None:
    assert loads(dumps(value)) == value


@given(values)
def test_strict_json_is_read_as_any_reader_would(value: object) -> None:
    text = json.dumps(value)
    assert loads(text) == json.loads(text)


@pytest.mark.parametrize(
    ("text", "offset"),
    [
        ("", 0),
        ("{", 1),
        ("{0", 1),
        ("{0:", 3),
        ("{0:1", 4),
        ("{0:1,}", 5),
        ("{a:1}", 1),
        ("[1,]", 3),
        ("{0:1} x", 6),
        ("{0:NaN}", None),
        ('{0:"x', 5),
        ('"x\\', 3),
        ('{ 0 :1,{"a" :"x"} : 5 5}', 22),
        ("{{1:{}}:1}", 1),
        ("{[1]:1}", 1),
        ("\0\0\0\0", 0),
    ],
)
def test_garbage_is_refused_with_the_place_where_it_begins(text: str, offset: int | None) -> None:
    with pytest.raises(CorruptData) as caught:
        loads(text)
    assert caught.value.offset == offset


@pytest.mark.parametrize("opening", ["[", "{0:", '{"a":', "{" * 5])
def test_endless_nesting_is_refused(opening: str) -> None:
    with pytest.raises(CorruptData):
        loads(opening * 100_000)


@given(st.text(alphabet='{}[]:,"0 1-\\ntue\t'))
def test_any_text_is_read_or_refused(text: str) -> None:
    with suppress(CorruptData):
        loads(text)
