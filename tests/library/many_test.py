"""Opens a checkpoint of 760,000 tensors, lists it, looks names up, and matches a glob.

Run by ctest with STFS_LIBRARY and PYTHONPATH set.
"""

import json
import os
import struct
import tempfile

import stfs

COUNT = 760_000


def name_of(i):
    return f"model.layers.{i // 1000}.mlp.experts.{i % 1000}.gate_up_proj.weight"


with tempfile.TemporaryDirectory() as directory:
    path = os.path.join(directory, "m.safetensors")
    header = json.dumps({name_of(i): {"dtype": "U8", "shape": [1], "data_offsets": [i, i + 1]} for i in range(COUNT)}).encode()
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(header)) + header + (bytes(range(1, 252)) * (COUNT // 251 + 1))[:COUNT])
    m = stfs.open(path)
    assert len(m) == COUNT
    assert list(m) == [name_of(i) for i in range(COUNT)]
    for i in range(0, COUNT, 12_345):
        assert bytes(m[name_of(i)]) == m[name_of(i)].numpy().tobytes() == bytes([i % 251 + 1])
    assert m.match("model.layers.759.*") == [name_of(i) for i in range(759_000, COUNT)]
    assert sum(len(tensor.shape) for tensor in m.values()) == COUNT
    assert name_of(COUNT) not in m
