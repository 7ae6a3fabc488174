"""A tensor of a checkpoint, or a part of one: what it is, and its bytes in the form that is asked for."""

import ctypes
import math
import sys
from typing import TYPE_CHECKING, Any, Dict, Iterator, List, Optional, Tuple

from . import _dlpack, _index, _library
from ._errors import UsageError
from ._library import library
from ._types import in_ml_dtypes, type_of

if TYPE_CHECKING:
    from ._checkpoint import Checkpoint


_LEAST_MAPPED = 256 << 10  # bytes; the library copies smaller tensors


class Tensor:
    """A tensor of a checkpoint, or a part of one. Nothing is read before its values are asked for.

    name      in the checkpoint; bytes that are not UTF-8 are surrogates (os.fsdecode)
    dtype     the format's name, "BF16", "Q4_K"
    shape     a tuple of int
    nbytes, elements

    Indexes are NumPy's: integers, slices with positive steps, and `...`. The result is a Tensor too, and only
    its bytes are read.
    """

    __slots__ = ("_checkpoint", "_number", "name", "dtype", "_whole_shape", "_whole_bytes", "_source", "_begin",
                 "_source_bytes", "_axes", "shape", "__weakref__")

    def __init__(self, checkpoint: "Checkpoint", number: int, name: str, row: Tuple[int, ...]):
        self._checkpoint, self._number, self.name = checkpoint, number, name
        _, _, dtype, rank, shape, _, self._whole_bytes, self._source, self._begin, self._source_bytes = row
        self.dtype = _library.dtype_of(dtype)
        self.shape = self._whole_shape = _library.shape_of(shape, rank)
        self._axes: Optional[Tuple[_index.Axis, ...]] = None  # None: the whole tensor

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
        return ctypes.string_at(self._source).decode(errors="surrogateescape") if self._source else None

    @property
    def offset(self) -> Optional[int]:
        """Where its bytes begin in `source`; None if it is computed, or a slice with gaps or of shared bytes."""
        if not self._source:
            return None
        first = 0 if self._axes is None else _index.run(self._axes, self._whole_shape)
        if first is None:
            return None
        try:
            return self._begin + self._bytes_of(first)
        except UsageError:
            return None

    @property
    def inputs(self) -> List[str]:
        """The names of the tensors that it is computed from; [] for one that is stored."""
        import json

        names: List[str] = json.loads(self._checkpoint._text(_library.TEXT_FROM, self._number))
        return names

    def __repr__(self) -> str:
        return f"<stfs.Tensor {self.name!r} {self.dtype} {str(list(self.shape)).replace(' ', '')}>"

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("a tensor without dimensions has no len()")
        return self.shape[0]

    def __iter__(self) -> Iterator["Tensor"]:
        return (self[i] for i in range(len(self)))

    __contains__ = None  # "in" would read the tensor element by element; use numpy() instead

    def __getitem__(self, key: Any) -> "Tensor":
        part = Tensor.__new__(Tensor)
        for slot in Tensor.__slots__[:-3]:
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

    def _read(self, address: int, length: int, keeps: Any, as_: Optional[bytes] = None) -> None:
        self._checkpoint._call(library.stfs_read, self._part(as_), 0, address, length, keeps=keeps)

    def _mapped(self, itemsize: int) -> Optional[Tuple["memoryview", int, Optional[Tuple[int, ...]]]]:
        """Returns the memory to which the file is mapped, the position of the first byte in it, and the strides in
        bytes. Returns None if the tensor has to be read."""
        first, length, strides = 0, self._whole_bytes, None
        if self._axes is not None:
            start = _index.run(self._axes, self._whole_shape)
            if start is not None and itemsize:
                first, length = start * itemsize, self.nbytes
            elif itemsize and not self._is_remote():  # mapping the whole tensor costs nothing
                start, distances = _index.strides(self._axes, self._whole_shape)
                first, strides = start * itemsize, tuple(distance * itemsize for distance in distances)
            else:
                return None
        if length == 0:
            return None
        address = ctypes.c_void_p()
        at = 0 if strides else first
        self._checkpoint._call(library.stfs_map, self._number, at, length, ctypes.byref(address))
        begin = address.value
        if begin is None:
            return None
        file = begin - at - self._begin
        memory = self._checkpoint._files.get(file) or self._checkpoint._file(file, self._source_bytes)
        return memory, self._begin + first, strides

    def _is_remote(self) -> bool:
        return not self._source or b"://" in ctypes.string_at(self._source)

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
                raise ValueError(f"the buffer has {view.nbytes} bytes, but the tensor {length}")
            if length:
                self._read(ctypes.addressof(ctypes.c_char.from_buffer(view.cast("B"))), length, memoryview(view))
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
        mapped = self._mapped(type_of(self.dtype).itemsize)
        if mapped is None or mapped[2] is not None:
            return memoryview(bytes(self))
        memory, first, _ = mapped
        return memory[first:first + self.nbytes]

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
            self._read(array.ctypes.data, array.nbytes, array, _as(as_))
            return array
        known = type_of(self.dtype)
        if known.typestr is None:
            raise TypeError(f'{self.dtype} has elements that share bytes: use numpy(as_="f32"), or bytes()')
        mapped = None if copy else self._mapped(known.itemsize)
        if mapped is not None and mapped[1] % known.itemsize == 0:
            memory, first, strides = mapped
            view: Any = numpy.ndarray(self.shape, known.typestr, memory, first, strides)
            return view if known.ml_dtypes is None else in_ml_dtypes(view, known.ml_dtypes)
        array = numpy.empty(self.shape, known.typestr)
        if array.nbytes:
            self._read(array.ctypes.data, array.nbytes, array)
        return in_ml_dtypes(array, known.ml_dtypes)

    def __array__(self, dtype: Any = None, copy: Optional[bool] = None) -> Any:
        import numpy

        # NumPy cannot convert from types that it does not have.
        as_ = "f32" if dtype is not None and self._is_foreign() and numpy.dtype(dtype).kind in "fc" else None
        array = self.numpy(as_, copy=bool(copy))
        if copy is False and (array.flags.owndata or dtype not in (None, array.dtype)):
            raise ValueError(f"{self!r} cannot be an array without a copy")
        return array if dtype is None else array.astype(dtype, copy=False)

    def _is_foreign(self) -> bool:
        return type_of(self.dtype).ml_dtypes is not None or type_of(self.dtype).typestr is None

    def torch(self, as_: Optional[str] = None, device: Any = "cpu") -> Any:
        """A torch tensor: on "cpu" writable and private, and not read before it is used (copy-on-write)."""
        import torch

        if as_ is not None:
            _as(as_)
            return torch.from_numpy(self.numpy(as_)).to(device)
        return self._torch(device, None)

    def _torch(self, device: Any, files: Optional[Dict[int, Any]]) -> Any:
        """`files` has one private mapping per file, by source; new mappings are added."""
        import torch

        name = type_of(self.dtype).torch
        dtype = getattr(torch, name, None) if name else None
        if dtype is None:
            raise TypeError(f'torch {torch.__version__} has no type for {self.dtype}: use torch(as_="f32")')
        if 0 in self.shape:
            return torch.empty(self.shape, dtype=dtype, device=device)
        memory, first = self._private_file(files) if files is not None else None, self._begin
        if memory is None:
            memory, first = self._private(), 0
        flat = torch.frombuffer(memory, dtype=dtype, count=self.elements, offset=first)
        whole = flat.reshape(self.shape)
        return whole if device == "cpu" else whole.to(device)

    def _private(self) -> Any:
        """Returns a private, writable buffer with the bytes of the tensor."""
        return self._mapping(library.stfs_map_private, self._part(), self.nbytes)

    def _mapping(self, function: Any, what: Any, length: int) -> Any:
        def make() -> Any:
            address = ctypes.c_void_p()
            owner, place = _library.slot(b"stfs_mapping")
            _library.check(function(self._checkpoint._handle, what, ctypes.byref(address), place))
            return address.value and _library.buffer(address.value, length, owner)

        return self._checkpoint._run(make)

    def _private_file(self, files: Dict[int, Any]) -> Any:
        """Returns such a buffer with the whole file of a stored tensor, or None if the tensor is in no file or
        would be unaligned."""
        if self._axes is not None or not self._source or self._begin % type_of(self.dtype).itemsize:
            return None
        if self._source not in files:
            files[self._source] = self._mapping(library.stfs_map_private_file, self._number, self._source_bytes)
        return files[self._source]

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
        raise ValueError(f'as_ is {as_!r}: expected "f32" or None')
    return b"f32"


def _unpickled(checkpoint: "Checkpoint", name: str, axes: Optional[Tuple[_index.Axis, ...]]) -> Tensor:
    tensor = checkpoint[name]
    if axes is not None:
        tensor._axes, tensor.shape = axes, _index.shape_of(axes)
    return tensor


if sys.byteorder != "little":
    raise ImportError("stfs needs a little-endian machine")
