"""Reports of runs that never were, for the tests of `bench`."""

from __future__ import annotations

from bench.report import Machine, Report
from bench.run import Goal, Result, Row, Run

SPEED = Row("speed", "speed", "messages/s", Goal("ratio at least", 1))


def runs(*figures: float) -> list[Run]:
    return [Run.of(figure, {}) for figure in figures]


def report_of(*results: Result) -> Report:
    machine = Machine(2, "a processor", 8 << 30, "Linux 6", "ext4", (0.0, 0.0, 0.0))
    versions = {"penstock": "1", "python": "3", "java": "17", "rocketmq-store": "4.9.8"}
    return Report(
        suite="store",
        command="python -m bench store",
        date="2026-01-02T03:04:05+00:00",
        quick=False,
        whole=True,
        rounds=3,
        machine=machine,
        versions=versions,
        java_left_out="",
        results=list(results),
    )
