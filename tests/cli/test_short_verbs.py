"""The short verbs over small stores need no Spark: with its packages hidden they print what `penstock store` prints."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from cli.conftest import ENVIRONMENT

if TYPE_CHECKING:
    from cli.conftest import Filled, Run

WITHOUT_SPARK = """
import json, shlex, sys

class Hiding:
    def __init__(self, finder):
        self.finder = finder
    def find_spec(self, name, path=None, target=None):
        return None if name.partition(".")[0] in ("pyspark", "pandas") else self.finder.find_spec(name, path, target)
    def invalidate_caches(self):
        pass

sys.meta_path[:] = [Hiding(each) for each in sys.meta_path]
from penstock.cli.main import main
for line in sys.stdin.read().splitlines():
    print(json.dumps(main(shlex.split(line))), flush=True)
"""


def test_no_short_verb_needs_spark_for_a_small_store(filled: Filled, tmp_path: Path) -> None:
    store = filled.path
    calls = [
        f"verify {store} --json",
        f"usage {store} --json",
        f"lag {store} --json",
        f"diff {store} {store} --json",
        f"search {store} --tag nothing-has-this",
        f"store search {store} --tag nothing-has-this",
        f"export {store} --once --to {tmp_path / 'lake'} --json",
        f"rebuild {store} --dry-run --json",
        f"usage {store} --master local[1]",
    ]
    ended = subprocess.run(
        [sys.executable, "-c", WITHOUT_SPARK],
        input="\n".join(calls),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env=ENVIRONMENT,
    )
    statuses = [int(line) for line in ended.stdout.splitlines() if line.isdecimal()]
    assert statuses == [0] * 8 + [2], ended.stderr
    assert ended.stderr.count("in this process, without Spark") == 7
    assert "Spark needs the packages pyspark, pandas: pip install 'penstock[spark]'" in ended.stderr


@pytest.mark.parametrize("verb", ["usage", "lag", "search"])
def test_a_short_verb_prints_what_store_prints(run: Run, filled: Filled, verb: str) -> None:
    more = ["--since", "0"] if verb == "search" else []
    short, long = (run(*words, verb, filled.path, *more, "--json").done() for words in ((), ("store",)))
    assert short.out
    kept = [{**each, "stores": None} for each in short.objects]  # the space that is free changes
    assert kept == [{**each, "stores": None} for each in long.objects]


def test_the_report_of_verify_has_that_of_store_verify(run: Run, filled: Filled) -> None:
    (short,) = run("verify", filled.path, "--json").done().json["stores"]
    assert short == {"store": filled.path.name, **run("store", "verify", filled.path, "--json").done().json}


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (["verify"], "Missing argument 'PATH'"),
        (["usage", "nowhere"], "there is no store here"),
        (["lag", "nowhere"], "there is no store here"),
        (["search", "STORE"], "nothing to search for"),
        (["diff", "STORE"], "compare with what?"),
        (["rebuild", "nowhere"], "there is no store here"),
        (["export", "STORE"], "Missing option '--to'"),
        (["export", "STORE", "--to", "x", "--until", "1"], "--until ends an export for good"),
        (["usage", "STORE", "--spark-above", "big"], "--spark-above 'big': it must be a number of bytes"),
    ],
)
def test_what_cannot_run_is_one_sentence(run: Run, filled: Filled, call: list[str], sentence: str) -> None:
    assert sentence in run(*(str(filled.path) if word == "STORE" else word for word in call)).refused()


def test_json_goes_to_stdout_alone(run: Run, filled: Filled) -> None:
    ran = run("usage", filled.path, "--json").done()
    assert json.loads(ran.out)["messages"] > 0
    assert ran.err.startswith("penstock: usage: in this process, without Spark (")
