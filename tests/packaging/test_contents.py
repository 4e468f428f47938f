"""What is packed: a version with an entry in the changelog, licences, and every file of the sources."""

from __future__ import annotations

import re
import tomllib
from pathlib import PurePath
from typing import Any

from support import ROOT

import penstock

SOURCES = ROOT / "src" / "penstock"
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
MADE = {".pyc", ".so", ".c"}


def test_the_newest_entry_of_the_changelog_is_this_version() -> None:
    entries = re.findall(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.M)
    assert entries[0] == penstock.__version__


def test_the_classifiers_name_systems_versions_and_types() -> None:
    classifiers = PROJECT["project"]["classifiers"]
    assert len(classifiers) == len(set(classifiers))
    assert {"Operating System :: POSIX :: Linux", "Typing :: Typed", "Framework :: Pytest"} <= set(classifiers)
    versions = {name.rpartition(" ")[2] for name in classifiers if re.search(r"Python :: 3\.\d+$", name)}
    assert versions == {"3.11", "3.12", "3.13"}
    assert (SOURCES / "py.typed").is_file()


def test_the_licence_is_apache_2_and_packed_with_the_trademark_note() -> None:
    assert PROJECT["project"]["license"] == "Apache-2.0"
    for name in PROJECT["project"]["license-files"]:
        assert (ROOT / name).is_file()
    assert "Version 2.0, January 2004" in (ROOT / "LICENSE").read_text(encoding="utf-8")
    notice = (ROOT / "NOTICE").read_text(encoding="utf-8")
    assert "trademarks of The Apache Software" in notice
    assert "no connection" in " ".join(notice.split())


def test_every_file_that_is_no_module_is_package_data_or_a_source_of_the_kernels() -> None:
    packed = PROJECT["tool"]["setuptools"]["package-data"]["penstock"]
    for path in SOURCES.rglob("*"):
        name = PurePath(path.relative_to(SOURCES))
        if path.is_dir() or "__pycache__" in name.parts or path.suffix in {".py", *MADE}:
            continue
        is_kernel_source = name.parts[:2] == ("format", "kernels") and path.suffix in (".pyx", ".pxi", ".h")
        assert is_kernel_source or any(name.match(pattern) for pattern in packed), f"{name} would not be installed"


def test_every_folder_with_modules_is_a_package() -> None:
    for path in SOURCES.rglob("*.py"):
        assert (path.parent / "__init__.py").is_file(), f"{path.parent} would not be installed"
