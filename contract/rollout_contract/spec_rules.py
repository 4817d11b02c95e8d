"""Every rule that ties fields of a spec together, and what runs them.

Called by `spec_parse` after the fields were checked one by one; the CRD says the same in CEL. The rules are in
`rules_production`, `rules_groups` and `rules_stream`, one function each; those that compare with the previous spec are
in `mutability`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from rollout_contract import rules_groups as groups
from rollout_contract import rules_production as production
from rollout_contract import rules_stream as stream
from rollout_contract.errors import Fault
from rollout_contract.spec_models import RolloutJobSpec, WorkerGroup

Rule = Callable[[RolloutJobSpec], Iterable[Fault]]
GroupRule = Callable[[WorkerGroup, str], Iterable[Fault]]

RULES: tuple[Rule, ...] = (
    production.kwargs_come_from_one_place,
    production.kwargs_fit,
    production.envs_split_evenly,
    production.tasks_make_up_the_envs,
    production.task_names_are_unique,
    production.no_process_without_env,
    production.mode_fits_number_of_collectors,
    production.frames_fit_envs,
    production.preemption_needs_someone_waiting,
    production.random_frames_fit_total,
    production.strict_needs_joint_batches,
    production.strict_has_no_preemption,
    production.strict_can_start,
    groups.group_names_are_unique,
    groups.one_elastic_group,
    groups.replicas_have_a_group,
    stream.connection_has_a_host,
    stream.consumer_groups_are_unique,
    stream.watermark_holds_a_batch,
    stream.rate_limit_is_complete,
    stream.rate_limit_can_move,
    stream.newest_weights_need_joint_batches,
    stream.drop_needs_a_bound,
    groups.rule_names_are_unique,
    groups.exit_codes_are_unique,
    groups.rules_name_known_groups,
)
GROUP_RULES: tuple[GroupRule, ...] = (
    groups.elastic_group_has_no_replicas,
    groups.bounds_are_in_order,
    groups.cuda_has_a_gpu,
    groups.workers_never_restart_in_place,
    groups.container_names_are_unique,
    groups.own_variables_are_left_alone,
    groups.shared_memory_fits,
)


def faults_of_rules(spec: RolloutJobSpec, *, partial: bool) -> Iterator[Fault]:
    """Every broken rule. With `partial`, some fields are missing (they are faulty), and rules that need them are skipped."""
    for rule in RULES:
        yield from _judge(rule(spec), partial=partial)
    for index, group in enumerate(getattr(spec, "worker_groups", ())):
        for group_rule in GROUP_RULES:
            yield from _judge(group_rule(group, f"spec.workerGroups[{index}]"), partial=partial)


def _judge(faults: Iterable[Fault], *, partial: bool) -> Iterator[Fault]:
    try:
        yield from faults
    except AttributeError:
        if not partial:
            raise
