"""load, load_file, save, save_file: stands in for safetensors.numpy, over any source of stfs.open().

>>> stfs.numpy.load(stfs.numpy.save({"a": numpy.arange(3)}))
{'a': array([0, 1, 2])}
"""

import os
import tempfile
from typing import Any, Dict, Mapping, Optional, Union

from ._errors import SafetensorError
from ._save import Entry, parts_of, write
from ._stand_in import all_of, check_backend, opened, safe_open
from ._types import TYPES

__all__ = ["load", "load_file", "safe_open", "save", "save_file"]

_NAMES = {known.typestr: name for name, known in TYPES.items() if known.ml_dtypes is None}
_ML_NAMES = {known.ml_dtypes: name for name, known in TYPES.items() if known.ml_dtypes is not None}


def load_file(filename: Union[str, "os.PathLike[str]"], *, backend: str = "mmap") -> Dict[str, Any]:
    """All tensors as NumPy arrays, which are writable copies."""
    check_backend(backend)
    return all_of(opened(filename), "numpy")


def load(data: bytes) -> Dict[str, Any]:
    """All tensors of the bytes of a safetensors file."""
    with in_memory(data) as name:
        return load_file(name)


def save_file(tensor_dict: Mapping[str, Any], filename: Union[str, "os.PathLike[str]"],
              metadata: Optional[Mapping[str, str]] = None) -> None:
    """Writes a safetensors file: whole, or not at all."""
    write(map(_entry, *_items(tensor_dict)), filename, metadata)


def save(tensor_dict: Mapping[str, Any], metadata: Optional[Mapping[str, str]] = None) -> bytes:
    """The bytes of a safetensors file."""
    return b"".join(parts_of(map(_entry, *_items(tensor_dict)), metadata))


class in_memory:
    """A file with these bytes, in memory where that is a file system, for as long as the block runs."""

    def __init__(self, data: bytes):
        for directory in ("/dev/shm", None):
            try:
                self._file = tempfile.NamedTemporaryFile(suffix=".safetensors", dir=directory)
                self._file.write(data)
                self._file.flush()
                return
            except OSError:  # none, or too small
                if directory is None:
                    raise

    def __enter__(self) -> str:
        return self._file.name

    def __exit__(self, *exception: Any) -> None:
        self._file.close()


def _items(tensor_dict: Mapping[str, Any]) -> Any:
    if not isinstance(tensor_dict, Mapping):
        raise ValueError(f"a dict of arrays is expected, not {type(tensor_dict)}")
    return list(tensor_dict), list(tensor_dict.values())


def _entry(name: str, array: Any) -> Entry:
    import numpy

    if not isinstance(array, numpy.ndarray):
        raise SafetensorError(f"{name!r}: a NumPy array is expected, not {type(array)}", 2)
    if isinstance(array, numpy.ma.MaskedArray):
        raise SafetensorError(f"{name!r}: safetensors has no masks: save array.filled(...), or array.data", 2)
    dtype = _ML_NAMES.get(array.dtype.name) or _NAMES.get(array.dtype.newbyteorder("<").str)
    if dtype is None:
        raise SafetensorError(f"{name!r}: safetensors has no type for {array.dtype}", 2)
    if array.dtype.byteorder == ">":
        array = array.astype(array.dtype.newbyteorder("<"))
    return Entry(name, dtype, list(array.shape), array.tobytes())
