"""libstfs through ctypes: structs, prototypes, failures as exceptions. <stfs.h> and <stfs_gpu.h> say what each function does."""

import _thread
import ctypes
import errno
import functools
import glob
import os
import struct
import sys
import threading
import types
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Tuple

from ._errors import error_of

Handle = ctypes.c_void_p


class Table(ctypes.Structure):
    _fields_ = [("size", ctypes.c_size_t), ("count", ctypes.c_size_t), ("stride", ctypes.c_size_t),
                ("first", ctypes.c_void_p), ("names", ctypes.c_void_p), ("names_bytes", ctypes.c_size_t)]


class Row(NamedTuple):
    """A stfs_tensor. Pointers are addresses, 0 for NULL."""

    name: int
    name_bytes: int
    dtype: int
    rank: int
    shape: int
    elements: int
    bytes: int
    source: int
    offset: int
    source_bytes: int


ROW = struct.Struct("@PNPNPQQPQQ")  # ctypes would take three times as long to read the fields


class SaveOptions(ctypes.Structure):
    _fields_ = [("size", ctypes.c_size_t), ("shard_bytes", ctypes.c_uint64), ("replace", ctypes.c_int)]


class Part(ctypes.Structure):
    _fields_ = [("size", ctypes.c_size_t), ("tensor", ctypes.c_size_t), ("slice", ctypes.c_char_p),
                ("as_", ctypes.c_char_p)]


TEXT_INFO, TEXT_TENSOR, TEXT_FROM, TEXT_KEY, TEXT_METADATA = range(5)
EXPORT_BYTES = 1


def _load() -> ctypes.CDLL:
    """Loads $STFS_LIBRARY, or else the library beside this file or installed with it, or else the dynamic linker's."""
    here = os.path.dirname(os.path.realpath(__file__))
    prefix = os.path.normpath(os.path.join(here, *[".."] * 4))  # PREFIX/lib/python3/dist-packages/stfs
    # A wheel has the library in libexec/stfs, which pip --target puts beside the modules.
    places = [os.path.join(root, "libexec", "stfs", "libstfs.so.0") for root in (prefix, os.path.dirname(here))]
    places += [os.path.join(here, "libstfs.so.0")]
    for directory in ("lib", "lib64", "lib/*"):
        places += glob.glob(os.path.join(glob.escape(prefix), directory, "libstfs.so.0"))
    found = [place for place in places if os.path.exists(place)]
    path = os.environ.get("STFS_LIBRARY") or (found + ["libstfs.so.0"])[0]
    try:
        return _declare(ctypes.CDLL(path))
    except OSError as error:
        raise ImportError(f"libstfs cannot be loaded: {error}. Install stfs, or set STFS_LIBRARY to the "
                          "path of libstfs.so.0") from error
    except AttributeError as error:
        raise ImportError(f"{path} is not the libstfs of this module: {error}. Install both of one version, "
                          "or set STFS_LIBRARY") from error


def _declare(library: ctypes.CDLL) -> ctypes.CDLL:
    size, out, text = ctypes.c_size_t, ctypes.POINTER(Handle), ctypes.c_char_p
    sizes, part = ctypes.POINTER(size), ctypes.POINTER(Part)
    texts = ctypes.POINTER(text)
    functions: List[Any] = [
        ("last_error", text), ("last_errno", ctypes.c_int), ("version", text),
        ("open", ctypes.c_int, texts, size, texts, size, ctypes.c_void_p, out),
        ("close", None, Handle), ("cancel", None, Handle), ("is_remote", ctypes.c_int, Handle),
        ("has_secrets", ctypes.c_int, Handle),
        ("checkpoint_version", text, Handle), ("source", text, Handle, size),
        ("option", text, Handle, size), ("warning", text, Handle, size),
        ("tensors", ctypes.c_int, Handle, ctypes.POINTER(Table)),
        ("find", ctypes.c_int, Handle, text, size, sizes),
        ("match", ctypes.c_int, Handle, text, size, ctypes.c_void_p, size, sizes),
        ("read", ctypes.c_int, Handle, part, ctypes.c_uint64, ctypes.c_void_p, size),
        ("map", ctypes.c_int, Handle, size, ctypes.c_uint64, ctypes.c_uint64, out),
        ("map_private", ctypes.c_int, Handle, part, out, out),
        ("map_private_file", ctypes.c_int, Handle, size, out, out), ("unmap", None, Handle),
        ("export", ctypes.c_int, Handle, part, ctypes.c_uint, out),
        ("export_unversioned", ctypes.c_int, Handle, part, ctypes.c_uint, out),
        ("save", ctypes.c_int, Handle, text, ctypes.POINTER(SaveOptions), ctypes.POINTER(ctypes.c_uint64)),
        ("save_delta", ctypes.c_int, Handle, Handle, text, texts, size, sizes),
        ("prefetch", ctypes.c_int, Handle, sizes, size),
        ("python_ended", None, ctypes.POINTER(ctypes.c_int)),
        ("follow", ctypes.c_int, text, texts, size, out), ("next_version", ctypes.c_int, Handle, ctypes.POINTER(text)),
        ("follow_cancel", None, Handle),
        ("gpu_connect", ctypes.c_int, text, ctypes.c_uint, out),
        ("gpu_acquire", ctypes.c_int, Handle, texts, size, ctypes.c_void_p, out), ("gpu_count", size, Handle),
        ("gpu_info", ctypes.c_int, Handle, size, ctypes.c_void_p),
        ("gpu_read_f32", ctypes.c_int, Handle, size, ctypes.c_void_p, size),
        ("gpu_export", ctypes.c_int, Handle, size, ctypes.c_uint, out),
        ("gpu_export_unversioned", ctypes.c_int, Handle, size, ctypes.c_uint, out)]
    for name, result, *arguments in functions:
        function = getattr(library, "stfs_" + name)
        function.restype, function.argtypes = result, arguments
    return library


library = _load()
if not hasattr(ctypes.CDLL(None), "PyCapsule_New"):
    raise ImportError("this program loaded libpython without RTLD_GLOBAL, which stfs needs")


def version() -> str:
    """The version of the library, "0.2.0"."""
    return str(library.stfs_version(), "ascii")


def check(status: int) -> None:
    """Raises the exception for a status that is not 0."""
    if status != 0:
        raise error_of(status, library.stfs_last_error().decode(errors="replace"), library.stfs_last_errno())


# Functions of type PYFUNCTYPE are called with the GIL held.
_wait = ctypes.PYFUNCTYPE(ctypes.c_int, Handle, ctypes.py_object, ctypes.POINTER(ctypes.c_int))(
    ("stfs_python_wait", library))
_new_slot = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_char_p, ctypes.POINTER(ctypes.POINTER(Handle)))(
    ("stfs_python_slot", library))
_text = ctypes.PYFUNCTYPE(ctypes.py_object, Handle, ctypes.c_int, ctypes.c_size_t, ctypes.POINTER(ctypes.c_int))(
    ("stfs_python_text", library))
release = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.py_object)(("stfs_python_release", library))


def text(handle: Optional[int], which: int, number: int) -> str:
    """Returns a text of the checkpoint. Bytes that are not UTF-8 become surrogates, as in file names (os.fsdecode)."""
    status = ctypes.c_int()
    found = _text(handle, which, number, ctypes.byref(status))
    check(status.value)
    return str(found, errors="surrogateescape")


def interruptibly(call: Callable[[], Any], handle: Optional[int] = None) -> Any:
    """Makes a call on another thread, so that Ctrl-C can end a wait for the network: only while the main thread runs
    Python does it handle the signal.

    `handle` is the checkpoint of the call. If a signal handler raises an exception, the call is cancelled and has ended
    before this function raises it. Without a handle the call is abandoned, so the memory that it writes to must belong
    to it. If a handler forks, the child does not have the thread: the call fails in the child, which may repeat it.

    The calling thread makes the call, and Ctrl-C waits for it, if no thread can start, if the program has replaced
    start_new_thread (gevent's version starts no thread), and while Python exits.
    """
    start = _thread.start_new_thread
    if (threading.current_thread() is not threading.main_thread() or sys.is_finalizing()
            or not isinstance(start, types.BuiltinFunctionType)):
        return call()
    outcome: List[Tuple[Any, Optional[BaseException]]] = []
    has_ended = ctypes.c_int()

    def run() -> None:
        try:
            outcome.append((call(), None))
        except BaseException as exception:
            outcome.append((None, exception))
        finally:
            library.stfs_python_ended(ctypes.byref(has_ended))

    # The call is started and awaited in C, where handlers run only when C asks for it. It does not use a
    # threading.Thread, because before Python 3.13 a thread counts as ended if its join() was interrupted.
    if _wait(handle, functools.partial(start, run, ()), ctypes.byref(has_ended)):
        return call()
    if not has_ended.value:
        raise error_of(3, "the process forked while this call waited: call again in the child", errno.ECHILD)
    result, failure = outcome[0]
    if failure is not None:
        raise failure
    return result


def slot(name: bytes) -> Tuple[Any, Any]:
    """Returns an object that frees the result of a later call when the last reference to the object is dropped, and the
    place to which the call has to write the address of its result.

    Create it before the call, because a signal handler may raise an exception as soon as the call has returned. A
    finalizer would not do: in a cycle of garbage, __del__ may still use objects whose finalizers have run.
    """
    place = ctypes.POINTER(Handle)()
    owner = _new_slot(name, ctypes.byref(place))
    return owner, place


_dtypes: Dict[int, str] = {}  # equal names have equal pointers
_shapes = [ctypes.c_uint64 * rank for rank in range(9)]  # of the usual ranks, because ctypes is slow to make a type


def dtype_of(address: int) -> str:
    name = _dtypes.get(address)
    if name is None:
        name = _dtypes[address] = ctypes.string_at(address).decode()
    return name


def shape_of(address: int, rank: int) -> Tuple[int, ...]:
    kind = _shapes[rank] if rank < len(_shapes) else ctypes.c_uint64 * rank
    return tuple(kind.from_address(address)[:]) if rank else ()


def buffer(address: Optional[int], length: int, owner: Any) -> Any:
    """Returns memory as an object that keeps its owner alive."""
    array = (ctypes.c_ubyte * length).from_address(address or 0)
    array._owner = owner  # type: ignore[attr-defined]
    return array


def text_of(address: Optional[int], length: int) -> str:
    """Returns bytes of the library as str. Bytes that are not UTF-8 become surrogates (os.fsdecode)."""
    return ctypes.string_at(address, length).decode(errors="surrogateescape") if address else ""
