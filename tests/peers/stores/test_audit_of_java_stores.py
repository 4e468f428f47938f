"""What Apache RocketMQ 4.9.8 wrote is sound in an audit's eyes, closed, in use, and after both have written to it."""

from __future__ import annotations

from pathlib import Path

import pytest
from peers.stores.test_store_interchange import SETTINGS, SIZES, corpus, fill_with_java, fill_with_penstock
from support.peers import Peer, message_json

from penstock.store.audit import AuditReport, audit

pytestmark = pytest.mark.java


def kinds(report: AuditReport) -> set[str]:
    return {finding.kind for finding in report.findings} - {"config-missing", "not-closed"}


def test_a_store_that_java_wrote_and_closed_is_sound(tmp_path: Path, java: Peer) -> None:
    fill_with_java(java, tmp_path)
    report = audit(tmp_path, SETTINGS)
    assert report.errors == []
    assert kinds(report) == set()
    assert report.figures.keys == report.figures.index_items > 600


def test_a_store_that_java_is_writing_to_gives_no_error(tmp_path: Path, java: Peer) -> None:
    java.open(tmp_path, SIZES)
    looked = 0
    for number, fields in enumerate(corpus()):
        assert java.ask("put", message=message_json(**fields))["status"] == "PUT_OK"
        if number % 30 == 29:
            report = audit(tmp_path, SETTINGS)
            assert report.errors == []
            assert report.figures.in_use
            looked = report.figures.records
    assert looked > 500
    java.ask("close")


def test_what_java_repeats_in_the_index_after_a_restart_is_a_note(tmp_path: Path, java: Peer) -> None:
    fill_with_java(java, tmp_path)
    java.open(tmp_path, SIZES)
    java.ask("put", message=message_json(topic="orders", body=b"more", properties={"KEYS": "one_more"}))
    java.ask("close")
    report = audit(tmp_path, SETTINGS)
    assert report.errors == []
    assert kinds(report) <= {"index-repeated"}


def test_a_store_that_java_went_on_with_is_sound(tmp_path: Path, java: Peer) -> None:
    fill_with_penstock(tmp_path)
    fill_with_java(java, tmp_path)
    report = audit(tmp_path, SETTINGS)
    assert report.errors == []
    assert kinds(report) <= {"index-repeated"}
