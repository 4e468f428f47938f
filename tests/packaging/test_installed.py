"""sdist and wheel, installed into an empty environment outside the clone: the command runs, and so does the demo.

The environment has nothing of ours; what Penstock depends on comes from the environment of the tests, so that no
network is needed. The sdist is built once, and from it two wheels: one with the compiler, one where there is none.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from pathlib import Path

import pytest
from support import ROOT

import penstock
from penstock.format.kernels.source_fingerprint import source_files

PACKED = (
    *("LICENSE", "NOTICE", "README.md", "README.zh.md", "CHANGELOG.md", "SECURITY.md"),
    *("MANIFEST.in", "constraints.txt"),
)
BUILD = "import sys, setuptools.build_meta as hooks; print(getattr(hooks, sys.argv[1])(sys.argv[2]))"
SHOW = "from penstock.format import kernels; import penstock; print(kernels.active, penstock.__file__)"

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def ran(command: list[object], folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Outside the clone, and without what would lead back to it."""
    given = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "PENSTOCK_"))}
    done = subprocess.run(
        [str(word) for word in command],
        cwd=folder,
        env={**given, **environment},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the sources, so that nothing in the clone changes."""
    tree = tmp_path_factory.mktemp("tree")
    unwanted = shutil.ignore_patterns("__pycache__", "*.so", "*.c", "*.egg-info")
    for name in ("src", "tools"):
        shutil.copytree(ROOT / name, tree / name, ignore=unwanted)
    for name in (*PACKED, "pyproject.toml", "setup.py"):
        shutil.copy(ROOT / name, tree / name)
    return tree


@pytest.fixture(scope="module")
def sdist(tree: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("sdist")
    ran([sys.executable, "-c", BUILD, "build_sdist", made], tree)
    (file,) = made.iterdir()
    return file


def wheel_of(sdist: Path, folder: Path, **environment: str) -> Path:
    with tarfile.open(sdist) as packed:
        packed.extractall(folder, filter="data")
    (tree,) = folder.iterdir()
    made = folder / "made"
    made.mkdir()
    ran([sys.executable, "-c", BUILD, "build_wheel", made], tree, **environment)
    (file,) = made.iterdir()
    return file


def installed(wheel: Path, folder: Path) -> Path:
    """The folder of programs of an environment that has the wheel."""
    ran([sys.executable, "-m", "venv", folder / "env"], folder)
    programs = folder / "env" / "bin"
    ran([programs / "python", "-m", "pip", "install", "-q", "--no-deps", "--no-index", wheel], folder)
    (packages,) = (folder / "env" / "lib").glob("python*/site-packages")
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n", encoding="utf-8")
    return programs


def test_the_sdist_has_all_that_a_build_needs_and_nothing_that_was_built(sdist: Path) -> None:
    with tarfile.open(sdist) as packed:
        names = {name.partition("/")[2] for name in packed.getnames()}
    assert {*PACKED, "pyproject.toml", "setup.py"} <= names
    assert {f"src/penstock/format/kernels/{path.name}" for path in source_files()} <= names
    assert [name for name in names if name.endswith((".c", ".so", ".pyc"))] == []


def test_the_wheel_installs_and_the_demo_passes_in_an_empty_environment(sdist: Path, tmp_path: Path) -> None:
    for name in ("build", "home"):
        (tmp_path / name).mkdir()
    wheel = wheel_of(sdist, tmp_path / "build")
    with zipfile.ZipFile(wheel) as packed:
        names = packed.namelist()
    assert "penstock/pipeline/spark_conf/log4j2.properties" in names
    assert "penstock/py.typed" in names
    assert [name for name in names if name.endswith((".c", ".h", ".pyx", ".pxi")) or name.startswith("tests")] == []
    assert {name.rpartition("/")[2] for name in names if "/licenses/" in name} == {"LICENSE", "NOTICE"}
    home = tmp_path / "home"
    programs = installed(wheel, home)
    assert ran([programs / "penstock", "--version"], home).stdout == f"penstock {penstock.__version__}\n"
    active, place = ran([programs / "python", "-c", SHOW], home).stdout.split()
    assert active == "compiled"
    assert Path(place).is_relative_to(home), "it is the installed one"
    told = json.loads(ran([programs / "penstock", "demo", "--without-spark", "--json"], home).stdout)
    assert {step["state"] for step in told["steps"]} == {"ok"}
    assert Path(told["report"]).is_relative_to(home)


def test_make_wheels_builds_what_an_index_takes_and_pip_installs(tree: Path, tmp_path: Path) -> None:
    made, home = tmp_path / "made", tmp_path / "home"
    home.mkdir()
    ran([sys.executable, tree / "tools" / "build_wheels.py", "--python", sys.executable, "--into", made], tree)
    (source,) = made.glob("*.tar.gz")
    assert source.name == f"penstock-{penstock.__version__}.tar.gz"
    (wheel,) = made.glob("*.whl")
    version = f"cp{sys.version_info[0]}{sys.version_info[1]}"
    assert wheel.name.startswith(f"penstock-{penstock.__version__}-{version}-{version}-manylinux")
    programs = installed(wheel, home)
    assert ran([programs / "python", "-c", SHOW], home).stdout.startswith("compiled ")


def test_make_wheels_refuses_a_wheel_without_compiled_kernels(tree: Path, tmp_path: Path) -> None:
    command = [sys.executable, str(tree / "tools" / "build_wheels.py"), "--python", sys.executable]
    given = {**os.environ, "CC": "/bin/false", "CXX": "/bin/false"}
    done = subprocess.run([*command, "--into", str(tmp_path)], env=given, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "has no compiled kernels; install a C compiler" in done.stderr
    assert list(tmp_path.glob("*.whl")) == []


def test_without_a_compiler_the_plain_twin_runs_and_says_so_once(sdist: Path, tmp_path: Path) -> None:
    for name in ("build", "home"):
        (tmp_path / name).mkdir()
    home = tmp_path / "home"
    programs = installed(wheel_of(sdist, tmp_path / "build", CC="/bin/false", CXX="/bin/false"), home)
    ran([programs / "python", "-c", "from penstock.store import MessageStore; MessageStore.open('data').close()"], home)
    done = ran([programs / "penstock", "store", "info", "data"], home)
    assert done.stderr.count("running on the plain kernels") == 1
    assert ran([programs / "python", "-c", SHOW], home).stdout.startswith("plain ")
    told = json.loads(ran([programs / "penstock", "demo", "--without-spark", "--json"], home).stdout)
    assert told["ok"]
    (tree,) = (tmp_path / "build").glob("penstock-*")
    ran([sys.executable, "-c", BUILD, "build_editable", tmp_path], tree, CC="/bin/false")  # as `make setup` does
