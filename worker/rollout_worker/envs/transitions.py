"""Tensordict arithmetic of a step: completing flags, making the next root, laying steps along time. Pure
functions.

Used by `EnvBase` and by the vector envs on top of it, so that all agree on what a step's tensordict looks
like.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from tensordict import LazyStackedTensorDict, NonTensorData, NonTensorStack, TensorDict, TensorDictBase

from rollout_worker.envs.describe import FLAGS, Key

RESET, STEP = "_reset", "_step"
"""Mask keys at the root."""


def leaves_of(td: TensorDictBase, prefix: Key = ()) -> Iterator[tuple[Key, Any]]:
    """All leaves with their whole keys: tensors, and data that are no tensors in their wrapping."""
    for name, value in td.items():
        if isinstance(value, TensorDictBase) and not isinstance(value, (NonTensorData, NonTensorStack)):
            yield from leaves_of(value, (*prefix, name))
        else:
            yield (*prefix, name), value


def complete_flags(td: TensorDictBase, shapes: Mapping[Key, torch.Size]) -> None:
    """Fill in missing flags and bring all to their spec's shape, in place. `shapes` holds every flag at every
    level.

    `terminated` copies `done` if it is alone; `done` is `terminated or truncated`; what is still missing is
    False.
    """
    for group in dict.fromkeys(key[:-1] for key in shapes):
        done, terminated, truncated = (_flag(td, (*group, flag), shapes) for flag in FLAGS)
        if terminated is None and truncated is None and done is not None:
            terminated = done.clone()
        shape = shapes[*group, "done"]
        terminated = (
            torch.zeros(shape, dtype=torch.bool, device=td.device) if terminated is None else terminated
        )
        truncated = torch.zeros(shape, dtype=torch.bool, device=td.device) if truncated is None else truncated
        either = terminated | truncated
        for flag, value in zip(
            FLAGS, (either if done is None else done | either, terminated, truncated), strict=True
        ):
            td.set((*group, flag), value)


def _flag(td: TensorDictBase, key: Key, shapes: Mapping[Key, torch.Size]) -> torch.Tensor | None:
    value = td.get(key, None)
    return None if value is None else value.to(torch.bool).reshape(shapes[key])


def lazy(rows: Sequence[TensorDictBase]) -> LazyStackedTensorDict:
    """A lazy stack of these rows themselves."""
    return LazyStackedTensorDict(*rows, stack_dim=0)


def rows_of(td: TensorDictBase) -> list[TensorDictBase]:
    """The rows of a batch: new tensordicts whose tensors are the batch's own memory."""
    return list(td.unbind(0))


def updated(td: TensorDictBase, new: TensorDictBase) -> TensorDictBase:
    """The batch with the entries of another, in place where both are of one kind; else a lazy stack."""
    if not isinstance(td, LazyStackedTensorDict) and not isinstance(new, LazyStackedTensorDict):
        return td.update(new)
    if isinstance(td, LazyStackedTensorDict):
        for row, fresh in zip(td.tensordicts, new.unbind(0), strict=True):
            row.update(fresh)
        return td
    return lazy([row.update(fresh) for row, fresh in zip(rows_of(td), new.unbind(0), strict=True)])


def next_root(td: TensorDictBase, reward_keys: Iterable[Key]) -> TensorDictBase:
    """The root that follows a stepped tensordict: `next` in its place, rewards and masks dropped, the rest kept."""
    root = td.exclude("next", RESET, STEP)
    following = td.get("next").exclude(*reward_keys)
    return updated(root, following)


def merged_where(mask: torch.Tensor, new: TensorDictBase, old: TensorDictBase) -> TensorDictBase:
    """Rows of `new` where the mask is set, of `old` elsewhere; where `old` lacks a leaf, `new`'s. Nothing is shared."""
    if isinstance(new, LazyStackedTensorDict) or isinstance(old, LazyStackedTensorDict):
        rows = zip(mask.unbind(0), new.unbind(0), old.unbind(0), strict=True)
        return LazyStackedTensorDict(*(merged_where(*row) for row in rows), stack_dim=0)
    merged = new.clone()
    for key, value in leaves_of(new):
        before = old.get(key, None)
        if before is None or before.shape != value.shape:
            continue
        if isinstance(value, torch.Tensor):
            spread = mask.reshape((*mask.shape, *(1,) * (value.ndim - mask.ndim)))
            merged.set(key, torch.where(spread, value, before))
        elif mask.ndim:
            rows = zip(mask.tolist(), value.unbind(0), before.unbind(0), strict=True)
            chosen = [_merged_data(is_new, fresh, kept) for is_new, fresh, kept in rows]
            merged.set(key, NonTensorStack(*chosen))
        elif not bool(mask):
            merged.set(key, before)
    return merged


def _merged_data(mask: Any, new: Any, old: Any) -> Any:
    """Data that are no tensors: those of `new` where the (nested) mask says so."""
    if isinstance(mask, list):
        return NonTensorStack(
            *(_merged_data(*each) for each in zip(mask, new.unbind(0), old.unbind(0), strict=True))
        )
    return new if mask else old


def standing_of(
    td: TensorDictBase, current: TensorDictBase, rewards: Mapping[Key, torch.Tensor]
) -> TensorDictBase:
    """What `next` of a skipped row is: its root, leaf by leaf `td`'s or else as the environment stands, and no reward."""
    standing = current.clone(False)
    for key, value in leaves_of(current):
        own = td.get(key, None)
        if own is not None and getattr(own, "shape", None) == getattr(value, "shape", None):
            standing.set(key, own.clone())
    for key, reward in rewards.items():
        standing.set(key, reward.clone())
    return standing


def mask_of(mask: torch.Tensor, batch_size: torch.Size) -> torch.Tensor:
    """A mask in any of its allowed shapes, as one boolean per element of the batch.

    `(W,)`, `(W, 1)`, `batch` and `(*batch, 1)` are allowed; one value per row speaks for all of the row. Raises
    RuntimeError for another shape.
    """
    mask = mask.to(torch.bool)
    if mask.shape == batch_size:
        return mask
    if mask.ndim == len(batch_size) + 1 and mask.shape[:-1] == batch_size:
        return mask.any(-1)
    if mask.numel() == batch_size.numel():
        return mask.reshape(batch_size)
    if batch_size and mask.numel() == batch_size[0] == mask.shape[0]:
        return mask.reshape(-1, *(1,) * (len(batch_size) - 1)).expand(batch_size)
    raise RuntimeError(f"a mask of shape {list(mask.shape)} does not fit the batch size {list(batch_size)}")


def along_time(steps: Sequence[TensorDictBase]) -> TensorDictBase:
    """Steps as one tensordict with time as its last batch dimension, named; ragged steps as a lazy stack."""
    dim = steps[0].ndim
    try:
        stacked: Any = torch.stack(list(steps), dim)
    except RuntimeError:
        stacked = LazyStackedTensorDict(*steps, stack_dim=dim)
    stacked.refine_names(..., "time")
    return stacked


def tree_of(
    leaves: Mapping[Key, Any],
    batch_size: torch.Size,
    device: torch.device | None,
    sizes: Mapping[Key, torch.Size] | None = None,
) -> dict[str, Any]:
    """Leaves by whole keys, as the entries of a tensordict: those of longer keys in tensordicts of their own.

    `sizes` are the batch sizes of these, by key, where they differ from the root's.
    """
    tree: dict[str, Any] = {}
    below: dict[str, dict[Key, Any]] = {}
    for key, value in leaves.items():
        if len(key) == 1:
            tree[key[0]] = value
        else:
            below.setdefault(key[0], {})[key[1:]] = value
    for name, inner in below.items():
        deeper = {key[1:]: size for key, size in (sizes or {}).items() if key[0] == name and len(key) > 1}
        size = batch_size if sizes is None else sizes.get((name,), batch_size)
        tree[name] = tensordict_of(tree_of(inner, batch_size, device, deeper), size, device)
    return tree


def tensordict_of(tree: dict[str, Any], batch_size: torch.Size, device: torch.device | None) -> TensorDict:
    """A tensordict of entries that are known to have this batch size and device.

    Goes around the checks of the public constructor: they cost more than a small environment's step.
    """
    return TensorDict._new_unsafe(tree, batch_size=batch_size, device=device, nested=False)


def put(td: TensorDictBase, name: str, value: Any) -> None:
    """Set an entry that is known to fit. Goes around the checks of the public method, for the same reason."""
    if type(td) is TensorDict and not td._is_locked:
        td._tensordict[name] = value
    else:
        td.set(name, value)


def entries_of(td: TensorDictBase) -> Mapping[str, Any]:
    """The entries at the root, to look at."""
    return td._tensordict if type(td) is TensorDict else dict(td.items())


def names_of(td: TensorDictBase) -> Collection[str]:
    """The names at the root, to look among. No entry is read: one of a lazy stack may not be readable as one tensor."""
    return td._tensordict.keys() if type(td) is TensorDict else set(td.keys())


def keep_entries(tree: dict[str, Any], td: TensorDictBase) -> None:
    """Add the root's entries of a stepped tensordict to the tree of the next root, where it has none of its own."""
    for name, value in entries_of(td).items():
        if name in ("next", RESET, STEP):
            continue
        own = tree.get(name)
        if own is None:
            tree[name] = value
        elif isinstance(own, TensorDictBase) and isinstance(value, TensorDictBase):
            keep_unknown(own, value)


def keep_unknown(following: TensorDictBase, passed: TensorDictBase) -> None:
    """Put values that the caller passed under `next` back where the environment gave none, at any depth."""
    own = set(following.keys())
    for name, value in passed.items():
        if name not in own:
            following.set(name, value)
        elif isinstance(value, TensorDictBase):
            below = following.get(name)
            if isinstance(below, TensorDictBase):
                keep_unknown(below, value)
