"""What every folder of tests shares."""

from __future__ import annotations

from collections.abc import Iterator

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


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Where tests run in several processes, those of a file stay together, and so do all that share a Spark session.

    These come first, because they take longest.
    """
    for item in items:
        item.add_marker(pytest.mark.xdist_group("spark" if _shares_spark(item) else str(item.path)))
    items.sort(key=lambda item: not _shares_spark(item))


def _shares_spark(item: pytest.Item) -> bool:
    return item.path.parent.name == "spark"
