"""Which twin runs, and what is said when it is not the compiled one."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from penstock.errors import BadSettings
from penstock.format import kernels
from penstock.format.kernels import _compiled, _plain

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


def test_the_compiled_twin_runs_unless_told_otherwise() -> None:
    done = run_python("from penstock.format import kernels; print(kernels.active, kernels.walk.__module__)")
    assert (done.stdout, done.stderr) == ("compiled penstock.format.kernels._compiled\n", "")


def test_the_environment_chooses_the_plain_twin_which_then_says_nothing() -> None:
    code = "from penstock.format import kernels; print(kernels.active, kernels.walk.__module__)"
    done = run_python(code, PENSTOCK_KERNELS="plain")
    assert (done.stdout, done.stderr) == ("plain penstock.format.kernels._plain_log\n", "")


def test_without_the_compiled_twin_the_plain_one_runs_and_says_so_once() -> None:
    code = "from penstock.format import kernels; kernels.select('auto'); print(kernels.active, kernels.crc32(b'v6'))"
    done = run_python(BLOCK_COMPILED + code)
    assert done.stdout == f"plain {0x77065916}\n"
    (line,) = done.stderr.splitlines()
    assert "slower" in line
    assert "blocked for a test" in line


def test_a_compiled_twin_of_other_sources_is_not_used() -> None:
    code = """
import sys, types
sys.modules["penstock.format.kernels._compiled"] = types.ModuleType("_compiled")
from penstock.format import kernels
print(kernels.active)
"""
    done = run_python(code)
    assert done.stdout == "plain\n"
    assert "built from other sources" in done.stderr


def test_the_warning_goes_through_the_packages_logger() -> None:
    code = """
import logging
class Keep(logging.Handler):
    def emit(self, record): print("kept", record.name, record.levelname)
logging.getLogger("penstock").addHandler(Keep())
import penstock.format
"""
    done = run_python(BLOCK_COMPILED + code)
    assert (done.stdout, done.stderr) == ("kept penstock WARNING\n", "")


def test_asking_for_a_compiled_twin_that_is_not_there_is_an_error_with_advice() -> None:
    code = "import penstock.format"
    done = run_python(BLOCK_COMPILED + code, PENSTOCK_KERNELS="compiled")
    assert done.returncode == 1
    assert "BadSettings: the compiled kernels are not there (blocked for a test)" in done.stderr
    assert "PENSTOCK_KERNELS=plain" in done.stderr


def test_an_unknown_twin_is_refused() -> None:
    with pytest.raises(BadSettings, match="'fast' is not one of auto, compiled, plain"):
        kernels.select("fast")


def test_the_switch_binds_every_kernel(kernels_name: str) -> None:
    twin = {"compiled": _compiled, "plain": _plain}[kernels_name]
    assert kernels.active == kernels_name
    for name in _plain.__all__:
        assert getattr(kernels, name) is getattr(twin, name)
