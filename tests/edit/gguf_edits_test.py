"""Edits of GGUF files: names, types, metadata of each type, and tensors from and for other formats."""

import json
import pathlib
import struct
import tempfile
import unittest

import numpy

from checkpoints import read, run, write

DATA = pathlib.Path(__file__).resolve().parent.parent / "data/gguf"
# type: (number, format, value before, a valid value, invalid values)
TYPES = {
    "u8": (0, "B", 7, "255", ("256", "-1", "1.0", "x")),
    "i8": (1, "b", 7, "-128", ("128", "")),
    "u16": (2, "H", 7, "65535", ("65536",)),
    "i16": (3, "h", 7, "-32768", ("32768",)),
    "u32": (4, "I", 7, "4294967295", ("4294967296", "-1", "0x10")),
    "i32": (5, "i", 7, "-2147483648", ("2147483648",)),
    "f32": (6, "f", 7, "1e-5", ("1e-5x", "one")),
    "bool": (7, "?", True, "false", ("0", "False")),
    "u64": (10, "Q", 7, "18446744073709551615", ("18446744073709551616",)),
    "i64": (11, "q", 7, "-9223372036854775808", ("9223372036854775808",)),
    "f64": (12, "d", 7, "0.1", ("",)),
}


def text(value):
    return struct.pack("<Q", len(value)) + value.encode()


def write_gguf(path):
    """Writes a key of each type, an array, a tensor w of two numbers, and q, a block of Q8_0 with 0, 0.5, 1, ..."""
    keys = [text("general.architecture") + struct.pack("<I", 8) + text("llama")]
    for name, (number, form, before, _, _) in TYPES.items():
        keys.append(text("key." + name) + struct.pack("<I" + form, number, before))
    keys.append(text("key.array") + struct.pack("<IIQ2B", 9, 0, 2, 1, 2))
    head = b"GGUF" + struct.pack("<IQQ", 3, 2, len(keys)) + b"".join(keys)
    head += text("w") + struct.pack("<IQIQ", 1, 2, 0, 0)
    head += text("q") + struct.pack("<IQIQ", 1, 32, 8, 32)
    data = numpy.array([1, 2], "<f4").tobytes() + bytes(24) + numpy.float16(0.5).tobytes() + bytes(range(32))
    path.write_bytes(head + bytes(-len(head) % 32) + data + bytes(-len(data) % 32))


class GgufEdits(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.work = pathlib.Path(directory.name)

    def test_gguf_keeps_types_and_gets_names_and_metadata(self):
        source = DATA / "llama-2-tiny-random.gguf"
        before = json.loads(run("list", source, "--json"))
        out = self.work / "out.gguf"
        run("edit", source, "-e", "rename s/^blk/layer/", "-e", "metadata general.name 'Another name'",
            "-e", "metadata llama.block_count 9", "-e", "metadata mine text", "-e", "drop output.weight", "-o", out)
        run("check", out)
        after = {each["name"]: each for each in json.loads(run("list", out, "--json"))}
        for each in before:
            if each["name"] == "output.weight":
                continue
            name = each["name"].replace("blk", "layer", 1) if each["name"].startswith("blk") else each["name"]
            self.assertEqual((after[name]["dtype"], after[name]["shape"]), (each["dtype"], each["shape"]))
            self.assertEqual(run("hash", out, name).split()[0], run("hash", source, each["name"]).split()[0])
        metadata = json.loads(run("info", out, "--json"))["metadata"]
        self.assertEqual((metadata["general.name"], metadata["mine"]), ("Another name", "text"))
        self.assertEqual(str(metadata["llama.block_count"]), "9")
        self.assertIn("another type", run("edit", source, "-e", "metadata llama.block_count nine", status=1))
        self.assertIn("describes the layout", run("edit", source, "-e", "metadata general.alignment 64", status=1))

    def test_value_has_type_of_its_key(self):
        source, out = self.work / "typed.gguf", self.work / "out.gguf"
        write_gguf(source)
        lines = [f"metadata key.{name} {row[3]}" for name, row in TYPES.items()]
        run("edit", source, *[word for line in lines for word in ("-e", line)], "-o", out)
        run("check", out)
        content = out.read_bytes()
        for name, (number, form, _, good, _) in TYPES.items():
            value = {"?": lambda word: word == "true", "f": float, "d": float}.get(form, int)(good)
            self.assertIn(text("key." + name) + struct.pack("<I" + form, number, value), content)
        for name, row in TYPES.items():
            for value in row[4]:
                self.assertIn(f'-e: line 1: "key.{name}" has another type in this file than "{value}"',
                              run("edit", source, "-e", f"metadata key.{name} '{value}'", status=1))
        self.assertIn("another type", run("edit", source, "-e", "metadata key.array 1", status=1))
        run("edit", source, "-e", "unset key.array", "-e", "metadata new 'a text'", "-o", out, "--force")
        after = json.loads(run("info", out, "--json"))["metadata"]
        self.assertEqual((after["new"], "key.array" in after), ("a text", False))

    def test_tensors_move_between_formats(self):
        source, out = self.work / "typed.gguf", self.work / "out.safetensors"
        write_gguf(source)
        write(self.work / "st.safetensors", {"x": ("F32", numpy.zeros(3, numpy.float32))})
        run("edit", self.work / "st.safetensors", "-e", f"add {source}::w", "-e", "cast w f16", "-o", out)
        self.assertEqual(read(out)[0]["w"], ("F16", (2,), numpy.array([1, 2], "<f2").tobytes()))
        new = self.work / "new.gguf"
        run("edit", source, "-e", f"add {self.work / 'st.safetensors'}::x", "-e", "cast w bf16", "-e", f"add {source}::w as v",
            "-e", "slice v 1", "-o", new)
        run("check", new)
        listed = {each["name"]: (each["dtype"], each["shape"]) for each in json.loads(run("list", new, "--json"))}
        self.assertEqual(listed, {"w": ("BF16", [2]), "q": ("Q8_0", [32]), "x": ("F32", [3]), "v": ("F32", [])})
        self.assertIn("key.u8", json.loads(run("info", new, "--json"))["metadata"])
        refused = run("edit", self.work / "st.safetensors", "-e", f"add {source}::w", "-o", new, "--force", status=2)
        self.assertIn("not from a GGUF file: write a .safetensors file", refused)
        refused = run("extract", source, "q", "--dequantize=bf16", "-o", new, "--force", status=2)
        self.assertIn('tensor "q": it is dequantised: write a .safetensors file', refused)
        refused = run("edit", source, "-e", "cast w f8_e4m3", "-o", new, "--force", status=2)
        self.assertIn('tensor "w": a GGUF file cannot hold its type', refused)
        for line in ("reshape q [32,1]", f"replace w {source}::q --reshape", 'metadata "" x'):
            self.assertIn("-e: line 1: ", run("edit", source, "-e", line, status=1))
        run("edit", source, "-e", "keep q", "-e", "copy s/$/.f16/", "-e", "cast *.f16 f16", "-o", out, "--force")
        expected = numpy.arange(32) / 2
        self.assertEqual(read(out)[0], {"q": ("F32", (32,), expected.astype("<f4").tobytes()),
                                        "q.f16": ("F16", (32,), expected.astype("<f2").tobytes())})


if __name__ == "__main__":
    unittest.main()
