"""A background task of the console that fails is noticed: the log and /healthz name it, and it goes on, or the console
leaves. tests/broker/test_task_death.py does the same for the broker's tasks.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

from support.clients import TOKEN, ConsoleProcess
from support.stores import eventually

from penstock.cli.console import LISTENER_VARIABLE, TOKEN_VARIABLE
from penstock.testing import LocalBroker

SOON_S = 60.0
FAILING_SAMPLES = """
import pathlib
from penstock.console import chart_samples
real = chart_samples.ChartSamples.sample
async def planted(self):
    if pathlib.Path({flag!r}).exists():
        raise MemoryError("planted")
    await real(self)
chart_samples.ChartSamples.sample = planted
chart_samples.SAMPLE_S = 0.02
"""


def test_samples_go_on_after_a_failure(cluster: LocalBroker, tmp_path: Path) -> None:
    flag = tmp_path / "fails"
    flag.touch()
    planted = FAILING_SAMPLES.format(flag=str(flag))
    with ConsoleProcess(cluster.namesrv, folder=tmp_path, planted=planted) as console, console.client() as client:

        def why() -> str:
            answer = client.get("/healthz")
            assert answer.status_code == 200, "the console itself runs"
            return str(answer.json()["why"])

        eventually(lambda: why() == "samples of the cluster: MemoryError('planted')", "health does not say it")
        flag.unlink()
        eventually(lambda: why() == "", "the samples did not go on")
        assert console.stop() == 0
        assert console.said.count("samples of the cluster: MemoryError('planted')") == 1, "a repetition is not logged"


def test_a_console_that_cannot_read_the_reports_of_its_broker_leaves() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.set_inheritable(True)
        order = [sys.executable, "-m", "penstock.cli.main", "console", "--under-serve", "--namesrv=127.0.0.1:9"]
        variables = {**os.environ, TOKEN_VARIABLE: TOKEN, LISTENER_VARIABLE: str(listener.fileno())}
        console = subprocess.Popen(
            order, stdin=subprocess.PIPE, stderr=subprocess.PIPE, env=variables, pass_fds=[listener.fileno()]
        )
        assert console.stdin is not None
        console.stdin.write(json.dumps({"phase": "recovering", "done": "most of it"}).encode() + b"\n")
        console.stdin.flush()  # the pipe stays open: its end would end the console as well
        try:
            assert console.wait(SOON_S) == 1
        finally:
            console.kill()
            said = console.communicate()[1].decode()
    assert "reports of the broker: ValueError" in said
    assert "this server cannot go on, and stops" in said
