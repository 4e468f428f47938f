"""SQL92 filters: what an expression selects, what is refused, and what compiling costs at most."""

from __future__ import annotations

import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.broker import filters as filters_module
from penstock.broker.filters import (
    ALL,
    MAX_CACHED_BYTES,
    MAX_DEPTH,
    MAX_LENGTH,
    MAX_NUMBER,
    Condition,
    ExpressionCache,
    NotComparable,
    Selection,
    compile_condition,
    compile_sql,
    number,
)
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
        "not (price = 11) aNd paid = true AND missing Is Null",
        "price > weight",
        "price > 9 = TRUE",
        "price = 10 IS NOT NULL",
        "(price = 11 OR (weight) = 2.5) AND (((price))) = 10",
        "(missing IS NULL) = TRUE",
        "TRUE OR FALSE AND region > 1",
        "price BETWEEN -1 AND +10 AND region = 'Hangzhou'",
        "region = '--' OR region = '/*' OR TRUE",
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
        "price > 1 > 0",
        "price = 10 = 10",
        "1 CONTAINS '1'",
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
    ("expression", "where_and_why"),
    [
        ("price >", "its end, where a value is expected"),
        ("price > > 1", "line 1, column 9, where a value is expected"),
        ("price = 1\n  OR\n   ?", "line 3, column 4, where a value is expected"),
        ("price 10", "line 1, column 7, where '10' is not expected"),
        ("price = 10)", "line 1, column 11, where ')' is not expected"),
        ("missing IS NULL > 1", "line 1, column 17, where '> 1' is not expected"),
        ("(price = 10", "its end, where ')' is expected"),
        ("price IS 10", "line 1, column 10, where 'NULL' is expected"),
        ("price BETWEEN 1 OR 2", "line 1, column 17, where 'AND' is expected"),
        ("price NOT = 1", "line 1, column 11, where one of BETWEEN, IN, CONTAINS, STARTSWITH, ENDSWITH is expected"),
        ("region IN ('a', 1)", "line 1, column 17, where a text in single quotes is expected"),
        ("region = 'it''s", "line 1, column 10, where a text or a remark starts and does not end"),
        ("price = 1 /* open", "line 1, column 11, where a text or a remark starts and does not end"),
    ],
)
def test_a_refusal_says_where_and_why(expression: str, where_and_why: str) -> None:
    with pytest.raises(BadRequest) as refusal:
        compile_condition(expression)
    assert str(refusal.value) == f"the SQL92 expression cannot be read at {where_and_why}: {expression!r}"


@pytest.mark.parametrize(
    ("expression", "reason"),
    [
        ("a = '" + "x" * MAX_LENGTH + "'", "characters"),
        ("NOT " * 2000 + "a = 1", "levels"),
        ("- " * 2000 + "1 = a", "levels"),
        ("NOT (" * 1000 + "a" + ")" * 1000, "levels"),
        ("a = (" * 1000 + "a" + ")" * 1000, "levels"),
        ("a OR (b AND (" * 500 + "a" + "))" * 500, "levels"),
        ("a BETWEEN 1 AND (" * 400 + "a" + ")" * 400, "levels"),
        ("(" * 1000 + "a" + " = 1)" * 1000, "levels"),
        ("a" + " = 1" * 1000, "levels"),
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


def test_the_deepest_expression_needs_few_frames() -> None:
    levels = MAX_DEPTH - 2
    deepest = "a = 1 AND (TRUE = (" * (levels // 2) + "a = 1" + "))" * (levels // 2)
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(_frames() + 5 * MAX_DEPTH)
    try:
        assert compile_condition(deepest)({"a": "1"})
        with pytest.raises(BadRequest, match="levels"):
            compile_condition(f"TRUE = (TRUE = ({deepest}))")
    finally:
        sys.setrecursionlimit(limit)


def _frames() -> int:
    frame, count = sys._getframe(), 0
    while frame.f_back is not None:
        frame, count = frame.f_back, count + 1
    return count


# -- numbers -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("7", 7),
        ("-7", -7),
        ("+7", 7),
        ("007", 7),
        ("2.5", 2.5),
        ("5.", 5),
        (".5", 0.5),
        ("-1.5e3", -1500),
        ("1E-2", 0.01),
    ],
)
def test_a_property_in_plain_decimal_notation_is_a_number(text: str, value: float) -> None:
    assert number(text) == value
    assert compile_condition(f"a = {value} AND a >= {value} AND a BETWEEN {value} AND {value}")({"a": text})


@pytest.mark.parametrize(
    "text",
    [
        "1_000",
        "inf",
        "-Infinity",
        "nan",
        " 1",
        "1 ",
        "1\n",
        "",
        "+",
        ".",
        "e3",
        "1e",
        "--1",
        "0x10",
        "1.2.3",
        "1L",
        "1,5",
        "١",
    ],
)
def test_a_property_in_any_other_notation_is_not_a_number(text: str) -> None:
    with pytest.raises(NotComparable):
        number(text)
    for expression in ("a > 0", "a < 0", "a = 1000", "a <> 7", "-a < 0", "NOT (a = 7)", "a NOT BETWEEN 7 AND 8"):
        assert not compile_condition(expression)({"a": text})


def test_whole_numbers_are_compared_exactly() -> None:
    assert compile_condition("a > 9007199254740992")({"a": "9007199254740993"})
    assert compile_condition("a <> 9007199254740992")({"a": "9007199254740993"})


def test_a_text_with_very_many_digits_is_not_a_number() -> None:
    assert compile_condition("a > 1")({"a": "9" * MAX_NUMBER})
    assert not compile_condition("a > 1")({"a": "9" * (MAX_NUMBER + 1)})


def test_the_more_work_an_expression_is_the_fewer_messages_a_pull_examines() -> None:
    def examined(expression: str) -> int:
        return Selection(accepts=compile_sql(expression)).max_examined

    assert ALL.max_examined == examined("a = 1 AND b IN ('x', 'y')") == 800
    many = [" OR ".join(["a > b"] * count) for count in (40, 80, 600)]
    searching = [" OR ".join(["a CONTAINS 'x'"] * count) for count in (1, 2, 79)]
    for expressions in many, searching:
        counts = [examined(expression) for expression in expressions]
        assert counts == sorted(counts, reverse=True)
        assert 1 <= counts[-1] < 60
    assert examined("a CONTAINS 'x'") > 300


def test_there_is_a_limit_of_searches_in_texts() -> None:
    with pytest.raises(BadRequest, match="too many CONTAINS: at most 80 are allowed"):
        compile_condition(" OR ".join(["a CONTAINS 'x'"] * 81))


# -- the cache -----------------------------------------------------------------------------------------------


class Compiler:
    """Refuses expressions with a question mark, and counts what it compiles."""

    def __init__(self) -> None:
        self.compiled: list[str] = []

    def __call__(self, expression: str) -> Condition | str:
        self.compiled.append(expression)
        return "no questions" if "?" in expression else lambda properties: expression in properties


def test_an_expression_is_compiled_once_and_so_is_a_refused_one() -> None:
    compiler = Compiler()
    cache = ExpressionCache(compiler, 10, 1000)
    assert cache.compiled("a") is cache.compiled("a")
    refusals = []
    for _ in range(3):
        with pytest.raises(BadRequest, match="no questions") as refusal:
            cache.compiled("a?")
        refusals.append(refusal.value)
    assert compiler.compiled == ["a", "a?"]
    assert len({id(refusal) for refusal in refusals}) == 3  # a traceback grows each time its exception is raised


def test_a_bad_expression_is_parsed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    bad = "a = 1 OR " * 500 + "parsed once"
    with pytest.raises(BadRequest) as first:
        compile_condition(bad)
    monkeypatch.setattr(filters_module, "_Parser", None)
    with pytest.raises(BadRequest) as second:
        compile_condition(bad)
    assert str(first.value) == str(second.value)


def test_the_cache_forgets_the_expression_that_was_not_used_for_longest() -> None:
    compiler = Compiler()
    cache = ExpressionCache(compiler, 2, 1000)
    for expression in ("a", "b", "a", "c", "a", "b"):
        cache.compiled(expression)
    assert compiler.compiled == ["a", "b", "c", "b"]


def test_the_cache_is_bounded_in_bytes_of_text() -> None:
    compiler = Compiler()
    cache = ExpressionCache(compiler, 100, 10)
    for expression in ("äää", "1234", "äää", "1", "1234", "äää"):  # 6, 4 and 1 bytes
        cache.compiled(expression)
    assert compiler.compiled == ["äää", "1234", "1", "1234", "äää"]


def test_the_longest_expression_fits_into_the_cache() -> None:
    assert len(("\U0001f600" * MAX_LENGTH).encode()) <= MAX_CACHED_BYTES
