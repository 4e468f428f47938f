"""Which twin of the kernels runs, and the warning if it is not the compiled one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.format import kernels
from penstock.format.kernels import _compiled, plain, source_fingerprint

BLOCK_COMPILED = """
import sys
class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.endswith("._compiled"):
            raise ImportError("blocked for a test")
sys.meta_path.insert(0, Blocker())
"""


def run_python(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    inherited = {name: value for name, value in os.environ.items() if name != "PENSTOCK_KERNELS"}
    return subprocess.run(
        [sys.executable, "-c", code], env=inherited | environment, capture_output=True, text=True, timeout=60
    )


def test_the_compiled_twin_runs_by_default() -> None:
    done = run_python("from penstock.format import kernels; print(kernels.active, kernels.walk.__module__)")
    assert (done.stdout, done.stderr) == ("compiled penstock.format.kernels._compiled\n", "")


def test_the_kernels_are_imported_at_their_first_use() -> None:
    code = """
import sys
from penstock.format import kernels, record
twins = ("numpy", "penstock.format.kernels.plain", "penstock.format.kernels._compiled")
before = [name for name in twins if name in sys.modules]
kernels.crc32(b"")
print(before, [name for name in twins if name in sys.modules])
"""
    assert run_python(code).stdout == (
        "[] ['numpy', 'penstock.format.kernels.plain', 'penstock.format.kernels._compiled']\n"
    )


def test_a_name_that_no_twin_has_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = kernels.nothing  # type: ignore[attr-defined]


def test_the_environment_chooses_the_plain_twin_without_a_warning() -> None:
    code = "from penstock.format import kernels; print(kernels.active, kernels.walk.__module__)"
    done = run_python(code, PENSTOCK_KERNELS="plain")
    assert (done.stdout, done.stderr) == ("plain penstock.format.kernels.plain.record\n", "")


def test_without_the_compiled_twin_the_plain_one_runs_with_one_warning() -> None:
    code = "from penstock.format import kernels; print(kernels.active, kernels.crc32(b'v6'))"
    done = run_python(BLOCK_COMPILED + code)
    assert done.stdout == f"plain {0x77065916}\n"
    (line,) = done.stderr.splitlines()
    assert "slower" in line
    assert "blocked for a test" in line


FOREIGN_COMPILED = """
import sys, types
module = sys.modules["penstock.format.kernels._compiled"] = types.ModuleType("_compiled")
module._sources = "0123456789abcdef"
from penstock.format import kernels
print(kernels.active)
"""


def test_a_compiled_twin_of_other_sources_is_not_used() -> None:
    done = run_python(FOREIGN_COMPILED)
    assert done.stdout == "plain\n"
    assert "built from other sources" in done.stderr
    assert "setup.py build_ext" in done.stderr


def test_a_compiled_twin_of_other_sources_is_an_error_if_it_was_asked_for() -> None:
    done = run_python(FOREIGN_COMPILED, PENSTOCK_KERNELS="compiled")
    assert done.returncode == 1
    assert "BadSettings: the compiled kernels cannot be used (it was built from other sources" in done.stderr


def test_where_there_are_no_sources_a_compiled_twin_needs_every_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source_fingerprint, "fingerprint", lambda: "")
    kernels._check_compiled()
    monkeypatch.delattr(_compiled, "walk")
    with pytest.raises(ImportError, match="has no walk"):
        kernels._check_compiled()


def test_the_compiled_twin_was_built_from_these_sources() -> None:
    assert _compiled._sources == source_fingerprint.fingerprint()
    assert {path.name for path in source_fingerprint.source_files()} >= {
        "_compiled.pyx",
        "append.pxi",
        "byte_order.h",
        "crc32.h",
    }


@pytest.mark.parametrize("name", ["_compiled.pyx", "record.pxi", "crc32.h"])
def test_every_source_counts_for_the_fingerprint(tmp_path: Path, name: str) -> None:
    for each in ("_compiled.pyx", "record.pxi", "crc32.h", "types.py"):
        (tmp_path / each).write_bytes(b"abc")
    before = source_fingerprint.fingerprint(tmp_path)
    (tmp_path / "types.py").write_bytes(b"abd")
    assert source_fingerprint.fingerprint(tmp_path) == before
    (tmp_path / name).write_bytes(b"abd")
    assert source_fingerprint.fingerprint(tmp_path) != before


def test_a_folder_without_sources_has_no_fingerprint(tmp_path: Path) -> None:
    assert source_fingerprint.fingerprint(tmp_path) == ""


def test_the_warning_goes_through_the_packages_logger() -> None:
    code = """
import logging
class Keep(logging.Handler):
    def emit(self, record): print("kept", record.name, record.levelname)
logging.getLogger("penstock").addHandler(Keep())
from penstock.format import kernels
kernels.crc32(b"")
"""
    done = run_python(BLOCK_COMPILED + code)
    assert (done.stdout, done.stderr) == ("kept penstock WARNING\n", "")


def test_asking_for_a_compiled_twin_that_is_not_there_is_an_error_with_advice() -> None:
    code = "from penstock.format.kernels import crc32"
    done = run_python(BLOCK_COMPILED + code, PENSTOCK_KERNELS="compiled")
    assert done.returncode == 1
    assert "BadSettings: the compiled kernels cannot be used (blocked for a test)" in done.stderr
    assert "PENSTOCK_KERNELS=plain" in done.stderr


def test_an_unknown_twin_is_refused() -> None:
    done = run_python("from penstock.format.kernels import crc32", PENSTOCK_KERNELS="fast")
    assert done.returncode == 1
    assert "BadSettings: PENSTOCK_KERNELS: 'fast' is not one of auto, compiled, plain" in done.stderr


def test_the_fixture_replaces_every_kernel(kernels_name: str) -> None:
    twin = {"compiled": _compiled, "plain": plain}[kernels_name]
    assert kernels.active == kernels_name
    for name in plain.__all__:
        assert getattr(kernels, name) is getattr(twin, name)
