"""An SQL92 expression, compiled once and asked for each record.

An expression is bounded in length, depth and number of parts, so that compiling it and asking it cost little whatever a
client sends. What cannot be evaluated for a message, such as text that should be a number, does not select it.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from functools import lru_cache, partial
from typing import Final, NamedTuple, TypeAlias

from lark import Token, Transformer, UnexpectedInput, v_args
from lark.exceptions import VisitError

from penstock.broker.filters.grammar import parser
from penstock.broker.filters.values import NoNumber, Truth, Value, equal, number, ordered, truth
from penstock.broker.selection import RecordFilter
from penstock.errors import BadRequest
from penstock.format.record import decode_record

Properties: TypeAlias = Mapping[str, str]
Evaluate: TypeAlias = Callable[[Properties], Value]

MAX_LENGTH: Final = 8192
MAX_PARTS: Final = 2000
MAX_DEPTH: Final = 60


def compile_sql(expression: str) -> RecordFilter:
    """A filter for records. Raises BadRequest with where and why."""
    selects = compile_condition(expression)

    def accepts(record: bytes) -> bool:
        return selects(decode_record(record).properties)

    return accepts


@lru_cache(maxsize=256)
def compile_condition(expression: str) -> Callable[[Properties], bool]:
    """The same over properties. Raises BadRequest."""
    if len(expression) > MAX_LENGTH:
        raise BadRequest(f"the SQL92 expression has {len(expression)} characters; at most {MAX_LENGTH} are allowed")
    try:
        whole: _Part = parser(_Builder).parse(expression)  # type: ignore[assignment]
    except UnexpectedInput as error:
        raise BadRequest(f"the SQL92 expression cannot be read at {_place(error)}: {expression[:200]!r}") from None
    except VisitError as error:
        raise error.orig_exc from None
    evaluate = whole.evaluate

    def selects(properties: Properties) -> bool:
        try:
            return evaluate(properties) is True
        except NoNumber:
            return False

    return selects


def _place(error: UnexpectedInput) -> str:
    if error.column is None or error.column < 1:
        return "its end"
    return f"line {error.line}, column {error.column}"


class _Part(NamedTuple):
    """A part of an expression, compiled."""

    evaluate: Evaluate
    depth: int = 1
    parts: int = 1


def _join(evaluate: Evaluate, *inner: _Part) -> _Part:
    depth = 1 + max(part.depth for part in inner)
    parts = 1 + sum(part.parts for part in inner)
    if depth > MAX_DEPTH or parts > MAX_PARTS:
        raise BadRequest(f"the SQL92 expression is too large: at most {MAX_PARTS} parts and {MAX_DEPTH} levels")
    return _Part(evaluate, depth, parts)


def _constant(value: Value) -> _Part:
    return _Part(lambda properties: value)


@v_args(inline=True)
class _Builder(Transformer[Token, _Part]):
    """Compiles each rule of the grammar as the parser meets it."""

    # -- conditions ------------------------------------------------------------------------------------------

    def any_of(self, *parts: _Part) -> _Part:
        return self._chain(parts, True)

    def all_of(self, *parts: _Part) -> _Part:
        return self._chain(parts, False)

    def _chain(self, parts: tuple[_Part, ...], decides: bool) -> _Part:
        """OR is decided by the first true part, AND by the first false one; unknown stays unknown."""
        if len(parts) == 1:
            return parts[0]
        conditions = [part.evaluate for part in parts]

        def evaluate(properties: Properties) -> Truth:
            outcome: Truth = not decides
            for condition in conditions:
                found = truth(condition(properties))
                if found is decides:
                    return decides
                if found is None:
                    outcome = None
            return outcome

        return _join(evaluate, *parts)

    def not_(self, part: _Part) -> _Part:
        def evaluate(properties: Properties) -> Truth:
            found = truth(part.evaluate(properties))
            return None if found is None else not found

        return _join(evaluate, part)

    def is_null(self, part: _Part) -> _Part:
        return _join(lambda properties: part.evaluate(properties) is None, part)

    def is_not_null(self, part: _Part) -> _Part:
        return _join(lambda properties: part.evaluate(properties) is not None, part)

    # -- comparisons -----------------------------------------------------------------------------------------

    def equal(self, left: _Part, right: _Part) -> _Part:
        return _join(lambda properties: equal(left.evaluate(properties), right.evaluate(properties)), left, right)

    def not_equal(self, left: _Part, right: _Part) -> _Part:
        return self.not_(self.equal(left, right))

    def _compare(self, test: Callable[[float, float], bool], left: _Part, right: _Part) -> _Part:
        def evaluate(properties: Properties) -> Truth:
            return ordered(left.evaluate(properties), right.evaluate(properties), test)

        return _join(evaluate, left, right)

    def greater(self, left: _Part, right: _Part) -> _Part:
        return self._compare(operator.gt, left, right)

    def at_least(self, left: _Part, right: _Part) -> _Part:
        return self._compare(operator.ge, left, right)

    def less(self, left: _Part, right: _Part) -> _Part:
        return self._compare(operator.lt, left, right)

    def at_most(self, left: _Part, right: _Part) -> _Part:
        return self._compare(operator.le, left, right)

    def between(self, value: _Part, low: _Part, high: _Part) -> _Part:
        return self.all_of(self.at_least(value, low), self.at_most(value, high))

    def not_between(self, value: _Part, low: _Part, high: _Part) -> _Part:
        return self.not_(self.between(value, low, high))

    # -- texts -----------------------------------------------------------------------------------------------

    def texts(self, *parts: _Part) -> tuple[_Part, ...]:
        return parts

    def is_in(self, value: _Part, wanted: tuple[_Part, ...]) -> _Part:
        allowed = frozenset(part.evaluate({}) for part in wanted)
        return self._of_text(lambda text: text in allowed, value, *wanted)

    def is_not_in(self, value: _Part, wanted: tuple[_Part, ...]) -> _Part:
        return self.not_(self.is_in(value, wanted))

    def contains(self, value: _Part, piece: _Part) -> _Part:
        return self._of_text(partial(_contains, str(piece.evaluate({}))), value, piece)

    def not_contains(self, value: _Part, piece: _Part) -> _Part:
        return self.not_(self.contains(value, piece))

    def starts_with(self, value: _Part, piece: _Part) -> _Part:
        return self._of_text(partial(_starts, str(piece.evaluate({}))), value, piece)

    def not_starts_with(self, value: _Part, piece: _Part) -> _Part:
        return self.not_(self.starts_with(value, piece))

    def ends_with(self, value: _Part, piece: _Part) -> _Part:
        return self._of_text(partial(_ends, str(piece.evaluate({}))), value, piece)

    def not_ends_with(self, value: _Part, piece: _Part) -> _Part:
        return self.not_(self.ends_with(value, piece))

    def _of_text(self, test: Callable[[str], bool], value: _Part, *others: _Part) -> _Part:
        """Unknown for a property that is not there; never true for what is no text."""

        def evaluate(properties: Properties) -> Truth:
            found = value.evaluate(properties)
            if found is None:
                return None
            return isinstance(found, str) and test(found)

        return _join(evaluate, value, *others)

    # -- values ----------------------------------------------------------------------------------------------

    def plus(self, part: _Part) -> _Part:
        return self._signed(part, 1)

    def minus(self, part: _Part) -> _Part:
        return self._signed(part, -1)

    def _signed(self, part: _Part, sign: int) -> _Part:
        def evaluate(properties: Properties) -> Value:
            found = part.evaluate(properties)
            return None if found is None else sign * number(found)

        return _join(evaluate, part)

    def text(self, token: Token) -> _Part:
        return _constant(token[1:-1].replace("''", "'"))

    def whole(self, token: Token) -> _Part:
        digits = token.rstrip("lL")
        if len(digits) > 19:
            raise BadRequest(f"the SQL92 expression has a number that is too large: {digits[:40]}")
        return _constant(int(digits))

    def real(self, token: Token) -> _Part:
        return _constant(float(token))

    def true(self) -> _Part:
        return _constant(True)

    def false(self) -> _Part:
        return _constant(False)

    def null(self) -> _Part:
        return _constant(None)

    def name(self, token: Token) -> _Part:
        wanted = str(token)
        return _Part(lambda properties: properties.get(wanted))


def _contains(piece: str, text: str) -> bool:
    return piece in text


def _starts(piece: str, text: str) -> bool:
    return text.startswith(piece)


def _ends(piece: str, text: str) -> bool:
    return text.endswith(piece)
