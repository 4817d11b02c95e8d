"""A bearer token on its way into a request's header."""

from __future__ import annotations


def authorization(token: str) -> str:
    """`Bearer TOKEN`, without the line's end that files and shells leave.

    ValueError, which does not show the token, for what no header can hold: an HTTP client's own error would.
    """
    text = token.strip()
    if not (text and text.isascii() and text.isprintable()):
        raise ValueError(
            "the token is empty, or has a line's end or another character in it that no token has"
        )
    return f"Bearer {text}"
