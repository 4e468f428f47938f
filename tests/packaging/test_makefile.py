"""What `make run` and `make setup` install, and that one may follow the other in the same environment."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from build_wheels import VERSIONS, installed_python
from support import NO_INDEX, ROOT

FOR_DEVELOPERS = ("pyspark", "pyarrow", "pandas", "pytest", "mypy", "ruff")
LARGEST = 300_000_000

needs_make = pytest.mark.skipif(shutil.which("make") is None, reason="there is no make")


def make(*words: str, folder: Path) -> subprocess.CompletedProcess[str]:
    command = ["make", "-C", str(folder), *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=800, check=False)


def extras(printed: str) -> list[str]:
    """The extras that would be installed."""
    return re.findall(r"-e '\.\[(\w+)\]'", printed)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """The sources, without an environment."""
    for name in ("Makefile", "README.md", "pyproject.toml", "setup.py", "constraints.txt"):
        shutil.copy(ROOT / name, tmp_path / name)
    (tmp_path / ".venv").mkdir()
    return tmp_path


@needs_make
def test_run_installs_what_serving_needs_and_no_more(tree: Path) -> None:
    assert extras(make("-n", "run", folder=tree).stdout) == ["console"]
    (tree / ".venv" / ".serving").touch()
    again = make("-n", "run", folder=tree).stdout
    assert extras(again) == []
    assert "penstock serve" in again


@needs_make
def test_setup_follows_run_and_run_follows_setup(tree: Path) -> None:
    (tree / ".venv" / ".serving").touch()
    assert extras(make("-n", "setup", folder=tree).stdout) == ["all"]
    (tree / ".venv" / ".serving").unlink()
    (tree / ".venv" / ".ready").touch()
    assert extras(make("-n", "run", folder=tree).stdout) == [], "the developers' environment serves, too"


@needs_make
def test_setup_needs_compiled_kernels_where_there_is_a_compiler_and_run_does_not(tree: Path) -> None:
    assert "PENSTOCK_KERNELS=compiled" in make("-n", "setup", "CC=sh", folder=tree).stdout
    assert "PENSTOCK_KERNELS=auto" in make("-n", "setup", "CC=no-such-compiler", folder=tree).stdout
    assert "PENSTOCK_KERNELS=auto" in make("-n", "run", "CC=sh", folder=tree).stdout


_FAKE_CYTHON = """
def cythonize(extensions, **options):
    for extension in extensions:
        extension.sources = ["empty.c"]
    return extensions
"""


@pytest.mark.parametrize("chosen", ["compiled", "auto"])
def test_a_compiler_that_fails_ends_a_build_that_needs_the_compiled_kernels(tmp_path: Path, chosen: str) -> None:
    (tmp_path / "Cython").mkdir()
    (tmp_path / "Cython" / "__init__.py").write_text("")
    (tmp_path / "Cython" / "Build.py").write_text(_FAKE_CYTHON)
    kernels = tmp_path / "src/penstock/format/kernels"
    kernels.mkdir(parents=True)
    shutil.copy(ROOT / "src/penstock/format/kernels/source_fingerprint.py", kernels)
    shutil.copy(ROOT / "setup.py", tmp_path)
    (tmp_path / "empty.c").write_text("")
    done = subprocess.run(
        [sys.executable, "setup.py", "build_ext", "--build-lib", "built"],
        cwd=tmp_path,
        env={**os.environ, "CC": "false", "PENSTOCK_KERNELS": chosen, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode != 0) is (chosen == "compiled"), done.stderr


def test_a_first_test_in_a_clone_runs_without_the_developers_tools(tree: Path) -> None:
    (tree / "test_first.py").write_text("def test_it(penstock_broker):\n    pass\n", encoding="utf-8")
    absent = ("-p", "no:timeout", "-p", "no:xdist", "-p", "no:cacheprovider")
    command = [sys.executable, "-m", "pytest", *absent, "test_first.py"]
    done = subprocess.run(command, cwd=tree, capture_output=True, text=True, timeout=120, check=False)
    assert "1 passed" in done.stdout, done.stdout + done.stderr


def test_a_python_that_a_version_manager_keeps_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = next(version for version in VERSIONS if not sys.version.startswith(version))
    (tmp_path / f"python{other}").write_text("#!/bin/sh\nexit 127\n")  # as pyenv's, for a version that is not chosen
    (tmp_path / f"python{other}").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path))
    assert installed_python(other) is None
    kept = tmp_path / "versions" / f"{other}.7" / "bin" / "python"
    kept.parent.mkdir(parents=True)
    kept.symlink_to(sys.executable)
    assert installed_python(other) == str(kept)


@needs_make
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_environment_of_run_is_small_and_serves(tree: Path) -> None:
    shutil.copytree(ROOT / "src", tree / "src", ignore=shutil.ignore_patterns("__pycache__", "*.so", "*.egg-info"))
    (tree / "LICENSE").write_text("")
    (tree / "NOTICE").write_text("")
    done = make("serving", folder=tree)
    if done.returncode and NO_INDEX.search(done.stderr):
        pytest.skip("there is no index of packages")
    assert done.returncode == 0, done.stderr
    environment = tree / ".venv"
    sizes = [path.lstat().st_size for path in environment.rglob("*")]
    assert sum(sizes) < LARGEST
    listed = subprocess.run(
        [environment / "bin" / "python", "-m", "pip", "list"], capture_output=True, text=True, check=True
    )
    installed = {line.split()[0].lower() for line in listed.stdout.splitlines()}
    assert "nicegui" in installed
    assert not installed & set(FOR_DEVELOPERS)
    subprocess.run([environment / "bin" / "penstock", "serve", "--print-config"], check=True, capture_output=True)
