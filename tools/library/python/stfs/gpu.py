"""Tensors that stfs-gpu keeps in device memory, for NumPy, PyTorch, CuPy, JAX.

    import stfs.gpu
    with stfs.gpu.connect() as connection:
        w = connection.acquire("/mnt/w/lm_head.weight", device="cpu", load_if_missing=True)[0]
        w.numpy()                       # host memory: a read-only view, nothing is copied
        w.numpy(as_="f32")              # a float32 copy of any floating type, BF16 too
        torch.from_dlpack(w)            # device memory (or host memory, see below): the same

Only numpy(), raw() and arrays need NumPy. A tensor stays in memory while its Tensors (the result of
acquire()) or an array made from it exists.

Memory is read-only, because other processes see the same bytes. A store to host memory raises
SIGSEGV; a kernel's store to device memory fails where the driver can protect it. NumPy raises an
exception instead. PyTorch and CuPy have no read-only arrays: do not write to theirs. Consumers older
than DLPack 1.0 get BufferError for host memory, because they cannot know that it is read-only;
`w.__dlpack__(copy=True)` gives them a private copy.

For GPU memory use DLPack: torch.from_dlpack(w), cupy.from_dlpack(w), jax.dlpack.from_dlpack(w). The
older __cuda_array_interface__ says that the memory is read-only, and torch.as_tensor(w) refuses that
with "the read only flag is not supported".

The end of an array of GPU memory waits for all work of the process on that GPU. Let none end while a
stream captures a graph: the memory stays mapped until a later call, and the capture may be lost.
"""

import collections.abc
import ctypes
import os
from typing import Any, Dict, Iterator, List, Optional, Sequence, Tuple, Union

from ._dlpack import exported
from ._errors import Error, UsageError
from ._library import check, library, release, slot, text_of, version
from ._types import in_ml_dtypes, type_of

__all__ = ["Connection", "Error", "Tensor", "Tensors", "acquire", "connect", "version"]

INVALID, USAGE, UNREADABLE, DEVICE = 1, 2, 3, 5  # Error.status: the exit statuses of stfs-gpu

_START_HOLDER = 1
_EXPORT_COPY = 1
_EXPORT_BYTES = 2
_DLPACK_CPU, _DLPACK_CUDA = 1, 2
_PACKED = {"F4", "F6_E2M3", "F6_E3M2"}  # elements share bytes, but DLPack has the type

_Name = Union[str, bytes, "os.PathLike[str]"]


class _Options(ctypes.Structure):  # stfs_gpu_acquire_options
    _fields_ = [
        ("size", ctypes.c_size_t), ("device", ctypes.c_char_p), ("as_", ctypes.c_char_p),
        ("shard", ctypes.c_char_p), ("load_if_missing", ctypes.c_int32),
        ("verify", ctypes.c_int32), ("pin", ctypes.c_int32), ("dequantize", ctypes.c_char_p),
        ("name_bytes", ctypes.POINTER(ctypes.c_size_t)),
        ("layers", ctypes.POINTER(ctypes.c_char_p)),
    ]


class _Info(ctypes.Structure):  # stfs_gpu_tensor_info
    _fields_ = [
        ("size", ctypes.c_size_t), ("name", ctypes.c_void_p), ("label", ctypes.c_void_p),
        ("key", ctypes.c_char_p), ("pointer", ctypes.c_uint64), ("bytes", ctypes.c_uint64),
        ("dtype", ctypes.c_char_p), ("rank", ctypes.c_size_t),
        ("shape", ctypes.POINTER(ctypes.c_uint64)), ("device", ctypes.c_char_p),
        ("device_uuid", ctypes.c_char_p), ("device_type", ctypes.c_int32),
        ("device_ordinal", ctypes.c_int32), ("name_bytes", ctypes.c_size_t),
        ("label_bytes", ctypes.c_size_t),
    ]


class _Handle:
    """Owns a handle of the library. Frees it after close() or garbage collection, when no call uses it any more."""

    def __init__(self, owner: Any, place: Any):
        self._owner, self._place = owner, place

    def call(self, function: Any, *arguments: Any) -> None:
        owner = self._owner  # keeps the handle until the end of the call
        if owner is None:
            raise UsageError("used after it was closed or released", USAGE)
        check(function(self._place[0], *arguments))

    def close(self) -> None:
        self._owner = None


class _View:
    """Keeps a tensor's memory alive for the array that refers to this object."""

    def __init__(self, tensor: "Tensor", code: str, shape: Tuple[int, ...]):
        self._owner = tensor._export(True, _EXPORT_BYTES)
        self.interface = {
            "shape": shape, "typestr": code, "version": 3, "strides": None,
            "data": (tensor.ptr, True),  # read-only
        }

    @property
    def __array_interface__(self) -> Dict[str, Any]:
        return self.interface


class Tensor:
    """One tensor in device memory.

    name           in the checkpoint; `label` also has the source, the slice and the type. Bytes that
                   are not UTF-8 are surrogates, as in the names of files (os.fsdecode)
    dtype          as the safetensors format names it, "BF16"
    shape, nbytes
    device, uuid   "cuda:0" or "cpu"; "GPU-..."
    ptr            address on the device, 0 without bytes; valid until the Tensors are released
    key            equal if and only if the bytes are the same
    """

    def __init__(self, handle: _Handle, index: int):
        self._handle, self._index = handle, index
        info = _Info(size=ctypes.sizeof(_Info))
        handle.call(library.stfs_gpu_info, index, ctypes.byref(info))
        self._device_type, self._device_ordinal = info.device_type, info.device_ordinal
        self._view: Optional[_View] = None
        self.name = text_of(info.name, info.name_bytes)
        self.label = text_of(info.label, info.label_bytes)
        self.key = info.key.decode(errors="surrogateescape")
        self.dtype: str = info.dtype.decode()
        self.shape: Tuple[int, ...] = tuple(info.shape[:info.rank])
        self.nbytes: int = info.bytes
        self.device: str = info.device.decode()
        self.uuid: str = info.device_uuid.decode()
        self.ptr: int = info.pointer

    def __repr__(self) -> str:
        return f"<stfs.gpu.Tensor {self.label!r} {self.dtype} {list(self.shape)} on {self.device}>"

    def _export(self, is_versioned: bool, flags: int) -> Any:
        function = library.stfs_gpu_export if is_versioned else library.stfs_gpu_export_unversioned
        return exported(is_versioned, lambda place: self._handle.call(function, self._index, flags, place))

    def numpy(self, as_: Optional[str] = None) -> Any:
        """A read-only NumPy array of host memory, without a copy.

        as_="f32" returns instead a writable float32 copy of the values of any floating type, also
        of BF16 and of those with 8, 6 and 4 bits. Values of F64 are rounded to nearest.

        NumPy lacks BF16 and the 8-bit floats. Without as_ they get their ml_dtypes type if that
        package is installed, else void of the same width ("V2", "V1"). Types of 4 and 6 bits have
        no array without as_: use raw().
        """
        import numpy

        if as_ == "f32":
            return self._floats(numpy)
        if as_ is not None:
            raise ValueError(f'as_ is {as_!r}: expected "f32" or None')
        known = type_of(self.dtype)
        if known.typestr is None:
            dlpack = ", raw() or DLPack" if self.dtype in _PACKED else " or raw()"
            raise TypeError(f'{self.dtype} has elements that share bytes: use numpy(as_="f32"){dlpack}')
        return in_ml_dtypes(self._array(numpy, known.typestr, self.shape), known.ml_dtypes)

    def raw(self) -> Any:
        """The bytes of any dtype, as a read-only array of unsigned bytes."""
        import numpy

        return self._array(numpy, "|u1", (self.nbytes,))

    def _floats(self, numpy: Any) -> Any:
        self._check_host()
        if (type_of(self.dtype).typestr or "V")[1:2] in tuple("biuc"):
            raise TypeError(f"{self.dtype} is not a floating-point type: use numpy() without as_")
        array = numpy.empty(self.shape, numpy.float32)
        self._handle.call(library.stfs_gpu_read_f32, self._index, array.ctypes.data, array.size)
        return array

    def _check_host(self) -> None:
        if self._device_type != _DLPACK_CPU:
            raise TypeError(f'on {self.device}: NumPy needs host memory; use DLPack, or load to '
                            'device="cpu"')

    def _array(self, numpy: Any, code: str, shape: Tuple[int, ...]) -> Any:
        self._check_host()
        if self.nbytes == 0:
            array = numpy.empty(shape, code)
            array.flags.writeable = False
            return array
        return numpy.asarray(_View(self, code, shape))

    def __array__(self, dtype: Any = None, copy: Optional[bool] = None) -> Any:
        array = self.numpy()
        if dtype is not None and array.dtype != dtype:
            if copy is False:
                raise ValueError("another dtype needs a copy")
            return array.astype(dtype)
        return array.copy() if copy else array

    def _interface(self, device_type: int) -> Dict[str, Any]:
        # Raise AttributeError, because consumers test with hasattr().
        if self._device_type != device_type:
            raise AttributeError(f"the tensor is on {self.device}: use DLPack")
        known = type_of(self.dtype)
        if known.typestr is None or known.ml_dtypes is not None:
            raise AttributeError(f"{self.dtype} has no code in the array interface")
        if self._view is None:  # arrays refer to this object, which keeps the memory
            self._view = _View(self, known.typestr, self.shape)
        return self._view.interface

    @property
    def __array_interface__(self) -> Dict[str, Any]:
        if self.nbytes == 0:  # NumPy refuses a null pointer, then calls __array__
            raise AttributeError("the tensor has no bytes: use DLPack")
        return self._interface(_DLPACK_CPU)

    @property
    def __cuda_array_interface__(self) -> Dict[str, Any]:
        # No "stream", because all copies end before a tensor can be acquired. Read-only, which torch refuses.
        return dict(self._interface(_DLPACK_CUDA))

    def __dlpack_device__(self) -> Tuple[int, int]:
        return (self._device_type, self._device_ordinal)

    def __dlpack__(self, stream: Any = None, max_version: Optional[Tuple[int, int]] = None,
                   dl_device: Optional[Tuple[int, int]] = None, copy: Optional[bool] = None) -> Any:
        """A DLPack capsule, for any stream: all copies have ended.

        Versioned if `max_version` is at least 1.0.
        """
        if self._device_type == _DLPACK_CPU and stream is not None:
            raise ValueError("host memory has no streams: stream must be None")
        if dl_device is not None and tuple(map(int, dl_device)) != self.__dlpack_device__():
            raise BufferError(f"on {self.device}, not exportable to {tuple(dl_device)}")
        is_versioned = max_version is not None and max_version[0] >= 1
        try:
            return release(self._export(is_versioned, _EXPORT_COPY if copy else 0))
        except Error as error:
            raise BufferError(str(error)) from error


class Tensors(collections.abc.Mapping):  # type: ignore[type-arg]
    """The tensors of one acquire(), in request order: a mapping from their names, or from labels where
    several have one name. tensors["w"] takes a name or a label, and tensors[0] a position.

    release(), or the end of a `with` block, releases them; arrays made from them stay valid.
    """

    def __init__(self, owner: Any, place: Any):
        self._handle = _Handle(owner, place)
        self._all = [Tensor(self._handle, index) for index in range(library.stfs_gpu_count(place[0]))]

    def __len__(self) -> int:
        return len(self._all)

    def __iter__(self) -> Iterator[str]:
        return iter([t.name if t.name in self else t.label for t in self._all])

    def __getitem__(self, which: Any) -> Any:
        if not isinstance(which, str):
            return self._all[which]
        found = self._found(which)
        if found is None:
            several = any(t.name == which for t in self._all)
            raise KeyError(f"{which}: several have this name, use a label" if several else which)
        return found

    def __contains__(self, which: object) -> bool:
        return isinstance(which, str) and self._found(which) is not None

    def _found(self, which: str) -> Optional[Tensor]:
        """Returns None if no tensor has this name, or several have it. A tensor requested twice is one."""
        by_label = {t.label: t for t in self._all if which in (t.label, t.name)}
        if which in by_label:
            return by_label[which]
        return next(iter(by_label.values())) if len(by_label) == 1 else None

    def values(self) -> List[Tensor]:  # type: ignore[override]
        return list(self._all)

    def items(self) -> List[Tuple[str, Tensor]]:  # type: ignore[override]
        return list(zip(self, self._all))

    def names(self) -> List[str]:
        return [tensor.name for tensor in self._all]

    def release(self) -> None:
        self._handle.close()

    def __enter__(self) -> "Tensors":
        return self

    def __exit__(self, *exception: Any) -> None:
        self.release()


class Connection:
    """A connection to the holder, for many threads."""

    def __init__(self, owner: Any, place: Any):
        self._handle = _Handle(owner, place)

    def acquire(self, *names: _Name, device: Optional[str] = None, as_: Optional[str] = None,
                shard: Optional[str] = None, load_if_missing: bool = False, verify: bool = False,
                pin: bool = False, dequantize: Optional[str] = None, layers: Sequence[_Name] = ()) -> Tensors:
        """Acquires the tensors of these names (as for stfs-gpu), all or none, as Tensors.

        A name is a path in a mount, SOURCE::NAME, SOURCE::GLOB, or SOURCE: a checkpoint, which
        means all its tensors.

        device   "cuda:0", a UUID, "cpu"; None: where they are resident
        as_      "f32", "f16", "bf16": converted
        shard    "RANK/WORLD@DIM": a part of each tensor
                 If the names mean many tensors, those without the dimension come whole, and those
                 that as_ cannot convert come in their own type. For one tensor both are errors.
        load_if_missing   load tensors that are not resident to `device`
        verify, pin       as the options of `stfs-gpu load`
        dequantize        "bf16", "f16", "f32": quantised weights as their values
        layers            "delta=DIR", "lora=[SCALE@]DIR", "edit=FILE": the words of `stfs -o`

        Without names: everything that `stfs-gpu run` gave this process.
        """
        encoded = [_bytes(name) for name in names]
        options = _Options(
            size=ctypes.sizeof(_Options), device=_encode(device), as_=_encode(as_),
            shard=_encode(shard), load_if_missing=load_if_missing, verify=verify, pin=pin,
            dequantize=_encode(dequantize), name_bytes=(ctypes.c_size_t * len(names))(*map(len, encoded)))
        if layers:
            options.layers = (ctypes.c_char_p * (len(layers) + 1))(*map(_encode, layers), None)
        array = (ctypes.c_char_p * len(names))(*encoded)
        owner, place = slot(b"stfs_gpu_tensors")
        self._handle.call(library.stfs_gpu_acquire, array, len(names), ctypes.byref(options), place)
        return Tensors(owner, place)

    def close(self) -> None:
        """Ends the connection; acquired tensors stay until they are released."""
        self._handle.close()

    def __enter__(self) -> "Connection":
        return self

    def __exit__(self, *exception: Any) -> None:
        self.close()


def _bytes(text: Any) -> bytes:
    """Encodes str, bytes and paths: the inverse of text_of()."""
    text = os.fspath(text)
    encoded: bytes = text.encode(errors="surrogateescape") if isinstance(text, str) else text
    return encoded


def _encode(text: Any) -> Optional[bytes]:
    if text is None:
        return None
    encoded = _bytes(text)
    if b"\0" in encoded:
        raise ValueError("the text contains a NUL")
    return encoded


def connect(path: Optional[_Name] = None, start_holder: bool = True) -> Connection:
    """Connects to the holder on the socket at `path`; None: this user's."""
    owner, place = slot(b"stfs_gpu_connection")
    check(library.stfs_gpu_connect(_encode(path), _START_HOLDER if start_holder else 0, place))
    return Connection(owner, place)


def acquire(*names: _Name, **options: Any) -> Tensors:
    """connect().acquire(...) for a program that needs one."""
    with connect() as connection:
        return connection.acquire(*names, **options)
