"""Clients that measure. Rates are in GB/s (10^9 bytes), times in seconds."""

from __future__ import annotations

import ctypes
import importlib.metadata
import mmap
import os
import statistics
import threading
import time
from pathlib import Path
from typing import Any, Callable

import stfs_gpu

from checkpoints import MIB, tensors_of
from driver import (ADDRESS, DESCRIPTOR, INT, INVALID_VALUE, NOT_SUPPORTED, ON_DEVICE, PINNED, READ,
                    READ_AND_WRITE, Access, AllocationProperties, DriverError, Gpu, Location,
                    open_memory)
from readers import acquire_all, say

TILE = 4 * MIB
GRANULARITY = 2 * MIB


class Stopwatch:
    """Records the time since the last stage under a name."""

    def __init__(self) -> None:
        self.stages: dict[str, float] = {}
        self.since = time.perf_counter()

    def __call__(self, stage: str) -> None:
        now = time.perf_counter()
        self.stages[stage] = now - self.since
        self.since = time.perf_counter()


def map_memory(gpu: Gpu, handle: ADDRESS, size: int, access: int) -> tuple[ADDRESS, int]:
    """Maps memory, READ_AND_WRITE if the driver refuses READ, like stfs. Returns address and access."""
    address, where = ADDRESS(), Location(ON_DEVICE, gpu.ordinal)
    gpu.call("cuMemAddressReserve", address, size, 0, 0, 0)
    gpu.call("cuMemMap", address, size, 0, handle, 0)
    if access == READ:
        status = gpu.status("cuMemSetAccess", address, size, Access(where, READ), 1)
        if status == 0:
            return address, READ
        if status not in (INVALID_VALUE, NOT_SUPPORTED):
            raise DriverError(f"cuMemSetAccess: CUresult {status}")
    gpu.call("cuMemSetAccess", address, size, Access(where, READ_AND_WRITE), 1)
    return address, READ_AND_WRITE


def unmap_memory(gpu: Gpu, address: ADDRESS, size: int) -> None:
    gpu.call("cuMemUnmap", address, size)
    gpu.call("cuMemAddressFree", address, size)


def stages(device: str, size_text: str) -> None:
    """Runs the stages of a copier and of a client in a new process. Prints their times, even if a later
    stage fails."""
    size = max(int(size_text) // GRANULARITY, 1) * GRANULARITY
    watch = Stopwatch()
    try:
        gpu = Gpu(device)
        watch("dlopen")
        gpu.call("cuInit", 0)
        watch("cuInit")
        gpu.retain()
        watch("context")
        with gpu.pinned(3 * TILE) as host:
            watch("pinning 12 MiB")
            use_memory(gpu, host, size, watch)
    finally:
        say(bytes=size, **watch.stages)


def use_memory(gpu: Gpu, host: int, size: int, watch: Stopwatch) -> None:
    """Fills memory from the pinned tile, exports it, and maps it again like a client."""
    stream, handle = gpu.stream(), ADDRESS()
    properties = AllocationProperties(PINNED, DESCRIPTOR, Location(ON_DEVICE, gpu.ordinal))
    gpu.call("cuMemCreate", handle, size, properties, 0)
    watch("create")
    address, _ = map_memory(gpu, handle, size, READ_AND_WRITE)
    watch("map")
    for at in range(0, size, TILE):
        gpu.call("cuMemcpyHtoDAsync_v2", address.value + at, host, min(TILE, size - at), stream)
    gpu.call("cuStreamSynchronize", stream)
    watch("copy")
    descriptor = INT()
    gpu.call("cuMemExportToShareableHandle", descriptor, handle, DESCRIPTOR, 0)
    watch("export")
    unmap_memory(gpu, address, size)
    gpu.call("cuMemRelease", handle)
    watch("unmap and release")
    gpu.call("cuMemImportFromShareableHandle", handle, descriptor.value, DESCRIPTOR)
    watch("import")
    address, access = map_memory(gpu, handle, size, READ)
    watch("map for reading" if access == READ else "map (no read-only)")
    unmap_memory(gpu, address, size)
    gpu.call("cuMemRelease", handle)
    os.close(descriptor.value)
    watch("free")


def in_threads(count: int, work: Callable[[int], None]) -> float:
    """Runs work(i) on each of `count` threads. Returns the seconds. Raises the first error."""
    failures: list[BaseException] = []

    def guarded(number: int) -> None:
        try:
            work(number)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=guarded, args=[number]) for number in range(count)]
    begin = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
    return time.perf_counter() - begin


def ceilings(device: str, size_text: str, file: str) -> None:
    """Copies pinned memory to the device, and the page cache to pinned memory, with one and with eight
    threads. Each thread copies its own pinned tile again and again."""
    threads, total = 8, int(size_text)
    gpu = Gpu(device).open()
    fd = os.open(file, os.O_RDONLY)
    file_size = os.fstat(fd).st_size
    with gpu.pinned(threads * TILE) as host, gpu.memory(threads * TILE) as memory:
        tiles = [(ctypes.c_char * TILE).from_address(host + i * TILE) for i in range(threads)]

        def send(number: int, count: int) -> None:
            gpu.make_current()
            stream = gpu.stream()
            for _ in range(count):
                gpu.call("cuMemcpyHtoDAsync_v2", memory + number * TILE, host + number * TILE, TILE,
                         stream)
            gpu.call("cuStreamSynchronize", stream)

        def read(number: int, count: int, of: int) -> None:
            for i in range(count):
                at = (number + i * of) * TILE % max(file_size - TILE, 1)
                if os.preadv(fd, [tiles[number]], at) != TILE:
                    raise OSError(f"{file}: a read at {at} was short")

        rates = {}
        for of in (1, threads):
            count = max(total // TILE // of, 1)
            moved = count * of * TILE / 1e9
            name = f"{of} thread" + "s" * (of > 1)
            rates[f"pinned to device, {name}"] = max(
                moved / in_threads(of, lambda i: send(i, count)) for _ in range(3))
            rates[f"page cache to pinned, {name}"] = max(
                moved / in_threads(of, lambda i: read(i, count, of)) for _ in range(3))
    os.close(fd)
    say(**rates)


def plain(device: str, size_text: str, file: str) -> None:
    """Copies the page cache to new host memory with eight threads."""
    threads, size = 8, int(size_text)
    fd = os.open(file, os.O_RDONLY)
    with mmap.mmap(-1, size) as memory, memoryview(memory) as view:

        def read(number: int) -> None:
            for at in range(number * TILE, size, threads * TILE):
                with view[at:at + TILE] as tile:
                    if os.preadv(fd, [tile], at) != len(tile):
                        raise OSError(f"{file}: a read at {at} was short")

        seconds = in_threads(threads, read)
    os.close(fd)
    say(rate=size / seconds / 1e9)


def acquire(device: str, file: str, *counts: str) -> None:
    """Prints the median seconds to acquire resident tensors over one connection."""
    names = [f"{file}::{tensor.name}" for tensor in tensors_of(Path(file))]
    medians = {}
    open_memory(device)  # keeps a context, like a program that uses the GPU
    with stfs_gpu.connect(start_holder=False) as connection:
        for count in map(int, counts):
            took = []
            for _ in range(3):
                begin = time.perf_counter()
                acquired = connection.acquire(*names[:count], device=device)
                took.append(time.perf_counter() - begin)
                acquired.release()
            medians[str(count)] = statistics.median(took)
    say(**medians)


def first(device: str, file: str, name: str, how: str) -> None:
    """Starts like a program that needs one tensor. If FILE is empty, starts without stfs."""
    if how == "with":
        import torch
        if not file:
            torch.zeros(1, device=torch.device(device)).sum().item()
            return say(done=True)
    elif not file:
        return say(done=True)
    with stfs_gpu.connect(start_holder=False) as connection:
        acquired = connection.acquire(f"{file}::{name}", device=device, load_if_missing=True)
        if how == "with":
            torch.from_dlpack(acquired[0]).flatten()[:1].float().sum().item()
    say(done=True)


# --- other loaders, and stfs with the same interface

def by_load_file(torch: Any, device: str, path: str) -> Any:
    from safetensors.torch import load_file
    return load_file(path, device=device)


def by_safe_open(torch: Any, device: str, path: str) -> Any:
    from safetensors import safe_open
    with safe_open(path, framework="pt", device=device) as file:
        return [file.get_tensor(name) for name in file.keys()]


def by_fastsafetensors(torch: Any, device: str, path: str) -> Any:
    from fastsafetensors import SafeTensorsFileLoader, SingleGroup
    loader = SafeTensorsFileLoader(SingleGroup(), torch.device(device), nogds=True)
    loader.add_filenames({0: [path]})
    buffer = loader.copy_files_to_device()
    tensors = [buffer.get_tensor(name).clone() for name in buffer.key_to_rank_lidx]
    buffer.close()
    loader.close()
    return tensors


def by_stfs(torch: Any, device: str, path: str) -> Any:
    with stfs_gpu.connect(start_holder=False) as connection:
        acquired = acquire_all(connection, device, Path(path), load=True)
    return [torch.from_dlpack(tensor) for tensor in acquired.values()] if torch else acquired.values()


LOADERS: dict[str, tuple[str, Callable[[Any, str, str], Any]]] = {
    "load_file": ("safetensors", by_load_file), "safe_open": ("safetensors", by_safe_open),
    "fastsafetensors": ("fastsafetensors", by_fastsafetensors), "stfs": ("", by_stfs)}


def rate(device: str, file: str, loader: str, how: str) -> None:
    """Loads once. Prints the seconds without the start of PyTorch and its context."""
    package, load = LOADERS[loader]
    torch = None
    if how == "with":
        import torch
        if device != "cpu":
            torch.zeros(1, device=device)
    begin = time.perf_counter()
    kept = load(torch, device, file)
    if torch and device != "cpu":
        torch.cuda.synchronize()
    seconds = time.perf_counter() - begin
    del kept
    say(seconds=seconds, version=importlib.metadata.version(package) if package else "")


VERBS = {"stages": stages, "ceilings": ceilings, "plain": plain, "acquire": acquire, "first": first,
         "rate": rate}
