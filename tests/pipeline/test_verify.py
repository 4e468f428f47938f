"""The job `verify` finds what `penstock store verify` finds, whatever the pieces and the workers."""

from __future__ import annotations

import itertools
import os
import shutil
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.damage import SETTINGS, T0, SoundStore, some_messages
from support.faults import ALL
from support.pipeline import Answers, Tasks, audit_here, in_process, stores_at, verified

from penstock.cli.main import main
from penstock.errors import BadSettings, BadStore
from penstock.pipeline.jobs.job_input import JobInput
from penstock.pipeline.jobs.verify import (
    AuditAnswer,
    AuditPiece,
    LogPiece,
    PackedPlan,
    answer,
    audit_stores,
    find_stores,
    tasks_of,
)
from penstock.pipeline.offset_ranges import piece_size_for
from penstock.store import MessageStore, Settings
from penstock.store.audit.plan import AuditRange
from penstock.store.readonly.infer_file_sizes import NumberedFile


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return SoundStore.make(tmp_path_factory.mktemp("model") / "store").folder


@pytest.fixture
def store(model: Path, tmp_path: Path) -> SoundStore:
    return SoundStore(Path(shutil.copytree(model, tmp_path / "store")))


@pytest.fixture
def owned(tmp_path: Path) -> Iterator[SoundStore]:
    """A store of several files that is open, with everything dispatched."""
    ticks = itertools.count(T0, 250)
    with MessageStore.open(tmp_path / "owned", SETTINGS, clock=lambda: next(ticks)) as store:
        for messages in some_messages():
            (store.put_many(messages) if isinstance(messages, list) else store.put(messages))
        store.catch_up()
        yield SoundStore(store.layout.root)


@pytest.mark.rest
def test_every_planted_fault_is_found_as_by_the_local_audit_all_stores_at_once(model: Path, tmp_path: Path) -> None:
    due = {}
    for name, plant in ALL.items():
        due[name] = plant(SoundStore(Path(shutil.copytree(model, tmp_path / name))))
    found = verified(f"{tmp_path}/*", piece_size=5000)
    assert found.keys() == due.keys()
    for name, each in found.items():
        assert each.problem == ""
        assert each.path == str(tmp_path / name)
        assert each.report == audit_here(tmp_path / name), name
        assert {finding.kind for finding in each.report.findings} == due[name]


def test_a_sound_store_gives_nothing(store: SoundStore) -> None:
    (found,) = verified(store.folder, piece_size=3000).values()
    assert found.report is not None
    assert found.report.findings == []
    assert found.report.figures.records == len(store.records())


def test_damaged_empty_and_missing_stores_do_not_keep_others_from_being_checked(
    store: SoundStore, tmp_path: Path
) -> None:
    ALL["a_body_with_another_crc"](store)
    with MessageStore.open(tmp_path / "empty", Settings.dev()):
        pass
    (tmp_path / "only-a-folder").mkdir()
    paths = [tmp_path / name for name in ("store", "empty", "only-a-folder", "nowhere")]
    found = verified(*paths)
    assert list(found) == ["empty", "nowhere", "only-a-folder", "store"]
    assert found["nowhere"].problem == f"{tmp_path}/nowhere: there is no store here: no such folder; check the path"
    assert "there is no store here: none of commitlog, " in found["only-a-folder"].problem
    assert (found["nowhere"].report, found["only-a-folder"].report) == (None, None)
    assert found["store"].report == audit_here(store.folder)
    assert found["empty"].report == audit_here(tmp_path / "empty")


def test_without_any_store_nothing_is_begun(tmp_path: Path) -> None:
    with pytest.raises(BadStore, match="there is no store here"):
        stores_at(tmp_path / "nowhere", tmp_path / "either")
    with pytest.raises(BadSettings, match="matches no folder"):
        stores_at(tmp_path / "none*")
    with pytest.raises(BadSettings, match="no store is given"):
        find_stores(JobInput(namesrv="127.0.0.1:9876"))


def test_the_command_does_not_start_spark_where_there_is_no_store(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.pipeline.session.start_session", lambda *given: pytest.fail("a session was started"))
    assert main(["pipeline", "verify", "--store", str(tmp_path / "nowhere")]) == 2
    said = f"penstock: {tmp_path}/nowhere: there is no store here: no such folder; check the path.\n"
    assert capsys.readouterr().err == said


# -- stores in use -----------------------------------------------------------------------------------------------------


def test_a_store_in_use_is_checked_as_far_as_its_owner_had_come(owned: SoundStore) -> None:
    (found,) = verified(owned.folder, piece_size=3000).values()
    assert found.report == audit_here(owned.folder)
    assert found.report is not None
    assert found.report.figures.in_use
    assert found.report.figures.records == len(owned.records())


def test_damage_in_a_store_in_use_is_found(owned: SoundStore) -> None:
    spot = owned.middle()
    owned.write_log(spot.offset + spot.body_at, b"other")
    (found,) = verified(owned.folder).values()
    assert found.report is not None
    assert [finding.kind for finding in found.report.errors] == ["record-crc"]


def test_an_error_that_only_one_look_has_was_the_owner_at_work(owned: SoundStore) -> None:
    spot = owned.middle()
    at = spot.offset + spot.body_at
    before = owned.read_log(at, 5)
    owned.write_log(at, b"other")
    jobs = 0

    def run(tasks: Tasks) -> Answers:
        nonlocal jobs
        jobs += 1
        found = in_process(tasks)
        if isinstance(tasks[0][0][1], LogPiece):
            owned.write_log(at, before)
        return found

    (found,) = audit_stores(stores_at(owned.folder), run).values()
    assert found.report is not None
    assert found.report.errors == []
    assert jobs == 4, "two looks, each at the index and at the log"


def test_files_that_retention_takes_meanwhile_are_no_error(owned: SoundStore) -> None:
    def run(tasks: Tasks) -> Answers:
        if isinstance(tasks[0][0][1], LogPiece):
            owned.log_files()[0].unlink()
            owned.queue_files()[0].unlink()
            owned.queue_files(queue_id=1)[0].unlink()
        return in_process(tasks)

    (found,) = audit_stores(stores_at(owned.folder), run).values()
    assert found.problem == ""
    assert found.report is not None
    assert found.report.errors == []


def test_an_index_file_that_retention_takes_between_the_jobs_has_the_store_looked_at_again(owned: SoundStore) -> None:
    gone = owned.index_files()[0]

    def run(tasks: Tasks) -> Answers:
        if isinstance(tasks[0][0][1], LogPiece):
            gone.unlink(missing_ok=True)
        return in_process(tasks)

    (found,) = audit_stores(stores_at(owned.folder), run).values()
    assert found.problem == ""
    assert found.report is not None
    assert found.report.figures.index_files == len(owned.index_files())


# -- workers elsewhere -------------------------------------------------------------------------------------------------


def test_a_host_that_does_not_see_the_store_is_said_and_never_taken_for_damage(
    store: SoundStore, tmp_path: Path
) -> None:
    away = tmp_path / "away"

    def run(tasks: Tasks) -> Answers:
        store.folder.rename(away)
        found = in_process(tasks)
        away.rename(store.folder)
        return found

    (found,) = audit_stores(stores_at(store.folder), run).values()
    assert found.report is None
    assert found.problem == (
        f"{store.folder / 'commitlog'}: {socket.gethostname()} does not see this folder; every host must, by this path"
    )


@pytest.mark.parametrize("kind", ["log", "index"])
def test_a_host_that_sees_only_some_files_is_said_and_never_taken_for_damage(store: SoundStore, kind: str) -> None:
    hidden = (store.log_files() if kind == "log" else store.index_files())[1]
    away = store.folder / "away"

    def run(tasks: Tasks) -> Answers:
        hidden.rename(away)
        found = in_process(tasks)
        away.rename(hidden)
        return found

    (found,) = audit_stores(stores_at(store.folder), run).values()
    assert found.report is None
    assert found.problem == f"{hidden}: not every host sees this file; every host must, by this path"


def test_a_file_that_goes_while_nobody_owns_the_store_is_a_problem_of_that_store_alone(
    store: SoundStore, model: Path
) -> None:
    lost = store.log_files()[1]

    def run(tasks: Tasks) -> Answers:
        lost.unlink(missing_ok=True)
        return in_process(tasks)

    found = {each.path: each for each in audit_stores(stores_at(store.folder, model), run).values()}
    assert found[str(store.folder)].problem == f"{lost}: No such file or directory"
    assert found[str(model)].report == audit_here(model)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_that_may_not_be_read_is_a_problem_of_its_store(store: SoundStore) -> None:
    store.log_files()[1].chmod(0)
    (found,) = verified(store.folder).values()
    assert found.problem == f"{store.log_files()[1]}: Permission denied"


def test_what_the_system_refuses_a_worker_is_an_answer(store: SoundStore, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*given: object) -> None:
        raise PermissionError(13, "Permission denied", "a file")

    taken: list[AuditPiece] = []

    def run(tasks: Tasks) -> Answers:
        taken.extend(piece for task in tasks for _, piece in task)
        return in_process(tasks)

    audit_stores(stores_at(store.folder), run)
    monkeypatch.setattr("penstock.pipeline.jobs.verify.audit_range", refuse)
    assert answer(taken[-1]) == AuditAnswer(problem="a file: Permission denied")


def test_pieces_are_neither_too_many_nor_too_large() -> None:
    assert piece_size_for(0, 2) == piece_size_for(64 << 20, 2) == 16 << 20
    assert piece_size_for(1 << 30, 2) == piece_size_for(2 << 30, 4) == 128 << 20
    assert piece_size_for(1 << 40, 2) == 512 << 20


def test_small_pieces_share_tasks_and_large_ones_do_not() -> None:
    def piece(size: int) -> LogPiece:
        return LogPiece(PackedPlan(b""), AuditRange(NumberedFile(0, size, Path("file")), 0, size, True))

    def shape(*sizes: int) -> list[list[int]]:
        return [[number for number, _ in task] for task in tasks_of([piece(size) for size in sizes])]

    assert tasks_of([]) == []
    assert shape(5, 5, 5) == [[0, 1, 2]]
    assert shape(5, 128 << 20, 128 << 20, 5, 5) == [[0], [1], [2], [3, 4]]
    assert [len(task) for task in shape(*[1] * 150)] == [64, 64, 22]
