"""The header's JSON, both ways: how a batch is described, and how a text that may say anything is read, field by field."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

from rollout_contract.errors import FrameError
from rollout_contract.json_text import RepeatedKey, without_repeats
from rollout_contract.messages import EpisodeSummary
from rollout_contract.names import WorkerId
from rollout_contract.wire.format import FORMAT_VERSION, MAX_BUFFERS, MAX_DIMENSIONS, shown
from rollout_contract.wire.records import BatchHeader, BufferSpec

DIGEST_HEAD: Final = b'{"digest":"'
"""How every header begins; the digest's digits follow."""
NO_DIGEST: Final = b"0" * 16
"""What stands in their place while the digest is taken."""

_MAX_INTEGER = 2**63 - 1


def header_json(header: BatchHeader, body_size: int) -> bytes:
    """The text of a header, without its digest."""
    episodes = header.episodes
    document = {
        "digest": NO_DIGEST.decode(),
        "version": header.version,
        "job": header.job,
        "worker": [header.worker.group, header.worker.index, header.worker.attempt],
        "sequence": header.sequence,
        "shape": list(header.shape),
        "frames": header.frames,
        "policy_version": list(header.policy_version),
        "seed_epoch": header.seed_epoch,
        "part": list(header.part),
        "episodes": {
            "count": episodes.count,
            "return_sum": _finite(episodes.return_sum),
            "return_min": _finite(episodes.return_min),
            "return_max": _finite(episodes.return_max),
            "length_sum": episodes.length_sum,
            "newest": [[_finite(value), length] for value, length in episodes.newest],
        },
        "body": body_size,
        "buffers": [
            [b.name, b.dtype, list(b.shape), b.offset, b.length, b.raw_length, b.compression]
            for b in header.buffers
        ],
    }
    return json.dumps(document, separators=(",", ":"), allow_nan=False).encode()


def _finite(value: float | None) -> float | None:
    """JSON has no NaN: what is not finite travels as null."""
    return None if value is None or not math.isfinite(value) else value


def parse_header(text: bytes) -> dict[str, Any]:
    """The JSON object of such a text. FrameError where it is none, or of another version of the format."""
    try:
        document = json.loads(text.decode("utf-8"), object_pairs_hook=without_repeats)
    except RepeatedKey as error:
        raise FrameError(f"the header: {error}") from error
    except (ValueError, RecursionError) as error:
        raise FrameError(f"the header is no JSON: {error}") from error
    if not isinstance(document, dict):
        raise FrameError(f"the header is a JSON {type(document).__name__}, not an object")
    version = document.get("version")
    if version != FORMAT_VERSION or isinstance(version, bool):
        raise FrameError(f"format version {version!r:.40}: this reader knows version {FORMAT_VERSION} only")
    return document


def body_size_of(document: Mapping[str, Any]) -> int:
    """Bytes that the body has, as the header says."""
    return _integer(document, "body")


def header_of(document: Mapping[str, Any]) -> BatchHeader:
    """The header that such an object says. FrameError that names the field; how leaves and body fit is not looked at."""
    worker = _list(document, "worker", 3)
    if not isinstance(worker[0], str):
        raise FrameError(f"header field worker: {worker!r:.80} is not [group, index, attempt]")
    job = document.get("job")
    if not isinstance(job, str):
        raise FrameError(f"header field job: {job!r:.80} is not a string")
    first, last = _integers(_list(document, "policy_version", 2), "policy_version")
    part, parts = _integers(_list(document, "part", 2), "part")
    index, attempt = _integers(worker[1:], "worker")
    buffers = _list(document, "buffers")
    if len(buffers) > MAX_BUFFERS:
        raise FrameError(f"{len(buffers)} buffers: at most {MAX_BUFFERS} are allowed")
    shape = _integers(_list(document, "shape"), "shape")
    header = BatchHeader(
        job=job,
        worker=WorkerId(worker[0], index, attempt),
        sequence=_integer(document, "sequence"),
        shape=shape,
        frames=_integer(document, "frames"),
        policy_version=(first, last),
        seed_epoch=_integer(document, "seed_epoch"),
        episodes=_episodes_of(document.get("episodes")),
        buffers=tuple(_spec_of(entry) for entry in buffers),
        part=(part, parts),
    )
    if len(shape) > MAX_DIMENSIONS or math.prod(shape) != header.frames:
        raise FrameError(
            f"header field frames: {header.frames} is not the product of shape {list(shape)!r:.80}"
        )
    return header


def _episodes_of(document: object) -> EpisodeSummary:
    if not isinstance(document, dict):
        raise FrameError(f"header field episodes: {document!r:.80} is not an object")
    newest = _list(document, "newest")
    if len(newest) > EpisodeSummary.MAX_NEWEST:
        raise FrameError(
            f"header field episodes: {len(newest)} newest ones, at most {EpisodeSummary.MAX_NEWEST} are allowed"
        )
    pairs = []
    for pair in newest:
        if not isinstance(pair, list) or len(pair) != 2:
            raise FrameError(f"header field episodes.newest: {pair!r:.80} is not [return, length]")
        value = _number(pair[0], "episodes.newest")
        pairs.append((math.nan if value is None else value, _integers(pair[1:], "episodes.newest")[0]))
    total = _number(document.get("return_sum"), "episodes.return_sum")
    return EpisodeSummary(
        count=_integer(document, "count"),
        return_sum=math.nan if total is None else total,
        return_min=_number(document.get("return_min"), "episodes.return_min"),
        return_max=_number(document.get("return_max"), "episodes.return_max"),
        length_sum=_integer(document, "length_sum"),
        newest=tuple(pairs),
    )


def _spec_of(entry: object) -> BufferSpec:
    if not isinstance(entry, list) or len(entry) != 7:
        raise FrameError(f"header field buffers: {entry!r:.80} is not a buffer's seven fields")
    name, dtype, shape, offset, length, raw, compression = entry
    if not isinstance(name, str) or not isinstance(dtype, str) or not isinstance(compression, str):
        raise FrameError(f"header field buffers: name, dtype or compression of {entry!r:.80} is not a string")
    if not isinstance(shape, list):
        raise FrameError(f"{shown(name)}: shape {shape!r:.80} is not a list")
    offset, length, raw = _integers([offset, length, raw], shown(name))
    return BufferSpec(name, dtype, _integers(shape, shown(name)), offset, length, raw, compression)


def _integer(document: Mapping[str, Any], key: str) -> int:
    return _integers([document.get(key)], key)[0]


def _integers(values: Sequence[object], where: str) -> tuple[int, ...]:
    checked: list[int] = []
    for value in values:
        if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= _MAX_INTEGER:
            raise FrameError(
                f"header field {where}: {value!r:.40} is not an integer from 0 to {_MAX_INTEGER}"
            )
        checked.append(value)
    return tuple(checked)


def _number(value: object, where: str) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise FrameError(f"header field {where}: {value!r:.40} is not a number")
    return float(value) if abs(value) < 1e308 else math.nan


def _list(document: Mapping[str, Any], key: str, length: int | None = None) -> list[Any]:
    value = document.get(key)
    if not isinstance(value, list) or (length is not None and len(value) != length):
        raise FrameError(
            f"header field {key}: {value!r:.80} is not a list" + (f" of {length}" if length else "")
        )
    return value
