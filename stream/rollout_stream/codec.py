"""TensorDict ⇄ frame, and state dict ⇄ safetensors bytes. The only module of this package that imports torch.

Called lazily by `Batch.data` and `Weights`, and directly by the worker. Leaves are mapped onto the bytes that came from
the socket, without a copy; a batch's memory lives as long as one of its leaves does.
"""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

import torch

from rollout_contract.errors import FrameError, WeightsRejected
from rollout_contract.messages import Layout
from rollout_contract.wire import (
    ITEM_BYTES,
    JSON_DTYPE,
    KEY_SEPARATOR,
    BytesLike,
    Frame,
    Leaf,
    join_key,
    split_key,
)
from rollout_stream import safetensors
from rollout_stream.leaves import Contents, contents_of

if TYPE_CHECKING:
    # Loading tensordict takes longer than loading torch, and a worker loads weights without it.
    from tensordict import TensorDict, TensorDictBase

DTYPES: Final[Mapping[str, torch.dtype]] = {name: getattr(torch, name) for name in ITEM_BYTES}
NAMES: Final[Mapping[torch.dtype, str]] = {dtype: name for name, dtype in DTYPES.items()}

with warnings.catch_warnings():
    # Said once per process, about buffers that are not writable. Those here are ours alone: nobody else reads them.
    warnings.simplefilter("ignore")
    torch.frombuffer(b"\0", dtype=torch.uint8)


def leaves_of(data: TensorDictBase) -> list[Leaf]:
    """The leaves of a batch, in its order: tensors as they lie in memory, others as JSON.

    Contiguous tensors on the CPU are not copied. FrameError that names the key for what can be sent as neither.
    """
    return [_leaf(join_key(path), value, tuple(data.batch_size)) for path, value in _items(data, ())]


def data_of(frame: Frame, contents: Contents | None = None) -> TensorDict:
    """The batch of a frame, mapped onto its bytes.

    `contents` are the frame's leaves if they are ready already. FrameError if a leaf does not unpack.
    """
    from tensordict import TensorDict

    contents = contents_of(frame) if contents is None else contents
    tree: dict[str, Any] = {}
    for spec in frame.header.buffers:
        content = contents[spec.name]
        if isinstance(content, list):
            value: Any = _texts(content, spec.shape)
        else:
            value = _tensor(_bytes_tensor(content), spec.dtype, spec.shape)
        *parents, last = split_key(spec.name)
        node = tree
        for parent in parents:
            node = node.setdefault(parent, {})
        node[last] = value
    return TensorDict(tree, batch_size=list(frame.header.shape))


def state_pieces(
    weights: torch.nn.Module | Mapping[str, torch.Tensor], *, allow_nonfinite: bool = False
) -> list[BytesLike]:
    """Safetensors bytes of a module's state or a state dict, as buffers: header first, then each tensor's own memory.

    Parameters and buffers, named as in the bare module; tied ones are written under each of their names. WeightsRejected
    with every problem.
    """
    state = _state_dict_of(weights)
    problems = _no_tensors(state)
    tensors = {k: v.detach() for k, v in state.items() if isinstance(v, torch.Tensor)}
    problems += [
        f"{k}: dtype {str(v.dtype).removeprefix('torch.')} cannot be sent"
        for k, v in tensors.items()
        if NAMES.get(v.dtype) not in safetensors.NAMES or v.layout != torch.strided
    ]
    if problems:
        raise WeightsRejected(problems)
    if not allow_nonfinite:
        check_finite(tensors)
    header = safetensors.build_header([(k, NAMES[v.dtype], tuple(v.shape)) for k, v in tensors.items()])
    return [header, *(_memory(v) for v in tensors.values() if v.numel())]


def unwrapped(module: torch.nn.Module) -> torch.nn.Module:
    """The module inside what compiles it or runs it on several devices, which put their own words before its names."""
    while True:
        if isinstance(inner := getattr(module, "_orig_mod", None), torch.nn.Module):
            module = inner
        elif isinstance(module, torch.nn.DataParallel | torch.nn.parallel.DistributedDataParallel):
            module = module.module
        else:
            return module


def state_bytes(
    weights: torch.nn.Module | Mapping[str, torch.Tensor], *, allow_nonfinite: bool = False
) -> bytes:
    """`state_pieces` as one bytes object."""
    return b"".join(state_pieces(weights, allow_nonfinite=allow_nonfinite))


def state_of(data: BytesLike) -> dict[str, torch.Tensor]:
    """The state dict of safetensors bytes, mapped onto them. WeightsRejected if they are not what they should be."""
    view = memoryview(data).cast("B")
    header = safetensors.parse_header(view)
    if header.size != len(view):
        raise WeightsRejected([f"the weights have {len(view)} bytes, their header says {header.size}"])
    return {
        name: _tensor(_bytes_tensor(view[e.start : e.end]), e.dtype, e.shape)
        for name, e in header.entries.items()
    }


def check_finite(state: Mapping[str, torch.Tensor]) -> None:
    """WeightsRejected that names every tensor with a NaN or an infinity."""
    problems = []
    for name, tensor in state.items():
        if not (tensor.is_floating_point() or tensor.is_complex()):
            continue
        real = torch.view_as_real(tensor.detach().resolve_conj()) if tensor.is_complex() else tensor.detach()
        real = real if real.element_size() > 1 else real.to(torch.float32)
        # One pass and no temporary: a NaN comes through both ends, an infinity is one of them.
        if real.numel() and not all(math.isfinite(float(end)) for end in torch.aminmax(real)):
            count = int((~torch.isfinite(real)).sum())
            problems.append(f"{name}: {count} of {real.numel()} values are not finite")
    if problems:
        raise WeightsRejected(problems)


def layout_of_state(weights: torch.nn.Module | Mapping[str, torch.Tensor]) -> Layout:
    """What a worker declares as the job's `weights`: dtype and shape of every entry of the state.

    WeightsRejected that names what is no tensor.
    """
    state = _state_dict_of(weights)
    if problems := _no_tensors(state):
        raise WeightsRejected(problems)
    return Layout(
        {k: {"dtype": str(v.dtype).removeprefix("torch."), "shape": list(v.shape)} for k, v in state.items()}
    )


def _state_dict_of(weights: torch.nn.Module | Mapping[str, torch.Tensor]) -> Mapping[str, Any]:
    return unwrapped(weights).state_dict() if isinstance(weights, torch.nn.Module) else weights


def _no_tensors(state: Mapping[str, Any]) -> list[str]:
    return [
        f"{k}: not a tensor but a {type(v).__name__}"
        for k, v in state.items()
        if not isinstance(v, torch.Tensor)
    ]


def _items(data: TensorDictBase, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    from tensordict import TensorDictBase, is_non_tensor

    for key in data.keys():  # noqa: SIM118 - a TensorDict iterates over its rows, not its keys
        value = data._get_str(key, None) if hasattr(data, "_get_str") else data.get(key)
        if isinstance(value, TensorDictBase) and not is_non_tensor(value):
            yield from _items(value, (*path, key))
        else:
            yield (*path, key), value


def _leaf(name: str, value: Any, batch_size: tuple[int, ...]) -> Leaf:
    from tensordict import is_non_tensor

    if isinstance(value, torch.Tensor):
        dtype = NAMES.get(value.dtype)
        if dtype is None or value.layout != torch.strided:
            raise FrameError(f"leaf {_shown(name)}: a tensor of {value.dtype}, {value.layout} cannot be sent")
        return Leaf(name, dtype, tuple(value.shape), _memory(value) if value.numel() else b"")
    if is_non_tensor(value):
        try:
            text = json.dumps(value.tolist(), separators=(",", ":"), allow_nan=False).encode()
        except (TypeError, ValueError, RecursionError) as error:
            raise FrameError(
                f"leaf {_shown(name)}: {type(value).__name__} is neither a tensor nor JSON ({error})"
            ) from error
        return Leaf(name, JSON_DTYPE, batch_size, text)
    raise FrameError(f"leaf {_shown(name)}: {type(value).__name__} is neither a tensor nor JSON")


def _memory(tensor: torch.Tensor) -> memoryview:
    """The bytes of a tensor: its own memory if it lies contiguous on the CPU, else a copy."""
    flat = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous().reshape(-1).view(torch.uint8)
    memory: Any = flat.numpy()
    return memoryview(memory).cast("B")


def _bytes_tensor(data: BytesLike) -> torch.Tensor:
    return torch.frombuffer(data, dtype=torch.uint8) if len(data) else torch.empty(0, dtype=torch.uint8)


def _tensor(data: torch.Tensor, dtype: str, shape: Iterable[int]) -> torch.Tensor:
    if not data.numel():
        return torch.empty(tuple(shape), dtype=DTYPES[dtype])
    if data.data_ptr() % DTYPES[dtype].itemsize:
        data = data.clone()  # only weights of mixed widths can lie so
    return data.view(DTYPES[dtype]).view(tuple(shape))


def _texts(values: list[Any], shape: tuple[int, ...]) -> Any:
    from tensordict import NonTensorData, NonTensorStack

    return NonTensorData(None, batch_size=list(shape)) if 0 in shape else NonTensorStack.from_list(values)


def _shown(name: str) -> str:
    return repr(name.replace(KEY_SEPARATOR, "."))
