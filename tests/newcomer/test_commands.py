"""The pages promise something, and a promise that is not kept is noticed."""

from __future__ import annotations

import pytest
from newcomer.commands import blocks_of, missing
from support import ROOT


@pytest.mark.parametrize("page", ["README.md", "README.zh.md", "docs/quickstart.md", "docs/zh/quickstart.md"])
def test_a_page_tells_what_to_type_and_what_will_be_seen(page: str) -> None:
    blocks = blocks_of(ROOT / page)
    assert any(block.kind == "python" for block in blocks)
    assert sum(len(block.promised) for block in blocks) >= 5


def test_a_promise_that_is_not_kept_is_noticed() -> None:
    printed = "first line\nsecond 2026 line\nthird\n"
    assert missing(("first", "second … line"), printed) == ""
    assert missing(("second … line", "first"), printed) == "first"
    assert missing(("third … line",), printed) == "third … line"
