"""The demo does what it shows, says when a step does not check out, and leaves what it promises."""

from __future__ import annotations

import json
import re
from contextlib import ExitStack
from pathlib import Path

import pytest

from penstock.cli.main import main
from penstock.demo import StepResult, StepState, run, steps
from penstock.demo.shop import BrokerProcess, Scene, StepFailed, verdict
from penstock.errors import MissingPackage, PenstockError
from penstock.format.constants import UNIQ_KEY
from penstock.pipeline.session import NO_JAVA
from penstock.store import Message, MessageStore, Settings

ORDERS = 60


class Listener:
    """Records the progress."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self.ended: list[StepResult] = []

    def begin(self, title: str, number: int, of: int) -> None:
        self.begun.append(title)

    def progress(self, what: str, done: int, total: int) -> None:
        assert what
        assert done >= 0 < total

    def end(self, step: StepResult) -> None:
        self.ended.append(step)


def test_without_spark_every_step_checks_out_and_a_page_is_left(tmp_path: Path) -> None:
    listener, report = Listener(), tmp_path / "report.html"
    folder = tmp_path / "demo"
    folder.mkdir()
    outcome = run(folder, report, listener, with_spark=False, orders=ORDERS)
    assert [(step.name, step.state) for step in outcome.steps if step.state is not StepState.OK] == [], outcome.steps
    assert outcome.ok
    assert listener.ended == outcome.steps
    assert listener.begun == [step.title for step in outcome.steps]
    figures = {step.name: step.figures for step in outcome.steps}
    assert figures["proof"]["acknowledged"] == 2 * ORDERS
    assert figures["kill"]["acknowledged"] < 2 * ORDERS, "it was killed while the shop sold"
    assert figures["verify"]["errors"] == 0
    page = report.read_text(encoding="utf-8")
    assert "no acknowledged message was lost" in page
    assert page.count("<svg") >= 4
    assert not re.search(r"<script|<link|src=|https?://", page), "the page needs nothing but itself"
    assert not (folder / "store" / "abort").exists()


def a_scene(folder: Path, opened: ExitStack) -> Scene:
    """A broker's store with one message, which both groups have seen; no broker runs."""
    scene = Scene(folder, 1, BrokerProcess(folder / "store", folder / "log"), opened, lambda *told: None)
    with MessageStore.open(scene.store, Settings.dev()) as store:
        assert store.put(Message("payments", b"9", tags="card", properties={UNIQ_KEY: "P1"})).ok
    scene.ledger.acked["payments"]["P1"] = "card"
    for group in steps.GROUPS:
        scene.ledger.receive(group, "P1")
    return scene


def test_an_acknowledged_message_that_is_not_in_the_store_fails_the_proof(tmp_path: Path) -> None:
    with ExitStack() as opened:
        scene = a_scene(tmp_path, opened)
        assert "all 1 acknowledged" in steps.prove(scene)
        scene.ledger.acked["orders"]["P2"] = "created"
        scene.ledger.receive("billing", "P2")
        with pytest.raises(StepFailed, match="1 acknowledged messages of orders are lost"):
            steps.prove(scene)


def test_a_group_that_was_not_given_its_message_fails_the_proof(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.demo.shop._TIMEOUT_S", 0.0)
    with ExitStack() as opened:
        scene = a_scene(tmp_path, opened)
        scene.ledger.received["fraud-check"].clear()
        with pytest.raises(StepFailed, match="group fraud-check did not receive 1 of 1 acknowledged messages"):
            steps.prove(scene)


def test_a_store_with_an_error_fails_verify(tmp_path: Path) -> None:
    with ExitStack() as opened:
        scene = a_scene(tmp_path, opened)
        assert "no errors in 1 records" in steps.verify(scene)
        (file,) = (scene.store / "commitlog").iterdir()
        with file.open("r+b") as log:
            log.seek(88)  # the body's first byte: the CRC does not fit any more
            log.write(b"!")
        with pytest.raises(StepFailed, match="errors, the first: "):
            steps.verify(scene)


def test_a_step_that_fails_is_the_last_one_and_the_status_is_1(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(broker: BrokerProcess) -> None:
        raise PenstockError("no broker today")

    monkeypatch.setattr(BrokerProcess, "start", refuse)
    assert main(["demo", "--without-spark", "--keep", str(tmp_path / "kept"), "--json"]) == 1
    told = json.loads(capsys.readouterr().out)
    assert not told["ok"]
    assert [(step["name"], step["state"], step["says"]) for step in told["steps"]] == [
        ("serve", "failed", "no broker today")
    ]
    assert "the demo failed" in Path(told["report"]).read_text(encoding="utf-8")


def test_a_broker_that_does_not_start_is_quoted(tmp_path: Path) -> None:
    (tmp_path / "store").write_text("a file, not a folder")
    with (
        BrokerProcess(tmp_path / "store", tmp_path / "log") as broker,
        pytest.raises(PenstockError, match=r"the broker did not start; its last log line: penstock: .*store"),
    ):
        broker.start()


def test_the_demo_does_not_touch_a_folder_that_is_not_empty(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "mine").write_text("precious")
    assert main(["demo", "--without-spark", "--keep", str(tmp_path)]) == 2
    assert "name one that is empty or does not exist" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


def test_without_pyspark_it_says_what_to_install_or_leave_out(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("penstock.cli.demo.find_spec", lambda name: None)
    assert main(["demo"]) == 2
    said = capsys.readouterr().err
    assert "pip install 'penstock[spark]'" in said
    assert "--without-spark" in said


def test_without_java_it_says_what_to_install_or_leave_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def serve(scene: Scene) -> str:
        raise MissingPackage(NO_JAVA)

    monkeypatch.setattr(steps, "FIRST", (steps.Step("serve", "Start", serve),))
    outcome = run(tmp_path, tmp_path / "report.html", Listener(), with_spark=False)
    assert not outcome.ok
    assert "Java 17" in outcome.steps[0].summary
    assert "--without-spark" in outcome.steps[0].summary


def test_a_step_that_was_left_out_is_not_said_to_have_checked_out() -> None:
    fine = StepResult("serve", "Start", StepState.OK, 0.1, "it runs")
    assert verdict([fine]) == "Every step passed"
    left_out = StepResult("usage", "Count", StepState.SKIPPED, 0.0, "no pyarrow")
    assert verdict([fine, left_out]) == "Every step that ran passed; 1 of 2 were skipped"


def test_without_pyarrow_usage_is_skipped_and_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.demo.steps.find_spec", lambda name: None)
    with ExitStack() as opened, pytest.raises(steps.StepSkipped, match=r"penstock\[arrow\]"):
        steps.usage(a_scene(tmp_path, opened))
