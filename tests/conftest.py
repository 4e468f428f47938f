"""What every folder of tests shares."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from support.effort import IS_CI

from penstock.format import kernels

settings.register_profile(
    "penstock",
    deadline=None,
    print_blob=True,
    derandomize=IS_CI,
    suppress_health_check=[HealthCheck.too_slow],  # a machine that is busy is no fault of the test's
)
settings.load_profile("penstock")


@pytest.fixture(params=["compiled", "plain"])
def kernels_name(request: pytest.FixtureRequest) -> Iterator[str]:
    """Runs the test on both twins of the kernels."""
    before = kernels.active
    yield kernels.select(request.param)
    kernels.select(before)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What takes longest comes first, so that at the end no process has much left to do while the others wait."""
    items.sort(key=lambda item: _LONGEST.get(_together(item.nodeid), len(_LONGEST)))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Where tests run in several processes, those of a file stay together, and so do all that share a session."""
    from xdist.scheduler import LoadScopeScheduling

    class InOrder(LoadScopeScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            return _together(nodeid)

    config.option.loadscopereorder = False  # it would begin with the files that have most tests, which are quick
    return InOrder(config, log)


def _together(nodeid: str) -> str:
    """What runs in one process: a file, all that share a console, or all of Spark's, who would be too many at once."""
    path = nodeid.partition("::")[0]
    folder = path.rpartition("/")[0]
    return folder if folder in ("tests/spark", "tests/console") else path


_LONGEST = {
    name: place
    for place, name in enumerate(
        (
            "tests/spark",
            "tests/corrupt/test_damage.py",
            "tests/console",
            "tests/repair/test_planted_faults.py",
            "tests/store/test_recovery_queues.py",
            "tests/cli/test_serve.py",
            "tests/store/audit/test_any_damage.py",
            "tests/cli/test_command.py",
            "tests/pipeline/test_verify.py",
            "tests/cli/test_network_verbs.py",
            "tests/store/sink/test_killed.py",
            "tests/store/sink/test_failing_disk.py",
            "tests/store/test_recovery_missing_files.py",
            "tests/cli/test_read_only.py",
            "tests/repair/test_killed.py",
            "tests/repair/test_power_loss.py",
            "tests/crash/test_failing_calls.py",
            "tests/crash/test_power_loss.py",
            "tests/bench/test_broker_bench.py",
            "tests/properties/test_put_is_got.py",
            "tests/cli/test_messages.py",
            "tests/store/test_recovery_basics.py",
            "tests/store/audit/test_ranges.py",
            "tests/store/test_full_disk.py",
            "tests/store/test_tail_from_another_process.py",
            "tests/pipeline/test_store_place.py",
            "tests/cli/test_typical_mistakes.py",
            "tests/client/test_kill_and_restart.py",
            "tests/crash/test_kills.py",
            "tests/store/audit/test_sound_stores.py",
        )
    )
}
"""By the time they take, about; the others, each a few seconds, follow as they were found."""
