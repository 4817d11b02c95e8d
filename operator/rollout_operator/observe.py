"""One look at what surrounds a job: its pods, then its stream.

In this order: a worker that ended because nothing was left ended after the stream said so, and so the stream that is
read afterwards says so too.
"""

from __future__ import annotations

from rollout_contract.spec import RolloutJob
from rollout_operator.cluster import Cluster, JobKey
from rollout_operator.observed import Observed
from rollout_operator.pods import PodView
from rollout_operator.streams import Streams


async def observe(cluster: Cluster, streams: Streams, job: RolloutJob) -> Observed:
    """What is there now. ClusterError if the cluster does not tell; trouble with the stream is part of the result."""
    key = JobKey(job.metadata.namespace, job.metadata.name)
    pods = await cluster.list_pods(key, job_uid=job.ref.uid)
    streams.confirm(job, (pod.worker for pod in pods))
    stream = await streams.look(job)
    return Observed(pods=tuple(sorted(pods, key=_order)), stream=stream)


def _order(pod: PodView) -> tuple[str, int, int, str]:
    return (pod.worker.group, pod.worker.index, pod.worker.attempt, pod.uid)
