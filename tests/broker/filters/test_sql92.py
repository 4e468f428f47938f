"""SQL92 filters: what an expression selects, and that no expression harms."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.broker.filters.sql92 import MAX_DEPTH, MAX_LENGTH, compile_condition, compile_sql
from penstock.errors import BadRequest
from penstock.format.record import Record, encode_record

ORDER = {"region": "Hangzhou", "price": "10", "weight": "2.5", "paid": "true", "note": "it's", "_x$1": "y"}


@pytest.mark.parametrize(
    "expression",
    [
        "region = 'Hangzhou'",
        "region <> 'Beijing'",
        "price > 9",
        "price >= 10 AND price <= 10",
        "price < 11L",
        "weight = 2.5",
        "weight > .5 and weight < 1e3",
        "price BETWEEN 1 AND 10",
        "price NOT BETWEEN 11 AND 20",
        "region IN ('Beijing', 'Hangzhou')",
        "region not in ('Beijing')",
        "missing IS NULL",
        "region IS NOT NULL",
        "paid = TRUE",
        "paid <> FALSE",
        "note = 'it''s'",
        "_x$1 = 'y'",
        "NOT (price = 11 OR price = 12)",
        "NOT (price = 11)",
        "-price < -9",
        "+price = 10",
        "missing = 1 OR price = 10",
        "price = 11 OR region = 'Hangzhou' AND weight > 2",
        "price = 10 -- a remark",
        "/* a remark */ price = /* another * one */ 10",
        "region CONTAINS 'ang' AND region STARTSWITH 'Hang' AND region ENDSWITH 'zhou'",
        "region NOT CONTAINS 'xyz' AND region NOT STARTSWITH 'x' AND region NOT ENDSWITH 'x'",
        "TRUE",
        "price > weight",
    ],
)
def test_what_holds_selects_the_message(expression: str) -> None:
    assert compile_condition(expression)(ORDER)


@pytest.mark.parametrize(
    "expression",
    [
        "region = 'Beijing'",
        "price > 10",
        "region > 5",
        "region = 5",
        "missing = 1",
        "missing <> 1",
        "NOT (missing = 1)",
        "NOT price = 11",
        "missing IN ('a')",
        "missing NOT IN ('a')",
        "missing BETWEEN 1 AND 2",
        "missing NOT BETWEEN 1 AND 2",
        "missing CONTAINS 'a'",
        "NOT (missing = 1 AND price = 10)",
        "missing = 1 AND price = 10",
        "NULL = NULL",
        "NULL",
        "FALSE",
        "price",
        "'text'",
        "-region > 1",
        "paid = 'yes' AND paid = 1",
        "paid = TRUE AND region = TRUE",
        "REGION = 'Hangzhou'",
    ],
)
def test_what_does_not_hold_or_is_unknown_does_not(expression: str) -> None:
    assert not compile_condition(expression)(ORDER)


@pytest.mark.parametrize(
    "expression",
    ["", "price >", "price 10", "= 10", "(price = 10", "region IN ()", "region IN (1)", 'region = "x"', "a = 'open"],
)
def test_what_cannot_be_read_is_refused_with_the_place(expression: str) -> None:
    with pytest.raises(BadRequest, match=r"cannot be read at (its end|line \d+, column \d+)"):
        compile_condition(expression)


@pytest.mark.parametrize(
    ("expression", "reason"),
    [
        ("a = '" + "x" * MAX_LENGTH + "'", "characters"),
        ("NOT " * 2000 + "a = 1", "levels"),
        ("- " * 2000 + "1 = a", "levels"),
        ("a = 99999999999999999999", "too large"),
    ],
)
def test_an_expression_that_would_cost_too_much_is_refused(expression: str, reason: str) -> None:
    with pytest.raises(BadRequest, match=reason):
        compile_condition(expression)


def test_many_alternatives_side_by_side_are_fine_up_to_a_limit() -> None:
    assert compile_condition(" OR ".join(f"a={number}" for number in range(600)))({"a": "599"})
    with pytest.raises(BadRequest, match="too large"):
        compile_condition(" OR ".join(f"a={number % 10}" for number in range(1000)))


def test_a_record_is_asked_by_its_properties() -> None:
    def record(**properties: str) -> bytes:
        fields: dict[str, Any] = {"topic": "orders", "body": b"x", "properties": properties}
        return encode_record(Record(**fields))

    accepts = compile_sql("price > 5 AND TAGS = 'paid'")
    assert accepts(record(price="6", TAGS="paid"))
    assert not accepts(record(price="6", TAGS="open"))
    assert not accepts(record(price="five", TAGS="paid"))
    assert not accepts(record())


_WORDS = st.sampled_from(
    [
        "a",
        "b",
        "1",
        "2.5",
        "'x'",
        "NULL",
        "TRUE",
        "AND",
        "OR",
        "NOT",
        "=",
        "<>",
        ">",
        "<=",
        "(",
        ")",
        "IN",
        "BETWEEN",
        "IS",
        "-",
        ",",
    ]
)


@given(
    st.lists(_WORDS, max_size=30).map(" ".join), st.dictionaries(st.sampled_from("ab"), st.sampled_from(["1", "x", ""]))
)
def test_whatever_is_written_either_answers_or_is_refused(expression: str, properties: dict[str, str]) -> None:
    try:
        selects = compile_condition(expression)
    except BadRequest:
        return
    assert selects(properties) in (True, False)


@given(st.text(max_size=60))
def test_no_text_brings_anything_but_a_refusal(expression: str) -> None:
    try:
        compile_condition(expression)
    except BadRequest:
        return


def test_brackets_alone_cost_nothing() -> None:
    assert compile_condition("(" * 2000 + "a = 1" + ")" * 2000)({"a": "1"})


def test_depth_is_counted_where_it_costs() -> None:
    fine = "NOT " * (MAX_DEPTH - 3) + "a = 1"
    assert compile_condition(fine)({"a": "1"}) in (True, False)
