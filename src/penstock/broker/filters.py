"""Filters: which messages a subscription selects, by tag or by SQL92.

The store matches tags, by the tags codes in a queue's units. SQL92 expressions are evaluated afterwards, record by
record.

SQL92 means RocketMQ's dialect: expressions over a message's properties, compiled once. Loosest binding first: OR, AND,
equality (`=`, `<>`, IS NULL), comparison (`>`, BETWEEN, IN, CONTAINS, ...), sign and NOT, value. NOT binds as tightly
as a sign, so `NOT a = 1` means `(NOT a) = 1`, as in RocketMQ: use brackets. Keywords are case-insensitive, property
names are not.

A property is text, or None if the message does not have it. None is SQL's "unknown": a comparison with None is unknown,
and so is NOT of None. Only an expression that is true selects a message. If an expression compares a number with text
that is not a number, the whole expression fails and the message is not selected.

Expressions come from clients, so their length, depth, number of parts and work per record are limited. The more work
an expression is, the fewer messages a pull examines. The results of compiling are cached, including refusals. All
functions here are thread-safe.
"""

from __future__ import annotations

import operator
import re
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final, NamedTuple, NoReturn, TypeAlias

import numpy as np
import numpy.typing as npt

from penstock.errors import BadRequest
from penstock.format.record import decode_record
from penstock.protocol.subscription import check_tags
from penstock.store.message import EVERYTHING, TagFilter

RecordFilter: TypeAlias = Callable[[bytes], bool]
"""Takes a record as encoded in the log; returns whether it is selected."""
SqlCompiler: TypeAlias = Callable[[str], RecordFilter]
"""Compiles an SQL92 expression. Raises BadRequest."""
_MAX_CACHED_TAGS: Final = 4096
_TAG_BYTES: Final = 256
"""What a tag takes in a filter."""
_SQL_BYTES: Final = 100
"""What a character of an SQL92 expression takes when it is compiled."""
_MAX_EXAMINED: Final = 800
_WORK_A_PULL: Final = 80_000
"""Limit of a pull's work if it selects no message. The unit is one part of an expression, less than a microsecond."""


class Selection(NamedTuple):
    """Which messages of a queue are selected."""

    tags: TagFilter = EVERYTHING
    accepts: RecordFilter | None = None
    """If set, a record must pass this filter as well as `tags`."""
    sql: str = ""
    """The expression of `accepts`."""

    @property
    def memory(self) -> int:
        """An estimate of the bytes that the filters take, rather too high."""
        return _TAG_BYTES * len(self.tags.tags) + _SQL_BYTES * len(self.sql)

    def may_match(self, tags_codes: npt.NDArray[np.int64]) -> bool:
        """Whether at least one of these tags codes may belong to a selected message."""
        hashes = self.tags.hashes
        if hashes is None:
            return True
        codes = tags_codes.astype(np.int32)
        places = np.minimum(np.searchsorted(hashes, codes), len(hashes) - 1)
        return bool((hashes[places] == codes).any())

    @property
    def max_examined(self) -> int:
        """Limit of the messages that one pull examines if it selects none: fewer if `accepts` is much work."""
        work = self.accepts.work if isinstance(self.accepts, SqlFilter) else 1
        return max(1, min(_MAX_EXAMINED, _WORK_A_PULL // work))


ALL: Final = Selection()


def by_tags(expression: str) -> Selection:
    """Returns the selection of a tag expression: `*`, or tags joined by `||`. Raises BadRequest: see `check_tags`."""
    if expression == "*":
        return ALL
    check_tags(expression)
    return Selection(TagFilter(expression)) if len(expression) > _MAX_CACHED_TAGS else _cached_by_tags(expression)


@lru_cache(maxsize=1024)
def _cached_by_tags(expression: str) -> Selection:
    """Returns the selection of a tag expression. Cached, because pulls repeat the same few expressions."""
    return Selection(TagFilter(expression))


Properties: TypeAlias = Mapping[str, str]
Value: TypeAlias = str | int | float | bool | None
Truth: TypeAlias = bool | None
Evaluate: TypeAlias = Callable[[Properties], Value]
MAX_LENGTH: Final = 8192
MAX_PARTS: Final = 2000
MAX_DEPTH: Final = 60
MAX_DIGITS: Final = 19
MAX_NUMBER: Final = 400
"""Limit of a property that is compared as a number, in characters. A longer text is not a number."""
MAX_WORK: Final = 16_000
CONTAINS_WORK: Final = 200
"""The work of one CONTAINS in parts: it may search in 32 KiB of properties."""
MAX_CACHED: Final = 256
MAX_CACHED_BYTES: Final = 256 * 1024
"""Limit of the cached expressions' text, in bytes. A compiled expression takes up to about 100 times as much memory."""


def compile_sql(expression: str) -> RecordFilter:
    """Compiles an SQL92 expression to a filter for records. Raises BadRequest with the reason and the position."""
    return SqlFilter(compile_condition(expression))


class SqlFilter:
    """A filter for records. `work` is the number of parts that it evaluates per record, at most."""

    __slots__ = ("_selects", "work")

    def __init__(self, condition: Condition) -> None:
        self._selects, self.work = condition, condition.work

    def __call__(self, record: bytes) -> bool:
        return self._selects(decode_record(record).properties)


def compile_condition(expression: str) -> Condition:
    """Compiles an SQL92 expression to a condition on properties. Raises BadRequest."""
    if len(expression) > MAX_LENGTH:
        raise BadRequest(f"the SQL92 expression has {len(expression)} characters; at most {MAX_LENGTH} are allowed")
    return _cache.compiled(expression)


class Condition:
    """A compiled expression: whether it is true of a message's properties."""

    __slots__ = ("_evaluate", "work")

    def __init__(self, whole: _Part) -> None:
        self._evaluate, self.work = whole.evaluate, whole.work

    def __call__(self, properties: Properties) -> bool:
        try:
            return self._evaluate(properties) is True
        except NotComparable:
            return False


class ExpressionCache:
    """An LRU cache of compiled expressions. For each, it holds the condition, or the error message of a refusal.

    It holds at most `max_entries` expressions with `max_bytes` bytes of UTF-8 text in all. Thread-safe.
    """

    def __init__(self, compiler: Callable[[str], Condition | str], max_entries: int, max_bytes: int) -> None:
        self._compiler = compiler
        self._max_entries, self._max_bytes = max_entries, max_bytes
        self._bytes = 0
        self._outcomes: dict[str, Condition | str] = {}  # least recently used first
        self._lock = threading.Lock()

    def compiled(self, expression: str) -> Condition:
        """Returns the condition of an expression, compiled or cached. Raises a new BadRequest if it is refused."""
        with self._lock:
            outcome = self._outcomes.pop(expression, None)
            if outcome is None:
                outcome = self._compiler(expression)
                self._bytes += _utf8_size(expression)
            self._outcomes[expression] = outcome
            while len(self._outcomes) > self._max_entries or self._bytes > self._max_bytes:
                oldest = next(iter(self._outcomes))
                del self._outcomes[oldest]
                self._bytes -= _utf8_size(oldest)
        if isinstance(outcome, str):
            raise BadRequest(outcome)
        return outcome


def _utf8_size(text: str) -> int:
    return len(text.encode("utf-8", "surrogatepass"))


def _compile(expression: str) -> Condition | str:
    """Returns the condition, or the error message if the expression is refused."""
    try:
        return Condition(_Parser(expression).parse())
    except BadRequest as error:
        return str(error)


_cache: Final = ExpressionCache(_compile, MAX_CACHED, MAX_CACHED_BYTES)


# -- the parser ----------------------------------------------------------------------------------------------
_BLANKS: Final = re.compile(r"(?:[ \t\r\n\f]+|--[^\r\n]*|/\*.*?\*/)*", re.DOTALL)
_TEXT: Final = re.compile(r"'(?>[^']*(?:''[^']*)*)'")
_OPERAND: Final = re.compile(
    rf"""(?P<text>{_TEXT.pattern})
    | (?P<real>(?:[0-9]+\.[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?|[0-9]+[eE][+-]?[0-9]+)
    | (?P<whole>[0-9]+)[lL]?
    | (?P<word>[A-Za-z_$][A-Za-z0-9_$]*)
    | (?P<sign>[+-])
    | (?P<bracket>\()""",
    re.VERBOSE,
)
_OPERATOR: Final = re.compile(
    r"[<>]=|<>|[<>=(),]|OR|AND|IS|NOT|NULL|BETWEEN|IN|CONTAINS|STARTSWITH|ENDSWITH", re.IGNORECASE | re.ASCII
)
_CONSTANTS: Final[dict[str, Value]] = {"TRUE": True, "FALSE": False, "NULL": None}
_ORDER_TESTS: Final = {">": operator.gt, ">=": operator.ge, "<": operator.lt, "<=": operator.le}
_TEXT_TESTS: Final[dict[str, Callable[[str, str], bool]]] = {
    "CONTAINS": operator.contains,
    "STARTSWITH": str.startswith,
    "ENDSWITH": str.endswith,
}
_MAY_FOLLOW_NOT: Final = ("BETWEEN", "IN", *_TEXT_TESTS)
_EQUALITY, _COMPARISON, _UNARY = 3, 4, 5
_POWERS: Final = {"OR": 1, "AND": 2, "=": _EQUALITY, "<>": _EQUALITY, "IS": _EQUALITY} | dict.fromkeys(
    (*_ORDER_TESTS, "NOT", *_MAY_FOLLOW_NOT), _COMPARISON
)
"""How tightly each operator binds; a higher number binds more tightly."""


class _Parser:
    """A Pratt parser that compiles an expression while it reads it.

    The position decides whether the next word is an operand or an operator, so a property may be called `in`. Each
    level of recursion is a level of the compiled expression, and MAX_DEPTH limits both. Brackets alone do not recurse.
    """

    def __init__(self, expression: str) -> None:
        self._expression = expression
        self._at = 0
        self._level = 1
        self._next: str | None = None  # the result of `_peek`, until it is read

    def parse(self) -> _Part:
        whole = self._operators(self._operand(), 0)
        if self._at < len(self._expression):
            self._refuse(f"{self._expression[self._at : self._at + 20]!r} is not expected")
        return whole

    def _operand(self) -> _Part:
        """Reads a value with its signs and NOTs, or an expression in brackets."""
        brackets = 0
        while (match := self._read(_OPERAND, "a value")).lastgroup == "bracket":
            brackets += 1
        part = self._value(match)
        for _ in range(brackets):
            part = self._operators(part, 0)
            self._expect(")")
        return part

    def _value(self, match: re.Match[str]) -> _Part:
        kind, word = match.lastgroup, match[0]
        if kind == "text":
            return _constant(_unquote(word))
        if kind == "real":
            return _constant(float(word))
        if kind == "whole":
            if len(match["whole"]) > MAX_DIGITS:
                self._at = match.start()
                self._refuse(f"a number is too large (at most {MAX_DIGITS} digits are allowed)")
            return _constant(int(match["whole"]))
        if kind == "sign":
            return _unary(_signed(-1 if word == "-" else 1), self._inner(_UNARY))
        if word.upper() == "NOT":
            return _unary(_not, self._inner(_UNARY))
        return _constant(_CONSTANTS[word.upper()]) if word.upper() in _CONSTANTS else _property(word)

    def _operators(self, left: _Part, power: int) -> _Part:
        """Reads the operators after `left` that bind more tightly than `power`. Returns them compiled with `left`.

        No operator may bind more tightly than the operator before it: `a IS NULL > 1` is refused, `(a IS NULL) > 1` is
        not.
        """
        highest = _COMPARISON
        while power < _POWERS.get(word := self._peek(), 0) <= highest:
            self._accept(word)
            left = self._operator(left, word)
            highest = _POWERS[word]
        return left

    def _operator(self, left: _Part, word: str) -> _Part:
        if word in ("OR", "AND"):
            parts = [left, self._inner(_POWERS[word])]
            while self._accept(word):
                parts.append(self._inner(_POWERS[word]))
            return _chain(parts, decides=word == "OR")
        if word in ("=", "<>"):
            part = _binary(_equal, left, self._inner(_EQUALITY))
            return part if word == "=" else _unary(_not, part)
        if word == "IS":
            wanted = not self._accept("NOT")
            self._expect("NULL")
            return _unary(lambda value: (value is None) is wanted, left)
        if word in _ORDER_TESTS:
            return _binary(_ordered(_ORDER_TESTS[word]), left, self._inner(_UNARY))
        if word == "NOT":
            if (negated := self._peek()) not in _MAY_FOLLOW_NOT:
                self._refuse(f"one of {', '.join(_MAY_FOLLOW_NOT)} is expected")
            self._accept(negated)
            return _unary(_not, self._predicate(left, negated))
        return self._predicate(left, word)

    def _predicate(self, left: _Part, word: str) -> _Part:
        if word == "BETWEEN":
            above = _binary(_ordered(operator.ge), left, self._inner(_UNARY))
            self._expect("AND")
            below = _binary(_ordered(operator.le), left, self._inner(_UNARY))
            return _chain([above, below], decides=False)
        if word == "IN":
            self._expect("(")
            texts = [self._text()]
            while self._accept(","):
                texts.append(self._text())
            self._expect(")")
            allowed = frozenset(texts)
            return _unary(_of_text(lambda text: text in allowed), left, texts=len(texts))
        test, piece = _TEXT_TESTS[word], self._text()
        work = CONTAINS_WORK if word == "CONTAINS" else 1
        return _unary(_of_text(lambda text: test(text, piece)), left, texts=1, work=work)

    def _inner(self, power: int) -> _Part:
        """Reads an operand of an operator, and the operators after it that bind more tightly than `power`."""
        self._level += 1
        _check_depth(self._level)
        part = self._operators(self._operand(), power)
        self._level -= 1
        return part

    def _text(self) -> str:
        return _unquote(self._read(_TEXT, "a text in single quotes")[0])

    def _read(self, pattern: re.Pattern[str], expected: str) -> re.Match[str]:
        match = self._match(pattern)
        if match is None:
            self._refuse(f"{expected} is expected")
        self._at, self._next = match.end(), None
        return match

    def _peek(self) -> str:
        """Returns the next operator, bracket or comma, in capitals; "" if something else is next."""
        if self._next is None:
            match = self._match(_OPERATOR)
            self._next = match[0].upper() if match else ""
        return self._next

    def _accept(self, word: str) -> bool:
        """Reads `word` if it is next. Returns whether it was."""
        if taken := self._peek() == word:
            self._at, self._next = self._at + len(word), None
        return taken

    def _expect(self, word: str) -> None:
        if not self._accept(word):
            self._refuse(f"'{word}' is expected")

    def _match(self, pattern: re.Pattern[str]) -> re.Match[str] | None:
        blanks = _BLANKS.match(self._expression, self._at)
        self._at = blanks.end() if blanks else self._at
        return pattern.match(self._expression, self._at)

    def _refuse(self, reason: str) -> NoReturn:
        text, at = self._expression, self._at
        if text.startswith(("'", "/*"), at) and not _TEXT.match(text, at):
            reason = "a text or a remark starts and does not end"
        line, column = text.count("\n", 0, at) + 1, at - text.rfind("\n", 0, at)
        place = f"line {line}, column {column}" if at < len(text) else "its end"
        raise BadRequest(f"the SQL92 expression cannot be read at {place}, where {reason}: {text[:200]!r}")


def _unquote(text: str) -> str:
    return text[1:-1].replace("''", "'")


# -- the parts of a compiled expression ----------------------------------------------------------------------
class _Part(NamedTuple):
    evaluate: Evaluate
    depth: int = 1
    parts: int = 1
    work: int = 1


def _constant(value: Value) -> _Part:
    return _Part(lambda properties: value)


def _property(name: str) -> _Part:
    return _Part(lambda properties: properties.get(name))


def _unary(apply: Callable[[Value], Value], operand: _Part, *, texts: int = 0, work: int = 1) -> _Part:
    """Applies a function to one operand. `texts` is the number of text constants in `apply`; they count as parts."""
    inner = operand.evaluate
    return _join(lambda properties: apply(inner(properties)), [operand], texts, work)


def _binary(apply: Callable[[Value, Value], Value], left: _Part, right: _Part) -> _Part:
    first, second = left.evaluate, right.evaluate
    return _join(lambda properties: apply(first(properties), second(properties)), [left, right])


def _chain(operands: Sequence[_Part], *, decides: bool) -> _Part:
    """Joins operands by OR (`decides` is True) or AND (`decides` is False).

    The first operand that is `decides` decides the result. If there is none, one unknown operand makes the result
    unknown.
    """
    conditions = [operand.evaluate for operand in operands]

    def evaluate(properties: Properties) -> Truth:
        outcome: Truth = not decides
        for condition in conditions:
            value = condition(properties)
            if value is decides:
                return decides
            if not isinstance(value, bool):
                outcome = None
        return outcome

    return _join(evaluate, operands)


def _join(evaluate: Evaluate, operands: Sequence[_Part], texts: int = 0, work: int = 1) -> _Part:
    depth = 1 + max(operand.depth for operand in operands)
    parts = 1 + sum(operand.parts for operand in operands) + texts
    _check_depth(depth)
    if parts > MAX_PARTS:
        raise BadRequest(f"the SQL92 expression is too large: at most {MAX_PARTS} parts are allowed")
    work += sum(operand.work for operand in operands)
    if work > MAX_WORK:
        raise BadRequest(f"the SQL92 expression has too many CONTAINS: at most {MAX_WORK // CONTAINS_WORK} are allowed")
    return _Part(evaluate, depth, parts, work)


def _check_depth(depth: int) -> None:
    if depth > MAX_DEPTH:
        raise BadRequest(f"the SQL92 expression is nested too deeply: at most {MAX_DEPTH} levels are allowed")


# -- values --------------------------------------------------------------------------------------------------
_NUMBER: Final = re.compile(r"[+-]?(?:[0-9]+(\.[0-9]*)?|(\.[0-9]+))([eE][+-]?[0-9]+)?")


class NotComparable(Exception):
    """A value is not a number or not a truth value where one is needed, so the message is not selected."""


def number(value: Value) -> float | int:
    """Returns a number, or text in plain decimal notation as a number. Raises NotComparable.

    Plain notation excludes `1_000`, `inf` and ` 1 `.
    """
    if value is None or isinstance(value, bool):
        raise NotComparable
    if not isinstance(value, str):
        return value
    if len(value) > MAX_NUMBER or (match := _NUMBER.fullmatch(value)) is None:
        raise NotComparable
    return float(value) if match.lastindex else int(value)


def _signed(sign: int) -> Callable[[Value], Value]:
    return lambda value: None if value is None else sign * number(value)


def _not(value: Value) -> Truth:
    """Negates true and false. The negation of any other value is unknown."""
    return not value if isinstance(value, bool) else None


def _equal(left: Value, right: Value) -> Truth:
    """Compares two values; unknown if one is None.

    If one value is a truth value, the other must be one or the text `true` or `false`. Two texts compare as text. All
    other pairs compare as numbers. Raises NotComparable.
    """
    if left is None or right is None:
        return None
    if isinstance(left, bool) or isinstance(right, bool):
        return _truth_value(left) == _truth_value(right)
    if isinstance(left, str) and isinstance(right, str):
        return left == right
    return number(left) == number(right)


def _truth_value(value: Value) -> bool:
    if not isinstance(value, bool) and str(value).lower() not in ("true", "false"):
        raise NotComparable
    return str(value).lower() == "true"


def _ordered(test: Callable[[Any, Any], bool]) -> Callable[[Value, Value], Truth]:
    """Compares two values as numbers, even text with text, as RocketMQ does."""
    return lambda left, right: None if left is None or right is None else test(number(left), number(right))


def _of_text(test: Callable[[str], bool]) -> Callable[[Value], Truth]:
    """Tests a text. The result is unknown if there is no value, and false for a number or a truth value."""
    return lambda value: None if value is None else isinstance(value, str) and test(value)
