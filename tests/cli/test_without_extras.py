"""With the core alone, without the extras: each verb works, or says in one sentence which package it needs.

The modules of the extras are hidden from one process, which calls each verb of the help as its first example says.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from penstock.optional_packages import missing_package
from penstock.testing import broker

if TYPE_CHECKING:
    from cli.conftest import Filled

FOREVER = ("serve", "namesrv")
"""Verbs that run until a signal; their own tests start them."""
NEED_ARROW = (
    *("store usage", "store search", "store lag", "store diff"),
    *("usage", "search", "lag", "diff", "export"),
)
WALK = """
import contextlib, io, json, re, shlex, sys

HIDDEN = {
    "nicegui", "prometheus_client", "pyarrow", "pyspark", "pandas", "duckdb", "polars", "grpc", "deltalake",
    "pyiceberg", "fastavro", "google", "lz4", "zstandard", "opentelemetry",
}

class Hiding:
    def __init__(self, finder):
        self.finder = finder
    def find_spec(self, name, path=None, target=None):
        return None if name.partition(".")[0] in HIDDEN else self.finder.find_spec(name, path, target)
    def invalidate_caches(self):
        pass

sys.meta_path[:] = [Hiding(each) for each in sys.meta_path]
import typer.main
from penstock.cli import main as command
from penstock.cli.lazy_verbs import EVERYTHING

def verbs(found, path=()):
    for name, inner in getattr(found, "commands", {}).items():
        if hasattr(inner, "commands"):
            yield from verbs(inner, (*path, name))
        elif not inner.hidden:
            yield " ".join((*path, name)), inner

ended = {}
for verb, found in verbs(typer.main.get_command(command.make_app(EVERYTHING))):
    if verb in json.loads(sys.argv[1]):
        continue
    example = re.search(rf"^ +penstock ({re.escape(verb)}.*)$", found.help, re.M)[1]
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        status = command.main(shlex.split(re.split("[<>|]", example)[0]))
    ended[verb] = {"example": example, "status": status, "err": err.getvalue()}
print(json.dumps(ended))
"""


@pytest.fixture(scope="module")
def walked(filled_model: Filled, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """How each verb ended: its first example, its status and stderr."""
    folder = tmp_path_factory.mktemp("core-alone")
    for name in ("store", "other", "copy"):
        shutil.copytree(filled_model.path, folder / "data" / name)
    with broker() as b:
        environment = {**os.environ, "NAMESRV_ADDR": b.namesrv, "XDG_CONFIG_HOME": str(folder / "home")}
        ended = subprocess.run(
            [sys.executable, "-c", WALK, json.dumps(FOREVER)],
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=400,
            check=False,
        )
    assert ended.returncode == 0, ended.stderr
    found: dict[str, Any] = json.loads(ended.stdout)
    return found


def test_all_verbs_work_or_say_in_one_sentence_what_they_need(walked: dict[str, Any]) -> None:
    assert len(walked) > 60
    for verb, ended in walked.items():
        assert ended["status"] in (0, 1, 2), (verb, ended)
        assert "Traceback" not in ended["err"], (verb, ended)
        if ended["status"] == 2:
            *_, last = ended["err"].splitlines()
            assert last.startswith("penstock: "), (verb, ended)


@pytest.mark.parametrize(
    "verb", ["produce", "consume", "perf produce", "perf consume", "topic list", "store verify", "verify"]
)
def test_the_core_verbs_work(walked: dict[str, Any], verb: str) -> None:
    assert walked[verb]["status"] == 0, walked[verb]


def test_verbs_that_need_an_extra_name_it(walked: dict[str, Any]) -> None:
    needs = {
        verb: "spark" if verb.startswith("pipeline") else "arrow"
        for verb in walked
        if verb.startswith("pipeline ") or verb in NEED_ARROW
    }
    assert len(needs) > 12
    for verb, extra in {**needs, "console": "console", "demo": "spark", "sql": "sql"}.items():
        ended = walked[verb]
        assert ended["status"] == 2, (verb, ended)
        assert f"pip install 'penstock[{extra}]'" in ended["err"], (verb, ended)
        assert ended["err"].count("\n") == 1, (verb, ended)


@pytest.mark.parametrize(
    ("module", "words", "sentence"),
    [
        ("pyarrow.compute", ["store", "usage", "data"], "`penstock store usage` needs the package pyarrow"),
        ("pyarrow", ["pipeline", "usage"], "penstock[spark]"),
        ("fastavro", ["pipeline", "export"], "penstock[avro]"),
        ("nicegui", ["console", "--listen", "x"], "`penstock console` needs the package nicegui"),
    ],
)
def test_the_sentence_names_verb_package_and_extra(module: str, words: list[str], sentence: str) -> None:
    assert sentence in str(missing_package(module, words))


def test_a_module_of_no_extra_is_not_explained_away() -> None:
    assert missing_package("penstock.nothing", ["topic", "list"]) is None
