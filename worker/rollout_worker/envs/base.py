"""EnvBase: an environment with tensordicts in and out.

Users subclass it and write `_reset`, `_step` and `_set_seed`; callers use the public methods, which complete
what those leave out: flags, shapes, the `next` entry, partial resets and steps. `GymEnv`, `SerialEnv` and
`ParallelEnv` are subclasses too. To be stepped by a vector env, an environment is turned into a session over
numpy by `session.TensorDictSession`.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Self

import torch
from tensordict import TensorDict, TensorDictBase
from torch import nn

from rollout_worker.envs.describe import FLAGS, Key
from rollout_worker.envs.own_resets import OwnResets
from rollout_worker.envs.rolling import RolloutOptions, rolled_out, truncate_last
from rollout_worker.envs.seeding import successor
from rollout_worker.envs.spec_leaves import Device, Shape, as_device, as_shape
from rollout_worker.envs.specs import Binary, Composite, Spec, Unbounded, flat_key, single_or_composite
from rollout_worker.envs.transitions import (
    RESET,
    STEP,
    complete_flags,
    keep_unknown,
    mask_of,
    merged_where,
    next_root,
)

if TYPE_CHECKING:
    from rollout_worker.envs.native import Session

Policy = Callable[[TensorDictBase], TensorDictBase]


class _SpecTree:
    """An attribute that holds the composite of one group; whatever spec is set becomes one."""

    def __init__(self, group: str, doc: str) -> None:
        self._group = group
        self.__doc__ = doc

    def __get__(self, env: EnvBase | None, owner: type[EnvBase]) -> Composite:
        if env is None:
            return self  # type: ignore[return-value]  # asked of the class: for its documentation
        return env._spec_trees()[self._group]

    def __set__(self, env: EnvBase, spec: Spec) -> None:
        trees = env._spec_trees()
        is_locked = trees[self._group].is_locked
        trees[self._group] = env._whole(self._group, spec).clone()._set_locked(is_locked)


class _SpecLeaf(_SpecTree):
    """The same group, read as its leaf where there is only one."""

    def __get__(self, env: EnvBase | None, owner: type[EnvBase]) -> Spec:  # type: ignore[override]
        tree = super().__get__(env, owner)
        return tree if env is None else single_or_composite(tree)


class _MadeEnv(type):
    """Takes the keywords that every environment has, whatever its own constructor takes."""

    def __call__(
        cls,
        *args: Any,
        spec_locked: bool = True,
        auto_reset: bool = False,
        auto_reset_replace: bool = True,
        **kwargs: Any,
    ) -> Any:
        env = super().__call__(*args, **kwargs)
        if isinstance(env, EnvBase):
            if auto_reset:
                env.__dict__["_own_resets"] = OwnResets(is_replacing=auto_reset_replace)
            if spec_locked:
                env.set_spec_lock_()
        return env


class EnvBase(nn.Module, metaclass=_MadeEnv):
    """One environment, or a batch of them: every tensordict it gives has `batch_size` in front.

    A subclass sets `observation_spec` (a Composite) and `action_spec`; `reward_spec` defaults to one float32
    and `done_spec` to the three flags at the root. Then it writes:

    * `_reset(td, **kwargs)`: a tensordict of observations (and flags, if any is set); `td` is None or holds
      the mask `_reset`.
    * `_step(td)`: from the root and the action in `td`, a new tensordict with observations, reward and flags.
    * `_set_seed(seed)`: rewind the environment's generator.

    Every environment takes these keywords, whatever its own constructor takes: `spec_locked` (True: specs refuse
    changes once it is made; assigning a whole spec is always possible), and `auto_reset` for one whose `_step` gives
    the next episode's first observation where it is done: that is then kept for the following reset, which does not
    call `_reset` for such rows, and `next` holds NaN or 0 in its place (`auto_reset_replace=False`: the observation).
    """

    def __init__(self, *, device: Device = None, batch_size: Shape = ()) -> None:
        super().__init__()
        self.__dict__["_device"] = as_device(device)
        self.__dict__["_batch_size"] = as_shape(batch_size)
        self.__dict__["_specs"] = {
            "observation": Composite(shape=self.batch_size),
            "action": Composite(shape=self.batch_size),
            "state": Composite(shape=self.batch_size),
            "reward": Composite({"reward": Unbounded((*self.batch_size, 1))}, shape=self.batch_size),
            "done": _completed_done(Composite(shape=self.batch_size), self.batch_size),
        }
        self.__dict__["_own_resets"] = None

    # -- what a subclass writes ------------------------------------------------------------------------------------

    @abstractmethod
    def _reset(self, td: TensorDictBase | None, **kwargs: Any) -> TensorDictBase:
        raise NotImplementedError(f"{type(self).__name__} must define _reset")

    @abstractmethod
    def _step(self, td: TensorDictBase) -> TensorDictBase:
        raise NotImplementedError(f"{type(self).__name__} must define _step")

    def _set_seed(self, seed: int | None) -> None:
        """Rewind the environment's generator. Environments without one need not define this."""

    # -- specs -----------------------------------------------------------------------------------------------------

    @property
    def batch_size(self) -> torch.Size:
        """The leading dimensions of all tensordicts."""
        return self.__dict__["_batch_size"]  # type: ignore[no-any-return]

    @property
    def device(self) -> torch.device | None:
        """The device of all tensordicts (None: each leaf has its own)."""
        return self.__dict__["_device"]  # type: ignore[no-any-return]

    observation_spec = _SpecTree("observation", "What a reset and a step give to be acted on.")
    full_observation_spec = _SpecTree("observation", "The same as `observation_spec`.")
    full_action_spec = _SpecTree("action", "What a step takes, as a composite from the root.")
    full_state_spec = _SpecTree(
        "state",
        "What a step reads from the root beside the action (a recurrent state), as a composite from the root.",
    )
    state_spec = _SpecTree("state", "The same as `full_state_spec`.")
    full_reward_spec = _SpecTree("reward", "What a step rewards with, as a composite from the root.")
    full_done_spec = _SpecTree("done", "The flags at every level that has them.")
    done_spec = _SpecTree("done", "The flags at every level that has them.")
    action_spec = _SpecLeaf("action", "What a step takes: the leaf where there is one, else a composite.")
    reward_spec = _SpecLeaf(
        "reward", "What a step rewards with: the leaf where there is one, else a composite."
    )

    def _spec_trees(self) -> dict[str, Composite]:
        """The specs by group."""
        return self.__dict__["_specs"]  # type: ignore[no-any-return]

    def _whole(self, group: str, spec: Any) -> Composite:
        """A spec given for one group, as the composite from the root with the environment's batch size."""
        if not isinstance(spec, Spec):
            raise TypeError(f"{group}_spec must be a spec, not {type(spec).__name__}")
        if group == "observation" and not isinstance(spec, Composite):
            raise TypeError(
                f"observation_spec must be a Composite; use Composite(observation={type(spec).__name__}(…))"
            )
        tree = spec if isinstance(spec, Composite) else Composite({group: spec}, shape=self.batch_size)
        if group == "done":
            return _completed_done(tree, self.batch_size)
        for key, below in tree.items(True):
            if isinstance(below, Composite) and not len(below):
                raise RuntimeError(
                    f"{type(self).__name__}: the {group} spec of {key!r} is an empty composite"
                )
        return tree

    @property
    def is_spec_locked(self) -> bool:
        """Whether the specs refuse changes. Those of environments that a batch holds do."""
        return all(tree.is_locked for tree in self._spec_trees().values())

    def set_spec_lock_(self, mode: bool = True) -> Self:
        """Lock the specs, or unlock them."""
        for tree in self._spec_trees().values():
            tree._set_locked(mode)
        return self

    @property
    def state_keys(self) -> list[Any]:
        """The keys of the states."""
        return [_short(key) for key, _ in self.full_state_spec.leaves()]

    @property
    def action_keys(self) -> list[Any]:
        """The keys of the actions."""
        return [_short(key) for key, _ in self.full_action_spec.leaves()]

    @property
    def action_key(self) -> Any:
        """The key of the first action."""
        return self.action_keys[0]

    @property
    def observation_keys(self) -> list[Any]:
        """The keys of the observations, without `next`."""
        return [_short(key) for key, _ in self.observation_spec.leaves()]

    @property
    def input_spec(self) -> Composite:
        """What a step takes: `full_action_spec` and `full_state_spec`, in one composite."""
        trees = {"full_action_spec": self.full_action_spec, "full_state_spec": self.full_state_spec}
        return Composite(trees, shape=self.batch_size).lock_()

    @property
    def output_spec(self) -> Composite:
        """What a step gives: `full_observation_spec`, `full_reward_spec` and `full_done_spec`, in one composite."""
        trees = {
            "full_observation_spec": self.observation_spec,
            "full_reward_spec": self.full_reward_spec,
            "full_done_spec": self.full_done_spec,
        }
        return Composite(trees, shape=self.batch_size).lock_()

    @property
    def reward_key(self) -> Any:
        """The key of the first reward."""
        return self.reward_keys[0]

    @property
    def reward_keys(self) -> list[Any]:
        """The keys of the rewards, without `next`."""
        return [_short(key) for key, _ in self.full_reward_spec.leaves()]

    @property
    def done_keys(self) -> list[Any]:
        """The keys of all flags, without `next`."""
        return [_short(key) for key, _ in self.full_done_spec.leaves()]

    @property
    def reset_keys(self) -> list[Any]:
        """The keys of the reset masks: one at each level that has flags."""
        groups = dict.fromkeys(flat_key(key)[:-1] for key in self.done_keys)
        return [_short((*group, RESET)) for group in groups]

    # -- the public contract ---------------------------------------------------------------------------------------

    def reset(self, td: TensorDictBase | None = None, **kwargs: Any) -> TensorDictBase:
        """Reset all, or the rows that `td["_reset"]` marks (bool `[B]` or `[B, 1]`).

        Without `td` gives a new tensordict `[B]` of observations `[B, *shape]` and flags (bool `[B, 1]`, False); with
        `td`, updates and gives that one (the mask removed); rows that are not marked keep its values. `kwargs` go to
        the environment's own reset. Raises ValueError where only masks below the root are given.
        """
        mask = None if td is None else self._reset_mask(td)
        if td is not None and mask is not None and not bool(mask.any()):
            return td.exclude(*self.reset_keys, inplace=True)
        fresh = self._fresh(td if mask is not None else None, mask, **kwargs)
        if td is None:
            return fresh
        if mask is not None:
            fresh = merged_where(mask, fresh, td)
        td.exclude(*self.reset_keys, "next", inplace=True)
        return td.update(fresh)

    def step(self, td: TensorDictBase) -> TensorDictBase:
        """Act: takes the action in `td` `[B]`, puts what comes of it under `td["next"]`, gives that same `td`.

        `next` holds observations `[B, *shape]` in their specs' dtypes, the reward (float32 `[B, 1]` unless its spec
        says otherwise) and the flags `done`, `terminated`, `truncated` (bool `[B, 1]`), at every level that has some.
        Values that stand under `next` already stay where the environment has none of its own. `td["_step"]`
        marks the rows to step; the others repeat their root, with reward 0.
        """
        if td.batch_size != self.batch_size:
            raise RuntimeError(
                f"the tensordict has the batch size {list(td.batch_size)}; {type(self).__name__} expects "
                f"{list(self.batch_size)}"
            )
        passed = td.get("next", None)
        mask = self._step_mask(td)
        if mask is not None and not bool(mask.any()):
            following = self._standing(td)
        else:
            following = self._completed_step(self._step(td))
            if mask is not None and not bool(mask.all()):
                following = merged_where(mask, following, self._standing(td))
        if passed is not None:
            keep_unknown(following, passed)
        return td.set("next", following)

    def step_and_maybe_reset(self, td: TensorDictBase) -> tuple[TensorDictBase, TensorDictBase]:
        """Step, and give the stepped `td` with the next root, already reset where it was done."""
        td = self.step(td)
        skipped = None if (mask := self._step_mask(td)) is None else ~mask
        return td, self._reset_done(self._next_root(td), skipped)

    def maybe_reset(self, td: TensorDictBase) -> TensorDictBase:
        """Reset the rows of a root that have a done flag; the root itself where none has."""
        return self._reset_done(td, None)

    def rollout(
        self,
        max_steps: int,
        policy: Policy | None = None,
        callback: Callable[[EnvBase, TensorDictBase], Any] | None = None,
        *,
        auto_reset: bool = True,
        auto_cast_to_device: bool = False,
        break_when_any_done: bool | None = None,
        break_when_all_done: bool | None = None,
        return_contiguous: bool | None = False,
        tensordict: TensorDictBase | None = None,
        set_truncated: bool = False,
        out: TensorDictBase | None = None,
        trust_policy: bool = False,
        storing_device: Device = None,
    ) -> TensorDictBase:
        """Act for up to `max_steps` steps; time is the result's last batch dimension, `[*batch_size, T]`, named `time`.

        * `policy` takes the root and gives it back with the action in it, or the action alone; None acts at random.
        * Stops where any row is done. `break_when_any_done=False` resets rows one by one and goes on;
          `break_when_all_done=True` goes on until all are done, finished rows repeating their last frame.
        * `auto_reset=False` goes on from the root `tensordict`; with True that is what the reset is given.
        * `callback(env, root)` sees the root after every step but the last.
        * `auto_cast_to_device` moves roots to the policy's device, and its actions back; `storing_device` is where
          the steps are kept.
        * `set_truncated` marks the last frame as truncated and done.
        * The result is dense where steps can be stacked, else a lazy stack; `return_contiguous=True` makes the
          latter an error. `out` receives the result and is returned.
        * `trust_policy` leaves out the check that the policy gave every action.

        Raises ValueError or TypeError for options that contradict one another, KeyError for an action that the
        policy did not give.
        """
        options = RolloutOptions(
            max_steps,
            auto_reset,
            auto_cast_to_device,
            break_when_any_done,
            break_when_all_done,
            return_contiguous,
            set_truncated,
            trust_policy,
            as_device(storing_device),
        )
        return rolled_out(self, policy, callback, tensordict, options=options, out=out)

    def rand_action(self, td: TensorDictBase | None = None) -> TensorDictBase:
        """Put a random action into `td` (or a new tensordict)."""
        td = TensorDict({}, batch_size=self.batch_size, device=self.device) if td is None else td
        for key, spec in self.full_action_spec.leaves():
            td.set(key, spec.rand())
        return td

    def rand_step(self, td: TensorDictBase | None = None) -> TensorDictBase:
        """Step with a random action."""
        return self.step(self.rand_action(td))

    def set_seed(self, seed: int | None = None, static_seed: bool = False) -> int | None:
        """Seed the environment; gives the seed to use for the next one: the same if static, else a fixed successor."""
        self._set_seed(seed)
        return None if seed is None else successor(seed, is_static=static_seed)

    def fake_tensordict(self) -> TensorDictBase:
        """A zero-filled tensordict of one step, with every key that a step has."""
        root: TensorDictBase = self.observation_spec.zero().update(self.full_done_spec.zero())
        following = root.clone().update(self.full_reward_spec.zero())
        root = root.update(self.full_state_spec.zero()).update(self.full_action_spec.zero())
        return root.set("next", following)

    def step_mdp(self, td: TensorDictBase) -> TensorDictBase:
        """The root that follows a stepped tensordict: `next` in its place; the rest is kept, rewards and masks are not."""
        return self._next_root(td)

    def append_transform(self, transform: Any) -> EnvBase:
        """This environment under a transform: a `TransformedEnv`."""
        from rollout_worker.envs.transforms.env import TransformedEnv

        return TransformedEnv(self, transform)

    def to(self, device: Any, *args: Any, **kwargs: Any) -> Self:  # type: ignore[override]
        """Move specs, buffers and results to a device; gives the environment itself."""
        super().to(device, *args, **kwargs)
        wanted = as_device(device)
        if wanted != self.device:
            self.__dict__["_device"] = wanted
            trees = self._spec_trees()
            for group, tree in trees.items():
                trees[group] = tree.to(wanted)._set_locked(tree.is_locked)
        return self

    def configure_parallel(self, **settings: Any) -> Self:
        """For batched environments alone. Raises NotImplementedError here."""
        raise NotImplementedError(
            f"{type(self).__name__} runs in this process: only a batch of environments can be configured"
        )

    @classmethod
    def make_parallel(cls, *args: Any, num_envs: int = 1, **keywords: Any) -> EnvBase:
        """A ParallelEnv of `num_envs` environments of a factory: `make_parallel(factory, num_envs=4)`; with a number
        first, as its constructor. Takes all of its keywords."""
        from rollout_worker.envs.parallel import parallel_of

        return parallel_of(args, num_envs, keywords)

    def close(self, *, raise_if_closed: bool = True) -> None:
        """Give back what the environment holds."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close(raise_if_closed=False)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(batch_size={tuple(self.batch_size)})"

    def forward(self, td: TensorDictBase) -> TensorDictBase:
        """An environment is a module so that its buffers have names; calling it steps it."""
        return self.step(td)

    def native_session(self) -> Session:
        """This environment as a vector env's stepper takes it."""
        from rollout_worker.envs.session import TensorDictSession

        return TensorDictSession(self)

    # -- parts -----------------------------------------------------------------------------------------------------

    def _fresh(self, td: TensorDictBase | None, mask: torch.Tensor | None, **kwargs: Any) -> TensorDictBase:
        """The root after a reset of the rows that the mask marks (None: of all)."""
        own: OwnResets | None = self.__dict__["_own_resets"]
        if own is None or mask is None:
            fresh = self._reset(td, **kwargs)
        else:
            fresh = own.reset(mask, lambda rest: self._reset(rest, **kwargs), batch_size=self.batch_size)
        return self._completed_reset(fresh)

    def _here(self, td: TensorDictBase) -> TensorDictBase:
        """A result on the environment's device, where it has one."""
        return td if self.device is None or td.device == self.device else td.to(self.device)

    def _completed_reset(self, fresh: TensorDictBase) -> TensorDictBase:
        fresh = self._here(fresh)
        complete_flags(fresh, self._flag_shapes())
        return fresh

    def _completed_step(self, following: TensorDictBase) -> TensorDictBase:
        following = self._here(following)
        complete_flags(following, self._flag_shapes())
        for key, spec in self.full_reward_spec.leaves():
            value = following.get(key, None)
            if value is not None and value.shape != spec.shape:
                following.set(key, value.reshape(spec.shape))
        own: OwnResets | None = self.__dict__["_own_resets"]
        if own is not None:
            own.take(following, self._any_done(following), [key for key, _ in self.observation_spec.leaves()])
        return following

    def _flag_shapes(self) -> dict[Key, torch.Size]:
        return {key: spec.shape for key, spec in self.full_done_spec.leaves()}

    def _next_root(self, td: TensorDictBase) -> TensorDictBase:
        return next_root(td, self.reward_keys)

    def _standing(self, td: TensorDictBase) -> TensorDictBase:
        """What a skipped row's `next` is: its root, with reward 0."""
        keys = [key for key, _ in self.observation_spec.leaves()] + [flat_key(key) for key in self.done_keys]
        standing: TensorDictBase = TensorDict({}, batch_size=self.batch_size, device=self.device)
        for key in keys:
            value = td.get(key, None)
            if value is not None:
                standing.set(key, value.clone())
        complete_flags(standing, self._flag_shapes())
        return standing.update(self.full_reward_spec.zero())

    def _reset_done(self, root: TensorDictBase, skipped: torch.Tensor | None) -> TensorDictBase:
        done = self._any_done(root)
        if skipped is not None:
            done = done & ~skipped
        if not bool(done.any()):
            return root
        mask = done.unsqueeze(-1)
        given: TensorDictBase = TensorDict({RESET: mask}, batch_size=self.batch_size, device=self.device)
        fresh = self._fresh(given, done)
        return root.update(merged_where(done, fresh, root))

    def _truncate_last(self, result: TensorDictBase) -> None:
        truncate_last(self, result)

    def _any_done(self, td: TensorDictBase) -> torch.Tensor:
        """One boolean per element of the batch: done at the root, or, without root flags, at any level."""
        keys = [key for key, _ in self.full_done_spec.leaves() if key[-1] == "done"]
        keys = [("done",)] if ("done",) in keys else keys
        flags = [td.get(key).reshape(*self.batch_size, -1).any(-1) for key in keys]
        return torch.stack(flags).any(0)

    def _reset_mask(self, td: TensorDictBase) -> torch.Tensor | None:
        mask = td.get(RESET, None)
        if mask is None:
            nested = [key for key in self.reset_keys if key != RESET and td.get(key, None) is not None]
            if nested:
                raise ValueError(
                    f"the mask {nested[0]!r} is there but {RESET!r} is not: give the root's mask too"
                )
            return None
        return mask_of(mask, self.batch_size)

    def _step_mask(self, td: TensorDictBase) -> torch.Tensor | None:
        mask = td.get(STEP, None)
        return None if mask is None else mask_of(mask, self.batch_size)


def _completed_done(spec: Composite, batch_size: torch.Size) -> Composite:
    """A done spec with all three flags at each level that has one of them, the root's first."""
    levels: dict[Key, torch.Size] = {(): torch.Size((*batch_size, 1))}
    for key, leaf in spec.leaves():
        levels[key[:-1]] = leaf.shape
    complete = Composite(shape=batch_size)
    for level, shape in levels.items():
        for flag in FLAGS:
            complete[*level, flag] = Binary(None, shape, spec.device, torch.bool)
    return complete


def _short(key: Key) -> Any:
    return key[0] if len(key) == 1 else key
