"""load, load_file, load_model, save, save_file, save_model: stands in for safetensors.torch, over any source of
stfs.open()."""

import ctypes
import os
from typing import Any, Dict, List, Mapping, Optional, Tuple, Union

from ._save import Entry, parts_of, write
from ._shared import names_left_out, nbytes, overlapping, storage_ptr, storage_size
from ._stand_in import all_of, check_backend, device_of, opened, safe_open
from ._types import TYPES
from .numpy import in_memory

__all__ = ["load", "load_file", "load_model", "safe_open", "save", "save_file", "save_model", "storage_ptr",
           "storage_size"]

_NAMES = {known.torch: name for name, known in TYPES.items()}


def load_file(filename: Union[str, "os.PathLike[str]"], device: Any = "cpu", *,
              backend: str = "mmap") -> Dict[str, Any]:
    """All tensors. On "cpu" they are private, writable, and not read before they are used."""
    check_backend(backend)
    return all_of(opened(filename), "torch", device_of(device))


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


def save_model(model: Any, filename: Union[str, "os.PathLike[str]"], metadata: Optional[Mapping[str, str]] = None,
               force_contiguous: bool = True) -> None:
    """Writes the state_dict() of a torch.nn.Module. Of tensors that share memory the file has one; the metadata
    has the names of the others, as keys."""
    tensors = model.state_dict()
    left_out = names_left_out(tensors)
    texts = {**left_out, **(metadata or {})}
    tensors = {name: tensor.contiguous() if force_contiguous else tensor
               for name, tensor in tensors.items() if name not in left_out}
    try:
        save_file(tensors, filename, None if metadata is None and not texts else texts)
    except ValueError as error:
        raise ValueError(f"{error}; or use save_model(..., force_contiguous=True)") from None


def load_model(model: Any, filename: Union[str, "os.PathLike[str]"], strict: bool = True, device: Any = "cpu", *,
               backend: str = "mmap") -> Tuple[List[str], List[str]]:
    """Copies the tensors of a source into a torch.nn.Module, also those of which the source has one name alone
    because they share memory.

    Returns the names that the source lacks, and those that the module lacks; if `strict`, RuntimeError tells them.
    """
    tensors = load_file(filename, device, backend=backend)
    left_out = names_left_out(model.state_dict(), preferred=tensors)
    found = model.load_state_dict(tensors, strict=False)
    missing = sorted(set(found.missing_keys) - left_out.keys())
    # Of two names of the same memory the source has both: one has been lost.
    unexpected = sorted({*found.unexpected_keys, *(name for name in left_out if name in tensors)})
    if strict and (missing or unexpected):
        lines = [f"Error(s) in loading state_dict for {type(model).__name__}:"]
        for what, names in (("Missing", missing), ("Unexpected", unexpected)):
            if names:
                quoted = ", ".join(f'"{name}"' for name in names)
                lines.append(f"    {what} key(s) in state_dict: {quoted}")
        raise RuntimeError("\n".join(lines))
    return missing, unexpected


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
    for names in overlapping(tensors):
        raise RuntimeError(f"{sorted(names)} share memory: clone() them, save one of them, or use save_model()")
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


def _bytes_of(tensor: Any) -> bytes:
    return ctypes.string_at(tensor.data_ptr(), nbytes(tensor)) if tensor.nelement() else b""
