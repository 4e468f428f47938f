"""What every folder of tests shares."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import settings

from penstock.format import kernels

settings.register_profile("penstock", deadline=None, print_blob=True)
settings.load_profile("penstock")


@pytest.fixture(params=["compiled", "plain"])
def kernels_name(request: pytest.FixtureRequest) -> Iterator[str]:
    """Runs the test on both twins of the kernels."""
    before = kernels.active
    yield kernels.select(request.param)
    kernels.select(before)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What shares a Spark session comes first, because it takes longest."""
    items.sort(key=lambda item: not _shares_spark(item.nodeid))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Where tests run in several processes, those of a file stay together, and so do all that share a session."""
    from xdist.scheduler import LoadScopeScheduling

    class ByFile(LoadScopeScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            return "spark" if _shares_spark(nodeid) else nodeid.partition("::")[0]

    return ByFile(config, log)


def _shares_spark(nodeid: str) -> bool:
    return nodeid.startswith("tests/spark/")
