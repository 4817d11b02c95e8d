"""Reads a request's body as a document: JSON or YAML, small, without surprises.

Called by the routes that take manifests, patches and seeds. Gives mappings, lists and scalars; what they mean, and whether
they are of a sane depth, is the contract's matter (`parse_manifest`).
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from email.message import Message
from typing import Any, Final, TypeVar

import yaml
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, ValidationError
from starlette.requests import Request

from rollout_api.errors import Kind, Problem
from rollout_contract.json_text import without_repeats

JSON_TYPES: Final = frozenset({"application/json"})
YAML_TYPES: Final = frozenset({"application/yaml", "application/x-yaml", "text/yaml", "text/x-yaml"})
MERGE_PATCH: Final = "application/merge-patch+json"
MAX_NUMBER_TEXT: Final = 64
"""Characters of a number: Python takes quadratic time for those of megabytes."""
THREAD_FROM_BYTES: Final = 64 * 1024
"""Larger documents are parsed in a thread, so that other requests do not wait for them."""

Parser = Callable[[bytes], object]
M = TypeVar("M", bound=BaseModel)


async def read_manifest(request: Request) -> object:
    """The document of a body in JSON or YAML; without a content type it is read as YAML, which holds JSON."""
    parser = _parser_of(
        request, {**dict.fromkeys(JSON_TYPES, parse_json), **dict.fromkeys(YAML_TYPES, parse_yaml)}
    )
    return await _parsed(request, parser or parse_yaml)


async def read_merge_patch(request: Request) -> dict[str, Any]:
    """The object of a JSON merge patch."""
    parser = _parser_of(request, {MERGE_PATCH: parse_json, **dict.fromkeys(JSON_TYPES, parse_json)})
    patch = await _parsed(request, parser or parse_json)
    if not isinstance(patch, dict):
        raise Problem(Kind.MALFORMED, 'A merge patch is a JSON object, such as {"spec": {"replicas": 4}}.')
    return patch


async def read_model(request: Request, model: type[M]) -> M:
    """A small JSON body as a model. RequestValidationError, with the path of each fault, where it is none."""
    document = await _parsed(
        request, _parser_of(request, dict.fromkeys(JSON_TYPES, parse_json)) or parse_json
    )
    try:
        return model.model_validate(document)
    except ValidationError as error:
        faults = [{**fault, "loc": ("body", *fault["loc"])} for fault in error.errors()]
        raise RequestValidationError(faults) from error


def media_type_of(request: Request) -> tuple[str, str]:
    """The body's media type and charset, in lower case; empty where the request names none."""
    message = Message()
    message["content-type"] = request.headers.get("content-type", "")
    if not message["content-type"].strip():
        return "", ""
    return message.get_content_type(), str(message.get_param("charset", "")).lower()


def _parser_of(request: Request, parsers: Mapping[str, Parser]) -> Parser | None:
    media_type, charset = media_type_of(request)
    encoding = request.headers.get("content-encoding", "").lower()
    is_text = charset in ("", "utf-8", "utf8", "us-ascii") and encoding in ("", "identity")
    if is_text and (not media_type or media_type in parsers):
        return parsers.get(media_type)
    said = ", ".join(part for part in (media_type[:80], charset[:80], encoding[:80]) if part)
    raise Problem(
        Kind.UNSUPPORTED_MEDIA,
        f"The body is said to be {said}. Send Content-Type: {' or '.join(parsers)}, in UTF-8, not encoded further.",
    )


async def _parsed(request: Request, parser: Parser) -> object:
    body = await request.body()
    try:
        if len(body) > THREAD_FROM_BYTES:
            return await asyncio.to_thread(parser, body)
        return parser(body)
    except ValueError as error:
        raise Problem(Kind.MALFORMED, f"The body cannot be read: {error}.") from error


def parse_json(body: bytes) -> object:
    """The value of a JSON text. ValueError that says where it ends to be one; repeated keys are refused."""
    try:
        return json.loads(
            _text_of(body),
            object_pairs_hook=without_repeats,
            parse_constant=_no_constant,
            parse_int=_integer,
        )
    except json.JSONDecodeError as error:
        raise ValueError(f"no JSON: {error.msg} in line {error.lineno}, column {error.colno}") from error
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def parse_yaml(body: bytes) -> object:
    """The value of a YAML text with one document. ValueError that says where it ends to be one."""
    try:
        return yaml.load(_text_of(body), Loader=_Loader)  # noqa: S506 - a SafeLoader with less
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        where = f" in line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        raise ValueError(f"no YAML: {error.problem or error.context or 'unreadable'}{where}") from error
    except yaml.YAMLError as error:
        raise ValueError("no YAML: it holds characters that YAML does not know") from error
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def _text_of(body: bytes) -> str:
    try:
        return body.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"byte {error.start} is no UTF-8") from error


def _no_constant(text: str) -> Any:
    raise ValueError(f"{text} is no JSON")


def _integer(text: str) -> int:
    if len(text) > MAX_NUMBER_TEXT:
        raise ValueError(f"a number has {len(text)} digits")
    return int(text)


class _Loader(yaml.CSafeLoader):
    """YAML as a manifest needs it: JSON's types alone, dates stay text, no merge keys (they can unfold without end),
    no repeated keys.
    """

    def construct_mapping(self, node: yaml.Node, deep: bool = False) -> dict[Any, Any]:
        seen = set()
        for key_node, _ in node.value if isinstance(node, yaml.MappingNode) else ():
            if not isinstance(key_node, yaml.ScalarNode):
                raise _fault(key_node, "a key is no plain text")
            if (key_node.tag, key_node.value) in seen:
                raise _fault(key_node, f"the key {key_node.value[:80]!r} stands twice")
            seen.add((key_node.tag, key_node.value))
        return super().construct_mapping(node, deep)  # type: ignore[arg-type]  # it checks the kind itself

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        """Merge keys are plain keys here, so there is nothing to flatten."""

    def construct_checked(self, node: yaml.Node) -> object:
        """A number or truth value, unless its text is too long to be meant or (by an explicit tag) none."""
        text = self.construct_scalar(node)  # type: ignore[arg-type]  # it checks the kind itself
        kind = node.tag.rpartition(":")[2]
        if len(text) > MAX_NUMBER_TEXT:
            raise _fault(node, f"a number has {len(text)} characters")
        try:
            return getattr(super(), f"construct_yaml_{kind}")(node)
        except (ValueError, KeyError) as error:
            raise _fault(node, f"{text!r} is no {kind}") from error


def _fault(node: yaml.Node, what: str) -> yaml.constructor.ConstructorError:
    return yaml.constructor.ConstructorError(None, None, what, node.start_mark)


_TAG: Final = "tag:yaml.org,2002:"
_KEPT_TAGS: Final = {_TAG + kind for kind in ("null", "str", "seq", "map")} | {None}
_CHECKED_TAGS: Final = {_TAG + kind for kind in ("bool", "int", "float")}
_Loader.yaml_constructors = {
    **{tag: make for tag, make in yaml.CSafeLoader.yaml_constructors.items() if tag in _KEPT_TAGS},
    **dict.fromkeys(_CHECKED_TAGS, _Loader.construct_checked),
}
_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag in _KEPT_TAGS | _CHECKED_TAGS]
    for first, resolvers in yaml.CSafeLoader.yaml_implicit_resolvers.items()
}
