"""What events say of a job: the same words as the status route. Called by the feeds, once per job and change."""

from __future__ import annotations

from rollout_api.live import LiveCache
from rollout_api.models import JobStatus
from rollout_api.views import status_of
from rollout_contract.spec import RolloutJob

_FROM_REDIS = {"live", "live_error"}


class JobDescriptions:
    """Implements `feeds.Describe` over the cache of live numbers."""

    def __init__(self, live: LiveCache) -> None:
        self._live = live

    def conditions(self, job: RolloutJob) -> object:
        """The resource's half of the status."""
        status = status_of(job, None)
        return status.model_dump(mode="json", by_alias=True, exclude=_FROM_REDIS)

    async def progress(self, job: RolloutJob) -> object:
        """Redis' half."""
        status: JobStatus = status_of(job, await self._live.get(job))
        return status.model_dump(mode="json", by_alias=True, include=_FROM_REDIS)
