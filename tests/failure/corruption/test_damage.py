"""Any byte of any file may be wrong: nothing is served that was not put, and what was not touched is served.

`PENSTOCK_SEED` and `PENSTOCK_DAMAGES` choose other damage, and more of it.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from pathlib import Path

import pytest
from failure.corruption.damaged_store import SETTINGS, Base, Damage, do_damage
from failure.corruption.reading import Reading, assert_undamaged_is_served, keys_of
from support.disks import UnsyncedFiles
from support.effort import in_parts, tell_progress
from support.messages import SEED
from support.stores import is_one_sentence

from penstock.errors import PenstockError
from penstock.store import Message, MessageStore
from penstock.store.audit import AuditReport, audit
from penstock.store.repair import repair

DAMAGES = int(os.environ.get("PENSTOCK_DAMAGES", "300"))
TORTURE_DAMAGES = int(os.environ.get("PENSTOCK_DAMAGES", "10000"))
PARTS = 6

Bases = tuple[Base, Base]


def open_store(folder: Path) -> MessageStore:
    return MessageStore.open(folder, SETTINGS, files=UnsyncedFiles())


def open_or_refusal(folder: Path) -> tuple[MessageStore | None, str]:
    try:
        return open_store(folder), ""
    except PenstockError as error:
        return None, str(error)


def assert_survives(base: Base, folder: Path, damage: Damage) -> None:
    """Opens, reads everything, goes on writing; opens again and finds the same."""
    store, refusal = open_or_refusal(folder)
    if store is None:
        assert damage.is_shape, f"content alone never keeps a store from opening: {refusal}"
        assert is_one_sentence(refusal), refusal
        return
    with store:
        reading = Reading(store, base)
        assert_undamaged_is_served(reading, base, damage)
        answers = [store.put(Message("later", b"%d" % number, keys=f"l{number}")) for number in range(3)]
        assert all(answer.ok for answer in answers), answers
        bodies = [record.body for record in store.get("later", 0, answers[0].queue_offset).messages]
        assert bodies == [b"0", b"1", b"2"]
    with open_store(folder) as store:
        later = {answer.physical_offset: store.look_up(answer.physical_offset) for answer in answers}
        assert [record and record.body for record in later.values()] == [b"0", b"1", b"2"]
        again = Reading(store, base._replace(records={**base.records, **later}))  # type: ignore[dict-item]
        assert again.got == reading.got | later.keys(), "the second start serves other messages"
        assert again.looked_up == reading.looked_up | later.keys(), "the second start serves other messages"


def assert_is_named_and_repaired(base: Base, folder: Path, damage: Damage) -> None:
    """An audit names what is damaged; after a repair it names nothing, and everything else is served."""
    before = audit(folder, SETTINGS)
    if base.is_clean:  # else there is a torn tail, which is named anyway
        assert_is_named(before, base, folder, damage)
    repair(folder, SETTINGS, files=UnsyncedFiles())
    after = audit(folder, SETTINGS)
    assert not after.errors, f"still wrong after the repair: {after.errors[:3]}; before: {before.errors[:3]}"
    with open_store(folder) as store:
        assert_undamaged_is_served(Reading(store, base, is_repaired=True), base, damage)


def assert_is_named(report: AuditReport, base: Base, folder: Path, damage: Damage) -> None:
    if report.errors:
        where = {str(folder / name) for name in damage.touched}
        where |= {str((folder / name).parent) for name in damage.touched}
        # A header or a key that no longer fits is told by the unit or the index item that it contradicts.
        elsewhere = damage.hits_folder("commitlog")
        assert elsewhere or any(error.path in where for error in report.errors), report.errors[:3]
        return
    with MessageStore.open(folder, SETTINGS, read_only=True) as store:
        reading = Reading(store, base)
        begin = store.log.min_offset
    everything = {offset for offset in base.records if offset >= begin}  # retention removes the first file, too
    assert (reading.got, reading.looked_up) == (everything, everything), "messages are lost, and verify is silent"
    wanted = {key for offset in everything for key in keys_of(base.records[offset])}
    lost = [key for key in wanted if not reading.keys[key]]
    assert not lost, f"keys are lost, and verify is silent: {lost[:3]}"


def run(bases: Bases, folder: Path, seeds: range, check: Callable[[Base, Path, Damage], None]) -> None:
    print(f"PENSTOCK_SEED={SEED}")
    for done, number in enumerate(seeds, 1):
        seed = f"{SEED} {number}"
        base = bases[number % 2]
        base.write_to(folder)
        damage = do_damage(folder, random.Random(seed))
        try:
            check(base, folder, damage)
        except BaseException:
            print(f"seed {seed!r}, {'closed' if base.is_clean else 'killed'}, {damage.what}, the store is in {folder}")
            raise
        tell_progress(f"damaged stores, {check.__name__}", done, len(seeds), 500)


@pytest.mark.parametrize("part", in_parts(range(PARTS)))
def test_damage_alters_no_message_and_hides_none_that_it_did_not_touch(bases: Bases, tmp_path: Path, part: int) -> None:
    run(bases, tmp_path / "store", range(part, DAMAGES, PARTS), assert_survives)


@pytest.mark.parametrize("part", in_parts(range(PARTS)))
def test_verify_names_the_damage_and_repair_leaves_none(bases: Bases, tmp_path: Path, part: int) -> None:
    """A third as often: a repair takes longer than a start."""
    run(bases, tmp_path / "store", range(part, DAMAGES // 3, PARTS), assert_is_named_and_repaired)


@pytest.mark.torture
@pytest.mark.timeout(36_000)
@pytest.mark.parametrize("check", [assert_survives, assert_is_named_and_repaired])
def test_thousands_of_damages(bases: Bases, tmp_path: Path, check: Callable[[Base, Path, Damage], None]) -> None:
    run(bases, tmp_path / "store", range(1_000_000, 1_000_000 + TORTURE_DAMAGES), check)
