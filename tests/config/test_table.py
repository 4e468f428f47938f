"""The table of settings: names, types, bounds, and names shared with another program's table."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import pytest

from penstock.config.ignored_settings import IGNORED, ignored_note
from penstock.config.setting_parser import LONG_MAX, Origin, Section, SettingTable
from penstock.errors import BadSettings

SIZES = Section("Sizes", Origin.PENSTOCK)


@dataclass(frozen=True, slots=True, kw_only=True)
class Basin:
    max_depth: Annotated[int, SIZES("metres", low=1, high=LONG_MAX, aliases=("depth",))] = 3
    share: Annotated[float, SIZES("how full", high=1)] = 0.5
    folder: Annotated[Path | None, SIZES("where")] = None
    note: str = "no setting"

    def __post_init__(self) -> None:
        BASIN.check(self)


BASIN = SettingTable(Basin, kept=("tls.mode",))


def test_rows_come_from_annotated_attributes_in_their_order() -> None:
    assert [setting.name for setting in BASIN] == ["maxDepth", "share", "folder"]
    assert BASIN.by_name["depth"] is BASIN["max_depth"]
    assert BASIN["max_depth"].default == 3
    assert "note" not in BASIN
    assert BASIN["folder"].origin is Origin.PENSTOCK


def test_values_get_their_proper_types() -> None:
    assert Basin(share=1).share == 1.0
    assert type(Basin(share=1).share) is float
    assert BASIN.texts(Basin(folder=Path("/a"))) == {"maxDepth": "3", "share": "0.5", "folder": "/a"}


@pytest.mark.parametrize(
    ("pair", "sentence"),
    [
        ("maxDepth=0", "setting maxDepth is '0'; it must be a whole number of at least 1"),
        ("share=2", "setting share is '2.0'; it must be a number from 0 to 1"),
        ("Depht=2", "unknown setting 'Depht'; did you mean 'depth'?"),
        ("tls.mod=2", "unknown setting 'tls.mod'; did you mean 'tls.mode'?"),
    ],
)
def test_a_refusal_says_what_is_allowed(pair: str, sentence: str) -> None:
    with pytest.raises(BadSettings) as refused:
        BASIN.read(None, [pair])
    assert str(refused.value) == sentence


def test_names_outside_the_table_are_kept_as_texts(tmp_path: Path) -> None:
    conf = tmp_path / "basin.conf"
    conf.write_text("depth=7\ntls.mode = on \nuseTLS=x\n")
    values, texts = BASIN.read(conf, ["folder=", "share=0.25"])
    assert values == {"max_depth": 7, "folder": None, "share": 0.25}
    assert texts == {"tls.mode": "on", "useTLS": "x"}


def test_a_line_of_a_file_is_named(tmp_path: Path) -> None:
    conf = tmp_path / "basin.conf"
    conf.write_text("\nshare=full\n")
    with pytest.raises(BadSettings, match=r"basin\.conf: line 2: setting share is 'full'"):
        BASIN.read(conf, ())


def test_a_store_alone_knows_the_names_of_the_broker() -> None:
    code = (
        "from penstock.store import Settings; import sys; assert 'penstock.broker' not in sys.modules; "
        "print(Settings.load(None, ['brokerName=b', 'tls.enable=true']).broker)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "{'brokerName': 'b', 'tls.enable': 'true'}\n"


def test_one_sentence_names_what_has_no_effect() -> None:
    assert ignored_note(["brokerName"]) == []
    assert ignored_note(["useTLS"]) == ["useTLS has no effect here."]
    assert ignored_note(["useTLS", "brokerName", "clusterTest"]) == ["clusterTest, useTLS have no effect here."]


@pytest.mark.parametrize("module", ["store", "broker", "namesrv"])
def test_no_setting_is_ignored(module: str) -> None:
    table = __import__(f"penstock.{module}.settings", fromlist=["TABLE"]).TABLE
    assert not IGNORED & set(table.by_name)
