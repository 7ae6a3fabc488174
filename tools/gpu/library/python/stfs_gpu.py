"""Tensors that stfs-gpu keeps in device memory, for NumPy, PyTorch, CuPy, JAX.

    import stfs_gpu
    with stfs_gpu.connect() as connection:
        w = connection.acquire("/mnt/w/lm_head.weight", device="cpu", load_if_missing=True)[0]
        w.numpy()                       # host memory: a read-only view, nothing is copied
        w.numpy(as_="f32")              # a float32 copy of any floating type, BF16 too
        torch.from_dlpack(w)            # device memory (or host memory, see below): the same

The module uses libstfs_gpu through ctypes; only numpy(), raw() and arrays need NumPy. A tensor stays
in memory while its Tensors (the result of acquire()) or an array made from it exists.

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
import glob
import os
import threading
import weakref

__all__ = ["Connection", "Error", "Tensor", "Tensors", "acquire", "connect", "version"]

INVALID, USAGE, UNREADABLE, DEVICE = 1, 2, 3, 5  # Error.status: the exit statuses of stfs-gpu

_START_HOLDER = 1
_EXPORT_COPY = 1
_EXPORT_BYTES = 2
_DLPACK_CPU, _DLPACK_CUDA = 1, 2

# dtype -> typestr of NumPy's array interface. BF16 and the 8-bit floats have none.
_CODES = {
    "BOOL": "|b1", "U8": "|u1", "I8": "|i1", "U16": "<u2", "I16": "<i2", "F16": "<f2",
    "U32": "<u4", "I32": "<i4", "F32": "<f4", "C64": "<c8", "F64": "<f8", "I64": "<i8",
    "U64": "<u8",
}
_INTEGERS = {name for name, code in _CODES.items() if code[1] in "biu"}
# dtype -> its name in ml_dtypes, and the void type of its width for use without that package.
_ML_DTYPES = {
    "BF16": ("bfloat16", "V2"), "F8_E4M3": ("float8_e4m3fn", "V1"),
    "F8_E5M2": ("float8_e5m2", "V1"), "F8_E8M0": ("float8_e8m0fnu", "V1"),
    "F8_E4M3FNUZ": ("float8_e4m3fnuz", "V1"), "F8_E5M2FNUZ": ("float8_e5m2fnuz", "V1"),
}

_PACKED = {"F4", "F6_E2M3", "F6_E3M2"}  # elements that share bytes, for which DLPack has a type


class Error(Exception):
    """A failed call. `status` is the exit status of stfs-gpu for the same failure."""

    def __init__(self, status, message):
        super().__init__(message)
        self.status = status


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


class _DLTensor(ctypes.Structure):  # DLPack 1.1, with its nested structs flattened
    _fields_ = [
        ("data", ctypes.c_void_p), ("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32), ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16), ("shape", ctypes.c_void_p), ("strides", ctypes.c_void_p),
        ("byte_offset", ctypes.c_uint64),
    ]


_Deleter = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class _Managed(ctypes.Structure):  # DLManagedTensor
    _fields_ = [("tensor", _DLTensor), ("manager", ctypes.c_void_p), ("deleter", _Deleter)]
    capsule, consumed = b"dltensor", b"used_dltensor"


class _ManagedVersioned(ctypes.Structure):  # DLManagedTensorVersioned
    _fields_ = [
        ("major", ctypes.c_uint32), ("minor", ctypes.c_uint32), ("manager", ctypes.c_void_p),
        ("deleter", _Deleter), ("flags", ctypes.c_uint64), ("tensor", _DLTensor),
    ]
    capsule, consumed = b"dltensor_versioned", b"used_dltensor_versioned"


def _open_library(path):
    try:
        return _declare(ctypes.CDLL(path))
    except OSError as error:
        raise ImportError(
            f"libstfs_gpu cannot be loaded: {error}. Install stfs, or set STFS_GPU_LIBRARY to the "
            "path of libstfs_gpu.so.0") from error
    except AttributeError as error:
        raise ImportError(
            f"{path} is not the libstfs_gpu of this module: {error}. Install stfs_gpu.py and "
            "libstfs_gpu of one version, or set STFS_GPU_LIBRARY") from error


def _load_library():
    """$STFS_GPU_LIBRARY, else the library installed with this file, else the dynamic linker's."""
    chosen = os.environ.get("STFS_GPU_LIBRARY")
    if chosen:
        return _open_library(chosen)
    here = os.path.dirname(os.path.realpath(__file__))
    prefix = os.path.normpath(os.path.join(here, *[".."] * 3))  # PREFIX/lib/python3/dist-packages/stfs_gpu.py
    for root in (prefix, here):  # a wheel has one library for both modules; `here` after pip --target
        path = os.path.join(root, "libexec", "stfs", "libstfs.so.0")
        if os.path.exists(path):
            return _open_library(path)
    for directory in ("lib", "lib64", "lib/*"):
        for path in glob.glob(os.path.join(glob.escape(prefix), directory, "libstfs_gpu.so.0")):
            return _open_library(path)
    return _open_library("libstfs_gpu.so.0")


def _declare(library):
    def function(name, result, *arguments):
        getattr(library, name).restype = result
        getattr(library, name).argtypes = arguments

    handle, out = ctypes.c_void_p, ctypes.POINTER(ctypes.c_void_p)
    function("stfs_gpu_last_error", ctypes.c_char_p)
    function("stfs_gpu_version", ctypes.c_char_p)
    function("stfs_gpu_connect", ctypes.c_int, ctypes.c_char_p, ctypes.c_uint, out)
    function("stfs_gpu_disconnect", None, handle)
    function("stfs_gpu_acquire", ctypes.c_int, handle, ctypes.POINTER(ctypes.c_char_p),
             ctypes.c_size_t, ctypes.POINTER(_Options), out)
    function("stfs_gpu_release", None, handle)
    function("stfs_gpu_count", ctypes.c_size_t, handle)
    function("stfs_gpu_info", ctypes.c_int, handle, ctypes.c_size_t, ctypes.POINTER(_Info))
    function("stfs_gpu_read_f32", ctypes.c_int, handle, ctypes.c_size_t, ctypes.c_void_p,
             ctypes.c_size_t)
    for name in ("stfs_gpu_export", "stfs_gpu_export_unversioned"):
        function(name, ctypes.c_int, handle, ctypes.c_size_t, ctypes.c_uint, out)
    return library


_library = _load_library()


def _check(status):
    if status != 0:
        raise Error(status, _library.stfs_gpu_last_error().decode(errors="replace"))


def version():
    return _library.stfs_gpu_version().decode()


# Own prototypes: every module shares those of ctypes.pythonapi.
def _python_api(name, result, *arguments):
    return ctypes.PYFUNCTYPE(result, *arguments)((name, ctypes.pythonapi))


_CapsuleDestructor = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
_capsule_new = _python_api("PyCapsule_New", ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p,
                           _CapsuleDestructor)
# c_void_p, not py_object: a reference would revive the capsule in its destructor.
_capsule_is_valid = _python_api("PyCapsule_IsValid", ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p)
_capsule_pointer = _python_api("PyCapsule_GetPointer", ctypes.c_void_p, ctypes.c_void_p,
                               ctypes.c_char_p)


def _destructor_of(managed):
    # Bind names as defaults: at interpreter exit the module's globals are cleared first.
    def destroy(capsule, managed=managed, name=managed.capsule, is_valid=_capsule_is_valid,
                pointer=_capsule_pointer):
        if is_valid(capsule, name):  # else a consumer renamed it, and calls the deleter
            address = pointer(capsule, name)
            managed.from_address(address).deleter(address)

    destructor = _CapsuleDestructor(destroy)
    # Never free it: capsules hold its address, not a reference.
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(destructor))
    return destructor


_destructors = {managed: _destructor_of(managed) for managed in (_Managed, _ManagedVersioned)}


class _View:
    """Keeps a tensor's memory for the array that refers to this object."""

    def __init__(self, tensor, code, shape):
        exported = tensor._export(_library.stfs_gpu_export, _EXPORT_BYTES)
        managed = _ManagedVersioned.from_address(exported)
        weakref.finalize(self, managed.deleter, exported).atexit = False
        self.interface = {
            "shape": shape, "typestr": code, "version": 3, "strides": None,
            "data": (tensor.ptr, True),  # read-only
        }

    @property
    def __array_interface__(self):
        return self.interface


_forks = 0


def _count_fork():
    global _forks
    _forks += 1


os.register_at_fork(after_in_child=_count_fork)


def _this_process():
    """Of this process and none of its ancestors. A pid is not: in nested namespaces many are 1."""
    return _forks, os.getpid()


class _Handle:
    """A handle of the library, freed when closed and no call uses it, or garbage collected.

    In a forked child it is useless, and its lock may belong to a thread that the child lacks.
    """

    def __init__(self, handle, free):
        self._value, self._lock, self._calls, self._is_closed = handle, threading.Lock(), 0, False
        self._process = _this_process()
        self._free = weakref.finalize(self, free, handle)
        self._free.atexit = False  # the process's end frees it

    def __enter__(self):
        if self._process != _this_process():
            raise Error(USAGE, "belongs to the parent process (fork)")
        with self._lock:
            if self._is_closed:
                raise Error(USAGE, "used after it was closed or released")
            self._calls += 1
        return self._value

    def __exit__(self, *exception):
        with self._lock:
            self._calls -= 1
            is_last = self._is_closed and self._calls == 0
        if is_last:
            self._free()

    def close(self):
        if self._process != _this_process():
            return
        with self._lock:
            self._is_closed = True
            is_last = self._calls == 0
        if is_last:
            self._free()


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

    def __init__(self, handle, index):
        self._handle, self._index = handle, index
        info = _Info(size=ctypes.sizeof(_Info))
        with handle as tensors:
            _check(_library.stfs_gpu_info(tensors, index, ctypes.byref(info)))
            self._fill(info)

    def _fill(self, info):
        self._device_type, self._device_ordinal = info.device_type, info.device_ordinal
        self._view = None
        self.name = _text(info.name, info.name_bytes)
        self.label = _text(info.label, info.label_bytes)
        self.key = info.key.decode(errors="surrogateescape")
        self.dtype = info.dtype.decode()
        self.shape = tuple(info.shape[:info.rank])
        self.nbytes = info.bytes
        self.device = info.device.decode()
        self.uuid = info.device_uuid.decode()
        self.ptr = info.pointer

    def __repr__(self):
        return f"<stfs_gpu.Tensor {self.label!r} {self.dtype} {list(self.shape)} on {self.device}>"

    def _export(self, function, flags):
        exported = ctypes.c_void_p()
        with self._handle as tensors:
            _check(function(tensors, self._index, flags, ctypes.byref(exported)))
        return exported.value

    def numpy(self, as_=None):
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
            raise ValueError(f'as_ is {as_!r}: it can be "f32" or None')
        code = _CODES.get(self.dtype)
        if code is None and self.dtype not in _ML_DTYPES:
            dlpack = ", raw() or DLPack" if self.dtype in _PACKED else " or raw()"
            raise TypeError(f'{self.dtype} has elements that share bytes: use '
                            f'numpy(as_="f32"){dlpack}')
        if code is not None:
            return self._array(numpy, code, self.shape)
        ml_name, code = _ML_DTYPES[self.dtype]
        array = self._array(numpy, "|" + code, self.shape)
        try:
            import ml_dtypes
        except ImportError:
            return array
        ml_dtype = getattr(ml_dtypes, ml_name, None)
        return array if ml_dtype is None else array.view(ml_dtype)

    def raw(self):
        """The bytes of any dtype, as a read-only array of unsigned bytes."""
        import numpy

        return self._array(numpy, "|u1", (self.nbytes,))

    def _floats(self, numpy):
        self._check_host()
        if self.dtype in ("C64", *_INTEGERS):
            raise TypeError(f"{self.dtype} is not a floating type: use numpy() without as_")
        array = numpy.empty(self.shape, numpy.float32)
        with self._handle as tensors:
            _check(_library.stfs_gpu_read_f32(tensors, self._index, array.ctypes.data, array.size))
        return array

    def _check_host(self):
        if self._device_type != _DLPACK_CPU:
            raise TypeError(f'on {self.device}: NumPy needs host memory; use DLPack, or load to '
                            'device="cpu"')

    def _array(self, numpy, code, shape):
        self._check_host()
        if self.nbytes == 0:
            array = numpy.empty(shape, code)
            array.flags.writeable = False
            return array
        return numpy.asarray(_View(self, code, shape))

    def __array__(self, dtype=None, copy=None):
        array = self.numpy()
        if dtype is not None and array.dtype != dtype:
            if copy is False:
                raise ValueError("another dtype needs a copy")
            return array.astype(dtype)
        return array.copy() if copy else array

    def _interface(self, device_type):
        # Raise AttributeError: consumers test with hasattr().
        if self._device_type != device_type:
            raise AttributeError(f"the tensor is on {self.device}: use DLPack")
        if self.dtype not in _CODES:
            raise AttributeError(f"{self.dtype} has no code in the array interface")
        if self._view is None:  # readers refer to this object, which keeps the memory
            self._view = _View(self, _CODES[self.dtype], self.shape)
        return self._view.interface

    @property
    def __array_interface__(self):
        if self.nbytes == 0:  # NumPy refuses a null pointer and calls __array__ next
            raise AttributeError("the tensor has no bytes: use DLPack")
        return self._interface(_DLPACK_CPU)

    @property
    def __cuda_array_interface__(self):
        # No "stream": all copies end before a tensor can be acquired. Read-only, which torch refuses.
        return dict(self._interface(_DLPACK_CUDA))

    def __dlpack_device__(self):
        return (self._device_type, self._device_ordinal)

    def __dlpack__(self, stream=None, max_version=None, dl_device=None, copy=None):
        """A DLPack capsule, for any stream: all copies have ended.

        Versioned if `max_version` is at least 1.0.
        """
        if self._device_type == _DLPACK_CPU and stream is not None:
            raise ValueError("host memory has no streams: stream must be None")
        if dl_device is not None and tuple(map(int, dl_device)) != self.__dlpack_device__():
            raise BufferError(f"on {self.device}, not exportable to {tuple(dl_device)}")
        is_versioned = max_version is not None and max_version[0] >= 1
        managed = _ManagedVersioned if is_versioned else _Managed
        function = (_library.stfs_gpu_export if is_versioned
                    else _library.stfs_gpu_export_unversioned)
        try:
            exported = self._export(function, _EXPORT_COPY if copy else 0)
        except Error as error:
            raise BufferError(str(error)) from error
        return _capsule_new(exported, managed.capsule, _destructors[managed])


class Tensors(collections.abc.Mapping):
    """The tensors of one acquire(), in request order: a mapping from their names, or from labels where
    several have one name. tensors["w"] takes a name or a label, and tensors[0] a position.

    release(), or the end of a `with` block, releases them; arrays made from them stay valid.
    """

    def __init__(self, handle):
        self._handle = _Handle(handle, _library.stfs_gpu_release)
        count = _library.stfs_gpu_count(handle)
        self._all = [Tensor(self._handle, index) for index in range(count)]

    def __len__(self):
        return len(self._all)

    def __iter__(self):
        return iter([t.name if t.name in self else t.label for t in self._all])

    def __getitem__(self, which):
        if not isinstance(which, str):
            return self._all[which]
        found = self._found(which)
        if found is None:
            several = any(t.name == which for t in self._all)
            raise KeyError(f"{which}: several have this name, use a label" if several else which)
        return found

    def __contains__(self, which):
        return isinstance(which, str) and self._found(which) is not None

    def _found(self, which):
        """None: there is none, or several have this name. One that was asked for twice is one."""
        by_label = {t.label: t for t in self._all if which in (t.label, t.name)}
        if which in by_label:
            return by_label[which]
        return next(iter(by_label.values())) if len(by_label) == 1 else None

    def values(self):
        return list(self._all)

    def items(self):
        return list(zip(self, self._all))

    def names(self):
        return [tensor.name for tensor in self._all]

    def release(self):
        self._handle.close()

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self.release()


class Connection:
    """A connection to the holder, for many threads."""

    def __init__(self, handle):
        self._handle = _Handle(handle, _library.stfs_gpu_disconnect)

    def acquire(self, *names, device=None, as_=None, shard=None, load_if_missing=False,
                verify=False, pin=False, dequantize=None, layers=()):
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
            dequantize=_encode(dequantize))
        if any(b"\0" in name for name in encoded):  # an earlier library refuses what it lacks
            options.name_bytes = (ctypes.c_size_t * len(names))(*map(len, encoded))
        if layers:
            options.layers = (ctypes.c_char_p * (len(layers) + 1))(*map(_encode, layers), None)
        array = (ctypes.c_char_p * len(names))(*encoded)
        tensors = ctypes.c_void_p()
        with self._handle as connection:
            _check(_library.stfs_gpu_acquire(connection, array, len(names), ctypes.byref(options),
                                             ctypes.byref(tensors)))
        return Tensors(tensors.value)

    def close(self):
        """Ends the connection; acquired tensors stay until they are released."""
        self._handle.close()

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self.close()


def _text(address, size):
    # An earlier library leaves the size 0: its text ends at the first NUL.
    return ctypes.string_at(address, size or -1).decode(errors="surrogateescape")


def _bytes(text):
    """Of str, bytes and paths: the inverse of _text()."""
    text = os.fspath(text)
    return text.encode(errors="surrogateescape") if isinstance(text, str) else text


def _encode(text):
    if text is None:
        return None
    encoded = _bytes(text)
    if b"\0" in encoded:
        raise ValueError("a NUL")
    return encoded


def connect(path=None, start_holder=True):
    """Connects to the holder on the socket at `path`; None: this user's."""
    handle = ctypes.c_void_p()
    _check(_library.stfs_gpu_connect(_encode(path), _START_HOLDER if start_holder else 0,
                                     ctypes.byref(handle)))
    return Connection(handle.value)


def acquire(*names, **options):
    """connect().acquire(...) for a program that needs one."""
    with connect() as connection:
        return connection.acquire(*names, **options)
