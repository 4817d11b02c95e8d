"""The digest that a client gives of its body: `Content-Digest` (RFC 9530) or `X-Checksum-Sha256`. Pure."""

from __future__ import annotations

import base64
import binascii
import re

_MEMBER = re.compile(r"\s*(?P<name>[a-z*][a-z0-9_.*-]*)\s*=\s*:(?P<value>[A-Za-z0-9+/=]*):\s*")
_HEX = re.compile(r"[0-9a-fA-F]{64}")
SHA256_BYTES = 32


def expected_sha256(content_digest: str | None, checksum: str | None) -> str | None:
    """The SHA-256 in hexadecimal that the headers promise; None if they promise none.

    ValueError for headers that cannot be read, that contradict each other, or that hold no SHA-256.
    """
    found = {_from_content_digest(content_digest)} if content_digest is not None else set()
    if checksum is not None:
        if not _HEX.fullmatch(checksum.strip()):
            raise ValueError("X-Checksum-Sha256 is not 64 hexadecimal digits")
        found.add(checksum.strip().lower())
    if len(found) > 1:
        raise ValueError("Content-Digest and X-Checksum-Sha256 name different digests")
    return found.pop() if found else None


def content_digest_of(sha256_hex: str) -> str:
    """The value of a `Content-Digest` header for this digest."""
    return f"sha-256=:{base64.b64encode(bytes.fromhex(sha256_hex)).decode()}:"


def _from_content_digest(header: str) -> str:
    for member in header.split(","):
        match = _MEMBER.fullmatch(member)
        if match is None:
            raise ValueError("Content-Digest is not of the form sha-256=:BASE64:")
        if match["name"] == "sha-256":
            return _hex_of(match["value"])
    raise ValueError("Content-Digest holds no sha-256, the one digest that is checked here")


def _hex_of(text: str) -> str:
    try:
        digest = base64.b64decode(text, validate=True)
    except binascii.Error as error:
        raise ValueError("the sha-256 of Content-Digest is no base64") from error
    if len(digest) != SHA256_BYTES:
        raise ValueError(f"the sha-256 of Content-Digest has {len(digest)} bytes, not {SHA256_BYTES}")
    return digest.hex()
