"""load, load_file, save, save_file: stands in for safetensors.torch, over any source of stfs.open()."""

import ctypes
import os
from typing import Any, Dict, Mapping, Optional, Union

from ._save import Entry, parts_of, write
from ._stand_in import as_framework, check_backend, device_of, opened, safe_open
from ._types import TYPES
from .numpy import in_memory

__all__ = ["load", "load_file", "safe_open", "save", "save_file"]

_NAMES = {known.torch: name for name, known in TYPES.items()}


def load_file(filename: Union[str, "os.PathLike[str]"], device: Any = "cpu", *,
              backend: str = "mmap") -> Dict[str, Any]:
    """All tensors. On "cpu" they are private, writable, and not read before they are used."""
    check_backend(backend)
    device = device_of(device)
    return {name: as_framework(tensor, "torch", device) for name, tensor in opened(filename).items()}


def load(data: bytes) -> Dict[str, Any]:
    """All tensors of the bytes of a safetensors file."""
    with in_memory(data) as name:
        return load_file(name)


def save_file(tensors: Mapping[str, Any], filename: Union[str, "os.PathLike[str]"],
              metadata: Optional[Mapping[str, str]] = None) -> None:
    """Writes a safetensors file: whole, or not at all."""
    write(_entries(tensors), filename, metadata)


def save(tensors: Mapping[str, Any], metadata: Optional[Mapping[str, str]] = None) -> bytes:
    """The bytes of a safetensors file."""
    return b"".join(parts_of(_entries(tensors), metadata))


def _entries(tensors: Mapping[str, Any]) -> Any:
    import torch

    if not isinstance(tensors, Mapping):
        raise ValueError(f"Expected a dict of [str, torch.Tensor] but received {type(tensors)}")
    for name, tensor in tensors.items():
        if not isinstance(tensor, torch.Tensor):
            raise ValueError(f"Key `{name}` is invalid, expected torch.Tensor but received {type(tensor)}")
    sparse = [name for name, tensor in tensors.items() if tensor.layout != torch.strided]
    if sparse:
        raise ValueError(f"You are trying to save a sparse tensors: `{sparse}` which this library does not support. "
                         "You can make it a dense tensor before saving with `.to_dense()` but be aware this might make "
                         "a much larger file than needed.")
    places = sorted((str(tensor.device), tensor.data_ptr(), tensor.data_ptr() + _length(tensor), name)
                    for name, tensor in tensors.items() if tensor.nelement() and tensor.device.type != "meta")
    for (device, _, end, name), (other_device, begin, _, other) in zip(places, places[1:]):
        if device == other_device and begin < end:
            raise RuntimeError(f"{name!r} and {other!r} share memory: clone() one of them, or save one of the two")
    entries = []
    for name, tensor in tensors.items():
        if tensor.device.type == "meta":
            raise RuntimeError(f"{name!r}: Cannot copy out of meta tensor; no data!")
        if not tensor.is_contiguous():
            raise ValueError(f"{name!r} is not contiguous: call contiguous() before saving it")
        dtype = _NAMES.get(str(tensor.dtype).replace("torch.", ""))
        if dtype is None:
            raise ValueError(f"{name!r}: safetensors has no type for {tensor.dtype}")
        values = tensor.detach().resolve_conj().resolve_neg().cpu()
        entries.append(Entry(name, dtype, list(tensor.shape), _bytes_of(values)))
    return entries


def _length(tensor: Any) -> int:
    return tensor.nelement() * tensor.element_size()


def _bytes_of(tensor: Any) -> bytes:
    return ctypes.string_at(tensor.data_ptr(), _length(tensor)) if tensor.nelement() else b""
