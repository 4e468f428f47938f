"""The soak: what it counts and what it objects to; and a short one from end to end, without Spark."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from pathlib import Path

import msgspec
import pytest

from bench.__main__ import main
from bench.report import look_at
from bench.soak import LIMITS, Counts, Sample, SoakPlan, SoakResult, draw, findings
from bench.workspace import MIB

LIVES, SECONDS = 9, 12


def result_of(*, between: int = 0, within: int = 0, descriptors: int = 0, **changes: int) -> SoakResult:
    """A run of several lives whose memory grows by so much between two lives and within each; sound by default."""
    samples = [
        Sample(
            second=float(life * SECONDS + second),
            life=life,
            own_memory=40 * MIB + life * between + second * within // SECONDS,
            resident=80 * MIB,
            descriptors=30 + life * descriptors,
            store_descriptors=40,
            log_files=24,
        )
        for life in range(LIVES)
        for second in range(SECONDS)
    ]
    made = SoakResult(
        date="", command="", plan=SoakPlan(), limits=LIMITS, machine=look_at(Path("/")), versions={}, samples=samples
    )
    made.acknowledged, made.files_deleted, made.kills = 1000, 7, LIVES - 1
    made.outages = [(float(life * SECONDS), life * SECONDS + 0.5) for life in range(1, LIVES)]
    for name, value in changes.items():
        setattr(made, name, value)
    return made


def test_a_sound_run_has_no_findings() -> None:
    assert findings(result_of()) == []
    assert findings(result_of(between=MIB // 8, within=MIB, consumed_again=3, streamed_again=2)) == []


@pytest.mark.parametrize(
    ("result", "said"),
    [
        (result_of(lost=2), "2 acknowledged messages were not consumed"),
        (result_of(lost_in_spark=1), "1 acknowledged messages were not read by Spark"),
        (result_of(acknowledged=0), "no message was acknowledged"),
        (result_of(files_deleted=0), "retention deleted no file"),
        (result_of(between=4 * MIB), "grew by 24.0 MiB over the run"),
        (result_of(within=30 * MIB), "within a life"),
        (result_of(descriptors=5), "descriptors grew by 30"),
    ],
)
def test_what_is_lost_or_grows_is_named(result: SoakResult, said: str) -> None:
    (sentence,) = findings(result)
    assert said in sentence


def test_counts_tell_what_is_missing_and_what_came_again() -> None:
    wanted, seen = Counts(), Counts()
    for number in (0, 5, 3_000_000):
        wanted.add(number)
    for number in (5, 5, 7):
        seen.add(number)
    assert (wanted.total(), seen.total(), seen.again()) == (3, 2, 1)
    assert seen.missing(wanted) == 2
    assert wanted.missing(seen) == 1
    assert (seen.first_missing(wanted), wanted.first_missing(seen), seen.first_missing(seen)) == (0, 7, None)


def test_the_chart_is_an_image_with_a_line_for_each_life() -> None:
    image = ET.fromstring(draw(result_of()))
    kinds = [element.tag.rpartition("}")[2] for element in image]
    assert kinds.count("polyline") == LIVES + 1
    assert kinds.count("line") == LIVES - 1


@pytest.mark.rest
def test_a_short_soak_without_spark(tmp_path: Path) -> None:
    files = ["--json", str(tmp_path / "soak.json"), "--chart", str(tmp_path / "soak.svg")]
    short = ["--minutes", "0.6", "--kill-every", "10", "--keep", "2", "--no-spark"]
    assert main(["soak", *short, "--dir", str(tmp_path), *files]) == 0
    result = msgspec.convert(json.loads((tmp_path / "soak.json").read_text()), SoakResult)
    assert (result.lost, result.findings) == (0, [])
    assert result.kills >= 1
    assert result.acknowledged > 500
    assert result.files_deleted > 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["soak.json", "soak.svg"]
