"""PyTorch loads `.stfs/model/` like a directory: a module is made from config.json, and then gets its weights.

The loader is strict: it reads only config.json and model.safetensors, rejects a config that mentions quantisation, and
needs exactly the weights of the module, in the type that the config names. The test is skipped without PyTorch.
"""

import json
import pathlib
import re
import struct
import sys
import tempfile
import unittest

import numpy as np

try:
    import torch
except ImportError:
    print("no PyTorch")
    sys.exit(77)

import checkpoint
import number_types as numbers
from mounts import mounted

TYPES = {"BF16": torch.bfloat16, "F16": torch.float16, "F32": torch.float32}
HIDDEN, WIDE, WORDS, LAYERS = 256, 384, 64, 2


def read_strictly(path):
    """Returns the tensors of a safetensors file. The tensors must be contiguous and fill the file."""
    raw = bytearray(path.read_bytes())
    (length,) = struct.unpack("<Q", raw[:8])
    header = json.loads(raw[8 : 8 + length])
    header.pop("__metadata__", None)
    tensors, end = {}, 0
    for name, row in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
        begin, after = row["data_offsets"]
        dtype = TYPES[row["dtype"]]
        assert row.keys() == {"dtype", "shape", "data_offsets"} and begin == end, name
        count = int(np.prod(row["shape"], dtype=np.int64))
        assert after - begin == count * torch.empty(0, dtype=dtype).element_size(), name
        tensors[name] = torch.frombuffer(raw, dtype=dtype, count=count, offset=8 + length + begin).reshape(row["shape"])
        end = after
    assert 8 + length + end == len(raw)
    return tensors


class Layer(torch.nn.Module):
    def __init__(self, config):
        super().__init__()
        self.up_proj = torch.nn.Linear(config["hidden_size"], config["intermediate_size"], bias=False)
        self.down_proj = torch.nn.Linear(config["intermediate_size"], config["hidden_size"], bias=False)

    def forward(self, x):
        return x + self.down_proj(torch.relu(self.up_proj(x)))


class Model(torch.nn.Module):
    def __init__(self, config):
        super().__init__()
        self.embed_tokens = torch.nn.Embedding(config["vocab_size"], config["hidden_size"])
        self.layers = torch.nn.ModuleList(Layer(config) for _ in range(config["num_hidden_layers"]))

    def forward(self, words):
        x = self.embed_tokens(words)
        for layer in self.layers:
            x = layer(x)
        return x @ self.embed_tokens.weight.T


def from_pretrained(directory):
    text = (directory / "config.json").read_text()
    if re.search(r"quant|compress", text):
        raise ValueError("the config mentions a quantisation")
    if any(path.name.endswith(".index.json") or "quant" in path.name for path in directory.iterdir()):
        raise ValueError("a file describes another layout")
    config = json.loads(text)
    dtype = getattr(torch, config["torch_dtype"])
    model = Model(config).to(dtype)
    weights = read_strictly(directory / "model.safetensors")
    wrong = [name for name, each in weights.items() if each.dtype != dtype]
    if wrong:
        raise ValueError(f"wrong type: {wrong}")
    model.load_state_dict(weights, strict=True)
    return model


def fp8_model():
    draw = np.random.default_rng(1)
    model = checkpoint.Checkpoint(shards=3)
    model.passes("embed_tokens.weight", checkpoint.floats("F32", draw.standard_normal((WORDS, HIDDEN))))
    for layer in range(LAYERS):
        for name, shape in (("up_proj", (WIDE, HIDDEN)), ("down_proj", (HIDDEN, WIDE))):
            weight = f"layers.{layer}.{name}.weight"
            codes = draw.integers(0, 0x60, shape, np.uint8) | draw.integers(0, 2, shape, np.uint8) << 7
            scales = draw.random((-(-shape[0] // 128), -(-shape[1] // 128)), np.float32) / 64
            model.put(weight, checkpoint.tensor("F8_E4M3", codes))
            model.put(weight + "_scale_inv", checkpoint.tensor("F32", scales))
            grid = scales.repeat(128, 0)[: shape[0]].repeat(128, 1)[:, : shape[1]]
            model.computed(weight, numbers.E4M3[codes] * grid, [weight, weight + "_scale_inv"])
    model.config = {
        "architectures": ["Ours"], "hidden_size": HIDDEN, "intermediate_size": WIDE, "num_hidden_layers": LAYERS, "vocab_size": WORDS,
        "torch_dtype": "bfloat16", "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]},
    }
    model.files["tokenizer.json"] = {}
    return model


class Loader(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.work = pathlib.Path(directory.name)
        self.model = fp8_model()
        self.model.write(self.work / "fp8")

    def test_dequantised_checkpoint_loads_and_computes_expected_result(self):
        with mounted(self.work / "fp8", self.work / "mnt", "dequantize=f32") as mount:
            ours = from_pretrained(mount / ".stfs/model")
            expected = Model(json.loads((mount / ".stfs/model/config.json").read_text()))
        weights = {name: torch.from_numpy(each.values().copy()) for name, each in self.model.expected("f32").items()}
        expected.load_state_dict(weights, strict=True)
        words = torch.arange(WORDS)
        self.assertTrue(torch.equal(ours(words), expected(words)))

    def test_loader_rejects_stored_checkpoint(self):
        with mounted(self.work / "fp8", self.work / "mnt") as mount:
            with self.assertRaisesRegex(ValueError, "quantisation"):
                from_pretrained(mount / ".stfs/model")


if __name__ == "__main__":
    unittest.main()
