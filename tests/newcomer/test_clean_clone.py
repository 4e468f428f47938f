"""README and quickstart, typed in order in a clean clone: every command ends well and prints what the page promises.

The environment is the one of these tests, linked into the clone, so nothing is fetched. `make run` is stopped once it
has said what it should; `make test` is not run, because this is it.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from newcomer.commands import Block, blocks_of, missing
from support import ROOT

SERVES, TESTS = "make run", "make test"
PORTS = (10911, 9876)

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """What a clone would have, with a finished environment: nothing that it is made of is newer than it."""
    if shutil.which("git") is None or not (ROOT / ".git").exists():
        pytest.skip("this is no clone, so there is nothing to clone")
    folder = tmp_path_factory.mktemp("clone")
    listed = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    for name in subprocess.run(listed, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines():
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name)
            os.utime(folder / name, (0, 0))
    environment = Path(sys.executable).parents[1]
    if not (environment / ".ready").exists():
        pytest.skip("the environment of these tests was not made by `make setup`")
    (folder / ".venv").symlink_to(environment)
    yield folder
    (folder / ".venv").unlink()


def run(command: list[str], folder: Path) -> str:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def serve(folder: Path, promised: tuple[str, ...]) -> str:
    """Runs the broker until it has printed what is promised, and then stops it as Ctrl-C would."""
    for port in PORTS:
        with closing(socket.socket()) as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                pytest.skip(f"port {port}, at which `make run` listens, is in use on this machine")
    process = subprocess.Popen(
        ["make", "run"], cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    )
    assert process.stdout is not None
    printed = ""
    with process:
        for line in process.stdout:
            printed += line
            if "Stop with" in line:
                break
        os.killpg(process.pid, signal.SIGINT)
        printed += process.stdout.read()
    assert missing(promised, printed) == "", printed
    return printed


def typed(block: Block, folder: Path) -> str:
    if block.kind == "python":
        return run([".venv/bin/python", "-c", block.text], folder)
    printed = ""
    for line in block.lines:
        command = line.partition("  #")[0].strip()
        if command == SERVES:
            printed += serve(folder, block.promised)
        elif command != TESTS:
            printed += run(["bash", "-c", command], folder)
    return printed


@pytest.mark.parametrize("page", ["docs/quickstart.md", "README.md"])
def test_a_newcomer_sees_what_the_page_promises(clone: Path, page: str) -> None:
    shutil.rmtree(clone / "data", ignore_errors=True)
    for block in blocks_of(clone / page):
        printed = typed(block, clone)
        lacks = missing(block.promised, printed)
        assert not lacks, f"{page} promises '{lacks}', and this was printed:\n{printed}"
