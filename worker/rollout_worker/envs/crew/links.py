"""What all parts of a crew deal with its children through."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rollout_worker.envs.arena import ControlPage
from rollout_worker.envs.crew.children import Child
from rollout_worker.envs.crew.findings import Findings
from rollout_worker.envs.crew.orders import Orders
from rollout_worker.envs.crew.replies import Replies
from rollout_worker.envs.crew.settings import CrewSettings
from rollout_worker.envs.crew.wakeups import Wakeups


@dataclass(frozen=True, slots=True)
class Links:
    """The children of one crew, and every way to them. `children` is the crew's own list: none are left once it has
    ended."""

    settings: CrewSettings
    control: ControlPage
    children: Sequence[Child]
    orders: Orders
    replies: Replies
    findings: Findings
    wakeups: Wakeups

    @staticmethod
    def to(children: Sequence[Child], control: ControlPage, settings: CrewSettings) -> Links:
        """Those to the children of a list, which may be empty yet. Holds descriptors until `wakeups` is closed."""
        return Links(
            settings,
            control,
            children,
            Orders(control, children),
            Replies(control, children),
            Findings(control, settings),
            Wakeups(),
        )
