"""Whether the cluster would take a pod of a group's template: asked before anything is started or taken down for it.

One question (a dry run) per job, group and template, remembered for a while; asked by `apply`. So an edit that no pod can be
made from costs no running worker, and a job of which one group cannot run holds nothing.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

from rollout_operator.cluster import PodRefused

TAKEN_FOR_S = 600.0
"""A template that was taken is not asked about again for so long: rules of the cluster change rarely."""
REFUSED_FOR_S = 15.0
REMEMBERED = 16_384


class Template(NamedTuple):
    """Which template: that of a group of a job, by its hash."""

    job_uid: str
    group: str
    hash: str


class Checker(Protocol):
    """What this needs of the cluster."""

    async def check_pod(self, manifest: dict[str, Any]) -> None:
        """PodRefused if the cluster would not take the pod."""


class _Answer(NamedTuple):
    until: float
    refusal: PodRefused | None


class TemplateChecks:
    """Answers by template. Belongs to one event loop; what it holds may be lost at any time."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._answers: OrderedDict[Template, _Answer] = OrderedDict()

    async def refusal_of(
        self, template: Template, cluster: Checker, manifest: Callable[[], dict[str, Any]]
    ) -> PodRefused | None:
        """Why no pod can be made from it; None: one can, as far as can be known. ClusterError if nobody tells.

        `manifest` makes the pod of one of its workers; SpecError if it cannot.
        """
        known = self._answers.get(template)
        if known is not None and self._clock() < known.until:
            return known.refusal
        refusal = await self._ask(cluster, manifest())
        until = self._clock() + (TAKEN_FOR_S if refusal is None else REFUSED_FOR_S)
        self._answers[template] = _Answer(until, refusal)
        self._answers.move_to_end(template)
        if len(self._answers) > REMEMBERED:
            self._answers.popitem(last=False)
        return refusal

    async def _ask(self, cluster: Checker, manifest: dict[str, Any]) -> PodRefused | None:
        try:
            await cluster.check_pod(manifest)
        except PodRefused as error:
            # Whether a quota has room says nothing of the template: what is taken down for it makes room.
            return None if error.lacks_room else error
        return None
