"""`penstock namesrv`, as a process of its own."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
import urllib.request

import pytest
from namesrv.conftest import peer, topics

from penstock.cli.main import main
from penstock.remoting.event_loop import run

PENSTOCK = (sys.executable, "-m", "penstock.cli.main", "namesrv")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_says_where_it_listens_serves_and_stops_cleanly(number: signal.Signals) -> None:
    async def use(address: tuple[str, int]) -> None:
        async with peer(address) as a:
            await a.register("broker-a", topics("T"))
            assert await a.brokers_of("T") == ["broker-a"]

    command = [*PENSTOCK, "--listen", "127.0.0.1:0", "--json", "--set", "clusterTest=true"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        host, port = json.loads(process.stdout.readline())["namesrv"].split(":")
        run(use((host, int(port))))
        process.send_signal(number)
        _, said = process.communicate(timeout=60)
    assert process.returncode == 0
    assert "WARNING penstock.serve: clusterTest has no effect" in said
    assert "broker broker-a (id 0) registered at 127.0.0.1:" in said
    assert "Traceback" not in said


def test_metrics_and_health_have_a_port_of_their_own_if_it_is_asked_for() -> None:
    async def use(address: tuple[str, int], url: str) -> list[tuple[int, str]]:
        async with peer(address) as a:
            await a.register("broker-a", topics("T"))
            paths = ("/healthz", "/readyz", "/metrics")
            return [await asyncio.to_thread(fetch, url + path) for path in paths]

    command = [*PENSTOCK, "--listen", "127.0.0.1:0", "--observe-port", "0", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        told = json.loads(process.stdout.readline())
        host, port = told["namesrv"].split(":")
        healthz, readyz, (status, metrics) = run(use((host, int(port)), told["observe"]))
        process.terminate()
        assert process.wait(60) == 0
    assert healthz == readyz == (200, '{"status": "ok", "why": ""}\n')
    assert status == 200
    assert "\npenstock_namesrv_brokers 1\n" in metrics
    assert "\npenstock_namesrv_topics 1\n" in metrics
    assert "\npenstock_connections 1\n" in metrics
    assert "\nprocess_start_time_seconds " in metrics


def fetch(url: str) -> tuple[int, str]:
    with urllib.request.urlopen(url, timeout=60) as answer:
        return answer.status, answer.read().decode()


def test_a_bad_port_for_metrics_is_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["namesrv", "--observe-port", "nowhere"]) == 2
    assert "--observe-port is 'nowhere'; it must be PORT, HOST:PORT or off" in capsys.readouterr().err


def test_people_are_told_how_to_connect() -> None:
    command = [*PENSTOCK, "--listen", "127.0.0.1:0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        process.terminate()
    where = line.removeprefix("The name server listens at ").split(";")[0]
    assert line.endswith(f"NAMESRV_ADDR={where}\n")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--listen", "nowhere"), "--listen is 'nowhere'; it must be HOST:PORT"),
        (("--listen", "192.0.2.1:1"), "cannot listen at 192.0.2.1:1"),
        (("--set", "lisenPort=1"), "unknown setting 'lisenPort'; did you mean 'listenPort'?"),
        (("--config", "/no/such/file"), "cannot read the settings"),
    ],
)
def test_what_does_not_work_is_one_sentence_and_status_2(
    capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], sentence: str
) -> None:
    assert main(["namesrv", *arguments]) == 2
    out, said = capsys.readouterr()
    assert out == ""
    assert said.startswith("penstock: ")
    assert sentence in said
    assert said.count("\n") == 1
