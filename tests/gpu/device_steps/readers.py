"""Clients that read tensors and compare them with their source."""

from __future__ import annotations

import ctypes
import json
import os
import resource
import select
import sys
import time
from pathlib import Path
from typing import Any

import stfs_gpu

import checkpoints
from checkpoints import Tensor, pieces, tensors_of
from driver import Gpu, differs_at, open_memory
from house import memory_of_host


class Wrong(Exception):
    pass


def say(**values: Any) -> None:
    print(json.dumps(values), flush=True)


def compare_all(memory: Any, path: Path, tensors: list[Tensor], acquired: Any) -> int:
    for tensor, found in zip(tensors, acquired.values()):
        if (found.name, found.dtype, list(found.shape), found.nbytes) != (
                tensor.name, tensor.dtype, tensor.shape, tensor.size):
            raise Wrong(f"{found!r} instead of {tensor}")
        at = differs_at(memory, found.ptr, pieces(path, tensor))
        if at is not None:
            raise Wrong(f"{tensor.name}: byte {at} differs from the source")
    return sum(tensor.size for tensor in tensors)


def acquire_all(connection: Any, device: str, path: Path, load: bool = False) -> Any:
    names = [f"{path}::{tensor.name}" for tensor in tensors_of(path)]
    return connection.acquire(*names, device=device, load_if_missing=load)


def compare(device: str, file: str, *settings: str) -> None:
    chosen = dict(word.split("=") for word in settings)
    old_hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if "soft" in chosen:
        hard = int(chosen.get("hard", old_hard))
        resource.setrlimit(resource.RLIMIT_NOFILE, (int(chosen["soft"]), hard))
    path = Path(file)
    with stfs_gpu.connect(start_holder=False) as connection:
        with acquire_all(connection, device, path, "load" in chosen) as acquired:
            count = len(acquired)
            total = compare_all(open_memory(device), path, tensors_of(path), acquired)
    say(tensors=count, bytes=total)


def read(device: str, file: str) -> None:
    path = Path(file)
    tensors = tensors_of(path)
    with stfs_gpu.connect(start_holder=False) as connection:
        acquired = acquire_all(connection, device, path)
    memory = open_memory(device)
    while not select.select([sys.stdin], [], [], 0)[0]:
        begun = time.monotonic()  # all processes share this clock
        compare_all(memory, path, tensors, acquired)
        say(begun=begun)


def hold(device: str, file: str) -> None:
    with stfs_gpu.connect(start_holder=False) as connection:
        acquired = acquire_all(connection, device, Path(file))
    open_memory(device)
    say(tensors=len(acquired))
    sys.stdin.read()


def one_by_one(device: str, file: str) -> None:
    open_memory(device)  # keeps a context, like a program that uses the GPU
    with stfs_gpu.connect(start_holder=False) as connection:
        tensors = tensors_of(Path(file))
        for tensor in tensors:
            connection.acquire(f"{file}::{tensor.name}", device=device,
                               load_if_missing=True).release()
    say(tensors=len(tensors))


def expect(memory: Any, what: str, tensor: Any, expected: bytes) -> None:
    if tensor.nbytes != len(expected):
        raise Wrong(f"{what}: {tensor.nbytes} bytes instead of {len(expected)}")
    at = differs_at(memory, tensor.ptr, iter([expected]))
    if at is not None:
        raise Wrong(f"{what}: byte {at} is wrong")


def convert(device: str, file: str, *types: str) -> None:
    """Compares converted values. Python floats hold the stored values exactly, so each rounds once."""
    path = Path(file)
    memory = open_memory(device)
    with stfs_gpu.connect(start_holder=False) as connection:
        for tensor in tensors_of(path):
            values = checkpoints.decode(b"".join(pieces(path, tensor)), tensor.dtype)
            for to in types:
                with connection.acquire(f"{file}::{tensor.name}", device=device, as_=to,
                                        load_if_missing=True) as acquired:
                    expect(memory, f"{tensor.name} as {to}", acquired[0],
                           checkpoints.encode(values, to.upper()))
    say(done=True)


def part_of(tensor: Tensor, data: bytes, rank: int, world: int, dimension: int) -> bytes:
    """Returns the bytes of one of `world` equal parts of a matrix, by rows (0) or columns (1)."""
    rows, columns = tensor.shape
    width = tensor.size // rows
    if dimension == 0:
        part = rows // world * width
        return data[rank * part:(rank + 1) * part]
    part = columns // world * (width // columns)
    return b"".join(data[row * width + rank * part:row * width + (rank + 1) * part]
                    for row in range(rows))


def shard(device: str, file: str, *parts: str) -> None:
    path = Path(file)
    tensor = tensors_of(path)[0]
    data = b"".join(pieces(path, tensor))
    memory = open_memory(device)
    with stfs_gpu.connect(start_holder=False) as connection:
        for part in parts:
            rank, world, dimension = map(int, part.replace("@", "/").split("/"))
            with connection.acquire(f"{file}::{tensor.name}", device=device, shard=part,
                                    load_if_missing=True) as acquired:
                expect(memory, part, acquired[0], part_of(tensor, data, rank, world, dimension))
    say(done=True)


def drop(device: str, file: str) -> None:
    """Releases a tensor while many copies from it are queued. The copies must succeed and have its
    bytes."""
    path = Path(file)
    tensor = max(tensors_of(path), key=lambda one: one.size)
    size, copies = min(tensor.size, checkpoints.PIECE), 16
    expected = next(pieces(path, tensor))[:size]
    gpu = open_memory(device)
    assert isinstance(gpu, Gpu)
    with stfs_gpu.connect(start_holder=False) as connection, gpu.pinned(size) as host:
        stream = gpu.stream()
        ctypes.memset(host, 0, size)
        acquired = connection.acquire(f"{file}::{tensor.name}", device=device)
        for _ in range(copies):
            gpu.call("cuMemcpyDtoHAsync_v2", host, acquired[0].ptr, size, stream)
        acquired.release()
        gpu.call("cuStreamSynchronize", stream)
        if ctypes.string_at(host, size) != expected:
            raise Wrong("the copy differs from the source")
        with connection.acquire(f"{file}::{tensor.name}", device=device) as again:
            expect(gpu, "after it", again[0], b"".join(pieces(path, tensor)))
    say(copies=copies, bytes=size)


def store(device: str, file: str, name: str) -> None:
    """Prints the driver's error for a store. If the device is cpu, the store ends the process."""
    with stfs_gpu.connect(start_holder=False) as connection:
        acquired = connection.acquire(f"{file}::{name}", device=device)
    pointer = acquired[0].ptr
    if device == "cpu":
        ctypes.memset(pointer, 0xa5, 1)
        say(refused=0)
        return
    gpu = open_memory(device)
    assert isinstance(gpu, Gpu)
    stream = gpu.stream()
    status = gpu.status("cuMemsetD8Async", pointer, 0xa5, acquired[0].nbytes, stream)
    say(refused=status or gpu.status("cuStreamSynchronize", stream))
    sys.stdout.flush()
    os._exit(0)  # a context with a fault cannot free anything


def free(device: str) -> None:
    memory = open_memory(device)
    if isinstance(memory, Gpu):
        say(bytes=memory.free_bytes(), version=memory.version())
        return
    say(bytes=memory_of_host("MemAvailable"))


VERBS = {"compare": compare, "read": read, "hold": hold, "one_by_one": one_by_one,
         "convert": convert, "shard": shard, "drop": drop, "store": store, "free": free}
