"""EnvBase: an environment with tensordicts in and out.

Users subclass it and write `_reset`, `_step` and `_set_seed`; callers use the public methods, which complete
what those leave out: flags, shapes, the `next` entry, partial resets and steps. `GymEnv`, `SerialEnv` and
`ParallelEnv` are subclasses too. To be stepped by a vector env, an environment is turned into a session over
numpy by `session.TensorDictSession`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Self

from tensordict import TensorDict, TensorDictBase

from rollout_worker.envs.env_transitions import EnvTransitions
from rollout_worker.envs.rolling import RolloutOptions, rolled_out
from rollout_worker.envs.seeding import successor
from rollout_worker.envs.spec_leaves import Device, as_device
from rollout_worker.envs.transitions import keep_unknown, merged_where

if TYPE_CHECKING:
    from rollout_worker.envs.native import Session

Policy = Callable[[TensorDictBase], TensorDictBase]


class EnvBase(EnvTransitions):
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
