"""Collectors: the loops that turn environments and a policy into batches.

`sync` makes a batch on demand in the worker's own process; `trajectories` numbers what it collected. Not in: where batches
go (`rollout_worker.loop`), and how environments are stepped (`rollout_worker.envs`).
"""
