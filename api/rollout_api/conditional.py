"""Conditional and partial requests (RFC 9110): entity tags, `If-Match`, `If-None-Match`, `Range`. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass

MAX_VERSION = 2**53 - 1
_TAG = re.compile(r'\s*(?P<weak>W/)?"(?P<value>[\x21\x23-\x7e\x80-\xff]*)"\s*')
_RANGE = re.compile(r"bytes\s*=\s*(?P<first>[0-9]*)\s*-\s*(?P<last>[0-9]*)\s*")


def version_to_match(header: str | None, what: str) -> int | None:
    """The version (or epoch) of an `If-Match` header, quoted or bare; None without one, or for `*`.

    ValueError for anything else: several tags or a weak one cannot guard a counter.
    """
    if header is None or header.strip() == "*":
        return None
    text = header.strip()
    match = _TAG.fullmatch(text)
    value = match["value"] if match and not match["weak"] else text
    if not (value.isascii() and value.isdecimal() and len(value) <= 16 and int(value) <= MAX_VERSION):
        raise ValueError(f'If-Match takes one {what} in quotes, such as "4"')
    return int(value)


def tag_to_match(header: str | None) -> str | None:
    """The tag of an `If-Match` header, quoted or bare; None without one, or for `*`. Any text may be a tag."""
    return None if header is None or header.strip() == "*" else header.strip().strip('"')


def matches_none(header: str | None, tag: str) -> bool:
    """Whether an `If-None-Match` header names this tag (without quotes): the client has it already."""
    if header is None:
        return False
    if header.strip() == "*":
        return True
    return any((match := _TAG.fullmatch(part)) and match["value"] == tag for part in header.split(","))


@dataclass(frozen=True, slots=True)
class ByteRange:
    """A piece of a body: from `start` up to but without `stop`."""

    start: int
    stop: int

    def header(self, size: int) -> str:
        """The value of `Content-Range`."""
        return f"bytes {self.start}-{self.stop - 1}/{size}"


class RangeNotSatisfiableError(ValueError):
    """The range lies outside of the body."""


def range_of(header: str | None, size: int) -> ByteRange | None:
    """The piece that a `Range` header asks for; None for the whole: no header, another unit, several ranges, or
    one that cannot be read, all of which a server may ignore. RangeNotSatisfiableError if it lies outside.
    """
    match = _RANGE.fullmatch(header) if header is not None and len(header) <= 64 else None
    if match is None or not (match["first"] or match["last"]):
        return None
    if not match["first"]:  # the last so many bytes
        count = int(match["last"])
        if count == 0 or size == 0:
            raise RangeNotSatisfiableError(header)
        return ByteRange(max(0, size - count), size)
    first, last = int(match["first"]), int(match["last"]) if match["last"] else size - 1
    if first >= size:
        raise RangeNotSatisfiableError(header)
    return ByteRange(first, min(last, size - 1) + 1) if last >= first else None


def entity_tag(value: str) -> str:
    """The value of an `ETag` header."""
    return f'"{value}"'
