"""What this process was given: the processors it may use, by affinity and by its control group's quota."""

from __future__ import annotations

import os
from math import ceil
from pathlib import Path

CPU_MAX = Path("/sys/fs/cgroup/cpu.max")
CPU_QUOTA = Path("/sys/fs/cgroup/cpu/cpu.cfs_quota_us")
CPU_PERIOD = Path("/sys/fs/cgroup/cpu/cpu.cfs_period_us")


def cpu_count() -> int:
    """Processors to plan with, at least 1: a pod's CPU limit counts, not the node's size."""
    allowed = len(os.sched_getaffinity(0))
    quota = _quota()
    return max(1, allowed if quota is None else min(allowed, ceil(quota)))


def _quota() -> float | None:
    try:
        quota, period = CPU_MAX.read_text().split()
    except (OSError, ValueError):
        try:
            quota, period = CPU_QUOTA.read_text().strip(), CPU_PERIOD.read_text().strip()
        except OSError:
            return None
    if quota in ("max", "-1"):
        return None
    return int(quota) / int(period)
