"""Every error that the sources raise says in one sentence what is wrong, where, and what to do.

Mechanical, over all sources: a new error that says less is noticed here. What commands really say to typical mistakes
is in test_typical_mistakes.py.
"""

from __future__ import annotations

import ast
import re
from typing import Final

import pytest
from error_sentences import Sentence, all_sentences, sentences_in

FOR_WHO_CAN_ACT: Final = frozenset(
    {
        *("BadSettings", "BadStore", "StoreInUse", "StoreFailed", "DataLost", "MissingPackage"),
        *("Unreachable", "NoRoute", "BadParameter", "NotTheSameLog", "LakeFailed"),
    }
)
"""Errors that a person gets who can do something about them. The others answer a program, or carry damage."""
WITHIN_OTHERS: Final = ("remoting/connection.py", "client/rebalance.py", "broker/replication/")
"""Whose errors nobody gets as they are: they are tried again, and logged, or become part of another sentence."""
PROPER: Final = ("RocketMQ", "Spark", "Arrow", "Avro", "Delta", "Iceberg", "SERVICE", "UTF", "PENSTOCK_")
WHAT_TO_DO: Final = re.compile(
    r"""\b(?:must|needs?|needed|allowed|one\ of|there\ are|it\ has|as\ in|pip\ install|did\ you\ mean|instead|
    goes\ with(?:out)?|is\ for|are\ for|not\ together|tried\ again|asked\ for\ once\ more|goes\ on\ by\ itself)\b
    |(?:^|[;:,?]\ |\(|\bor\ |\band\ |\bto\ )(?:set|write|give|name|use|start|stop|move|remove|restore|run|wait|choose|
    check|say|create|make|leave|repeat|raise|try|ask|free|cast|select|rename|export|install|turn|send|call|begin|read|
    put|limit|compare|decide|open|look|correct|add|change|split|let|see|register|mount|find)\b""",
    re.X | re.I,
)
PASSED_ON: Final = re.compile(r"(?:line|option|--to-topic)\b[^:]*: \{\}")
"""Says where, and leaves the rest to the words of another error."""
WHERE: Final = re.compile(r"\{\}|--[a-z]|\b[a-z]+[A-Z]\w*|`|'[^']+'|\b(?:path|columns|assign|namesrv|keys)\b")
VAGUE: Final = re.compile(
    r"\b(?:invalid|illegal|unexpected|unknown error|went wrong|failed to|unable to|sorry|please)\b"
)


def ids(sentence: Sentence) -> str:
    return sentence.place


def wrongs(sentence: Sentence) -> list[str]:
    """What such a sentence lacks."""
    text, found = sentence.text, []
    if PASSED_ON.fullmatch(text):
        return []
    if "\n" in text or text.removesuffix("=...").endswith((".", "!")) or re.search(r"[.!] [A-Z]", text):
        found.append("it is more than one sentence, or has its full stop already")
    if not re.match(r"[a-z{'<`(-]|\d", text) and not text.startswith(PROPER):
        found.append("it begins with a capital")
    if VAGUE.search(text):
        found.append(f"'{VAGUE.search(text)[0]}' says nothing")  # type: ignore[index]
    if len(text.split()) < 3:
        found.append("it is no sentence")
    if sentence.kind in FOR_WHO_CAN_ACT and not sentence.place.startswith(WITHIN_OTHERS):
        if not sentence.has_path and not WHERE.search(text):
            found.append("it does not say where")
        if not WHAT_TO_DO.search(text):
            found.append("it does not say what to do")
    return found


def test_all_errors_are_seen() -> None:
    assert len(all_sentences()) > 400
    assert FOR_WHO_CAN_ACT - {"LakeFailed"} <= {sentence.kind for sentence in all_sentences()}


def test_every_error_says_what_and_where_and_what_to_do() -> None:
    found = [f"{each.place} {each.kind}: {each.text!r}: {wrong}" for each in all_sentences() for wrong in wrongs(each)]
    assert found == []


@pytest.mark.parametrize(
    ("source", "lacks"),
    [
        ("BadStore('Invalid store')", ["it begins with a capital", "it is no sentence", "it does not say where"]),
        ("BadStore('the store is invalid', path=p)", ["'invalid' says nothing", "it does not say what to do"]),
        ("BadStore(f'{p}: a foreign file lies here.')", ["it is more than one sentence, or has its full stop already"]),
        ("BadStore('a foreign file lies here; move it elsewhere')", ["it does not say where"]),
        ("BadStore('a foreign file lies here; move it elsewhere', path=p)", []),
        ("BadFrame('a frame is too long')", []),
        ("BadSettings(why)", ["it does not say what to do"]),
        ("BadSettings(str(error))", None),
    ],
)
def test_an_error_that_says_less_would_be_noticed(source: str, lacks: list[str] | None) -> None:
    tree = ast.parse(f"def f():\n    why = f'the setting {{name}} is odd'\n    raise {source}\n")
    found = list(sentences_in(tree, {"BadStore", "BadFrame", "BadSettings"}, "f.py"))
    if lacks is None:
        assert found == []
    else:
        (sentence,) = found
        assert set(lacks) <= set(wrongs(sentence))
        assert bool(lacks) == bool(wrongs(sentence))
