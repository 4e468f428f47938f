"""The one page that is shown without a token: plain HTML that asks for it. Whatever goes into it is escaped."""

from __future__ import annotations

from html import escape

_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>Penstock</title>
<meta name="viewport" content="width=device-width, initial-scale=1">{head}
<style>
:root {{ color-scheme: light dark }}
body {{ font: 16px/1.5 system-ui, sans-serif; display: grid; place-items: center; min-height: 100vh; margin: 0 }}
main {{ width: min(22rem, 90vw) }}
input, button {{ font: inherit; width: 100%; box-sizing: border-box; padding: .6rem .8rem; border-radius: .5rem;
  border: 1px solid #8888; margin: .4rem 0 }}
button {{ background: #0f766e; color: white; border: 0; cursor: pointer }}
.wrong {{ color: #dc2626 }}
</style></head><body><main>{main}</main></body></html>
"""
_FORM = """<h1>Penstock</h1>
<p>{told}</p>
<form method="post" action="/login">
<input type="hidden" name="next" value="{target}">
<label for="token">Token</label>
<input id="token" name="token" type="password" autocomplete="current-password" autofocus required>
<button type="submit">Open the console</button>
</form>"""
_ASK = "The console printed a token when it was started."
_WRONG = '<span class="wrong">That is not the token.</span> ' + _ASK


def login_page(target: str, *, wrong: bool = False, is_in: bool = False) -> str:
    """Asks for the token, or, for who `is_in`, goes on to `target`, a path of this site."""
    place = escape(target, quote=True)
    if is_in:
        head = f'<meta http-equiv="refresh" content="0; url={place}">'
        return _PAGE.format(head=head, main=f'<p>Come in: <a href="{place}">the console</a></p>')
    return _PAGE.format(head="", main=_FORM.format(told=_WRONG if wrong else _ASK, target=place))
