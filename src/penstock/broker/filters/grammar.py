"""RocketMQ's SQL92 expressions as a grammar, loosest binding first: OR, AND, equality, comparison, sign and NOT, value.

NOT binds as tightly as a sign, so `NOT a = 1` is `(NOT a) = 1`, as in RocketMQ: write brackets. Keywords may be written
in any case, names may not. The parser is made once, when the first expression comes.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Final

from lark import Lark, Transformer

_GRAMMAR: Final = r"""
?start: or_
?or_: and_ ("OR"i and_)*                                    -> any_of
?and_: equality ("AND"i equality)*                          -> all_of
?equality: comparison
    | equality "=" comparison                               -> equal
    | equality "<>" comparison                              -> not_equal
    | equality "IS"i "NULL"i                                -> is_null
    | equality "IS"i "NOT"i "NULL"i                         -> is_not_null
?comparison: unary
    | comparison ">" unary                                  -> greater
    | comparison ">=" unary                                 -> at_least
    | comparison "<" unary                                  -> less
    | comparison "<=" unary                                 -> at_most
    | comparison "BETWEEN"i unary "AND"i unary              -> between
    | comparison "NOT"i "BETWEEN"i unary "AND"i unary       -> not_between
    | comparison "IN"i texts                                -> is_in
    | comparison "NOT"i "IN"i texts                         -> is_not_in
    | comparison "CONTAINS"i text                           -> contains
    | comparison "NOT"i "CONTAINS"i text                    -> not_contains
    | comparison "STARTSWITH"i text                         -> starts_with
    | comparison "NOT"i "STARTSWITH"i text                  -> not_starts_with
    | comparison "ENDSWITH"i text                           -> ends_with
    | comparison "NOT"i "ENDSWITH"i text                    -> not_ends_with
?unary: value
    | "+" unary                                             -> plus
    | "-" unary                                             -> minus
    | "NOT"i unary                                          -> not_
?value: text
    | WHOLE                                                 -> whole
    | REAL                                                  -> real
    | "TRUE"i                                               -> true
    | "FALSE"i                                              -> false
    | "NULL"i                                               -> null
    | NAME                                                  -> name
    | "(" or_ ")"
texts: "(" text ("," text)* ")"
text: TEXT

TEXT: "'" /(?:[^']|'')*/ "'"
REAL.3: /[0-9]+\.[0-9]*(?:[eE][+-]?[0-9]+)?|\.[0-9]+(?:[eE][+-]?[0-9]+)?|[0-9]+[eE][+-]?[0-9]+/
WHOLE.2: /[0-9]+[lL]?/
NAME: /[A-Za-z_$][A-Za-z0-9_$]*/
LINE_REMARK: /--[^\r\n]*/
REMARK: /\/\*(?:[^*]|\*(?!\/))*\*\//

%ignore /[ \t\r\n\f]+/
%ignore LINE_REMARK
%ignore REMARK
"""


@lru_cache(maxsize=1)
def parser(build: type[Transformer[Any, Any]]) -> Lark:
    """The parser, with which every rule that matches is built at once: no tree, and no recursion."""
    return Lark(_GRAMMAR, parser="lalr", transformer=build(), maybe_placeholders=False)
