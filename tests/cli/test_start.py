"""What verbs import that do no work: help and version next to nothing, a list of topics no numpy.

The number of modules stands for the time that a start takes, which is under 0.3 CPU seconds.
"""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
import typer.main
from cli.conftest import ENVIRONMENT

from penstock.cli import main as command
from penstock.cli.lazy_verbs import EVERYTHING
from penstock.testing import broker

if TYPE_CHECKING:
    from cli.conftest import Run

HEAVY = ("numpy", "pyarrow", "pyspark", "pandas", "nicegui", "fastapi", "yaml")
RUN = """
import contextlib, io, sys
from penstock.cli.main import main
with contextlib.redirect_stdout(io.StringIO()):
    status = main(sys.argv[1:])
print(status, *sys.modules)
"""


def modules(*words: str) -> set[str]:
    """The modules that are imported when the call ends."""
    ended = subprocess.run(
        [sys.executable, "-c", RUN, *words], capture_output=True, text=True, timeout=60, check=False, env=ENVIRONMENT
    )
    status, *found = ended.stdout.split()
    assert status == "0", ended.stderr
    return set(found)


@pytest.mark.parametrize("words", [("--help",), ("--version",), (), ("store", "--help"), ("pipeline", "--help")])
def test_help_and_version_import_next_to_nothing(words: tuple[str, ...]) -> None:
    found = modules(*words)
    assert not found & {*HEAVY, "asyncio", "msgspec", "rich", "penstock.client", "penstock.store", "penstock.broker"}
    assert "pydantic" not in found or not words  # Typer imports it to check the values of options
    assert len(found) < (220 if words else 320), sorted(found)  # most of them Typer's


READS_STORES = ("verify", "rebuild")


@pytest.mark.parametrize("verb", [*command.COMMANDS, "pipeline lake", "topic list"])
def test_the_help_of_a_verb_checks_no_options_and_imports_no_large_package(verb: str) -> None:
    found = modules(*verb.split(), "--help")
    if verb in READS_STORES:
        assert "pydantic" not in found
        assert len(found) < 480, sorted(found)
        return
    assert not found & {*HEAVY, "pydantic", "penstock.store", "penstock.broker"}
    assert len(found) < 360, sorted(found)


@pytest.mark.parametrize("verb", ["serve", "namesrv", "console", "search", "export"])
def test_the_help_of_a_verb_that_talks_to_no_cluster_imports_little(verb: str) -> None:
    found = modules(verb, "--help")
    assert not found & {"penstock.client", "penstock.pipeline", "penstock.remoting"}
    assert len(found) < 250, sorted(found)


def test_the_help_of_a_verb_of_stores_checks_no_options() -> None:
    found = modules("store", "info", "--help")
    assert not found & {"pydantic", "penstock.client", "penstock.broker", "asyncio"}
    assert len(found) < 480, sorted(found)


def test_completion_is_an_option_of_the_command_alone(run: Run) -> None:
    assert "--install-completion" in run("--help").done().out
    assert "No such option: --install-completion" in run("topic", "--install-completion").refused()


def test_topics_are_listed_without_large_packages() -> None:
    with broker() as b:
        found = modules("topic", "list", "-n", b.namesrv)
    assert not found & {*HEAVY, "penstock.store", "penstock.broker", "penstock.format.kernels.plain"}
    assert len(found) < 520, sorted(found)


def test_the_first_lines_of_help_are_the_verbs_own() -> None:
    def lines(of: Any, path: tuple[str, ...] = ()) -> dict[str, str]:
        found = {}
        for name, inner in of.commands.items():
            found[" ".join((*path, name))] = (inner.help or "").strip().partition("\n")[0]
            if hasattr(inner, "commands"):
                found.update(lines(inner, (*path, name)))
        return found

    real = lines(typer.main.get_command(command.make_app(EVERYTHING)))
    for named in ((), ("store",), ("pipeline",)):
        for verb, about in lines(typer.main.get_command(command.make_app(named))).items():
            assert about == real[verb], verb


@pytest.mark.parametrize("words", [["store", "--", "verify"], ["store", "--help", "verify"], ["--help", "store"]])
def test_a_verb_is_imported_wherever_it_is_named(words: list[str]) -> None:
    typer.main.get_command(command.make_app(words)).main([*words, "--help"], standalone_mode=False)
