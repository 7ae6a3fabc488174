"""Writes checkpoints with bytes that depend on their position, and returns the expected values."""

from __future__ import annotations

import json
import os
import random
import struct
from pathlib import Path
from typing import Iterator, NamedTuple

MIB, GIB = 1 << 20, 1 << 30
PAGE = 4096
PIECE = 64 * MIB  # bytes read at a time


class Tensor(NamedTuple):
    name: str
    dtype: str
    shape: list[int]
    offset: int  # bytes from the start of the file
    size: int


def header(tensors: list[tuple[str, str, list[int], int]]) -> bytes:
    """Returns the header of a safetensors file. Each tensor is name, dtype, shape, bytes."""
    entries, at = {}, 0
    for name, dtype, shape, size in tensors:
        entries[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(entries).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text


def tensors_of(path: Path) -> list[Tensor]:
    with open(path, "rb") as file:
        length = struct.unpack("<Q", file.read(8))[0]
        entries = json.loads(file.read(length))
    found = []
    for name, entry in entries.items():
        begin, end = entry["data_offsets"]
        found.append(Tensor(name, entry["dtype"], entry["shape"], 8 + length + begin, end - begin))
    return found


def pieces(path: Path, tensor: Tensor) -> Iterator[bytes]:
    with open(path, "rb", buffering=0) as file:
        for at in range(0, tensor.size, PIECE):
            yield os.pread(file.fileno(), min(PIECE, tensor.size - at), tensor.offset + at)


def block(number: int, base: bytes) -> bytearray:
    """Returns a MiB of a file: random bytes, and in each page its number in the file. Therefore no two
    pages of a file are equal, and no page equals itself shifted."""
    stamped = bytearray(base)
    pages = MIB // PAGE
    for byte in range(5):
        stamped[byte::PAGE] = bytes((number * pages + page) >> (8 * byte) & 0xff
                                    for page in range(pages))
    return stamped


def write(path: Path, sizes: list[int]) -> Path:
    """Writes a checkpoint of BF16 tensors of these even sizes, unless it exists."""
    if path.exists():
        return path
    base = random.Random(1).randbytes(MIB)
    part = path.with_suffix(".part")
    with open(part, "wb", buffering=0) as file:
        file.write(header([(f"layers.{i}.weight", "BF16", [size // 2], size)
                           for i, size in enumerate(sizes)]))
        left, number = sum(sizes), 0
        while left > 0:
            file.write(memoryview(block(number, base))[:min(left, MIB)])
            left -= MIB
            number += 1
    part.rename(path)
    return path


def write_sparse(path: Path, sizes: list[int]) -> Path:
    """Writes zeros that take no space on the disk, to measure reads from the page cache."""
    with open(path, "wb") as file:
        file.write(header([(f"layers.{i}.weight", "BF16", [size // 2], size)
                           for i, size in enumerate(sizes)]))
        file.truncate(file.tell() + sum(sizes))
    return path


def like_a_model(total: int) -> list[int]:
    """Returns sizes of tensors: an embedding, layers, and many small tensors."""
    layers = [total // 64 // 512 * 512] * 48
    small = [16 << 10] * 64
    rest = max(total - sum(layers) - sum(small), 1024)
    return [rest // 512 * 512] + layers + small


def warm(path: Path) -> None:
    with open(path, "rb", buffering=0) as file:
        while file.read(PIECE):
            pass


def cool(path: Path) -> None:
    """Removes the file from the page cache. Has no effect on tmpfs."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(fd)


# --- values

def to_bf16(value: float) -> bytes:
    """Rounds a finite value to nearest, ties to even."""
    bits = struct.unpack("<I", struct.pack("<f", value))[0]
    return struct.pack("<H", (bits + 0x7fff + (bits >> 16 & 1)) >> 16)


def encode(values: list[float], dtype: str) -> bytes:
    if dtype == "BF16":
        return b"".join(map(to_bf16, values))
    if dtype == "F8_E4M3":  # whole numbers from 0 to 8
        return bytes((0, 0x38, 0x40, 0x44, 0x48, 0x4a, 0x4c, 0x4e, 0x50)[int(v)] for v in values)
    return struct.pack(f"<{len(values)}{dict(F32='f', F16='e')[dtype]}", *values)


def decode(data: bytes, dtype: str) -> list[float]:
    if dtype == "BF16":
        data = b"".join(b"\0\0" + data[i:i + 2] for i in range(0, len(data), 2))
        dtype = "F32"
    size = dict(F32=4, F16=2)[dtype]
    return list(struct.unpack(f"<{len(data) // size}{dict(F32='f', F16='e')[dtype]}", data))


def write_values(path: Path, values: dict[str, tuple[str, list[int], list[float]]]) -> Path:
    data = {name: encode(numbers, dtype) for name, (dtype, _, numbers) in values.items()}
    path.write_bytes(header([(name, dtype, shape, len(data[name]))
                             for name, (dtype, shape, _) in values.items()]) +
                     b"".join(data.values()))
    return path


def many_values(count: int) -> list[float]:
    """Returns positive and negative numbers of many magnitudes that a float16 can represent."""
    generator = random.Random(2)
    return [generator.uniform(-1, 1) * 2.0 ** generator.randint(-26, 15) for _ in range(count)]


SUM_TYPES = ("F32", "F16", "BF16", "F8_E4M3")
SUM_VALUES = [float(i * 7 % 9) for i in range(4096)]  # from 0 to 8
SUM = sum(SUM_VALUES)  # exact in every type


def write_sums(path: Path) -> Path:
    """Writes the same whole numbers in each type."""
    return write_values(path, {dtype: (dtype, [64, 64], SUM_VALUES) for dtype in SUM_TYPES})
