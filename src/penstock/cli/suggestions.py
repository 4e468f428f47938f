"""The end of a sentence about a name that does not exist."""

from __future__ import annotations

from collections.abc import Iterable


def did_you_mean(name: str, names: Iterable[str], listing: str) -> str:
    """Returns a question with the name that was probably meant, or the verb `listing`, which lists all names."""
    from difflib import get_close_matches

    close = get_close_matches(name, list(names), 1, 0.7)
    return f"did you mean '{close[0]}'?" if close else f"see `{listing}`"
