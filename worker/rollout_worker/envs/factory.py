"""How an environment is made, in a form that any process can carry: checked where it is given, made where it
is stepped.

Factories are serialised at once, with cloudpickle, whatever the start method: so an object that cannot travel
is refused in the words of the caller's code, lambdas and classes of a notebook work, and every environment
gets its own copy of what the factory holds. Called by the vector envs; knows neither processes nor torch.
"""

from __future__ import annotations

import functools
import inspect
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import cloudpickle  # type: ignore[import-untyped]

from rollout_contract.errors import EntrypointError
from rollout_worker.entrypoints import resolve

EnvFactory: TypeAlias = str | Callable[..., Any]

_ENTRYPOINT = re.compile(r"^[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(\.[A-Za-z_]\w*)*$")

_NATIVE = {
    "rollout_worker.envs:GymEnv": "rollout_worker.envs.native:gymnasium_env",
    "rollout_worker.envs.gym:GymEnv": "rollout_worker.envs.native:gymnasium_env",
}
"""Entrypoints with a twin that does the same without tensordicts, for children that need no torch."""

_ADAPTING = frozenset({"device", "categorical_action_encoding", "infos", "from_pixels", "pixels_only"})
"""Keywords with which GymEnv does more than its twin."""

ENV_INDEX = "env_index"
"""A factory with a parameter of this name is handed the environment's index (unless its keywords give one)."""


@dataclass(frozen=True, slots=True)
class Entrypoint:
    """`pkg.mod:attr`, imported in the process that steps the environment. `kwargs` are pickled with cloudpickle."""

    path: str
    kwargs: bytes

    def load(self) -> tuple[Callable[..., Any], dict[str, Any]]:
        """The callable and its own copy of the keywords. Raises EntrypointError with the import's error as cause."""
        kwargs: dict[str, Any] = cloudpickle.loads(self.kwargs)
        path = self.path if _ADAPTING & kwargs.keys() else _NATIVE.get(self.path, self.path)
        return resolve(path, field="the environment's entrypoint"), kwargs


@dataclass(frozen=True, slots=True)
class Pickled:
    """A callable with its keywords, pickled together with cloudpickle."""

    payload: bytes

    def load(self) -> tuple[Callable[..., Any], dict[str, Any]]:
        """A copy of the callable and of its keywords."""
        factory, kwargs = cloudpickle.loads(self.payload)
        return factory, kwargs


Recipe: TypeAlias = Entrypoint | Pickled


def make(recipe: Recipe, env_index: int) -> Any:
    """Make the environment."""
    factory, kwargs = recipe.load()
    if ENV_INDEX not in kwargs and _wants_index(factory):
        kwargs[ENV_INDEX] = env_index
    return factory(**kwargs)


def _wants_index(factory: Callable[..., Any]) -> bool:
    """Whether a factory has a parameter for the index that nothing is bound to yet."""
    target: Any = factory
    num_bound = 0
    while isinstance(target, functools.partial):
        if ENV_INDEX in target.keywords:
            return False
        num_bound += len(target.args)
        target = target.func
    is_class = isinstance(target, type)
    try:
        # a class is asked for its own constructor: a metaclass may hide it
        parameters = list(inspect.signature(target.__init__ if is_class else target).parameters.values())
    except (TypeError, ValueError):
        return False
    free = parameters[1 + num_bound :] if is_class else parameters[num_bound:]
    return any(each.name == ENV_INDEX and each.kind is not each.POSITIONAL_ONLY for each in free)


def recipes_of(
    factories: EnvFactory | Sequence[EnvFactory],
    num_envs: int,
    kwargs: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None = None,
    *,
    argument: str = "create_env_fn",
) -> tuple[Recipe, ...]:
    """One recipe per environment.

    Raises TypeError for what cannot make an environment or cannot be sent to a process, RuntimeError for
    sequences of another length than `num_envs`; both name `argument` and the position.
    """
    if is_factory(factories) or _is_env(factories):
        wanted: list[Any] = [factories] * num_envs
        names = [argument] * num_envs
    elif isinstance(factories, Sequence):
        wanted = list(factories)
        names = [f"{argument}[{index}]" for index in range(len(wanted))]
    else:
        raise TypeError(
            f"{argument} must be a factory (something that makes an environment when called), an entrypoint "
            f"'pkg.mod:attr', or a sequence of these; {type(factories).__name__} is none of them."
        )
    if len(wanted) != num_envs:
        raise RuntimeError(f"{argument} holds {len(wanted)} factories for {num_envs} environments")
    keywords = _keywords(kwargs, num_envs, argument)
    made: dict[tuple[int, int], Recipe] = {}
    recipes: list[Recipe] = []
    for factory, each, name in zip(wanted, keywords, names, strict=True):
        address = (id(factory), id(each))
        if address not in made:
            made[address] = _recipe(factory, each, name)
        recipes.append(made[address])
    return tuple(recipes)


def _keywords(
    kwargs: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None, num_envs: int, argument: str
) -> list[Mapping[str, Any]]:
    name = argument.removesuffix("_fn") + "_kwargs"
    if kwargs is None or isinstance(kwargs, Mapping):
        return [kwargs or {}] * num_envs
    if not isinstance(kwargs, Sequence) or isinstance(kwargs, (str, bytes)):
        raise TypeError(f"{name} must be a mapping or a sequence of mappings, not {type(kwargs).__name__}")
    if len(kwargs) != num_envs:
        raise RuntimeError(f"{name} holds {len(kwargs)} mappings for {num_envs} environments")
    for index, each in enumerate(kwargs):
        if not isinstance(each, Mapping):
            raise TypeError(f"{name}[{index}] must be a mapping, not {type(each).__name__}")
    return list(kwargs)


def _recipe(factory: Any, kwargs: Mapping[str, Any], name: str) -> Recipe:
    if _is_env(factory):
        raise TypeError(
            f"{name} is an environment ({type(factory).__name__}), not a factory. Pass something that makes one when "
            f"called: the class, a function, or `lambda: {type(factory).__name__}(...)`."
        )
    if isinstance(factory, str):
        if not _ENTRYPOINT.match(factory):
            raise EntrypointError(
                f"{name} is {factory!r}, which is not of the form 'package.module:attribute'"
            )
        return Entrypoint(factory, _pickled(dict(kwargs), name))
    if not callable(factory):
        raise TypeError(f"{name} is {type(factory).__name__}, not a factory: it cannot be called")
    native = _native_form(factory)
    if native is not None:
        path, bound = native
        return Entrypoint(path, _pickled({**bound, **kwargs}, name))
    return Pickled(_pickled((factory, dict(kwargs)), name))


def is_factory(value: Any) -> bool:
    """Whether something is one factory, not a sequence of them."""
    return isinstance(value, str) or callable(value)


def _is_env(value: Any) -> bool:
    """Whether something is an environment already. Neither torch nor gymnasium is loaded to find out."""
    return (
        not isinstance(value, type)
        and callable(getattr(value, "step", None))
        and callable(getattr(value, "reset", None))
    )


def _native_form(factory: Any) -> tuple[str, dict[str, Any]] | None:
    """`GymEnv`, or a partial of it with nothing but keywords and a name, as its entrypoint."""
    bound: dict[str, Any] = {}
    if isinstance(factory, functools.partial):
        if len(factory.args) > 1:
            return None
        bound = dict(factory.keywords)
        if factory.args:
            bound["env_name"] = factory.args[0]
        factory = factory.func
    path = f"{getattr(factory, '__module__', '')}:{getattr(factory, '__qualname__', '')}"
    return (path, bound) if path in _NATIVE else None


def _pickled(value: Any, name: str) -> bytes:
    try:
        return bytes(cloudpickle.dumps(value))
    except Exception as error:
        culprit = _culprit(value)
        what = f"{culprit[0]!r} ({culprit[1]})" if culprit else "something it refers to"
        raise TypeError(
            f"{name} cannot be sent to a process: {what} cannot be pickled: {error}. Make it inside the factory instead."
        ) from error


def _culprit(value: Any) -> tuple[str, str] | None:
    """The name and type of the first thing a factory holds that cannot be pickled."""
    for name, held in _held(value):
        try:
            cloudpickle.dumps(held)
        except Exception:
            return _culprit(held) or (name, type(held).__name__)
    return None


def _held(value: Any) -> list[tuple[str, Any]]:
    if isinstance(value, tuple):
        return [(getattr(each, "__name__", type(each).__name__), each) for each in value]
    if isinstance(value, Mapping):
        return [(str(key), each) for key, each in value.items()]
    if isinstance(value, functools.partial):
        return [*_held(value.args), *value.keywords.items(), *_held((value.func,))]
    if inspect.isfunction(value):
        variables = inspect.getclosurevars(value)
        return [*variables.nonlocals.items(), *variables.globals.items()]
    if inspect.ismethod(value):
        return [("self", value.__self__)]
    if hasattr(value, "__dict__") and not isinstance(value, type) and not _is_of_python(value):
        return list(vars(value).items())
    return []


def _is_of_python(value: Any) -> bool:
    """Whether an object's class is Python's own: what lies inside has no name in the user's code."""
    return type(value).__module__.partition(".")[0] in sys.stdlib_module_names
