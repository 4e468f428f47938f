"""Whatever the files hold, an audit ends, and reports messages that are lost or cannot be found."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest
from support.damage import SETTINGS, SoundStore
from support.effort import in_parts

from penstock.store.audit import audit
from penstock.store.audit.finding_kinds import KINDS

ROUNDS = 25
SEEDS = range(8)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return SoundStore.make(tmp_path_factory.mktemp("model") / "store").folder


def data_files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file() and path.parent.name != "penstock")


def damage(path: Path, chance: random.Random) -> str:
    """Damages a file once; returns how."""
    data = bytearray(path.read_bytes())
    place = chance.randrange(len(data)) if data else 0
    size = min(chance.choice((1, 4, 20, 300, 5000)), len(data) - place)
    kind = chance.choice(("flip", "zeros", "ones", "noise", "copy", "cut", "grow", "empty", "remove", "rename"))
    if kind == "flip" and data:
        data[place] ^= 1 << chance.randrange(8)
    elif kind == "zeros":
        data[place : place + size] = bytes(size)
    elif kind == "ones":
        data[place : place + size] = b"\xff" * size
    elif kind == "noise":
        data[place : place + size] = chance.randbytes(size)
    elif kind == "copy":
        start = chance.randrange(max(len(data) - size, 1))
        data[place : place + size] = data[start : start + size]
    elif kind == "cut":
        del data[place:]
    elif kind == "grow":
        data += chance.randbytes(size)
    elif kind == "empty":
        data.clear()
    elif kind == "remove":
        path.unlink()
        return f"{kind} {path}"
    elif kind == "rename":
        path.rename(path.with_name(f"{chance.randrange(10**20):020d}"))
        return f"{kind} {path}"
    path.write_bytes(data)
    return f"{kind} {size} at {place} of {path}"


@pytest.mark.parametrize("seed", in_parts(SEEDS, 2))
def test_an_audit_of_a_damaged_store_ends_with_findings_that_make_sense(model: Path, tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    for number in range(ROUNDS):
        folder = Path(shutil.copytree(model, tmp_path / str(number)))
        done = [damage(chance.choice(data_files(folder)), chance) for _ in range(chance.choice((1, 1, 2, 5)))]
        report = audit(folder, SETTINGS, piece_size=chance.choice((1000, 1 << 20)))
        for finding in report.findings:
            assert finding.severity == KINDS[finding.kind].severity, done
            assert finding.path.startswith(str(folder)), done
            assert finding.offset is None or finding.offset >= 0, done
            assert finding.messages is None or finding.messages >= 0, done
            assert "\n" not in finding.what, done
        for earlier, later in zip(report.damage, report.damage[1:], strict=False):
            assert earlier.end <= later.physical_offset, done
        shutil.rmtree(folder)


@pytest.mark.parametrize("seed", in_parts(SEEDS, 2))
def test_bytes_that_were_changed_in_log_or_queues_are_noticed_where_a_check_covers_them(
    model: Path, tmp_path: Path, seed: int
) -> None:
    """Sizes, positions, bodies, topics, tags and keys of records; every byte of a unit."""
    chance = random.Random(seed)
    spots = SoundStore(model).records()
    for number in range(ROUNDS):
        store = SoundStore(Path(shutil.copytree(model, tmp_path / str(number))))
        spot = chance.choice(spots[:-1])
        checked = [*range(8), *range(20, 36), *range(spot.topic_at - 1, spot.properties_at)]
        checked += range(spot.body_at, spot.topic_at - 1)
        at = spot.offset + chance.choice(checked)
        if number % 2:
            at = spot.queue_offset * 20 + chance.randrange(20)
            unit = bytearray(store.unit(spot.queue_offset, spot.topic, spot.queue_id))
            unit[at % 20] ^= 1 << chance.randrange(8)
            if spot.type not in (0, 8):
                continue
            store.write_unit(spot.queue_offset, bytes(unit), spot.topic, spot.queue_id)
        elif spot.type:
            continue
        else:
            store.write_log(at, bytes([store.read_log(at, 1)[0] ^ (1 << chance.randrange(8))]))
        report = audit(store.folder, SETTINGS)
        assert report.errors or any(finding.kind == "unit-extension" for finding in report.notes), (spot, at)
        shutil.rmtree(store.folder)
