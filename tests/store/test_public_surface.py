"""What users of the package may rely on: its public names, what documents show of them, and what it stays free of."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest
from support import ROOT

import penstock.store as package

PUBLIC = [
    "ArrowPage",
    "ArrowResult",
    "BatchResult",
    "Boundary",
    "BrokerRole",
    "DamagedRange",
    "Dispatch",
    "FlushDiskType",
    "GetStatus",
    "Hits",
    "LogPage",
    "Message",
    "MessageStore",
    "Page",
    "Progress",
    "PutResult",
    "PutStatus",
    "Record",
    "RecoveryReport",
    "Settings",
    "Snapshot",
    "TagFilter",
]


NEEDS_PYARROW = [
    "penstock.format.arrow_put_columns",
    "penstock.format.arrow_rows",
    "penstock.store.arrow_batches",
    "penstock.store.put_arrow_batches",
]


def test_the_public_names_are_these() -> None:
    assert package.__all__ == PUBLIC
    assert sorted(PUBLIC) == PUBLIC


@pytest.mark.parametrize("name", PUBLIC)
def test_every_public_name_exists_and_says_what_it_is(name: str) -> None:
    thing = getattr(package, name)
    assert thing.__doc__, name
    assert not thing.__doc__.startswith(f"{name}("), f"{name} has no docstring of its own"


@pytest.mark.parametrize("name", [name for name in dir(package.MessageStore) if not name.startswith("_")])
def test_every_public_method_of_the_store_says_what_it_does(name: str) -> None:
    assert getattr(package.MessageStore, name).__doc__, name


def test_documents_show_public_names_only() -> None:
    shown = set()
    for page in (ROOT / "README.md", *(ROOT / "docs").rglob("*.md")):
        for names in re.findall(r"from penstock\.store import (\([^)]*\)|.*)", page.read_text(encoding="utf-8")):
            shown |= set(re.findall(r"\w+", names))
    assert shown <= set(PUBLIC)
    assert {"Message", "MessageStore", "Settings"} <= shown


@pytest.mark.parametrize("package_name", ["penstock.format", "penstock.store"])
def test_neither_format_nor_store_brings_in_asyncio_spark_or_the_command_line(package_name: str) -> None:
    """Modules are imported in a fresh process, which then lists what came with them: all but those for Arrow."""
    text = (
        "import importlib, pkgutil, sys\n"
        "package = importlib.import_module(sys.argv[1])\n"
        "for each in pkgutil.walk_packages(package.__path__, package.__name__ + '.'):\n"
        "    if each.name not in sys.argv[2:]:\n"
        "        importlib.import_module(each.name)\n"
        "print(*sorted(sys.modules))\n"
    )
    arguments = [sys.executable, "-c", text, package_name, *NEEDS_PYARROW]
    loaded = subprocess.run(arguments, capture_output=True, text=True, check=True).stdout.split()
    assert f"{package_name}.{'message_store' if package_name == 'penstock.store' else 'record'}" in loaded
    unwanted = ("asyncio", "pyspark", "pyarrow", "pandas", "typer", "rich", "penstock.cli")
    assert [name for name in loaded if name in unwanted] == []
    if package_name == "penstock.format":
        assert "penstock.store" not in loaded, "imports point down"
