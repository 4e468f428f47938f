"""The complete programs of the how-to page, each as a process of its own."""

from __future__ import annotations

import os
import re
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import httpx
import pytest
from support import ROOT
from support.documents import to_run
from support.loopback import free_port
from support.stores import eventually

from penstock.client.sync import Message, Producer
from penstock.testing import LocalBroker, broker

pytestmark = pytest.mark.slow
PAGE = "docs/how-to/programs.md"
PROGRAMS = {re.match(r"# (\w+\.py)", block.text)[1]: block.text for block in to_run(PAGE, "py")}  # type: ignore[index]
TOPICS = ["orders", "ticks", "questions", "answers", "payments"]


class Programs:
    """Runs programs of the page in a folder, against a broker."""

    def __init__(self, folder: Path, namesrv: str) -> None:
        self.folder = folder
        self._environment = {**os.environ, "NAMESRV_ADDR": namesrv, "PYTHONPATH": str(ROOT / "src")}
        self._environment.pop("PYTHONUNBUFFERED", None)  # lines of two threads would mix; the programs flush theirs
        self._running: list[subprocess.Popen[str]] = []
        for name, text in PROGRAMS.items():
            (folder / name).write_text(text, encoding="utf-8")

    def start(self, *words: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, *words], cwd=self.folder, env=self._environment, stdout=subprocess.PIPE, text=True
        )
        self._running.append(process)
        return process

    def run(self, *words: str) -> str:
        return self.finish(self.start(*words))

    def finish(self, process: subprocess.Popen[str], number: signal.Signals | None = None) -> str:
        """Returns what a program printed, when it has ended well; ends it by a signal if there is one."""
        if number is not None:
            process.send_signal(number)
        printed, _ = process.communicate(timeout=60)
        assert process.returncode == 0
        return printed

    def close(self) -> None:
        for process in self._running:
            process.kill()
            process.wait()
            if process.stdout is not None:
                process.stdout.close()


@pytest.fixture
def b() -> Iterator[LocalBroker]:
    with broker(TOPICS, settings={"messageDelayLevel": "1s 1s 1s 1s"}) as running:
        yield running


@pytest.fixture
def programs(tmp_path: Path, b: LocalBroker) -> Iterator[Programs]:
    running = Programs(tmp_path, b.namesrv)
    yield running
    running.close()


def test_the_programs_of_the_page_are_those_that_are_run() -> None:
    assert sorted(PROGRAMS) == sorted(
        ["worker.py", "service.py", "every.py", "calculator.py", "ask.py", "pay.py", "ledger.py"]
    )


def test_the_worker_works_until_it_is_told_to_stop(b: LocalBroker, programs: Programs) -> None:
    with Producer("PID", b.namesrv) as producer:
        for body in (b'{"id": 1}', b"not json", b'{"id": 2}'):
            producer.send(Message("orders", body, tags="paid"))
        producer.send(Message("orders", b'{"id": 3}', tags="open"))
    worker = programs.start("worker.py")
    assert worker.stdout is not None
    assert {worker.stdout.readline(), worker.stdout.readline()} == {"done 1\n", "done 2\n"}
    eventually(lambda: [each.body for each in b.messages("%DLQ%warehouse")] == [b"not json"], "a dead letter")
    assert programs.finish(worker, signal.SIGTERM) == ""


def test_the_service_publishes_and_consumes(b: LocalBroker, programs: Programs) -> None:
    port = free_port()
    service = programs.start("-m", "uvicorn", "service:app", "--port", str(port), "--log-level", "warning")
    with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=30) as client:
        eventually(lambda: answers(client), "the service is up")
        assert client.post("/orders", json={"id": "order_7", "amount": 12}).status_code == 202
        eventually(lambda: client.get("/orders/order_7").status_code == 200, "the order is consumed")
        assert client.get("/orders/order_7").json() == {"id": "order_7", "amount": 12}
        b.stop()
        assert client.post("/orders", json={"id": "order_8", "amount": 1}).status_code in (503, 504)
        b.start()
    service.terminate()
    service.wait(60)


def answers(client: httpx.Client) -> bool:
    try:
        return client.get("/orders/none").status_code == 404
    except httpx.TransportError:
        return False


def test_ticks_come_one_after_the_other(programs: Programs) -> None:
    every = programs.start("every.py", "1", "start")
    assert every.stdout is not None
    assert [every.stdout.readline() for _ in range(2)] == ["tick 1\n", "tick 2\n"]
    programs.finish(every, signal.SIGINT)
    again = programs.start("every.py", "1")
    assert again.stdout is not None
    assert again.stdout.readline() == "tick 3\n", "the chain goes on after a restart"
    programs.finish(again, signal.SIGTERM)


def test_a_question_is_answered(programs: Programs) -> None:
    calculator = programs.start("calculator.py")
    assert programs.run("ask.py", "1", "2", "3") == "6\n"
    programs.finish(calculator, signal.SIGTERM)


def test_a_payment_is_booked_once_however_often_it_is_sent_and_delivered(programs: Programs) -> None:
    for payment, amount in (("payment_1", "30"), ("payment_1", "30"), ("payment_2", "5")):
        programs.run("pay.py", payment, "anna", amount)
    ledger = programs.start("ledger.py")
    assert ledger.stdout is not None
    assert {ledger.stdout.readline(), ledger.stdout.readline()} == {"booked payment_1\n", "booked payment_2\n"}
    ledger.kill()  # offsets are not stored, so all of it is delivered again
    ledger.wait()
    programs.run("pay.py", "payment_3", "anna", "7")
    again = programs.start("ledger.py")
    assert again.stdout is not None
    assert again.stdout.readline() == "booked payment_3\n"
    programs.finish(again, signal.SIGTERM)
    with closing(sqlite3.connect(programs.folder / "ledger.db")) as database:
        assert database.execute("SELECT account, amount FROM balance").fetchall() == [("anna", 42)]
