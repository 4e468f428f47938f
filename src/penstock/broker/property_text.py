"""Properties of a send that can stay the text they came as."""

from __future__ import annotations

from typing import Final

from penstock.format.constants import CLUSTER, DELAY, PROPERTY_SEPARATOR, TRAN_MSG, WAIT

_DELAY: Final = f"{DELAY}\x01"
_HALF: Final = f"{TRAN_MSG}\x01"
_CLUSTER: Final = f"{CLUSTER}\x01"
_WAIT: Final = f"{WAIT}\x01"
_WAITS: Final = f"{WAIT}\x01true"
_BORDER: Final = (PROPERTY_SEPARATOR, "")


def plain_text(text: str, suffix: str) -> str | None:
    """The properties as they are to be stored, `suffix` behind them; None if something in them is to be acted on.

    `WAIT=true`, which Java sends always, says nothing and is left out.
    """
    if _DELAY in text or _HALF in text or _CLUSTER in text:
        return None
    at = text.find(_WAIT)
    if at >= 0:
        end = at + len(_WAITS)
        if text[at:end] != _WAITS or text[end : end + 1] not in _BORDER or text[at - 1 : at] not in _BORDER:
            return None
        text = text[:at] + text[end + 1 :]
    if not text:
        return suffix
    return text + suffix if text[-1] == PROPERTY_SEPARATOR else f"{text}{PROPERTY_SEPARATOR}{suffix}"
