"""Whether a server is fit to hold a stream: reachable, not throwing keys away, new enough. Pure; sessions run it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from rollout_stream.calls import Commands
from rollout_stream.spelling import text_of

OLDEST_REDIS: Final = (6, 2)
OLDEST_VALKEY: Final = (7, 2)
GOOD_POLICY: Final = "noeviction"


@dataclass(frozen=True, slots=True)
class ServerInfo:
    """What a server says about itself. None: it does not say."""

    kind: str
    """`redis` or `valkey`."""
    version: str
    maxmemory_policy: str | None
    maxmemory: int | None
    """Limit in bytes; 0 = none."""
    used_memory: int | None
    has_append_log: bool | None
    is_replica: bool | None

    @property
    def problems(self) -> tuple[str, ...]:
        """What makes it unfit, one sentence each; empty if nothing does."""
        found = []
        oldest = OLDEST_VALKEY if self.kind == "valkey" else OLDEST_REDIS
        version = tuple(int(n) for n in re.findall(r"\d+", self.version)[:2])
        if version and version < oldest:
            found.append(f"{self.kind} {self.version} is older than {'.'.join(map(str, oldest))}")
        if self.maxmemory_policy not in (None, GOOD_POLICY):
            found.append(
                f"maxmemory-policy is {self.maxmemory_policy}: the server may throw the job's keys away."
                f" Set it to {GOOD_POLICY}"
            )
        if self.is_replica:
            found.append("the server is a read-only replica: give the address of the primary")
        return tuple(found)

    @property
    def is_policy_known(self) -> bool:
        """Whether the server told its `maxmemory-policy`."""
        return self.maxmemory_policy is not None


def server_commands() -> Commands[ServerInfo]:
    """PING, INFO, and CONFIG GET where INFO leaves the policy out. A refusal is taken as "does not say"."""
    commands = (("PING",), ("INFO",), ("CONFIG GET", "maxmemory-policy"))
    return Commands("looking at the server", commands, parse_server, takes_errors=True)


def parse_server(answers: Sequence[Any]) -> ServerInfo:
    """The record behind the answers. The driver's error if not even PING is allowed."""
    if isinstance(answers[0], Exception):
        raise answers[0]
    text = "" if isinstance(answers[1], Exception) else text_of(answers[1])
    fields = dict(line.split(":", 1) for line in text.splitlines() if ":" in line)
    policy = fields.get("maxmemory_policy")
    if policy is None and not isinstance(answers[2], Exception) and len(answers[2]) == 2:
        policy = text_of(answers[2][1])
    kind = fields.get("server_name", "redis")
    return ServerInfo(
        kind=kind,
        version=fields.get("valkey_version", fields.get("redis_version", "")),
        maxmemory_policy=policy or None,
        maxmemory=_integer(fields.get("maxmemory")),
        used_memory=_integer(fields.get("used_memory")),
        has_append_log=fields["aof_enabled"] == "1" if "aof_enabled" in fields else None,
        is_replica=fields["role"] == "slave" if "role" in fields else None,
    )


def _integer(text: str | None) -> int | None:
    return int(text) if text and text.isdecimal() else None
