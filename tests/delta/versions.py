"""Writes versions of a run as trainers publish them: directories with zstd frames and an index."""

import hashlib
import json
import struct
import zlib

import numpy
import xxhash
import zstandard

CHECKSUMS = {"xxh3-128": lambda data: xxhash.xxh3_128_hexdigest(data), "adler32": lambda data: f"{zlib.adler32(data):08x}"}


def write_file(path, tensors, metadata=None):
    """Writes a safetensors file. `tensors` is {name: (dtype, shape, bytes)}."""
    header, offset = {}, 0
    if metadata:
        header["__metadata__"] = metadata
    for name, (dtype, shape, data) in tensors.items():
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [offset, offset + len(data)]}
        offset += len(data)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + b"".join(each[2] for each in tensors.values()))


def xor(old, new):
    return (numpy.frombuffer(old, "u1") ^ numpy.frombuffer(new, "u1")).tobytes()


def overwrite(old, new):
    a, b = numpy.frombuffer(old, "u1"), numpy.frombuffer(new, "u1")
    at = numpy.flatnonzero(a != b).astype("<u4")
    return struct.pack("<I", len(at)) + at.tobytes() + b[at].tobytes()


ENCODINGS = {"xor": xor, "overwrite": overwrite}


def write_version(run, number, old, new, encoding="xor", checksum="xxh3-128", shards=1, base=None, frames=None, **changes):
    """Writes the changed tensors of {name: bytes}. `frames` replaces contents, `changes` replaces metadata of the index."""
    directory = run / f"weight_v{number:06d}"
    directory.mkdir(parents=True)
    changed = [name for name in new if old[name] != new[name]]
    compressor = zstandard.ZstdCompressor(level=1)
    weight_map = {}
    for i in range(shards):
        names = changed[i::shards]
        if not names:
            continue
        file = f"model-{i:05d}-of-{shards:05d}.safetensors"
        made = {name: compressor.compress(ENCODINGS[encoding](old[name], new[name])) for name in names}
        made.update({name: frame for name, frame in (frames or {}).items() if name in made})
        write_file(directory / file, {name: ("U8", (len(frame),), frame) for name, frame in made.items()},
                   {name: CHECKSUMS[checksum](new[name]) for name in names} if checksum in CHECKSUMS else None)
        weight_map.update({name: file for name in names})
    metadata = {"version": f"{number:06d}", "base_version": f"{number - 1 if base is None else base:06d}",
                "delta_encoding": encoding, "compression_format": "zstd", "checksum_format": checksum, **changes}
    (directory / "model.safetensors.index.json").write_text(json.dumps({"metadata": metadata, "weight_map": weight_map}))
    return directory


def step(random, tensors, share=0.01):
    """Returns the tensors after a step that changes a share of their 16-bit elements."""
    changed = {}
    for name, data in tensors.items():
        elements = numpy.frombuffer(data, "<u2").copy()
        at = random.random(len(elements)) < share
        at[random.integers(len(elements))] = True
        elements[at] ^= random.integers(1, 4, int(at.sum()), dtype=numpy.uint16)
        changed[name] = elements.tobytes()
    return changed


def hashlib_sha256(data):
    return hashlib.sha256(data).hexdigest()
