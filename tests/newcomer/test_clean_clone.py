"""README and quickstart, typed in order in a clean clone: every command ends well and prints what the page promises.

On the Python of these tests the environment is theirs, linked into the clone, so nothing is fetched. On each other
version that is installed, `make run` makes one from nothing, which needs an index of packages; there, commands that
start Spark are left out, and in place of `make setup` only what the rest of the page needs is installed.

What `make run` starts serves until the page ends. A program that consumes is stopped once it has printed what is
promised. `make test` is not run, because this is it.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

import pytest
from build_wheels import MINE, VERSIONS, installed_python
from newcomer.commands import Block, blocks_of, missing
from support import NO_INDEX, ROOT

SERVES, TESTS, SETS_UP = "make run", "make test", "make setup"
STARTS_SPARK = re.compile(r"make demo|\.venv/bin/penstock pipeline ")
IN_PLACE_OF_SETUP = ".venv/bin/python -m pip install -q -c constraints.txt pyarrow duckdb pytest"
PORTS = (10911, 9876)
LARGEST_STORE = 2_000_000

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


class Clone(NamedTuple):
    """A clone in which a newcomer works."""

    folder: Path
    environment: dict[str, str]
    with_spark: bool

    def run(self, command: list[str]) -> str:
        streams = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        done = subprocess.run(
            command, cwd=self.folder, env=self.environment, text=True, timeout=600, check=False, **streams
        )
        assert done.returncode == 0, done.stdout
        return done.stdout

    def store_size(self) -> int:
        """What the broker's store takes on disk."""
        return sum(file.stat().st_blocks * 512 for file in (self.folder / "data" / "store").rglob("*"))


@pytest.fixture(scope="module", params=VERSIONS)
def clone(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Clone]:
    """What a clone would have, with a finished environment: nothing that it is made of is newer than it."""
    if shutil.which("git") is None or not (ROOT / ".git").exists():
        pytest.skip("this is no clone, so there is nothing to clone")
    python = installed_python(request.param)
    if python is None:
        pytest.skip(f"Python {request.param} is not installed")
    folder = tmp_path_factory.mktemp("clone")
    listed = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    for name in subprocess.run(listed, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines():
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name)
            os.utime(folder / name, (0, 0))
    if request.param == MINE:
        environment = Path(sys.executable).parents[1]
        if not (environment / ".ready").exists():
            pytest.skip("the environment of these tests was not made by `make setup`")
        (folder / ".venv").symlink_to(environment)
        yield Clone(folder, dict(os.environ), with_spark=True)
        (folder / ".venv").unlink()
        return
    given = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    given["PYTHON"] = python
    made = subprocess.run(["make", "serving"], cwd=folder, env=given, capture_output=True, text=True, check=False)
    if made.returncode and NO_INDEX.search(made.stderr):
        pytest.skip("there is no index of packages")
    assert made.returncode == 0, made.stdout + made.stderr
    yield Clone(folder, given, with_spark=False)
    shutil.rmtree(folder / ".venv")


@contextmanager
def running(command: list[str], clone: Clone, until: str) -> Iterator[list[str]]:
    """Runs a program that ends when it is told to, as by Ctrl-C. Begins when it has printed a line with `until`, and
    yields what it has printed by then.
    """
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    where = {"cwd": clone.folder, "env": clone.environment}
    process = subprocess.Popen(command, text=True, start_new_session=True, **where, **streams)
    assert process.stdout is not None
    printed: list[str] = []
    with process:
        try:
            for line in process.stdout:
                printed.append(line)
                if until in line:
                    break
            yield printed
        finally:
            # Where these tests were started with SIGINT ignored, one that comes before the program handles it is lost.
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
                os.killpg(process.pid, number)
                with suppress(subprocess.TimeoutExpired):
                    process.communicate(timeout=30)
                    break
            assert process.returncode != -signal.SIGKILL, f"{command} did not end when it was told to"


def check_ports() -> None:
    for port in PORTS:
        with closing(socket.socket()) as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                pytest.skip(f"port {port}, at which `make run` listens, is in use on this machine")


def typed(block: Block, clone: Clone, page: ExitStack) -> str:
    """What was printed. A broker serves until the end of the page."""
    if block.kind == "python" and "\ndef test_" in block.text:
        (clone.folder / "test_orders.py").write_text(block.text, encoding="utf-8")
        if not clone.with_spark:
            clone.run(["bash", "-c", IN_PLACE_OF_SETUP])
        return clone.run([".venv/bin/python", "-m", "pytest", "test_orders.py"])
    if block.kind == "python":
        command = [".venv/bin/python", "-c", block.text]
        if "consumer.run()" not in block.text:
            return clone.run(command)
        with running(command, clone, block.promised[-1].rpartition("…")[2].strip()) as lines:
            return "".join(lines)
    return "".join(typed_line(line.partition("  #")[0].strip(), clone, page) for line in block.lines)


def typed_line(line: str, clone: Clone, page: ExitStack) -> str:
    if line == SERVES:
        check_ports()
        return "".join(page.enter_context(running(["make", "run"], clone, "Stop with")))
    if line == TESTS:
        return ""
    if line == SETS_UP and not clone.with_spark:
        line = IN_PLACE_OF_SETUP
    return clone.run(["bash", "-c", line])


@pytest.mark.parametrize("page", ["docs/quickstart.md", "README.md"])
def test_a_newcomer_sees_what_the_page_promises(clone: Clone, page: str) -> None:
    shutil.rmtree(clone.folder / "data", ignore_errors=True)
    with ExitStack() as until_the_end:
        for block in blocks_of(clone.folder / page):
            promised = block.promised
            if not clone.with_spark and STARTS_SPARK.search(block.text):
                block, promised = block._replace(text=without_spark(block.text)), ()
            printed = typed(block, clone, until_the_end)
            lacks = missing(promised, printed)
            assert not lacks, f"{page} promises '{lacks}', and this was printed:\n{printed}"
            if "producer.send" in block.text:
                assert clone.store_size() < LARGEST_STORE


def without_spark(commands: str) -> str:
    return "".join(line for line in commands.splitlines(keepends=True) if not STARTS_SPARK.match(line))
