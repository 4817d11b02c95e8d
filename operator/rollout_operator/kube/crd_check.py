"""Whether the installed CRD fits this operator: an older one would drop fields in silence, and so nothing is written then.

Reads the schema that the API server publishes to every account, so that no right on CRDs is needed. Asked before anything
is watched or written, and again every few seconds, for what an older one drops is lost. What is lacking is decided in
`rollout_contract.crd_skew`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Any

from rollout_contract.crd import CRD_NAME
from rollout_contract.crd_skew import schema_in, skew_of
from rollout_operator.cluster import ClusterError
from rollout_operator.kube.api_client import KubernetesApi
from rollout_operator.kube.api_errors import ApiError
from rollout_operator.kube.resources import SCHEMA, Document

log = logging.getLogger(__name__)

LOOK_EVERY_S = 10.0
RETRY_S = 3.0

Judge = Callable[[Mapping[str, Any]], object | None]
"""What an installed schema lacks, with a text for people; None: nothing."""


class CrdCheck:
    """The installed CRD, looked at now and then."""

    def __init__(
        self,
        api: KubernetesApi,
        *,
        every_s: float = LOOK_EVERY_S,
        retry_s: float = RETRY_S,
        judge: Judge = skew_of,
    ) -> None:
        self._api = api
        self._every_s = every_s
        self._retry_s = retry_s
        self._judge = judge
        self._problem = f"the CustomResourceDefinition {CRD_NAME} has not been looked at yet"

    def reason(self) -> str:
        """Why nothing may be written; empty: the CRD fits."""
        return self._problem

    async def wait(self) -> None:
        """Until the CRD fits."""
        await self.look()
        while self._problem:
            await asyncio.sleep(self._retry_s)
            await self.look()

    async def run(self) -> None:
        """Look until cancelled."""
        while True:
            await asyncio.sleep(self._retry_s if self._problem else self._every_s)
            await self.look()

    async def look(self) -> None:
        """One look. While the server does not answer, what was known stays."""
        try:
            document = await self._api.call(SCHEMA)
        except ApiError as error:
            if not error.is_gone:
                log.warning("the installed CRD cannot be looked at: %s", error)
                return
            document = {}
        except ClusterError as error:
            log.warning("the installed CRD cannot be looked at: %s", error)
            return
        self._note(self._problem_of(document))

    def _problem_of(self, document: Document) -> str:
        schema = schema_in(document)
        if schema is None:
            return f"the CustomResourceDefinition {CRD_NAME} is not installed: helm install with crds.install=true"
        lacking = self._judge(schema)
        return "" if lacking is None else str(lacking)

    def _note(self, problem: str) -> None:
        if problem != self._problem:
            log.log(logging.ERROR if problem else logging.INFO, "%s", problem or f"the CRD {CRD_NAME} fits")
        self._problem = problem
