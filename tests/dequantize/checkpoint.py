"""A quantised checkpoint that a test makes: its tensors, its files, and the expected result of each tensor.

Reads and writes safetensors files only with struct and json, so that the tests do not share errors of a library.
"""

import json
import math
import pathlib
import struct
from dataclasses import dataclass, field

import numpy as np

import number_types as numbers

# The NumPy type for the elements of each dtype. A type that NumPy lacks is stored as its bits.
ELEMENTS = {
    "F32": "<f4", "F16": "<f2", "BF16": "<u2", "F8_E4M3": "u1", "F8_E5M2": "u1", "F8_E8M0": "u1", "F64": "<f8",
    "U8": "u1", "I8": "i1", "I16": "<i2", "U16": "<u2", "I32": "<i4", "U32": "<u4", "I64": "<i8", "BOOL": "u1",
}


@dataclass(frozen=True)
class Tensor:
    dtype: str
    shape: tuple
    data: bytes

    def array(self):
        return np.frombuffer(self.data, ELEMENTS[self.dtype]).reshape(self.shape)

    def values(self):
        return numbers.values_of(self.dtype, self.data, self.shape)


def tensor(dtype, array):
    array = np.asarray(array)
    shape = array.shape  # ascontiguousarray makes a scalar one-dimensional
    return Tensor(dtype, shape, np.ascontiguousarray(array.astype(ELEMENTS[dtype], copy=False)).tobytes())


def floats(dtype, values):
    """Returns a tensor of BF16, F16 or F32 with these values, rounded."""
    values = np.asarray(values, np.float32)
    return Tensor(dtype, values.shape, numbers.bytes_of(values, dtype))


def safetensors(tensors, metadata=None, shapes=None):
    """Returns the bytes of a safetensors file. `shapes` replaces some shapes in the header by wrong shapes."""
    header, offset = {}, 0
    if metadata:
        header["__metadata__"] = metadata
    for name, each in tensors.items():
        shape = (shapes or {}).get(name, each.shape)
        header[name] = {"dtype": each.dtype, "shape": list(shape), "data_offsets": [offset, offset + len(each.data)]}
        offset += len(each.data)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + b"".join(each.data for each in tensors.values())


def move_data_past_first_block(directory, to=256 << 10):
    """Moves the bytes of the tensors past the first block of each file, which is fetched with the header."""
    for path in pathlib.Path(directory).glob("*.safetensors"):
        raw = path.read_bytes()
        begin = 8 + struct.unpack("<Q", raw[:8])[0]
        path.write_bytes(struct.pack("<Q", to - 8) + raw[8:begin] + b" " * (to - begin) + raw[begin:])


def read_safetensors(path):
    raw = pathlib.Path(path).read_bytes()
    (length,) = struct.unpack("<Q", raw[:8])
    header = json.loads(raw[8 : 8 + length])
    header.pop("__metadata__", None)
    data = raw[8 + length :]
    return {
        name: Tensor(row["dtype"], tuple(row["shape"]), data[slice(*row["data_offsets"])])
        for name, row in header.items()
    }


def metadata_of(path):
    with open(path, "rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        return json.loads(file.read(length)).get("__metadata__", {})


@dataclass
class Computed:
    """A computed tensor of the result: its values before the single rounding, and the tensors it is computed from."""

    values: np.ndarray
    inputs: list


@dataclass
class Checkpoint:
    """Tensors are distributed round-robin to `shards` files, so that a weight and its scales are in different files."""

    shards: int = 2
    metadata: dict = field(default_factory=lambda: {"format": "pt"})
    tensors: dict = field(default_factory=dict)
    results: dict = field(default_factory=dict)  # name -> Computed, or a Tensor that stays unchanged
    config: dict = field(default_factory=dict)
    files: dict = field(default_factory=dict)  # other files: name -> a JSON object or bytes
    keeps_names: bool = True  # True if the result has the tensor names of the model's code (not for MLX)
    hides: set = field(default_factory=set)  # keys of `metadata` that the result lacks

    def put(self, name, each):
        assert name not in self.tensors, name
        self.tensors[name] = each
        return name

    def passes(self, name, each):
        self.put(name, each)
        self.results[name] = each

    def computed(self, name, values, inputs):
        assert name not in self.results and values.dtype == np.float32, name
        self.results[name] = Computed(values, list(inputs))

    def expected(self, word):
        """Returns a dict from each name to the Tensor in the mount with `-o dequantize=WORD`."""
        dtype = numbers.RESULTS[word]
        return {
            name: each if isinstance(each, Tensor)
            else Tensor(dtype, each.values.shape, numbers.bytes_of(each.values, dtype))
            for name, each in self.results.items()
        }

    def expected_config(self, word):
        """Returns config.json in `.stfs/model/`, without the quantisation and with the new type."""
        config = json.loads(json.dumps(self.config))
        for each in config.values():
            if isinstance(each, dict):
                each.pop("quantization_config", None)
        for each in (config, config.get("text_config", {})):
            for key in ("quantization_config", "quantization", "expert_dtype", "compression_config"):
                each.pop(key, None)
        new = {"bf16": "bfloat16", "f16": "float16", "f32": "float32"}[word]
        config["dtype" if "dtype" in config else "torch_dtype"] = new
        return config

    def shard_files(self):
        if self.shards == 1:
            return {"model.safetensors": list(self.tensors)}
        names = list(self.tensors)
        return {
            f"model-{i + 1:05}-of-{self.shards:05}.safetensors": names[i :: self.shards] for i in range(self.shards)
        }

    def write(self, directory):
        directory = pathlib.Path(directory)
        directory.mkdir(parents=True, exist_ok=True)
        files = self.shard_files()
        for file, names in files.items():
            (directory / file).write_bytes(safetensors({name: self.tensors[name] for name in names}, self.metadata))
        if self.shards > 1:
            weight_map = {name: file for file, names in files.items() for name in names}
            total = sum(len(each.data) for each in self.tensors.values())
            index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(weight_map.items()))}
            (directory / "model.safetensors.index.json").write_text(json.dumps(index, indent=2))
        if self.config:
            (directory / "config.json").write_text(json.dumps(self.config, indent=2))
        for file, content in self.files.items():
            content = content if isinstance(content, bytes) else json.dumps(content, indent=2).encode()
            (directory / file).write_bytes(content)


def blocks(count, size):
    return math.ceil(count / size)
