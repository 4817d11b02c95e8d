"""Composite: a spec of a whole tensordict, a tree of specs with common batch dimensions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Self

import torch

from rollout_worker.envs.spec_base import (
    Device,
    Shape,
    Spec,
    as_device,
    as_shape,
    closed,
    expanded,
    fits,
    indexed,
)

if TYPE_CHECKING:
    from tensordict import TensorDict

Name = str | tuple[str, ...]


def _tensordict(
    values: dict[str, Any], batch_size: tuple[int, ...], device: torch.device | None
) -> TensorDict:
    # Loading tensordict takes longer than loading torch: only those who make one pay for it.
    from tensordict import TensorDict

    return TensorDict(values, batch_size=batch_size, device=device)


def flat_key(name: Name) -> tuple[str, ...]:
    """A key as a tuple of strings, however deeply its tuples are nested."""
    if isinstance(name, str):
        return (name,)
    return tuple(part for each in name for part in flat_key(each))


class Composite(Spec):
    """A mapping from keys to specs. `shape` is the batch shape that every entry's shape starts with.

    Keys may be nested: `spec["a", "b"]`; mappings become composites. A locked composite refuses changes
    (RuntimeError).
    """

    def __init__(
        self,
        entries: Mapping[Any, Any] | None = None,
        /,
        *,
        shape: Shape = (),
        device: Device = None,
        **more: Any,
    ) -> None:
        self.shape = as_shape(shape)
        self.device = as_device(device)
        self.is_locked = False
        self._entries: dict[str, Spec] = {}
        for name, spec in {**(entries or {}), **more}.items():
            self[name] = spec

    # -- as a mapping ----------------------------------------------------------------------------------------------

    def __setitem__(self, name: Name, spec: Spec | Mapping[Any, Any]) -> None:
        if self.is_locked:
            raise RuntimeError(
                f"the spec is locked: {name!r} cannot be set. Assign a whole spec, or unlock it first."
            )
        first, *rest = flat_key(name)
        if rest:
            below = self._entries.get(first)
            if not isinstance(below, Composite):
                below = self._entries[first] = Composite(shape=self.shape, device=self.device)
            below[tuple(rest)] = spec
            return
        made = spec if isinstance(spec, Spec) else Composite(spec, shape=self.shape, device=self.device)
        if made.shape[: len(self.shape)] != self.shape:
            raise ValueError(
                f"the spec of {first!r} has shape {list(made.shape)}, which does not start with the composite's "
                f"{list(self.shape)}"
            )
        self._entries[first] = made

    def __getitem__(self, index: Any) -> Any:
        """The spec of a key, or, for anything that is no key, the composite over a part of the batch."""
        if not _is_name(index):
            return self._mapped(lambda spec: spec[index], shape=indexed(self.shape, index))
        found: Any = self
        for name in flat_key(index):
            if not isinstance(found, Composite) or name not in found._entries:
                raise KeyError(
                    f"no spec for {index!r}; there are {', '.join(map(repr, self.keys(True, True)))}"
                )
            found = found._entries[name]
        return found

    def __delitem__(self, name: Name) -> None:
        if self.is_locked:
            raise RuntimeError(f"the spec is locked: {name!r} cannot be removed")
        *path, last = flat_key(name)
        del (self[tuple(path)] if path else self)._entries[last]

    def __contains__(self, name: object) -> bool:
        try:
            self[name]
        except KeyError:
            return False
        return True

    def get(self, name: Name, default: Any = None) -> Any:
        """The spec of a key, or a default."""
        return self[name] if name in self else default  # noqa: SIM401 (this is that method)

    def keys(self, include_nested: bool = False, leaves_only: bool = False) -> Iterator[Any]:
        """Keys in order of insertion; nested ones as tuples where asked for."""
        for name, spec in self._entries.items():
            if not (leaves_only and isinstance(spec, Composite)):
                yield name
            if include_nested and isinstance(spec, Composite):
                for below in spec.keys(True, leaves_only):
                    yield (name, *flat_key(below))

    def items(self, include_nested: bool = False, leaves_only: bool = False) -> Iterator[tuple[Any, Spec]]:
        """Pairs of key and spec, as `keys` orders them."""
        for name in self.keys(include_nested, leaves_only):
            yield name, self[name]

    def values(self, include_nested: bool = False, leaves_only: bool = False) -> Iterator[Spec]:
        """Specs, as `keys` orders them."""
        for _, spec in self.items(include_nested, leaves_only):
            yield spec

    def leaves(self) -> Iterator[tuple[tuple[str, ...], Spec]]:
        """All leaves, with their whole keys."""
        for name, spec in self.items(True, True):
            yield flat_key(name), spec

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def set(self, name: Name, spec: Spec | Mapping[Any, Any]) -> Self:
        """Set the spec of a key; gives the composite itself."""
        self[name] = spec
        return self

    def update(self, other: Composite | Mapping[Any, Any]) -> Self:
        """Take over the other's specs, at every depth; keys that are not there stay."""
        for name, spec in other.items():
            below = self.get(name)
            if isinstance(below, Composite) and isinstance(spec, (Composite, Mapping)):
                below.update(spec)
            else:
                self[name] = spec
        return self

    def pop(self, name: Name, *default: Any) -> Any:
        """Remove the spec of a key and give it. Raises KeyError where there is none and no default."""
        if name not in self and default:
            return default[0]
        found = self[name]
        del self[name]
        return found

    def select(self, *names: Name) -> Self:
        """A composite of these keys alone."""
        made = type(self)(shape=self.shape, device=self.device)
        for name in names:
            made[name] = self[name]
        return made

    def exclude(self, *names: Name) -> Self:
        """A composite without these keys."""
        made = self.clone()
        for name in names:
            made.pop(name, None)
        return made

    def empty(self) -> Self:
        """A composite of the same shape and device without keys."""
        return type(self)(shape=self.shape, device=self.device)

    def is_empty(self) -> bool:
        """Whether there is no leaf at any depth."""
        return next(iter(self.leaves()), None) is None

    @property
    def batch_size(self) -> torch.Size:
        """The same as `shape`: the batch dimensions of the tensordicts."""
        return self.shape

    def lock_(self) -> Self:
        """Refuse changes from now on, at every depth."""
        return self._set_locked(True)

    def unlock_(self) -> Self:
        """Allow changes again, at every depth."""
        return self._set_locked(False)

    def _set_locked(self, is_locked: bool) -> Self:
        self.is_locked = is_locked
        for spec in self._entries.values():
            if isinstance(spec, Composite):
                spec._set_locked(is_locked)
        return self

    # -- as a spec -------------------------------------------------------------------------------------------------

    def rand(self, shape: Shape = (), *, generator: torch.Generator | None = None) -> TensorDict:
        return self._values(shape, lambda spec: spec.rand(shape, generator=generator))

    def zero(self, shape: Shape = ()) -> TensorDict:
        return self._values(shape, lambda spec: spec.zero(shape))

    def is_in(self, value: Any) -> bool:
        there = set(value.keys())
        if hasattr(value, "batch_size") and not fits(value.batch_size, self.shape):
            return False
        return all(name in there and spec.is_in(value.get(name)) for name, spec in self._entries.items())

    def project(self, value: Any) -> Any:
        """The same tensordict, with the entries that were not allowed replaced."""
        for name, spec in self._entries.items():
            value.set(name, spec.project(value.get(name)))
        return value

    def encode(self, value: Mapping[Any, Any]) -> TensorDict:
        encoded = {name: spec.encode(value[name]) for name, spec in self._entries.items()}
        return _tensordict(encoded, self.shape, self.device)

    def expand(self, *shape: Any) -> Self:
        new, old = expanded(self.shape, shape), len(self.shape)
        return self._mapped(lambda spec: spec.expand(*new, *spec.shape[old:]), shape=new)

    def _reshaped(self, shape: torch.Size) -> Self:
        old = len(self.shape)
        return self._mapped(lambda spec: spec._reshaped(torch.Size((*shape, *spec.shape[old:]))), shape=shape)

    def flatten(self) -> dict[tuple[str, ...], Spec]:
        """All leaves, by their whole keys."""
        return dict(self.leaves())

    def to(self, device: Device) -> Self:
        moved = self._mapped(lambda spec: spec.to(device), shape=self.shape)
        moved.device = as_device(device)
        return moved

    def clone(self) -> Self:
        return self._mapped(lambda spec: spec.clone(), shape=self.shape)

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Composite)
            and (self.shape, self.device) == (other.shape, other.device)
            and self._entries == other._entries
        )

    __hash__ = None  # type: ignore[assignment]  # it can change

    def __repr__(self) -> str:
        lines = [
            f"    {name}: {str(spec).replace(chr(10), chr(10) + '    ')},"
            for name, spec in self._entries.items()
        ]
        return "\n".join(["Composite(", *lines, f"    shape={tuple(self.shape)})"])

    def _values(self, shape: Shape, make: Any) -> TensorDict:
        made = {name: make(spec) for name, spec in self._entries.items()}
        return _tensordict(made, (*as_shape(shape), *closed(self.shape)), self.device)

    def _mapped(self, change: Any, *, shape: torch.Size) -> Self:
        made = type(self)(shape=shape, device=self.device)
        made._entries = {name: change(spec) for name, spec in self._entries.items()}
        return made


def _is_name(index: Any) -> bool:
    return isinstance(index, str) or (
        isinstance(index, tuple) and bool(index) and all(_is_name(each) for each in index)
    )
