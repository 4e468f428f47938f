"""The architecture page names modules and functions as they are called."""

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
