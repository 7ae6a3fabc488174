#!/usr/bin/env python3
"""Ratios of reading views to reading what they are made of, in one run, in turns.

    views.py STFS_BINARY [ROUNDS]

Makes a checkpoint of 16 bf16 matrices [4096,4096] (512 MiB of random bytes) in a temporary directory, mounts it, and
prints for each pair the median ratio of the times with its least and greatest. The source is in the page cache; each file
is read by `pread` of 1 MiB, and its pages in the mount are dropped before each pass, so that every byte comes from the
daemon. Needs NumPy.
"""
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

import numpy

CHUNK = 1 << 20
SIDE = 4096
MATRICES = 16


def write_checkpoint(path):
    size = SIDE * SIDE * 2
    header = {
        f"w{i:02}": {"dtype": "BF16", "shape": [SIDE, SIDE], "data_offsets": [i * size, (i + 1) * size]}
        for i in range(MATRICES)
    }
    text = json.dumps(header).encode()
    text += b" " * (-(8 + len(text)) % 4096)
    generator = numpy.random.default_rng(1)
    with open(path, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for _ in range(MATRICES):
            file.write(generator.bytes(size))
    return 8 + len(text)


def read(path, length=None, offset=0):
    """Reads a file, or a part of it, and returns the bytes that came."""
    buffer = bytearray(CHUNK)
    fd = os.open(path, os.O_RDONLY)
    try:
        end = offset + length if length is not None else 1 << 62
        total = 0
        while offset < end:
            n = os.preadv(fd, [memoryview(buffer)[: min(CHUNK, end - offset)]], offset)
            if n == 0:
                break
            offset += n
            total += n
        return total
    finally:
        os.close(fd)


def drop(path):
    fd = os.open(path, os.O_RDONLY)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(fd)


def timed(action):
    begin = time.perf_counter()
    action()
    return time.perf_counter() - begin


def compare(label, limit, subject, prepare, rounds, factor=1.0):
    """Prints how fast `subject` is, limit being 1: the ratio of the times, times `factor` for the bytes."""
    ratios = []
    for i in range(rounds + 1):
        prepare()
        a = timed(limit)
        prepare()
        b = timed(subject)
        if i > 0:  # the first round warms up
            ratios.append(a / b * factor)
    print(f"{label:<62} {statistics.median(ratios):6.2f}  ({min(ratios):.2f} to {max(ratios):.2f})")


def main():
    stfs = sys.argv[1]
    rounds = int(sys.argv[2]) if len(sys.argv) > 2 else 7
    with tempfile.TemporaryDirectory() as directory:
        source = pathlib.Path(directory, "model.safetensors")
        mount = pathlib.Path(directory, "mnt")
        mount.mkdir()
        data = write_checkpoint(source)
        subprocess.run([stfs, source, mount], check=True)
        try:
            run(source, data, mount, rounds)
        finally:
            subprocess.run([stfs, "-u", mount], check=True)


def run(source, data, mount, rounds):
    control = mount / ".stfs"
    names = [f"w{i:02}" for i in range(MATRICES)]
    raw = [mount / name for name in names]
    npy = [control / "npy" / f"{name}.npy" for name in names]
    f32 = [control / "f32" / name for name in names]
    merged = control / "merged.safetensors"
    columns = [control / "slice" / name / ":,0:1024" for name in names]
    size = SIDE * SIDE * 2
    read(source)

    def drop_all():
        for path in (*raw, *npy, *f32, merged, *columns):
            drop(path)

    def read_all(paths):
        return lambda: [read(path) for path in paths]

    def numpy_columns():
        matrix = numpy.memmap(source, dtype="<u2", mode="r", offset=data, shape=(MATRICES, SIDE, SIDE))
        for i in range(MATRICES):
            matrix[i, :, 0:1024].tobytes()

    print(f"{'speed as a ratio':<62} median  (least to greatest of {rounds})")
    compare("npy / raw file", read_all(raw), read_all(npy), drop_all, rounds)
    compare("merged.safetensors / raw files", read_all(raw), lambda: read(merged), drop_all, rounds)
    # Half of the matrices, so that as many bytes come out.
    compare("bf16 as f32 / raw file, per byte that comes out", read_all(raw), read_all(f32[: MATRICES // 2]),
            drop_all, rounds)
    compare("column slice / numpy.memmap of the source", numpy_columns, read_all(columns), drop_all, rounds)


if __name__ == "__main__":
    main()
