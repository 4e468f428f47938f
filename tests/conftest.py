"""What every folder of tests shares: chance, the twin of the kernels, and which test runs when and where.

With several workers the tests of a file stay together. The files that took longest in the run before come first, so
that no worker has much left to do at the end; the durations are in pytest's cache.
"""

from __future__ import annotations

import logging
import os
import shutil
import signal
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from support import ROOT
from support.effort import IS_CI, in_parts, running_on

settings.register_profile(
    "penstock",
    deadline=None,
    print_blob=True,
    derandomize=IS_CI,
    suppress_health_check=[HealthCheck.too_slow],  # a busy machine is not a fault of the test
)
settings.load_profile("penstock")

_DURATIONS = "penstock/durations"
_ONE_SESSION = ("tests/spark", "tests/console")
"""Folders whose tests share something that takes long to start, so one worker runs them all."""
_LOG_LEVEL = logging.getLogger().level
_MEMORY = Path("/dev/shm")
_ROOM_IN_MEMORY = 6 << 30


@pytest.fixture(params=in_parts(["compiled", "plain"]))
def kernels_name(request: pytest.FixtureRequest) -> Iterator[str]:
    """Runs the test on both twins of the kernels: on the plain one in `make test-rest`."""
    with running_on(request.param):
        yield request.param


@pytest.fixture(autouse=True)
def logging_as_before() -> Iterator[None]:
    """Takes back what a test has set up for the whole process: `serve` and `console` configure logging."""
    root, hooks = logging.getLogger(), (sys.excepthook, threading.excepthook)
    yield
    for handler in root.handlers[:]:
        if type(handler) is logging.StreamHandler:  # pytest's own are of other classes
            root.removeHandler(handler)
    root.setLevel(_LOG_LEVEL)
    if (sys.excepthook, threading.excepthook) != hooks:
        sys.excepthook, threading.excepthook = hooks
        logging.captureWarnings(False)


@pytest.fixture
def hangup_ends() -> Iterator[None]:
    """SIGHUP ends the processes that the test starts, also where the tests run under nohup."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--in-memory",
        action="store_true",
        help="keep temporary folders in memory, where there is room: syncs to a disk are half the time of all tests",
    )


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--in-memory") and _has_room(_MEMORY):
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(_MEMORY))
    if not hasattr(config, "workerinput") and hasattr(config, "cache"):
        config.pluginmanager.register(_Stopwatch(config))


def _has_room(folder: Path) -> bool:
    try:
        return shutil.disk_usage(folder).free >= _ROOM_IN_MEMORY
    except OSError:
        return False


class _Stopwatch:
    """Notes for the next run how long each file took."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._seconds: Counter[str] = Counter()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._seconds[_together(report.nodeid)] += report.duration

    def pytest_sessionfinish(self) -> None:
        rounded = {name: round(seconds, 1) for name, seconds in self._seconds.items()}
        self._config.cache.set(_DURATIONS, {**self._config.cache.get(_DURATIONS, {}), **rounded})


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """What took longest comes first; before that, what never ran, the largest file first."""
    seconds = config.cache.get(_DURATIONS, {}) if hasattr(config, "cache") else {}
    names = {_together(item.nodeid) for item in items}
    rank = {name: (-seconds.get(name, float("inf")), -_size(ROOT / name)) for name in names}
    items.sort(key=lambda item: rank[_together(item.nodeid)])


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Shows why a test was run once more, which CI allows: a pass at the second time hides nothing."""
    for report in terminalreporter.stats.get("rerun", []):
        terminalreporter.write_sep("_", f"RERUN {report.nodeid}")
        terminalreporter.write_line(report.longreprtext)


def _size(path: Path) -> int:
    return sum(each.stat().st_size for each in path.glob("*.py")) if path.is_dir() else path.stat().st_size


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    from xdist.scheduler import LoadScopeScheduling

    class InOrder(LoadScopeScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            return _together(nodeid)

    config.option.loadscopereorder = False  # it would begin with the files that have most tests, which are quick
    return InOrder(config, log)


def _together(nodeid: str) -> str:
    """What runs in one worker: a file, or a folder that shares one session."""
    path = nodeid.partition("::")[0]
    folder = path.rpartition("/")[0]
    return folder if folder in _ONE_SESSION else path
