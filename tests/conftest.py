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


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Where tests run in several processes, those of a file stay together, and so do all that share a Spark session."""
    for item in items:
        folder = item.path.parent.name
        item.add_marker(pytest.mark.xdist_group(folder if folder == "spark" else str(item.path)))
