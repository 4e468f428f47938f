"""The sentences that the sources give to errors, read out of them without running anything.

A sentence is what stands between the quotes, with `{}` for what is put in at run time. Where an error is given a name,
what was assigned to it in the same function counts; what only passes another error's words on has no sentence here.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

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
    words = _words(tree)
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
