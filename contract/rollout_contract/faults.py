"""How faults in a document are said: paths in YAML spelling, values shown short and without secrets, near misses.

Used by the checks behind `parse_manifest` and `faults_of_update`, and by whoever else reports on a document.
"""

from __future__ import annotations

import difflib
import json
import re
from collections import Counter
from collections.abc import Hashable, Iterable

Location = tuple[str | int, ...]

MAX_SHOWN = 80
"""Characters of a value, or of a key, that a message repeats."""

_PLAIN_KEY = re.compile(r"[A-Za-z_][-A-Za-z0-9_]*")
_URL_USER = re.compile(r"(?<=://)[^/@\s]*@")
_SECRET_KEY = re.compile(r"passw|secret|token|credential|apikey|auth", re.IGNORECASE)


def path_of(location: Location) -> str:
    """`("spec", "workerGroups", 0, "name")` as `spec.workerGroups[0].name`; other keys stand in brackets."""
    path = ""
    for part in location:
        if isinstance(part, int):
            path += f"[{part}]"
        elif _PLAIN_KEY.fullmatch(part):
            path += f".{part}" if path else part
        else:
            path += f"[{shortened(part)}]"
    return shortened(path, 4 * MAX_SHOWN)


def shortened(text: str, limit: int = MAX_SHOWN) -> str:
    """At most `limit` characters of a text that came from outside, printable, and the number of those left out."""
    printable = "".join(c if c.isprintable() else "�" for c in text[:limit])
    left_out = len(text) - limit
    return printable if left_out <= 0 else f"{printable}… ({left_out} more characters)"


def shown(value: object) -> str:
    """A value as a manifest writes it, short enough for one line and without the credentials of a URL."""
    match value:
        case str():
            return json.dumps(shortened(_URL_USER.sub("…@", value)), ensure_ascii=False)
        case dict():
            return "a mapping"
        case list() | tuple():
            return "a list"
        case int() if not isinstance(value, bool) and value.bit_length() > 256:
            return f"a number of {value.bit_length()} bits"
        case bool() | int() | float() | None:
            return json.dumps(value)
        case _:
            return f"a {type(value).__name__}"


def safe_value(location: Location, value: object) -> object:
    """The value that a fault carries: nothing that may be a secret because of the key it stands under, or its form."""
    if location and isinstance(location[-1], str) and _SECRET_KEY.search(location[-1]):
        return "…"
    if isinstance(value, str) and _URL_USER.search(value):
        return _URL_USER.sub("…@", value)
    return value


def nearest(word: str, allowed: Iterable[str]) -> str | None:
    """The allowed word that was probably meant, None if none is near. Case and `_` or `-` between parts do not count."""
    by_form = {_form(candidate): candidate for candidate in allowed}
    found = difflib.get_close_matches(_form(word[:MAX_SHOWN]), by_form, n=1, cutoff=0.7)
    return by_form[found[0]] if found else None


def _form(word: str) -> str:
    return re.sub(r"[-_\s]", "", word).lower()


def did_you_mean(word: object, allowed: Iterable[str]) -> str:
    """` Did you mean …?`, or nothing."""
    meant = nearest(word, allowed) if isinstance(word, str) else None
    return f" Did you mean {meant}?" if meant else ""


def duplicates(values: Iterable[Hashable]) -> list[Hashable]:
    """The values that are there more than once, each once, in order."""
    return [value for value, count in Counter(values).items() if count > 1]
