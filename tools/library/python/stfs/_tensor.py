"""A tensor of a checkpoint, or a part of one: what it is, and its bytes in the form that is asked for."""

import ctypes
import math
import sys
from typing import TYPE_CHECKING, Any, List, Optional, Tuple

from . import _dlpack, _index, _library
from ._errors import UsageError
from ._library import library, owner
from ._types import in_ml_dtypes, type_of

if TYPE_CHECKING:
    from ._checkpoint import Checkpoint


_LEAST_MAPPED = 256 << 10  # bytes: less is copied by the library


class _View:
    """Memory of the library for an array: keeps alive what the memory belongs to."""

    __slots__ = ("__array_interface__", "_owner")

    def __init__(self, address: int, typestr: str, shape: Tuple[int, ...], strides: Optional[Tuple[int, ...]],
                 owner: Any, readonly: bool):
        self._owner = owner
        self.__array_interface__ = {"version": 3, "data": (address, readonly), "typestr": typestr,
                                    "shape": shape, "strides": strides}


class Tensor:
    """A tensor of a checkpoint, or a part of one. Nothing is read before its values are asked for.

    name      in the checkpoint; bytes that are not UTF-8 are surrogates (os.fsdecode)
    dtype     the format's name, "BF16", "Q4_K"
    shape     a tuple of int
    nbytes, elements

    Indexes are NumPy's: integers, slices with positive steps, and `...`. The result is a Tensor too, and only
    its bytes are read.
    """

    __slots__ = ("_checkpoint", "_number", "name", "dtype", "_whole_shape", "_whole_bytes", "_axes", "shape",
                 "__weakref__")

    def __init__(self, checkpoint: "Checkpoint", number: int, name: str, row: Any):
        self._checkpoint, self._number, self.name = checkpoint, number, name
        self.dtype: str = row.dtype.decode()
        self._whole_shape: Tuple[int, ...] = tuple(row.shape[:row.rank])
        self._whole_bytes: int = row.bytes
        self._axes: Optional[Tuple[_index.Axis, ...]] = None  # None: all of it
        self.shape = self._whole_shape

    # --- what it is

    @property
    def elements(self) -> int:
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """The bytes of its elements as they are stored. ValueError where they share bytes with others."""
        return self._bytes_of(self.elements)

    def _bytes_of(self, elements: int) -> int:
        whole = math.prod(self._whole_shape)
        if not whole:
            return 0
        length, rest = divmod(self._whole_bytes * elements, whole)
        if rest:
            raise UsageError(f'{self!r}: elements of {self.dtype} share bytes: use numpy(as_="f32")', 2)
        return length

    length = nbytes

    @property
    def source(self) -> Optional[str]:
        """The path or the URL, without secrets, of the file that holds it; None if it is computed."""
        source = self._checkpoint._row(self._number).source
        return None if source is None else source.decode(errors="surrogateescape")

    @property
    def offset(self) -> Optional[int]:
        """Where its bytes begin in `source`; None if it is computed, or a slice with gaps or of shared bytes."""
        if self.source is None:
            return None
        first = 0 if self._axes is None else _index.run(self._axes, self._whole_shape)
        if first is None:
            return None
        try:
            return self._checkpoint._row(self._number).offset + self._bytes_of(first)
        except UsageError:
            return None

    @property
    def from_(self) -> List[str]:
        """The names of the tensors that it is computed from; [] for one that is stored."""
        import json

        return json.loads(self._checkpoint._text(_library.TEXT_FROM, self._number))

    def __repr__(self) -> str:
        return f"<stfs.Tensor {self.name!r} {self.dtype} {str(list(self.shape)).replace(' ', '')}>"

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("a tensor without dimensions has no len()")
        return self.shape[0]

    def __getitem__(self, key: Any) -> "Tensor":
        part = Tensor.__new__(Tensor)
        for slot in ("_checkpoint", "_number", "name", "dtype", "_whole_shape", "_whole_bytes"):
            setattr(part, slot, getattr(self, slot))
        part._axes = _index.select(_index.whole(self._whole_shape) if self._axes is None else self._axes, key)
        part.shape = _index.shape_of(part._axes)
        return part

    def __reduce__(self) -> Tuple[Any, ...]:
        return _unpickled, (self._checkpoint, self.name, self._axes)

    # --- its bytes

    def _part(self, as_: Optional[bytes] = None) -> Any:
        expression = None if not self._axes else _index.expression(self._axes)
        return _library.Part(ctypes.sizeof(_library.Part), self._number, expression, as_)

    def _read(self, address: int, length: int, as_: Optional[bytes] = None) -> None:
        self._checkpoint._call(library.stfs_read, self._part(as_), 0, address, length)

    def _mapped(self) -> Optional[Tuple[int, Optional[Tuple[int, ...]]]]:
        """The address of its first byte in memory, and strides in bytes; None where it has to be read."""
        itemsize = type_of(self.dtype).itemsize
        first, length, strides = 0, self._whole_bytes, None
        if self._axes is not None:
            start = _index.run(self._axes, self._whole_shape)
            if start is not None and itemsize:
                first, length = start * itemsize, self.nbytes
            elif itemsize and not self._is_elsewhere():  # mapped, all of it costs nothing
                start, distances = _index.strides(self._axes, self._whole_shape)
                first, strides = start * itemsize, tuple(distance * itemsize for distance in distances)
            else:
                return None
        if length == 0:
            return None
        address = ctypes.c_void_p()
        at, size = (0, self._whole_bytes) if strides else (first, length)
        self._checkpoint._call(library.stfs_map, self._number, at, size, ctypes.byref(address))
        return None if address.value is None else (address.value + (first if strides else 0), strides)

    def _is_elsewhere(self) -> bool:
        return b"://" in (self._checkpoint._row(self._number).source or b"://")

    def readinto(self, buffer: Any) -> int:
        """Reads its bytes, row-major and little-endian, into a writable buffer of `nbytes` bytes or more.

        Returns their number. Unlike a view it verifies the version after the last byte.
        """
        with memoryview(buffer) as view:
            if view.readonly:
                raise TypeError("the buffer is read-only")
            if not view.c_contiguous:
                raise BufferError("the buffer has gaps")
            length = self.nbytes
            if view.nbytes < length:
                raise ValueError(f"the buffer has {view.nbytes} bytes, and the tensor {length}")
            if length:
                self._read(ctypes.addressof(ctypes.c_char.from_buffer(view.cast("B"))), length)
            return length

    def __bytes__(self) -> bytes:
        buffer = bytearray(self.nbytes)
        self.readinto(buffer)
        return bytes(buffer)

    def memoryview(self) -> "memoryview":
        """Its bytes, read-only: in the mapping of their file where they lie in one, without a copy.

        As with any mapping, a file that somebody truncates under it kills the process, and one that is
        rewritten in place shows other bytes. bytes(tensor) reads and verifies instead.
        """
        mapped = self._mapped()
        if mapped is None or mapped[1] is not None:
            return memoryview(bytes(self))
        array = (ctypes.c_ubyte * self.nbytes).from_address(mapped[0])
        array._owner = self._checkpoint._owner  # type: ignore[attr-defined]
        return memoryview(array).toreadonly().cast("B")

    # --- arrays

    def numpy(self, as_: Optional[str] = None, copy: bool = False) -> Any:
        """A NumPy array. Without a copy, and read-only, where the bytes lie in memory as NumPy wants them.

        as_="f32"  the values of any floating type as float32: BF16, F8, F4, and the block types of GGUF
        copy=True  reads into new memory and verifies the version afterwards. A view is like any mapping of a
                   file: if somebody truncates the file, the process is killed; if somebody rewrites it in
                   place, the view shows other bytes

        NumPy lacks BF16 and the 8-bit floats: they are those of ml_dtypes where that is installed, else void
        of their size ("V2", "V1"). Types whose elements share bytes need as_="f32".
        """
        import numpy

        if as_ is not None:
            array = numpy.empty(self.shape, numpy.float32)
            self._read(array.ctypes.data, array.nbytes, _as(as_))
            return array
        known = type_of(self.dtype)
        if known.typestr is None:
            raise TypeError(f'{self.dtype} has elements that share bytes: use numpy(as_="f32"), or bytes()')
        mapped = None if copy else self._mapped()
        if mapped is not None and mapped[0] % known.itemsize == 0:
            view = _View(mapped[0], known.typestr, self.shape, mapped[1], self._checkpoint._owner, True)
            return in_ml_dtypes(numpy.asarray(view), known.ml_dtypes)
        array = numpy.empty(self.shape, known.typestr)
        if array.nbytes:
            self._read(array.ctypes.data, array.nbytes)
        return in_ml_dtypes(array, known.ml_dtypes)

    def __array__(self, dtype: Any = None, copy: Optional[bool] = None) -> Any:
        array = self.numpy(copy=bool(copy))
        if copy is False and (array.flags.owndata or dtype not in (None, array.dtype)):
            raise ValueError(f"{self!r} cannot be an array without a copy")
        return array if dtype is None else array.astype(dtype, copy=False)

    def torch(self, as_: Optional[str] = None, device: Any = "cpu") -> Any:
        """A torch tensor: on "cpu" writable and private, and not read before it is used (copy-on-write)."""
        import torch

        if as_ is not None:
            _as(as_)
            return torch.from_numpy(self.numpy(as_)).to(device)
        name = type_of(self.dtype).torch
        dtype = getattr(torch, name, None) if name else None
        if dtype is None:
            raise TypeError(f'torch {torch.__version__} has no type for {self.dtype}: use torch(as_="f32")')
        if self.nbytes == 0:
            return torch.empty(self.shape, dtype=dtype, device=device)
        address, mapping = ctypes.c_void_p(), ctypes.c_void_p()
        self._checkpoint._call(library.stfs_map_private, self._part(), ctypes.byref(address), ctypes.byref(mapping))
        memory = (ctypes.c_ubyte * self.nbytes).from_address(address.value or 0)
        memory._owner = owner(mapping.value, b"stfs_mapping")  # type: ignore[attr-defined]
        flat = torch.frombuffer(memory, dtype=torch.uint8)
        return flat.view(dtype).reshape(self.shape).to(device)

    def jax(self, as_: Optional[str] = None) -> Any:
        """A JAX array on its default device."""
        import jax.numpy

        return jax.numpy.asarray(self.numpy(as_))

    def __dlpack__(self, *, stream: Any = None, max_version: Optional[Tuple[int, int]] = None,
                   dl_device: Optional[Tuple[int, int]] = None, copy: Optional[bool] = None) -> Any:
        """Private memory of the host, which the consumer may write to; copied only where it is written."""
        if stream is not None:
            raise BufferError("a tensor in memory of the host has no stream")
        if dl_device not in (None, (1, 0)):
            raise BufferError("only memory of the host (1, 0) can be exported")
        if copy is False and (self.offset is None or self.nbytes < _LEAST_MAPPED):
            raise BufferError("it is small, computed, or has gaps: exporting it makes a copy")
        return _dlpack.capsule(self._checkpoint, self._part(), max_version is not None and max_version[0] >= 1)

    def __dlpack_device__(self) -> Tuple[int, int]:
        return 1, 0


def _as(as_: str) -> bytes:
    if as_ != "f32":
        raise ValueError(f'as_ is {as_!r}: it can be "f32" or None')
    return b"f32"


def _unpickled(checkpoint: "Checkpoint", name: str, axes: Optional[Tuple[_index.Axis, ...]]) -> Tensor:
    tensor = checkpoint[name]
    if axes is not None:
        tensor._axes, tensor.shape = axes, _index.shape_of(axes)
    return tensor


if sys.byteorder != "little":
    raise ImportError("stfs needs a little-endian machine")
