"""Edited templates: which outdated workers give way now. Pure.

RollingReplace takes workers that are not ready at once, since nobody misses them, and ready ones only as far as
`maxUnavailable` allows; each is drained, and its slot gets its next attempt. OnSuspend touches nothing that runs.
"""

from __future__ import annotations

from collections.abc import Sequence

from rollout_contract.spec import UpdateStrategy, UpdateType
from rollout_operator.observed import SlotView
from rollout_operator.pods import PodView


def outdated_to_replace(
    views: Sequence[SlotView], *, template_hash: str, vacant: int, strategy: UpdateStrategy
) -> tuple[PodView, ...]:
    """Workers of a group's wanted slots that give way now.

    `views` are the group's wanted slots that have pods, without those that are given up or done; `vacant` counts the
    wanted slots without any pod.
    """
    if strategy.type is UpdateType.ON_SUSPEND:
        return ()
    live = sorted((view.live for view in views if view.live is not None), key=lambda pod: pod.worker)
    without_worker = vacant + sum(1 for view in views if view.live is None)
    not_ready = [pod for pod in live if not pod.ready]
    outdated = [pod for pod in live if pod.template_hash != template_hash]
    at_once = [pod for pod in outdated if not pod.ready]
    room = max(0, strategy.max_unavailable - without_worker - len(not_ready))
    return tuple(at_once + [pod for pod in outdated if pod.ready][:room])
