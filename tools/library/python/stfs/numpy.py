"""load and load_file stand in for those of safetensors.numpy, over any source of stfs.open().

>>> stfs.numpy.load_file(path)["bias"]
array([1., 1.], dtype=float32)
"""

import os
import tempfile
from typing import Any, Dict, Union

from ._stand_in import all_of, check_backend, opened, safe_open

__all__ = ["load", "load_file", "safe_open"]


def __getattr__(name: str) -> Any:
    hint = f": use safetensors.numpy.{name}" if name in ("save", "save_file") else ""
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}{hint}")


def load_file(filename: Union[str, "os.PathLike[str]"], *, backend: str = "mmap") -> Dict[str, Any]:
    """All tensors as NumPy arrays, which are writable copies."""
    check_backend(backend)
    return all_of(opened(filename), "numpy")


def load(data: bytes) -> Dict[str, Any]:
    """All tensors of the bytes of a safetensors file."""
    with in_memory(data) as name:
        return load_file(name)


class in_memory:
    """Within the block, a file with these bytes: in memory if /dev/shm is a file system with room, else on disk."""

    def __init__(self, data: bytes):
        for directory in ("/dev/shm", None):
            try:
                self._file = tempfile.NamedTemporaryFile(suffix=".safetensors", dir=directory)
                self._file.write(data)
                self._file.flush()
                return
            except OSError:  # no such directory, or too little room
                if directory is None:
                    raise

    def __enter__(self) -> str:
        return self._file.name

    def __exit__(self, *exception: Any) -> None:
        self._file.close()
