"""llama.cpp multiplies NVFP4 and ternary weights by a separate scale tensor. stfs shows the product wherever it shows values.

A mount of the same weights without scales decodes the codes. Other tests compare the decoders with ggml's.
"""

import contextlib
import json
import os
import pathlib
import struct
import sys
import tempfile
import unittest

import numpy as np

sys.path.append(str(pathlib.Path(__file__).resolve().parent.parent / "dequantize"))
from checkpoint import read_safetensors  # noqa: E402
from mounts import INFO, STFS, info, mounted, run, unmount  # noqa: E402

TYPES = {"F32": (0, 1, 4), "Q8_0": (8, 32, 34), "TQ1_0": (34, 256, 54), "TQ2_0": (35, 256, 66), "NVFP4": (40, 64, 36)}


def text(value):
    return struct.pack("<Q", len(value)) + value.encode()


def gguf(path, tensors, architecture="llama", split=None):
    """Writes a file. `tensors`: name -> (type, shape, bytes). `split`: the keys of a part in a split file."""
    split = split or {}
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), 1 + len(split))
    head += text("general.architecture") + struct.pack("<I", 8) + text(architecture)
    for key, value in split.items():
        head += text(key) + (struct.pack("<Ii", 5, value) if key.endswith("tensors.count") else struct.pack("<IH", 2, value))
    data = b""
    for name, (kind, shape, raw) in tensors.items():
        head += text(name) + struct.pack(f"<I{len(shape)}Q", len(shape), *reversed(shape)) + struct.pack("<IQ", TYPES[kind][0], len(data))
        data += raw + bytes(-len(raw) % 32)
    path.write_bytes(head + bytes(-len(head) % 32) + data)


RNG = np.random.default_rng(1)


def blocks(kind, shape):
    _, elements, size = TYPES[kind]
    raw = RNG.integers(0, 256, (int(np.prod(shape)) // elements, size), np.uint8)
    if kind != "NVFP4":  # the scale is a small number
        raw[:, {"Q8_0": 0, "TQ1_0": 52, "TQ2_0": 64}[kind]:][:, :2] = np.frombuffer(np.float16(0.37).tobytes(), np.uint8)
    return kind, shape, raw.tobytes()


def f32(*values):
    return "F32", (len(values),), np.array(values, "<f4").tobytes()


SCALES = {  # weight -> the name and values of its scale, and the name of the scale of its inputs
    "blk.0.attn_q.weight": ("blk.0.attn_q.scale", [0.0123], "blk.0.attn_q.input_scale"),
    "blk.0.attn_k.weight": ("blk.0.attn_k.weight.scale", [1.7], "blk.0.attn_k.weight.input_scale"),
    "blk.0.attn_v.weight": ("blk.0.attn_v.scale", [0.3], None),
    "blk.0.ffn_up_exps.weight": ("blk.0.ffn_up_exps.scale", [0.1, 0.7, -3.3], "blk.0.ffn_up_exps.input_scale"),
    "blk.0.ffn_down_exps.weight": ("blk.0.ffn_down_exps.scale", [0.9], None),
}
WEIGHTS = {
    "blk.0.attn_q.weight": blocks("NVFP4", (5, 128)), "blk.0.attn_k.weight": blocks("TQ2_0", (3, 512)), "blk.0.attn_v.weight": blocks("TQ1_0", (4, 256)),
    "blk.0.ffn_up_exps.weight": blocks("NVFP4", (3, 2, 64)), "blk.0.ffn_down_exps.weight": blocks("NVFP4", (3, 2, 64)),
    "blk.0.attn_output.weight": blocks("NVFP4", (2, 64)), "blk.0.attn_q_norm.weight": f32(1, 2), "token_embd.plain.weight": ("F32", (2, 2), bytes(range(16))), "token_embd.weight": blocks("Q8_0", (3, 32)),
}


def rounded(values):
    """Rounds to BF16, ties to even."""
    bits = np.ascontiguousarray(values, "<f4").view("<u4").astype(np.uint64)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype("<u2")


class Scales(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.work = pathlib.Path(directory.name).resolve()
        self.source, codes = self.work / "m.gguf", self.work / "codes.gguf"
        gguf(codes, WEIGHTS)
        tensors = dict(WEIGHTS)
        for scale, values, inputs in SCALES.values():
            tensors[scale] = f32(*values)
            if inputs:
                tensors[inputs] = f32(*(0.5 for _ in values))
        gguf(self.source, tensors)
        self.tensors, self.values = tensors, {}
        with mounted(codes, self.work / "mnt") as mount:
            for name, (_, shape, _) in WEIGHTS.items():
                values = np.load(mount / f".stfs/npy-f32/{name}.npy")
                if name in SCALES:
                    scale = np.array(SCALES[name][1], np.float32)
                    values = values * (scale[:, None, None] if len(scale) > 1 else scale)
                self.values[name] = values

    def same(self, raw, name, values=None):
        values = self.values[name] if values is None else values
        self.assertEqual(np.frombuffer(raw, "<f4").tolist(), values.reshape(-1).tolist(), name)

    def test_mount_shows_stored_bytes_and_scaled_values(self):
        """Bytes are unchanged, and values are products."""
        with mounted(self.source, self.work / "mnt") as mount:
            for name, (_, _, raw) in self.tensors.items():
                self.assertEqual((mount / name).read_bytes(), raw, name)
            for name, values in self.values.items():
                self.same((mount / ".stfs/f32" / name).read_bytes(), name)
                part = "1:,::3" if values.ndim == 2 else "1:,1,5:" if values.ndim == 3 else "1"
                index = eval(f"np.s_[{part}]")
                self.same((mount / ".stfs/f32-slice" / name / part).read_bytes(), name, values[index])
                stats = json.loads((mount / ".stfs/stats" / f"{name}.json").read_bytes())
                self.assertEqual((stats["max"], stats["min"]), (float(values.max()), float(values.min())), name)
                self.same(info("cat", "--as", "f32", mount / name, name), name)  # only the weight, without its scale

    def test_commands_use_scaled_values(self):
        file = self.work / "out.safetensors"
        info("extract", "-o", file, self.source, "*.weight")
        for name, each in read_safetensors(file).items():
            self.same(each.data, name)
        rows = info("stats", "--no-header", self.source).decode().splitlines()
        self.assertEqual(len(rows), len(self.tensors))
        for row in rows:
            cells = row.split("\t")
            if cells[0] in self.values:
                self.assertIn(f"{self.values[cells[0]].max():g}", cells)
        name = "blk.0.attn_q.weight"
        different = run(INFO, "diff", "--no-header", self.source, file).stdout.decode()
        self.assertNotIn(".weight\t", different)
        self.assertIn("blk.0.attn_q.scale", different)
        done = run(INFO, "edit", "-o", file, "--force", self.source, "-e", f"cast {name} F32", "-e", f"rename s/{name}/w/")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.same(read_safetensors(file)["w"].data, name)
        done = run(INFO, "edit", "--dry-run", self.source, "-e", f"slice {name} 0:2")
        self.assertEqual(done.returncode, 1, done)
        self.assertIn(b"another tensor scales it", done.stderr)

    def test_dequantised_mount_shows_scaled_values(self):
        for word in ("f32", "bf16"):
            with mounted(self.source, self.work / "mnt", f"dequantize={word}") as mount:
                self.assertEqual({row["name"] for row in json.loads((mount / ".stfs/tensors.json").read_bytes())}, self.values.keys())
                for name, values in self.values.items():
                    raw = (mount / name).read_bytes()
                    if word == "f32" or self.tensors[name][0] == "F32":
                        self.same(raw, name)
                    else:
                        self.assertEqual(raw, rounded(values).tobytes(), name)

    def refused(self, name, weight, scale, values, architecture="llama"):
        """Checks that stfs refuses the values of `weight`, but shows its bytes."""
        file = self.work / f"{name}.gguf"
        gguf(file, {weight: WEIGHTS[weight], scale: f32(*values)}, architecture)
        done = run(INFO, "list", "--dequantize=f32", file)
        self.assertEqual(done.returncode, 1, done)
        for word in (weight, scale):
            self.assertIn(word.encode(), done.stderr)
        mount = self.work / name
        mount.mkdir()
        with contextlib.ExitStack() as stack:
            done = run(STFS, file, mount)
            stack.callback(unmount, mount)
            self.assertEqual(done.returncode, 0, done)
            self.assertIn(f"{weight}\": ".encode(), done.stderr)
            self.assertEqual((mount / weight).read_bytes(), WEIGHTS[weight][2])
            with self.assertRaises(OSError):
                (mount / ".stfs/f32" / weight).read_bytes()
        self.assertEqual(run(INFO, "stats", file, weight).returncode, 3)

    def test_refuses_scales_with_unknown_names(self):
        self.refused("another-name", "blk.0.attn_q.weight", "blk.0.attn_q.weight_scale", [2])
        self.refused("plain-weight", "token_embd.plain.weight", "token_embd.plain.scale", [2])

    def test_refuses_values_if_missing_file_may_have_scale(self):
        """The missing file may have a scale of the weight."""
        name, (first, second) = "blk.0.attn_q", (self.work / f"m-0000{i}-of-00002.gguf" for i in (1, 2))
        split = {"split.no": 0, "split.count": 2, "split.tensors.count": 3}
        gguf(first, {f"{name}.weight": WEIGHTS[f"{name}.weight"], "n.weight": f32(1)}, split=split)
        gguf(second, {f"{name}.scale": f32(3)}, split={**split, "split.no": 1})
        self.assertEqual(run(INFO, "cat", "--as", "f32", first, f"{name}.weight").returncode, 0)
        second.unlink()
        done = run(INFO, "cat", "--as", "f32", "--allow-missing", first, f"{name}.weight")
        self.assertEqual(done.returncode, 3, done)
        self.assertIn("may be in a file that is missing", "".join(json.loads(info("info", "--json", "--allow-missing", first))["warnings"]))
        rows = json.loads(info("list", "--json", "--allow-missing", "--dequantize=f32", first))
        self.assertEqual([row["name"] for row in rows], ["n.weight"])

    def test_gguf_output_keeps_scale_with_weight(self):
        name, out = "blk.0.attn_q", self.work / "out.gguf"
        for edit in (f"drop {name}.scale", f"keep {name}.weight", f"rename s/{name}.weight/w.weight/", f"rename s/{name}.scale/w.scale/",
                     f"copy s/{name}.weight/w.weight/", f"cast {name}.scale F16", f"cast {name}.weight F32"):
            done = run(INFO, "edit", self.source, "-e", edit, "-o", out)
            self.assertEqual(done.returncode, 2, (edit, done))
            self.assertIn(b"its scale would not be beside it", done.stderr)
            self.assertFalse(out.exists())
        done = run(INFO, "extract", self.source, f"{name}.weight", "-o", out)
        self.assertEqual(done.returncode, 2, done)
        for edit in (f"rename s/{name}/w/", f"keep {name}.*"):
            info("edit", self.source, "-e", edit, "-o", out, "--force")
            weight = "w.weight" if "rename" in edit else f"{name}.weight"
            self.same(info("cat", "--as", "f32", out, weight), f"{name}.weight")
        with mounted(self.source, self.work / "mnt") as mount:
            with self.assertRaises(OSError):
                (mount / f".stfs/subset/{name}.weight.gguf").read_bytes()
            self.same((mount / f".stfs/f32/{name}.weight").read_bytes(), f"{name}.weight")

    def test_refuses_scales_with_wrong_size_or_type(self):
        self.refused("too-many", "blk.0.attn_q.weight", "blk.0.attn_q.scale", [1, 2])
        self.refused("too-few", "blk.0.ffn_up_exps.weight", "blk.0.ffn_up_exps.scale", [1, 2])
        self.refused("q8", "token_embd.weight", "token_embd.scale", [2])
        self.refused("all-q8", "token_embd.weight", "token_embd.weight.scale", [2])

    def test_ignores_scale_that_is_model_parameter(self):
        """Gemma 4 has such a parameter for each expert. It does not scale the weight."""
        name, file = "blk.0.ffn_down_exps", self.work / "gemma.gguf"
        raw = blocks("Q8_0", (3, 2, 32))
        gguf(file, {f"{name}.weight": raw, f"{name}.scale": f32(1, 2, 3)}, "gemma4")
        rows = json.loads(info("list", "--json", "--dequantize=f32", file))
        self.assertEqual([row["name"] for row in rows], [f"{name}.scale", f"{name}.weight"])
        self.assertEqual(run(INFO, "list", file).stderr, b"")


if __name__ == "__main__":
    os.environ.setdefault("PYTHONDONTWRITEBYTECODE", "1")
    unittest.main()
