"""Random checkpoints in each format that stfs reads, and what a mount of each must show."""

import dataclasses
import io
import json
import pathlib
import pickle
import struct
import sys
import types
import zipfile

import numpy as np

from elements import BITS_CODES_NPY, Tensor


@dataclasses.dataclass
class Checkpoint:
    """`sources` are the paths to mount. `tensors` maps each name, as bytes, to its Tensor, in the order of the bytes."""

    format: str
    sources: list
    tensors: dict
    # `stored` maps a name to (file, offset) if the tensor's bytes are in the file as they are; others are computed.
    stored: dict = dataclasses.field(default_factory=dict)
    metadata: dict = dataclasses.field(default_factory=dict)


COMPONENTS = ["a", "b", "c.d", "layers", "0", "1", "weight", "bias", "x.npy", "y.json", "z.png", "e.safetensors", "%", "%41", ".", "..",
              ".stfs", "é", "a b", "tab\t", "\x7f", "long" * 60 + "ü" * 8, "l" * 255, "", "~0123456789abcdef", "slice", "*", "[x]", "\\", "日本"]


def random_name(rng):
    count = rng.choice([1, 1, 2, 2, 3, 4])
    return rng.choice(["/", ".", "."]).join(rng.choice(COMPONENTS) for _ in range(count))


def random_shape(rng, dtype, largest):
    """Returns a shape whose elements fill whole bytes; sometimes of a scalar, sometimes without elements."""
    bits = BITS_CODES_NPY[dtype][0]
    while True:
        kind = rng.random()
        if kind < 0.08:
            shape = ()
        elif kind < 0.16:
            shape = tuple(rng.choice([0, 1, 3]) for _ in range(rng.randint(1, 3)))
        else:
            rank = rng.choice([1, 1, 2, 2, 2, 3, 4, 6])
            bound = max(2, int(largest ** (1 / rank)))
            shape = tuple(rng.randint(1, bound) for _ in range(rank))
        elements = int(np.prod(shape, dtype=np.int64))
        if elements * bits % 8 == 0:
            return shape


def random_data(rng, dtype, elements):
    """Returns random bytes, at times with many equal elements or special values, so that ties and NaN occur."""
    bits = BITS_CODES_NPY[dtype][0]
    size = elements * bits // 8
    if dtype == "BOOL":
        return bytes(rng.choices([0, 1], k=size))
    kind = rng.random()
    if kind < 0.15:
        return bytes(size)
    if kind < 0.3 and size > 0:
        unit = bits // 8 or 3
        return (rng.randbytes(unit) * (size // unit + 1))[:size]
    return rng.randbytes(size)


def random_tensors(rng, dtypes, count, largest, names=random_name):
    tensors = {}
    while len(tensors) < count:
        name = names(rng)
        if isinstance(name, str):
            name = name.encode()
        dtype = rng.choice(dtypes)
        shape = random_shape(rng, dtype, rng.choice([8, 60, 600, largest]))
        tensors[name] = Tensor(dtype, shape, random_data(rng, dtype, int(np.prod(shape, dtype=np.int64))))
    tensors.pop(b"__metadata__", None)
    return tensors


def safetensors(path, tensors, metadata=None, rng=None):
    """Writes a file with the tensors in this order of bytes, and the header in another order. Returns name -> offset."""
    offsets, header, place = {}, {}, 0
    for name, tensor in tensors.items():
        header[name.decode()] = {"dtype": tensor.dtype, "shape": tensor.shape, "data_offsets": [place, place + len(tensor.data)]}
        offsets[name] = place
        place += len(tensor.data)
    rows = list(header.items())
    if rng:
        rng.shuffle(rows)
    if metadata:
        rows.insert(0, ("__metadata__", metadata))
    text = json.dumps(dict(rows), ensure_ascii=bool(rng) and rng.random() < 0.5).encode()
    text += b" " * (rng.choice([0, 0, 1, 7, 64]) if rng else 0)
    pathlib.Path(path).write_bytes(struct.pack("<Q", len(text)) + text + b"".join(each.data for each in tensors.values()))
    return {name: 8 + len(text) + offset for name, offset in offsets.items()}


def split(rng, tensors, parts):
    """Deals the tensors to some dicts, which may be empty."""
    dealt = [{} for _ in range(parts)]
    for name, tensor in tensors.items():
        rng.choice(dealt)[name] = tensor
    return dealt


def ordered(tensors):
    """Empty tensors have no bytes, so their place among the others is of no meaning; put them first."""
    return dict(sorted(tensors.items(), key=lambda item: len(item[1].data) > 0))


def one_file(rng, directory, largest):
    tensors = random_tensors(rng, list(BITS_CODES_NPY), rng.randint(1, 12), largest)
    metadata = {rng.choice(["format", "k", "a/b", "ü"]): rng.choice(["pt", "", "x\ny"])} if rng.random() < 0.6 else {}
    path = directory / "model.safetensors"
    offsets = safetensors(path, tensors, metadata, rng)
    return Checkpoint("safetensors", [path], tensors, {name: (path, at) for name, at in offsets.items()}, metadata)


def shards(rng, directory, largest):
    tensors = random_tensors(rng, list(BITS_CODES_NPY), rng.randint(1, 12), largest)
    stored, weights, joined = {}, {}, {}
    dealt = [part for part in split(rng, tensors, rng.randint(1, 4)) if part]
    for number, part in enumerate(dealt, 1):
        path = directory / f"model-{number:05}-of-{len(dealt):05}.safetensors"
        offsets = safetensors(path, part, None, rng)
        stored.update({name: (path, at) for name, at in offsets.items()})
        weights.update({name.decode(): path.name for name in part})
        joined.update(part)
    index = directory / "model.safetensors.index.json"
    index.write_text(json.dumps({"metadata": {}, "weight_map": weights}))
    return Checkpoint("shards", [rng.choice([index, directory])], joined, stored)


def several_sources(rng, directory, largest):
    tensors = random_tensors(rng, list(BITS_CODES_NPY), rng.randint(2, 12), largest)
    sources, stored, joined = [], {}, {}
    for number, part in enumerate(split(rng, tensors, rng.randint(2, 3))):
        path = directory / f"part{number}.safetensors"
        offsets = safetensors(path, part, None, rng)
        stored.update({name: (path, at) for name, at in offsets.items()})
        joined.update(part)
        sources.append(path)
    return Checkpoint("several", sources, joined, stored)


NUMPY_TYPES = ["BOOL", "U8", "I8", "I16", "U16", "F16", "I32", "U32", "F32", "C64", "F64", "I64", "U64"]


def plain_name(rng):
    return ".".join(rng.choice(["a", "b", "layers", "0", "1", "weight", "bias", "é"]) for _ in range(rng.randint(1, 4)))


def numpy_array(tensor):
    return np.frombuffer(tensor.data, BITS_CODES_NPY[tensor.dtype][2]).reshape(tensor.shape)


def arrays(rng, directory, largest):
    tensors = random_tensors(rng, NUMPY_TYPES, rng.randint(1, 8), largest, plain_name)
    kept = {}
    for name, tensor in tensors.items():
        array = numpy_array(tensor)
        kept[name.decode()] = np.asfortranarray(array) if array.ndim > 1 and rng.random() < 0.3 else array
    path = directory / "arrays.npz"
    (np.savez_compressed if rng.random() < 0.5 else np.savez)(path, **kept)
    return Checkpoint("npz", [path], tensors)


STORAGES = {"U8": "ByteStorage", "I8": "CharStorage", "I16": "ShortStorage", "F16": "HalfStorage", "BF16": "BFloat16Storage",
            "I32": "IntStorage", "F32": "FloatStorage", "F64": "DoubleStorage", "I64": "LongStorage", "BOOL": "BoolStorage"}


class Storage:
    def __init__(self, key, dtype, elements):
        self.key, self.dtype, self.elements = key, dtype, elements


class Rebuilt:
    """Pickles as PyTorch pickles a tensor: a call of torch._utils._rebuild_tensor_v2."""

    def __init__(self, *arguments):
        self.arguments = arguments

    def __reduce__(self):
        import collections

        return sys.modules["torch._utils"]._rebuild_tensor_v2, (*self.arguments, False, collections.OrderedDict())


def stand_in_torch():
    """Makes modules with the names that a pickle of PyTorch has, because pickle looks each one up before it writes it."""
    torch, utils = types.ModuleType("torch"), types.ModuleType("torch._utils")

    def _rebuild_tensor_v2():
        pass

    _rebuild_tensor_v2.__module__ = "torch._utils"
    _rebuild_tensor_v2.__qualname__ = "_rebuild_tensor_v2"
    utils._rebuild_tensor_v2 = _rebuild_tensor_v2
    for name in STORAGES.values():
        setattr(torch, name, type(name, (), {"__module__": "torch"}))
    return {"torch": torch, "torch._utils": utils}


class TorchPickler(pickle.Pickler):
    def persistent_id(self, value):
        if isinstance(value, Storage):
            return ("storage", getattr(sys.modules["torch"], STORAGES[value.dtype]), value.key, "cpu", value.elements)
        return None


def torch_file(rng, directory, largest):
    """A file as torch.save writes it. Some tensors are transposed or begin inside their storage."""
    tensors = random_tensors(rng, list(STORAGES), rng.randint(1, 8), largest, plain_name)
    members, state = {}, {}
    for number, (name, tensor) in enumerate(tensors.items()):
        codes, before = tensor.codes(), rng.choice([0, 0, 3])
        width = tensor.bits // 8
        if codes.ndim == 2 and rng.random() < 0.4:
            data, strides = np.ascontiguousarray(codes.T).tobytes(), (1, codes.shape[0])
        else:
            data, strides = tensor.data, tuple(int(np.prod(tensor.shape[axis + 1:], dtype=np.int64)) for axis in range(codes.ndim))
        members[str(number)] = rng.randbytes(before * width) if tensor.dtype != "BOOL" else bytes(before)
        members[str(number)] += data
        storage = Storage(str(number), tensor.dtype, len(members[str(number)]) // width)
        state[name.decode()] = Rebuilt(storage, before, tensor.shape, strides)
    saved = {name: sys.modules.get(name) for name in ("torch", "torch._utils")}
    sys.modules.update(stand_in_torch())
    try:
        text = io.BytesIO()
        TorchPickler(text, protocol=2).dump(state)
    finally:
        for name, module in saved.items():
            if module is None:
                del sys.modules[name]
            else:
                sys.modules[name] = module
    path = directory / "model.pt"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        archive.writestr("model/data.pkl", text.getvalue())
        archive.writestr("model/byteorder", "little")
        for key, data in members.items():
            archive.writestr(f"model/data/{key}", data)
        archive.writestr("model/version", "3\n")
    return Checkpoint("torch", [path], tensors)


GGML_TYPES = {"F32": 0, "F16": 1, "I8": 24, "I16": 25, "I32": 26, "I64": 27, "F64": 28, "BF16": 30}


def gguf_name(rng):
    if rng.random() < 0.2:
        return bytes(rng.choices([0x61, 0x2F, 0x2E, 0xFF, 0xC3, 0x25, 0x0A], k=rng.randint(1, 12)))
    return random_name(rng).encode()[:60].decode(errors="ignore") or "w"


def gguf(rng, directory, largest):
    tensors = random_tensors(rng, list(GGML_TYPES), rng.randint(1, 8), largest, gguf_name)
    # ggml knows tensors of one to four dimensions.
    tensors = {name: tensor for name, tensor in tensors.items() if 1 <= len(tensor.shape) <= 4}
    if not tensors:
        tensors = {b"w": Tensor("F32", (2, 3), rng.randbytes(24))}
    alignment = rng.choice([32, 32, 64, 4096])
    header = struct.pack("<4sIQQ", b"GGUF", 3, len(tensors), 2)
    for key, kind, value in (("general.architecture", 8, b"llama"), ("general.alignment", 4, alignment)):
        header += struct.pack("<Q", len(key)) + key.encode() + struct.pack("<I", kind)
        header += struct.pack("<Q", len(value)) + value if kind == 8 else struct.pack("<I", value)
    data, stored = b"", {}
    path = directory / "model.gguf"
    for name, tensor in tensors.items():
        header += struct.pack("<Q", len(name)) + name + struct.pack("<I", len(tensor.shape))
        header += b"".join(struct.pack("<Q", edge) for edge in reversed(tensor.shape))
        header += struct.pack("<IQ", GGML_TYPES[tensor.dtype], len(data))
        stored[name] = (path, len(data))
        data += tensor.data + bytes(-len(tensor.data) % alignment)
    header += bytes(-len(header) % alignment)
    path.write_bytes(header + data)
    return Checkpoint("gguf", [path], tensors, {name: (path, len(header) + at) for name, (path, at) in stored.items()})


FORMATS = [one_file, one_file, shards, several_sources, arrays, torch_file, gguf]


def random_checkpoint(rng, directory):
    directory.mkdir(parents=True)
    return rng.choice(FORMATS)(rng, directory, rng.choice([600, 600, 6000, 700_000]))


def read_safetensors(path):
    """Reads a safetensors file with nothing but struct and json. Returns its tensors and its metadata."""
    raw = pathlib.Path(path).read_bytes()
    (length,) = struct.unpack("<Q", raw[:8])
    header = json.loads(raw[8 : 8 + length])
    metadata = header.pop("__metadata__", {})
    data, end, tensors = raw[8 + length :], 0, {}
    for name, row in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
        begin, stop = row["data_offsets"]
        assert begin == end, f"{path}: a hole before {name!r}"
        end = stop
        tensors[name.encode()] = Tensor(row["dtype"], tuple(row["shape"]), data[begin:stop])
    assert end == len(data), f"{path}: bytes after the last tensor"
    return tensors, metadata
