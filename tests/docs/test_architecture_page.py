"""The architecture page, and the docstrings, name modules and functions as they are called."""

from __future__ import annotations

import importlib
import re
from typing import Any

import pytest
from support import ROOT

PAGE = ROOT / "docs" / "explanation" / "architecture.md"
NAME = re.compile(r"`((?:pyspark_rocketmq|[a-z_]+)(?:\.\w+)+)`")
PACKAGES = sorted(path.name for path in (ROOT / "src" / "penstock").iterdir() if (path / "__init__.py").exists())


def names() -> list[str]:
    found = NAME.findall(PAGE.read_text(encoding="utf-8"))
    return sorted({name for name in found if name.split(".")[0] in (*PACKAGES, "pyspark_rocketmq")})


def resolve(name: str) -> Any:
    """What a dotted name stands for: the longest module, then attributes."""
    parts = name.split(".") if name.startswith("pyspark_rocketmq") else ["penstock", *name.split(".")]
    for end in range(len(parts), 0, -1):
        try:
            value = importlib.import_module(".".join(parts[:end]))
        except ModuleNotFoundError:
            continue
        for attribute in parts[end:]:
            value = getattr(value, attribute)
        return value
    raise ModuleNotFoundError(name)


@pytest.mark.parametrize("name", names())
def test_every_name_on_the_page_exists(name: str) -> None:
    assert resolve(name) is not None


def test_the_page_names_every_package() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert [package for package in PACKAGES if f"`{package}`" not in text] == []


def test_every_file_that_a_docstring_names_exists() -> None:
    """Such as `readonly/view.py`: a module that gets another name takes the docstrings with it."""
    modules = [path.as_posix() for path in (ROOT / "src").rglob("*.py")]
    missing = [
        f"{path.relative_to(ROOT)}: {named}"
        for path in (ROOT / "src").rglob("*.py")
        for named in re.findall(r"`([a-z_/]+\.py)`", path.read_text(encoding="utf-8"))
        if not any(module.endswith(f"/{named}") for module in modules)
    ]
    assert missing == []


def thread_rows() -> list[list[str]]:
    """The rows of the table of threads and tasks, as cells."""
    table = PAGE.read_text(encoding="utf-8").split("| Thread or task |")[1].split("\n\n")[0]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()[2:]]


def test_each_thread_and_task_has_its_death_test() -> None:
    sources = [path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("test_*.py")]
    tests = {name for source in sources for name in re.findall(r"^(?:async )?def (test_\w+)\(", source, re.MULTILINE)}
    for name, *_, named in thread_rows():
        found = re.findall(r"`(\w+)`", named)
        assert found, f"the page names no death test of {name}"
        assert set(found) <= tests, f"a death test of {name} does not exist"


def test_the_page_has_every_thread_of_the_store() -> None:
    made = re.compile(r'(?:super\(\).__init__\(|name=)"(penstock-[a-z-]+)"')
    sources = [path.read_text(encoding="utf-8") for path in (ROOT / "src" / "penstock" / "store").rglob("*.py")]
    threads = {name for source in sources for name in made.findall(source)}
    on_page = {name for row in thread_rows() for name in row[0].split(", ")}
    assert len(threads) > 8
    assert threads <= on_page
