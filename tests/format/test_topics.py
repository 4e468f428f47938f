from __future__ import annotations

import pytest

from penstock.errors import BadMessage
from penstock.format.topics import check_topic, is_legal_topic


@pytest.mark.parametrize("name", ["T", "%RETRY%group_a", "a|b-c_D9", "t" * 127])
def test_a_legal_topic_passes(name: str) -> None:
    check_topic(name)
    assert is_legal_topic(name)
    assert is_legal_topic(name.encode())


@pytest.mark.parametrize("name", ["", "a b", "a/b", "..", "主题", "t" * 128, "a\n", "a.b", "\ud800"])
def test_an_illegal_topic_is_refused(name: str) -> None:
    assert not is_legal_topic(name)
    assert not is_legal_topic(name.encode("utf-8", "surrogatepass"))
    with pytest.raises(BadMessage, match="topic"):
        check_topic(name)


def test_the_length_is_counted_in_bytes() -> None:
    with pytest.raises(BadMessage, match="too long; expected at most 127 bytes, found 150"):
        check_topic("主" * 50)
