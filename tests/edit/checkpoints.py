"""Reads and writes safetensors files only with struct and json, so that the tests do not share errors of a library."""

import json
import os
import struct
import subprocess

import numpy

STFS_INFO = os.environ["STFS_INFO_BINARY"]
STFS = os.environ["STFS_BINARY"]


def write(path, tensors, metadata=None):
    """Writes a safetensors file. `tensors` is {name: (dtype, array)}; the array contains the bytes."""
    header, offset = {}, 0
    if metadata:
        header["__metadata__"] = metadata
    for name, (dtype, array) in tensors.items():
        header[name] = {"dtype": dtype, "shape": list(array.shape), "data_offsets": [offset, offset + array.nbytes]}
        offset += array.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for _, array in tensors.values():
            file.write(array.tobytes())


def read(path):
    """Returns ({name: (dtype, shape, bytes)}, metadata). Expects no gap, no overlap and no trailing bytes."""
    with open(path, "rb") as file:
        content = file.read()
    (length,) = struct.unpack("<Q", content[:8])
    header = json.loads(content[8:8 + length])
    data = content[8 + length:]
    metadata = header.pop("__metadata__", None)
    end = 0
    for begin, to in sorted(each["data_offsets"] for each in header.values()):
        assert begin == end, f"{path}: a gap or an overlap at {begin}"
        end = to
    assert end == len(data), f"{path}: {len(data)} bytes of data, {end} expected"
    return {name: (each["dtype"], tuple(each["shape"]), data[slice(*each["data_offsets"])])
            for name, each in header.items()}, metadata


def plain(tensors):
    return {name: (dtype, array.shape, array.tobytes()) for name, (dtype, array) in tensors.items()}


def run(*arguments, status=0):
    done = subprocess.run([STFS_INFO, *map(str, arguments)], capture_output=True, text=True)
    assert done.returncode == status, f"{arguments}: exit status {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout + done.stderr


def to_bf16(values):
    bits = numpy.asarray(values, numpy.float32).view(numpy.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(numpy.uint16)


def from_bf16(codes):
    return (codes.astype(numpy.uint32) << 16).view(numpy.float32)
