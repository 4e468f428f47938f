"""The texts that say where a read begins and ends."""

from __future__ import annotations

import pytest

from penstock.pipeline.options import ANY_BROKER, EARLIEST, LATEST, OffsetSpec, parse_assign, parse_offsets, parse_times


def test_the_offsets_of_a_streams_progress_can_be_given_as_they_are() -> None:
    progress = '{"@read": {"a": {"x": {"0": [7, 8]}}}, "@store": {"x": [0, 8]}, "a": {"x": {"0": 12}}}'
    assert parse_offsets(progress, starting=True).by_queue == {("a", "x", 0): 12}


@pytest.mark.parametrize(
    ("text", "starting", "spec"),
    [
        ("earliest", True, OffsetSpec(EARLIEST)),
        ("Latest", True, OffsetSpec(LATEST)),
        ("latest", False, OffsetSpec(LATEST)),
        ("group:billing", True, OffsetSpec(group="billing")),
        ("GROUP: %RETRY%x ", True, OffsetSpec(group="%RETRY%x")),
        ('{"o": {"0": 12, "1": -2}}', True, OffsetSpec(by_queue={("o", ANY_BROKER, 0): 12, ("o", ANY_BROKER, 1): -2})),
        ('{"o": {"7": -1}}', False, OffsetSpec(by_queue={("o", ANY_BROKER, 7): -1})),
        (
            '{"o": {"a": {"0": 1}, "b": {"0": 2}}, "p": {"3": 0}}',
            True,
            OffsetSpec(by_queue={("o", "a", 0): 1, ("o", "b", 0): 2, ("p", ANY_BROKER, 3): 0}),
        ),
    ],
)
def test_offsets_are_words_or_numbers_by_queue(text: str, starting: bool, spec: OffsetSpec) -> None:
    assert parse_offsets(text, starting=starting) == spec


@pytest.mark.parametrize(
    ("text", "starting", "sentence"),
    [
        ("earliest", False, "must be latest, or JSON"),
        ("group:g", False, "must be latest, or JSON"),
        ("group: ", True, "the name of the group is missing after 'group:'"),
        ("first", True, "must be earliest, latest, group:NAME, or JSON"),
        ("", True, "must be earliest"),
        ("[1]", True, "must be earliest"),
        ('{"o": {"0": -3}}', True, "o queue 0: -3 is not an offset; -2 is earliest, -1 is latest"),
        ('{"o": {"0": -2}}', False, "o queue 0: -2 is not an offset"),
        ('{"o": {"0": 1.5}}', True, "topic o queue 0: 1.5 is not a whole number"),
        ('{"o": {"0": true}}', True, "topic o queue 0: True is not a whole number"),
        ('{"o": {"0": "1"}}', True, "is not a whole number"),
        ('{"o": {"0": 99999999999999999999}}', True, "is not a whole number"),
        ('{"o": {"x": 1}}', True, "topic o: 'x' is not a queue id"),
        ('{"o": {"-1": 1}}', True, "'-1' is not a queue id"),
        ('{"o": {"0": 1, "a": {"0": 1}}}', True, "topic o: brokers and queues are mixed"),
        ('{"o": {"a": {"0": 1}, "0": 1}}', True, "topic o: brokers and queues are mixed"),
        ('{"o": 3}', True, "topic o: it must have numbers by queue"),
        ('{"o": {}}', True, "topic o: it must have numbers by queue"),
        ('{"o": {"a": {}}}', True, "it must name at least one queue"),
        ("{}", True, "it must name at least one queue"),
        ('{"o": ', True, "it is not a JSON object"),
    ],
)
def test_what_is_no_offset_is_said_in_one_sentence(text: str, starting: bool, sentence: str) -> None:
    with pytest.raises(ValueError, match=r"^[^\n]+$") as caught:
        parse_offsets(text, starting=starting)
    assert sentence in str(caught.value)


def test_times_are_milliseconds_by_queue() -> None:
    assert parse_times('{"o": {"0": 1700000000000}}') == OffsetSpec(by_queue={("o", ANY_BROKER, 0): 1_700_000_000_000})
    assert parse_times('{"o": {"a": {"0": 0}}}') == OffsetSpec(by_queue={("o", "a", 0): 0})


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("latest", 'it must be JSON such as {"orders": {"0": 1700000000000'),
        ('{"o": {"0": -1}}', "o queue 0: -1 is not a time in milliseconds"),
    ],
)
def test_what_is_no_time_is_said(text: str, sentence: str) -> None:
    with pytest.raises(ValueError, match=r"^[^\n]+$") as caught:
        parse_times(text)
    assert sentence in str(caught.value)


def test_queues_are_assigned_by_topic_and_if_need_be_by_broker() -> None:
    assert parse_assign('{"o": [1, 0], "p": [2]}') == (("o", "", 1), ("o", "", 0), ("p", "", 2))
    assert parse_assign('{"o": {"a": [0], "b": [0]}}') == (("o", "a", 0), ("o", "b", 0))


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("o", "it is not a JSON object"),
        ('["o"]', "it is not a JSON object"),
        ('{"o": 0}', 'it must be JSON such as {"orders": [0, 1]}'),
        ('{"o": ["0"]}', "it must be JSON such as"),
        ('{"o": [-1]}', "it must be JSON such as"),
        ('{"o": [true]}', "it must be JSON such as"),
        ('{"o": []}', "it must name at least one queue"),
        ("{}", "it must name at least one queue"),
        ('{"o": [0, 0]}', "a queue is given twice"),
    ],
)
def test_what_assigns_no_queue_is_said(text: str, sentence: str) -> None:
    with pytest.raises(ValueError, match=r"^[^\n]+$") as caught:
        parse_assign(text)
    assert sentence in str(caught.value)
