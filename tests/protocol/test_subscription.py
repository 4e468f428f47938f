from __future__ import annotations

import pytest

from penstock.errors import BadRequest
from penstock.protocol.subscription import MAX_TAGS, SQL92, SubscriptionData, subscribe, tags_of


@pytest.mark.parametrize(
    ("expression", "tags"),
    [
        ("A", ["A"]),
        ("A || B", ["A", "B"]),
        ("A||B||", ["A", "B"]),
        ("|| A ||A|| B ", ["A", "B"]),
        ("a|b", ["a|b"]),
        ("||", []),
        ("", []),
    ],
)
def test_an_expression_is_tags_between_double_bars(expression: str, tags: list[str]) -> None:
    assert tags_of(expression) == tags


def test_a_tag_has_javas_hash() -> None:
    subscription = subscribe("T", "TagA || polygenelubricants || 标签", 5)
    assert subscription.code_set == [2598919, -2147483648, 857175]


@pytest.mark.parametrize("everything", ["*", "", None])
def test_everything_has_no_tags(everything: str | None) -> None:
    subscription = subscribe("T", everything, 5)
    assert subscription == SubscriptionData(topic="T", sub_string="*", sub_version=5)
    assert (subscription.tags_set, subscription.code_set) == ([], [])
    assert subscription.wants_everything


def test_an_expression_without_a_tag_is_refused() -> None:
    with pytest.raises(BadRequest, match=r"the subscription ' \|\| ' of topic 'T' names no tag"):
        subscribe("T", " || ", 5)


def test_an_expression_has_so_many_tags_and_no_more() -> None:
    most = "||".join(f"t{number}" for number in range(MAX_TAGS))
    assert len(subscribe("T", most, 5).code_set) == MAX_TAGS
    for expression in (most + "||more", "||" * MAX_TAGS):
        with pytest.raises(BadRequest, match=f"a subscription may have {MAX_TAGS} tags, and this one has"):
            subscribe("T", expression, 5)


def test_sql_is_left_alone() -> None:
    subscription = subscribe("T", "a > 1 || b", 5, SQL92)
    assert (subscription.sub_string, subscription.tags_set, subscription.code_set) == ("a > 1 || b", [], [])


@pytest.mark.parametrize(
    "missing", ['"tagsSet":["A"]', '"codeSet":[65]', '"expressionType":""', '"expressionType":null']
)
def test_what_a_client_leaves_out_follows_from_the_expression(missing: str) -> None:
    found = SubscriptionData.from_bytes(f'{{"topic":"T","subString":"A",{missing}}}'.encode())
    assert found == subscribe("T", "A", 0)


def test_what_a_client_sends_is_kept() -> None:
    found = SubscriptionData.from_bytes(b'{"topic":"T","subString":"A","tagsSet":["B"],"codeSet":[7],"subVersion":"9"}')
    assert (found.tags_set, found.code_set, found.sub_version) == (["B"], [7], 9)
