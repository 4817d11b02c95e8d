"""Specs of rows that differ: a stack of specs, where they do not fit one spec of one shape.

`stack_specs` gives an ordinary spec where all rows are equal, a `Stacked` or `StackedComposite` where they are not.
Values of the latter are lazy stacks: row by row, with the keys and shapes of each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Self

import torch

from rollout_worker.envs.spec_base import Device, Shape, Spec, as_device, as_shape, expanded
from rollout_worker.envs.spec_nontensor import NonTensor
from rollout_worker.envs.spec_tree import Composite, Name, flat_key


def stack_specs(specs: Sequence[Spec], dim: int = 0) -> Spec:
    """The spec of `torch.stack` over values of these specs. Raises TypeError or ValueError where none can exist."""
    rows = list(specs)
    if not rows:
        raise ValueError("there is nothing to stack")
    at = dim if dim >= 0 else dim + rows[0].ndim + 1
    if all(row == rows[0] for row in rows):
        return _repeated(rows[0], len(rows), at)
    if all(isinstance(row, Composite) for row in rows):
        if any(row.shape != rows[0].shape for row in rows):
            raise ValueError(
                f"composites of the shapes {', '.join(str(list(row.shape)) for row in rows)} cannot be stacked"
            )
        return StackedComposite(*rows, dim=at)
    if any(isinstance(row, Composite) for row in rows):
        raise TypeError("a composite and a leaf cannot be stacked")
    return Stacked(*rows, dim=at)


def _repeated(spec: Spec, count: int, at: int) -> Spec:
    widened = spec.unsqueeze(at) if at <= len(spec.shape) else spec
    shape = (*widened.shape[:at], count, *widened.shape[at + 1 :])
    return widened.expand(*shape)


def _common(shapes: Sequence[torch.Size]) -> torch.Size:
    """What shapes of one length share; -1 where they differ. Raises ValueError where lengths differ."""
    if len({len(shape) for shape in shapes}) > 1:
        raise ValueError(f"the shapes {', '.join(str(list(shape)) for shape in shapes)} differ in length")
    return torch.Size(sizes[0] if len(set(sizes)) == 1 else -1 for sizes in zip(*shapes, strict=True))


class _Rows(Spec):
    """What both kinds of stacks share."""

    def __init__(self, *specs: Spec, dim: int = 0) -> None:
        self._specs = specs
        self.dim = dim
        common = _common([spec.shape for spec in specs])
        self.shape = torch.Size((*common[:dim], len(specs), *common[dim:]))
        devices = {spec.device for spec in specs}
        self.device = specs[0].device if len(devices) == 1 else None

    @property
    def rows(self) -> tuple[Spec, ...]:
        """The specs, in order."""
        return self._specs

    def _each(self, change: Callable[[Spec], Spec]) -> Self:
        return type(self)(*(change(spec) for spec in self._specs), dim=self.dim)

    def _paired(self, value: Any) -> list[tuple[Spec, Any]] | None:
        """Each spec with its row of a value; None where their numbers differ."""
        try:
            rows = (
                value.unbind(value.ndim - self.ndim + self.dim) if hasattr(value, "unbind") else list(value)
            )
        except (RuntimeError, IndexError):
            return None
        return list(zip(self._specs, rows, strict=True)) if len(rows) == len(self._specs) else None

    def is_in(self, value: Any) -> bool:
        pairs = self._paired(value)
        return pairs is not None and all(spec.is_in(row) for spec, row in pairs)

    def to(self, device: Device) -> Self:
        return self._each(lambda spec: spec.to(device))

    def expand(self, *shape: Any) -> Self:
        new = expanded(self.shape, shape)
        lead = len(new) - self.ndim
        rest = (*new[: lead + self.dim], *new[lead + self.dim + 1 :])
        return type(self)(
            *(spec.expand(*(-1 if size == -1 else size for size in rest)) for spec in self._specs),
            dim=self.dim + lead,
        )

    def __getitem__(self, index: Any) -> Any:
        """The spec of a part; one row is that row's own spec."""
        if self.dim:
            raise TypeError(f"a stack along dimension {self.dim} is indexed by its rows: use .rows")
        first, *rest = index if isinstance(index, tuple) else (index,)
        if isinstance(first, int):
            row = self._specs[first]
            return row[tuple(rest)] if rest else row
        chosen = [self._specs[each] for each in torch.arange(len(self._specs))[first].tolist()]
        return stack_specs([row[tuple(rest)] if rest else row for row in chosen])

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and (self.dim, self._specs) == (other.dim, other._specs)

    __hash__ = None  # type: ignore[assignment]  # rows may change

    def __repr__(self) -> str:
        rows = ",\n".join("    " + str(spec).replace("\n", "\n    ") for spec in self._specs)
        return f"{type(self).__name__}(\n{rows},\n    dim={self.dim})"


class Stacked(_Rows):
    """A stack of leaf specs that differ in shape or domain; `shape` has -1 where theirs differ. Values are lists of rows."""

    @property
    def dtype(self) -> torch.dtype | None:
        """The dtype of all rows; None where they differ."""
        dtypes = {getattr(spec, "dtype", None) for spec in self._specs}
        return dtypes.pop() if len(dtypes) == 1 else None

    def rand(self, shape: Shape = (), *, generator: torch.Generator | None = None) -> Any:
        return self._stacked(
            [spec.rand(shape, generator=generator) for spec in self._specs], len(as_shape(shape))
        )

    def zero(self, shape: Shape = ()) -> Any:
        return self._stacked([spec.zero(shape) for spec in self._specs], len(as_shape(shape)))

    def project(self, value: Any) -> Any:
        pairs = self._paired(value)
        if pairs is None:
            raise ValueError(f"a value of {len(self._specs)} rows was expected")
        return self._stacked([spec.project(row) for spec, row in pairs], 0)

    def encode(self, value: Any) -> Any:
        return self._stacked([spec.encode(row) for spec, row in zip(self._specs, value, strict=True)], 0)

    def _stacked(self, rows: list[Any], lead: int) -> Any:
        """One tensor where the rows' shapes agree, else the rows as a list."""
        if isinstance(self._specs[0], NonTensor) or len({row.shape for row in rows}) > 1:
            return rows
        return torch.stack(rows, self.dim + lead)


class StackedComposite(_Rows, Composite):
    """A stack of composites that differ in keys, shapes or domains. Keys are those that all rows have.

    `spec[key]` is the stack of that key's specs; `spec[i]` is row i's own composite, with all its keys. Rows are
    changed through it; the stack itself takes no keys. Values are lazily stacked tensordicts.
    """

    def __init__(self, *specs: Spec, dim: int = 0) -> None:
        Composite.__init__(self)
        _Rows.__init__(self, *specs, dim=dim)

    def __getitem__(self, index: Any) -> Any:
        if not isinstance(index, str) and not (
            isinstance(index, tuple) and index and all(isinstance(each, (str, tuple)) for each in index)
        ):
            return _Rows.__getitem__(self, index)
        try:
            return stack_specs([row[index] for row in self._specs], self.dim)
        except KeyError as error:
            raise KeyError(
                f"not every row has {index!r}; read it of one row: spec[i][{index!r}]. All have "
                f"{', '.join(map(repr, self.keys(True, True)))}"
            ) from error

    def __setitem__(self, name: Name, spec: Any) -> None:
        raise RuntimeError(f"a stack of composites takes no key {name!r}: set it on its rows")

    def __delitem__(self, name: Name) -> None:
        raise RuntimeError(f"{name!r} cannot be removed from a stack of composites: remove it from its rows")

    def keys(self, include_nested: bool = False, leaves_only: bool = False) -> Iterator[Any]:
        """The keys that every row has, in the first row's order."""
        shared = [set(map(flat_key, row.keys(include_nested, leaves_only))) for row in self._composites[1:]]
        for name in self._composites[0].keys(include_nested, leaves_only):
            if all(flat_key(name) in names for names in shared):
                yield name

    @property
    def _composites(self) -> tuple[Composite, ...]:
        return self._specs  # type: ignore[return-value]

    def __iter__(self) -> Iterator[str]:
        return iter(self.keys())

    def __len__(self) -> int:
        return len(list(self.keys()))

    def _set_locked(self, is_locked: bool) -> Self:
        self.is_locked = is_locked
        for row in self._composites:
            row._set_locked(is_locked)
        return self

    def rand(self, shape: Shape = (), *, generator: torch.Generator | None = None) -> Any:
        return self._lazy(
            [spec.rand(shape, generator=generator) for spec in self._specs], len(as_shape(shape))
        )

    def zero(self, shape: Shape = ()) -> Any:
        return self._lazy([spec.zero(shape) for spec in self._specs], len(as_shape(shape)))

    def project(self, value: Any) -> Any:
        for spec, row in self._paired(value) or ():
            spec.project(row)
        return value

    def encode(self, value: Any) -> Any:
        return self._lazy([spec.encode(row) for spec, row in zip(self._specs, value, strict=True)], 0)

    def clone(self) -> Self:
        return self._each(lambda spec: spec.clone())

    def to(self, device: Device) -> Self:
        moved = _Rows.to(self, device)
        moved.device = as_device(device)
        return moved

    def _lazy(self, rows: list[Any], lead: int) -> Any:
        from tensordict import LazyStackedTensorDict  # slow to load, and needed by few

        return LazyStackedTensorDict(*rows, stack_dim=self.dim + lead)


__all__ = ["Stacked", "StackedComposite", "stack_specs"]
