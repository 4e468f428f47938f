"""Every error that the sources raise says in one sentence what is wrong, where, and what to do.

Mechanical, over all sources: a new error that says less is noticed here. What commands really say to typical mistakes
is in test_typical_mistakes.py.

A sentence is the text between the quotes, with `{}` for what is put in at run time. Where an error is given a name,
what was assigned to it in the same function counts; code that passes on another error's words has no sentence here.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

import pytest

import penstock

SOURCES: Final = Path(penstock.__file__).parent
CODE_COMES_FIRST: Final = ("Refusal", "MasterRefused")
"""Errors whose first argument is a code of the protocol, and the second the sentence."""
OF_CALLS: Final = ("BadParameter", "UsageError", "ClickException")


class Sentence(NamedTuple):
    """What an error says, and where it is raised."""

    place: str
    kind: str
    text: str
    has_path: bool
    """Whether it carries a path, an offset or what was found, which are said with it."""


def _name(node: ast.expr) -> str:
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""


def kinds_of(trees: list[ast.Module]) -> set[str]:
    """PenstockError and all that derive from it, by name."""
    found: set[str] = {"PenstockError"}
    classes = [node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    while more := {each.name for each in classes if {_name(base) for base in each.bases} & found} - found:
        found |= more
    return found


def _words(module: ast.Module) -> dict[str, str]:
    """What the constants of a module, and what its functions return, have to say: `_nearest(name)`, as an example."""
    found: dict[str, str] = {}
    for node in module.body:
        if isinstance(node, ast.FunctionDef):
            returned = [
                each.value for each in ast.walk(node) if isinstance(each, ast.Return) and each.value is not None
            ]
            texts = [part.value for value in returned for part in ast.walk(value) if isinstance(part, ast.Constant)]
            found[node.name] = "".join(text for text in texts if isinstance(text, str))
        elif isinstance(node, ast.Assign | ast.AnnAssign) and isinstance(node.value, ast.Constant):
            (target,) = node.targets if isinstance(node, ast.Assign) else (node.target,)
            if isinstance(node.value.value, str):
                found[_name(target)] = node.value.value
    return found


def _put_in(part: ast.expr, words: dict[str, str]) -> str:
    value = part.value if isinstance(part, ast.FormattedValue) else part
    return "{}" + words.get(_name(value.func if isinstance(value, ast.Call) else value), "")


def _texts(node: ast.expr | None, assigned: dict[str, list[ast.expr]], words: dict[str, str]) -> list[str]:
    """The sentences that an expression may be; none if it passes on what others say."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return [node.value]
    if isinstance(node, ast.JoinedStr):
        parts = [str(part.value) if isinstance(part, ast.Constant) else _put_in(part, words) for part in node.values]
        return ["".join(parts)] if "".join(parts) != "{}" else []
    if isinstance(node, ast.IfExp):
        return _texts(node.body, assigned, words) + _texts(node.orelse, assigned, words)
    if isinstance(node, ast.Name):
        return [text for value in assigned.get(node.id, ()) for text in _texts(value, {}, words)]
    return []


def _assigned(function: ast.AST) -> dict[str, list[ast.expr]]:
    found: dict[str, list[ast.expr]] = {}
    for node in ast.walk(function):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            found.setdefault(node.targets[0].id, []).append(node.value)
    return found


def sentences_in(tree: ast.Module, kinds: set[str], place: str) -> Iterator[Sentence]:
    """Those of one module."""
    seen: set[int] = set()
    words = {"did_you_mean": "did you mean", **_words(tree)}
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    for function in reversed(functions):  # inner ones first
        assigned = _assigned(function)
        for node in ast.walk(function):
            if not isinstance(node, ast.Call) or id(node) in seen or _name(node.func) not in kinds:
                continue
            seen.add(id(node))
            kind = _name(node.func)
            given = node.args[1 if kind in CODE_COMES_FIRST else 0 :]
            has_path = any(word.arg in ("path", "offset", "found", "expected") for word in node.keywords)
            for text in _texts(given[0] if given else None, assigned, words):
                yield Sentence(f"{place}:{node.lineno}", kind, text, has_path)


@cache
def all_sentences() -> list[Sentence]:
    """Those of all sources."""
    trees = {path: ast.parse(path.read_text(encoding="utf-8")) for path in sorted(SOURCES.rglob("*.py"))}
    kinds = kinds_of(list(trees.values())) | set(OF_CALLS)
    return [
        sentence
        for path, tree in trees.items()
        for sentence in sentences_in(tree, kinds, str(path.relative_to(SOURCES)))
    ]


FOR_WHO_CAN_ACT: Final = frozenset(
    {
        *("BadSettings", "BadStore", "StoreInUse", "StoreFailed", "DataLost", "MissingPackage"),
        *("Unreachable", "NoRoute", "BadParameter", "LogMismatch", "LakeFailed"),
    }
)
"""Errors that a person gets who can do something about them. The others answer a program, or carry damage."""
WITHIN_OTHERS: Final = ("remoting/connection.py", "client/rebalance.py", "broker/replication/")
"""Whose errors nobody gets as they are: they are tried again, and logged, or become part of another sentence."""
PROPER: Final = ("RocketMQ", "Spark", "Arrow", "Avro", "Delta", "Iceberg", "ZooKeeper", "SERVICE", "UTF", "PENSTOCK_")
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
