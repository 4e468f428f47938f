"""msgspec crashes if two threads use a type for the first time together; see `penstock.format.msgspec_warm_up`."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import penstock

SOURCES = Path(penstock.__file__).parent
FIRST_USES = """
from __future__ import annotations

import sys
import threading

from penstock.protocol.bodies.base import Body

TYPES, THREADS = 40, 4
for number in range(TYPES):
    exec(f"class Inner{number}(Body): a: int")
    exec(f"class Middle{number}(Body): x: Inner{number}; y: list[Inner{number}]")
    exec(f"class Outer{number}(Body): e: Middle{number}; d: list[Middle{number}]")
sys.setswitchinterval(1e-6)
together = threading.Barrier(THREADS)


def decode():
    for number in range(TYPES):
        together.wait()
        globals()[f"Outer{number}"].from_bytes(b'{"e":{"x":{"a":1},"y":[{"a":2}]},"d":[]}')


threads = [threading.Thread(target=decode) for _ in range(THREADS)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
"""


def test_threads_may_use_a_type_for_the_first_time_together() -> None:
    done = subprocess.run([sys.executable, "-c", FIRST_USES], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")


def types_given_to_msgspec(tree: ast.AST) -> Iterator[ast.expr]:
    """Yields the type in each call of `msgspec.convert`, `decode(..., type=)` and `Decoder(...)`."""
    for call in ast.walk(tree):
        if not isinstance(call, ast.Call) or not ast.unparse(call.func).startswith("msgspec."):
            continue
        name = ast.unparse(call.func).rpartition(".")[2]
        given = {"convert": call.args[1:2], "Decoder": call.args[:1]}.get(name, [])
        yield from [*given, *(word.value for word in call.keywords if word.arg == "type")]


def is_prepared(kind: ast.expr) -> bool:
    """Whether a type is prepared, or consists of plain values only."""
    if isinstance(kind, ast.Call):
        return ast.unparse(kind.func) == "prepared"
    names = {node.id for node in ast.walk(kind) if isinstance(node, ast.Name)}
    return ast.unparse(kind) == "field.type" or names <= {
        "str",
        "int",
        "float",
        "bool",
        "bytes",
        "dict",
        "list",
        "Any",
        "msgspec",
    }


def test_every_type_that_msgspec_decodes_is_prepared() -> None:
    """Penstock's fields of arguments (`field.type`) are plain values."""
    found = [
        (path.relative_to(SOURCES), kind)
        for path in sorted(SOURCES.rglob("*.py"))
        if path.name != "msgspec_warm_up.py"
        for kind in types_given_to_msgspec(ast.parse(path.read_text()))
    ]
    assert len(found) > 15
    assert [f"{path}: {ast.unparse(kind)}" for path, kind in found if not is_prepared(kind)] == []
