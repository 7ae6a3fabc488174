"""load and load_file stand in for those of safetensors.torch, over any source of stfs.open()."""

import os
from typing import Any, Dict, Union

from ._stand_in import all_of, check_backend, device_of, opened, safe_open
from .numpy import in_memory

__all__ = ["load", "load_file", "safe_open"]


def __getattr__(name: str) -> Any:
    is_in_safetensors = name in ("load_model", "save", "save_file", "save_model")
    hint = f": use safetensors.torch.{name}" if is_in_safetensors else ""
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}{hint}")


def load_file(filename: Union[str, "os.PathLike[str]"], device: Any = "cpu", *,
              backend: str = "mmap") -> Dict[str, Any]:
    """All tensors. On "cpu" they are private, writable, and not read before they are used."""
    check_backend(backend)
    return all_of(opened(filename), "torch", device_of(device))


def load(data: bytes) -> Dict[str, Any]:
    """All tensors of the bytes of a safetensors file."""
    with in_memory(data) as name:
        return load_file(name)
