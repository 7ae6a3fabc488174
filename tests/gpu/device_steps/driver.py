"""Reads and measures the memory of a device without stfs: through ctypes and the CUDA driver, or in host
memory. The library is $STFS_GPU_DRIVER, or libcuda.so.1 if that is not set.

A process that opens a device has a context until it ends. Therefore only clients.py opens devices.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
from typing import Any, Iterator

HANDLE, ADDRESS, SIZE = ctypes.c_void_p, ctypes.c_uint64, ctypes.c_size_t
INT, UINT = ctypes.c_int, ctypes.c_uint


class DriverError(Exception):
    pass


class Location(ctypes.Structure):
    _fields_ = [("type", INT), ("id", INT)]


class AllocationProperties(ctypes.Structure):  # CUmemAllocationProp
    _fields_ = [("type", INT), ("handle_types", INT), ("location", Location),
                ("windows", HANDLE), ("flags", ctypes.c_ubyte * 8)]


class Access(ctypes.Structure):  # CUmemAccessDesc
    _fields_ = [("location", Location), ("flags", INT)]


PINNED, DESCRIPTOR, ON_DEVICE, READ, READ_AND_WRITE = 1, 1, 1, 1, 3  # constants in cuda.h
NON_BLOCKING, PORTABLE = 1, 1
INVALID_VALUE, NOT_SUPPORTED = 1, 801  # CUresult

# cuda.h gives some functions a versioned symbol. The symbol without a version has another signature.
FUNCTIONS: dict[str, list[Any]] = {
    "cuInit": [UINT],
    "cuDriverGetVersion": [ctypes.POINTER(INT)],
    "cuDeviceGet": [ctypes.POINTER(INT), INT],
    "cuDevicePrimaryCtxRetain": [ctypes.POINTER(HANDLE), INT],
    "cuCtxPushCurrent_v2": [HANDLE],
    "cuMemGetInfo_v2": [ctypes.POINTER(SIZE), ctypes.POINTER(SIZE)],
    "cuMemAlloc_v2": [ctypes.POINTER(ADDRESS), SIZE],
    "cuMemFree_v2": [ADDRESS],
    "cuMemHostAlloc": [ctypes.POINTER(HANDLE), SIZE, UINT],
    "cuMemFreeHost": [HANDLE],
    "cuMemcpyDtoH_v2": [HANDLE, ADDRESS, SIZE],
    "cuMemcpyHtoDAsync_v2": [ADDRESS, HANDLE, SIZE, HANDLE],
    "cuMemcpyDtoHAsync_v2": [HANDLE, ADDRESS, SIZE, HANDLE],
    "cuMemsetD8Async": [ADDRESS, ctypes.c_ubyte, SIZE, HANDLE],
    "cuStreamCreate": [ctypes.POINTER(HANDLE), UINT],
    "cuStreamSynchronize": [HANDLE],
    "cuMemCreate": [ctypes.POINTER(ADDRESS), SIZE, ctypes.POINTER(AllocationProperties), ADDRESS],
    "cuMemRelease": [ADDRESS],
    "cuMemAddressReserve": [ctypes.POINTER(ADDRESS), SIZE, SIZE, ADDRESS, ADDRESS],
    "cuMemAddressFree": [ADDRESS, SIZE],
    "cuMemMap": [ADDRESS, SIZE, SIZE, ADDRESS, ADDRESS],
    "cuMemUnmap": [ADDRESS, SIZE],
    "cuMemSetAccess": [ADDRESS, SIZE, ctypes.POINTER(Access), SIZE],
    "cuMemExportToShareableHandle": [ctypes.POINTER(INT), ADDRESS, INT, ADDRESS],
    "cuMemImportFromShareableHandle": [ctypes.POINTER(ADDRESS), HANDLE, INT],
}


class Gpu:
    """A GPU. Its primary context is current on this thread."""

    def __init__(self, device: str) -> None:
        self.library = ctypes.CDLL(os.environ.get("STFS_GPU_DRIVER") or "libcuda.so.1")
        for name, arguments in FUNCTIONS.items():
            getattr(self.library, name).argtypes = arguments
        self.ordinal = int(device.partition(":")[2])
        self.context = HANDLE()

    def open(self) -> Gpu:
        self.call("cuInit", 0)
        self.retain()
        return self

    def retain(self) -> None:
        number = INT()
        self.call("cuDeviceGet", number, self.ordinal)
        self.call("cuDevicePrimaryCtxRetain", self.context, number)
        self.make_current()

    def make_current(self) -> None:
        self.call("cuCtxPushCurrent_v2", self.context)

    def status(self, name: str, *arguments: Any) -> int:
        """Returns the CUresult of a call. ctypes passes a number by reference for a declared pointer."""
        return getattr(self.library, name)(*arguments)

    def call(self, name: str, *arguments: Any) -> None:
        status = self.status(name, *arguments)
        if status != 0:
            raise DriverError(f"{name}: CUresult {status}")

    def version(self) -> int:
        number = INT()
        self.call("cuDriverGetVersion", number)
        return number.value

    def free_bytes(self) -> int:
        free, total = SIZE(), SIZE()
        self.call("cuMemGetInfo_v2", free, total)
        return free.value

    def read(self, address: int, into: ctypes.Array) -> None:
        self.call("cuMemcpyDtoH_v2", ctypes.addressof(into), address, len(into))

    def stream(self) -> HANDLE:
        made = HANDLE()
        self.call("cuStreamCreate", made, NON_BLOCKING)
        return made

    @contextlib.contextmanager
    def pinned(self, size: int) -> Iterator[int]:
        address = HANDLE()
        self.call("cuMemHostAlloc", address, size, PORTABLE)
        try:
            yield address.value or 0
        finally:
            self.call("cuMemFreeHost", address)

    @contextlib.contextmanager
    def memory(self, size: int) -> Iterator[int]:
        address = ADDRESS()
        self.call("cuMemAlloc_v2", address, size)
        try:
            yield address.value
        finally:
            self.call("cuMemFree_v2", address)


class Host:
    """Memory of this process. Used if the device is cpu."""

    def read(self, address: int, into: ctypes.Array) -> None:
        ctypes.memmove(into, address, len(into))


def open_memory(device: str) -> Gpu | Host:
    return Host() if device == "cpu" else Gpu(device).open()


def differs_at(memory: Gpu | Host, address: int, expected: Iterator[bytes]) -> int | None:
    """Returns the offset of the first byte that differs from the expected pieces, or None."""
    at = 0
    for piece in expected:
        found = (ctypes.c_char * len(piece))()
        memory.read(address + at, found)
        if found.raw != piece:
            return at + next(i for i, (a, b) in enumerate(zip(found.raw, piece)) if a != b)
        at += len(piece)
    return None
