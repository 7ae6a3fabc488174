"""Expects that a mount with `-o dequantize` shows the expected values, bit for bit.

dequantize_test.py FAMILY, `random FIRST LAST` or `many`. A family is all variants with the same first word. For each
variant the tests compare the bytes, shape, type and attributes of each tensor in F32, and ranges and slices of it. For
the first variant of a family they also compare everything that does not depend on the scheme: the other types, the views,
the merged file, `extract`, the merged file and the mount as sources, each verb of stfs-info in each type, `model/` in
each type, and the checkpoint without the option. All NaNs compare equal.
"""

import functools
import io
import json
import os
import pathlib
import random
import sys
import tempfile
import unittest

import numpy as np

import checkpoint
import number_types as numbers
import variants
from checkpoint import ELEMENTS, Computed, read_safetensors
from mounts import INFO, attribute, http_root, info, mounted, run

NPY = {"F32": "<f4", "F16": "<f2", "BF16": "V2", "I64": "<i8", "I32": "<i4", "U8": "|u1", "I8": "|i1"}
FLOATS = ("BF16", "F16", "F32")
# The files of the directory that `.stfs/model/` shows, because loaders look for them.
FOR_LOADERS = {"config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json"}


def comparable(raw, dtype):
    return numbers.without_nans(raw, dtype) if dtype in FLOATS else raw


def random_slice(draw, shape):
    """Returns an expression with a slice for each of the first dimensions."""
    words = []
    for size in shape[: draw.randint(0, len(shape))]:
        first, last = sorted(draw.randint(0, size) for _ in range(2))
        words.append(draw.choice([f"{first}:{last}", f"{first}:", ":", f"::{draw.randint(1, 7)}",
                                  f"-{draw.randint(1, size)}" if size else ":"]))
    return ",".join(words) or "..."


def sliced(array, expression):
    """Returns NumPy's slice for this expression."""
    return eval("array[" + expression + "]", {"array": array})  # made by random_slice


class Values(unittest.TestCase):
    """The tests of everything that a scheme decides."""

    VARIANT = None  # None: the caller has set MODEL

    def setUp(self):
        global MODEL
        if self.VARIANT:
            MODEL = made(self.VARIANT)
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.work = pathlib.Path(directory.name).resolve()
        self.source = self.work / "checkpoint"
        MODEL.write(self.source)
        self.draw = random.Random(len(MODEL.tensors))

    def __str__(self):
        return f"{self.VARIANT}: {super().__str__()}"

    def same(self, raw, expected, about):
        self.assertEqual(len(raw), len(expected.data), about)
        if comparable(raw, expected.dtype) != comparable(expected.data, expected.dtype):
            kind = {"BF16": "<u2", "F16": "<u2", "F32": "<u4"}.get(expected.dtype, "u1")
            mine, theirs = (np.frombuffer(comparable(each, expected.dtype), kind) for each in (expected.data, raw))
            wrong = np.flatnonzero(mine != theirs)
            first = wrong[0]
            place = np.unravel_index(first, expected.shape) if kind != "u1" and expected.shape else first
            self.fail(f"{about}: {len(wrong)} of {len(mine)} differ, the first at {place}: {theirs[first]:#x}, expected {mine[first]:#x}")

    def shows(self, mount, expected, about):
        """Expects exactly these tensors in the mount. Returns its tensors.json."""
        rows = json.loads((mount / ".stfs/tensors.json").read_bytes())
        self.assertEqual({row["name"] for row in rows}, expected.keys(), about)
        self.assertEqual(sorted(os.listdir(mount)), sorted(expected), about)
        for row in rows:
            each = expected[row["name"]]
            self.assertEqual((row["dtype"], tuple(row["shape"]), row["bytes"]), (each.dtype, each.shape, len(each.data)), row["name"])
            path = mount / row["path"]
            self.assertEqual(path.stat().st_size, len(each.data))
            self.assertEqual(attribute(path, "dtype"), each.dtype)
            self.assertEqual(tuple(json.loads(attribute(path, "shape"))), each.shape)
            self.same(path.read_bytes(), each, f"{about}: {row['name']}")
        return rows

    def locators(self, mount, rows):
        """Expects that a stored tensor has a locator, and that a computed tensor has no locator and names its inputs."""
        for row in rows:
            computed = isinstance(MODEL.results[row["name"]], Computed)
            path = mount / row["path"]
            where = [attribute(path, key) for key in ("source", "offset", "length")]
            if not computed:
                self.assertNotIn(None, where, row["name"])
                with open(where[0], "rb") as file:
                    file.seek(int(where[1]))
                    self.assertEqual(file.read(int(where[2])), path.read_bytes())
                continue
            self.assertEqual(where, [None] * 3, row["name"])
            self.assertEqual((row["source"], row["offset"]), (None, None))
            made_of = attribute(path, "from")
            for name in MODEL.results[row["name"]].inputs:
                self.assertIn(name, made_of)

    def ranges(self, mount, expected):
        """Expects that any range equals the same range of the whole. The kernel caches no page of this mount."""
        for name, each in expected.items():
            descriptor = os.open(mount / name, os.O_RDONLY)
            for _ in range(12):
                offset = self.draw.randint(0, len(each.data))
                length = self.draw.choice([1, 2, 3, 7, 16, 255, self.draw.randint(0, len(each.data) + 9)])
                raw = os.pread(descriptor, length, offset)
                self.assertEqual(len(raw), max(0, min(length, len(each.data) - offset)))
                size = np.dtype(ELEMENTS[each.dtype]).itemsize
                whole = -(-offset // size) * size  # compare from the first whole element, because NaNs may differ
                raw, data = raw[whole - offset :], each.data[whole : offset + length]
                end = min(len(raw), len(data)) // size * size
                self.assertEqual(comparable(raw[:end], each.dtype), comparable(data[:end], each.dtype), (name, offset, length))
            os.close(descriptor)

    def slices(self, mount, expected):
        for name, each in expected.items():
            for _ in range(6):
                expression = random_slice(self.draw, each.shape)
                part = sliced(each.array(), expression)
                raw = (mount / ".stfs/slice" / name / expression).read_bytes()
                data = np.ascontiguousarray(part).tobytes()
                self.assertEqual(comparable(raw, each.dtype), comparable(data, each.dtype), (name, expression))

    def views(self, mount, expected):
        for name, each in expected.items():
            raw = (mount / f".stfs/npy/{name}.npy").read_bytes()
            array = np.load(io.BytesIO(raw))
            self.assertEqual((array.dtype, array.shape), (np.dtype(NPY[each.dtype]), each.shape), name)
            self.same(array.tobytes(), each, f"npy of {name}")
            single = self.work / "single.safetensors"
            single.write_bytes((mount / f".stfs/safetensors/{name}.safetensors").read_bytes())
            (other,) = read_safetensors(single).items()
            self.assertEqual((other[0], other[1].dtype, other[1].shape), (name, each.dtype, each.shape))
            self.same(other[1].data, each, f"safetensors of {name}")
            if each.dtype in FLOATS:
                wide = (mount / ".stfs/f32" / name).read_bytes()
                values = np.ascontiguousarray(each.values(), "<f4").tobytes()
                self.assertEqual(comparable(wide, "F32"), comparable(values, "F32"), f"f32 of {name}")

    def merged(self, mount, expected):
        """Expects that another reader finds the same tensors in the merged file. Returns a copy of the file."""
        file = self.work / "merged.safetensors"
        file.write_bytes((mount / ".stfs/merged.safetensors").read_bytes())
        others = read_safetensors(file)
        self.assertEqual(others.keys(), expected.keys())
        metadata = {key: value for key, value in MODEL.metadata.items() if key not in MODEL.hides}
        self.assertEqual(checkpoint.metadata_of(file), metadata)
        self.assertEqual({path.name for path in (mount / ".stfs/metadata").iterdir()}, metadata.keys())
        for name, each in expected.items():
            self.assertEqual((others[name].dtype, others[name].shape), (each.dtype, each.shape))
            self.same(others[name].data, each, f"merged: {name}")
        return file

    def model_directory(self, mount, word, files):
        directory = mount / ".stfs/model"
        if not MODEL.keeps_names or "config.json" not in files:
            self.assertFalse(directory.exists())
            return
        names = set(os.listdir(directory))
        # Without the option the quantisation stays, so the files that describe it may be present.
        optional = {"quantize_config.json", "quant_config.json", "hf_quant_config.json"} if word is None else set()
        self.assertEqual(names - optional, (FOR_LOADERS & files) | {"model.safetensors"})
        config = json.loads((directory / "config.json").read_bytes())
        if word is None:
            self.assertEqual(config, MODEL.config)
            return
        self.assertEqual((directory / "model.safetensors").read_bytes(), (mount / ".stfs/merged.safetensors").read_bytes())
        expected = MODEL.expected_config(word)
        new = {key: expected.get(key) for key in ("torch_dtype", "dtype")}
        self.assertIn(next(filter(None, new.values())), (config.get("torch_dtype"), config.get("dtype")))
        for each in (config, expected, config.get("text_config", {}), expected.get("text_config", {})):
            each.pop("torch_dtype", None)
            each.pop("dtype", None)
        self.assertEqual(config, expected)

    def test_shows_expected_values_in_f32(self):
        expected = MODEL.expected("f32")
        with mounted(self.source, self.work / "mnt", "dequantize=f32", "page_cache=direct") as mount:
            self.ranges(mount, expected)
            self.slices(mount, expected)
            self.locators(mount, self.shows(mount, expected, "f32"))

    def test_http_source_has_same_values(self):
        """A remote checkpoint has the same values with an empty cache."""
        (index,) = [path for path in self.source.iterdir() if path.name in ("model.safetensors", "model.safetensors.index.json")]
        checkpoint.move_data_past_first_block(self.source)
        file, expected = self.work / "fetched.safetensors", MODEL.expected("f32")
        done = run(INFO, "extract", "--dequantize=f32", "-o", file, f"{http_root()}{index}", "*", STFS_CACHE=str(self.work / "cache"))
        self.assertEqual((done.returncode, done.stderr), (0, b""))
        others = read_safetensors(file)
        self.assertEqual(others.keys(), expected.keys())
        for name, each in expected.items():
            self.assertEqual((others[name].dtype, others[name].shape), (each.dtype, each.shape))
            self.same(others[name].data, each, f"over http: {name}")


class EveryStep(Values):
    """Also the tests of everything that no scheme decides."""

    def test_shows_expected_values_in_bf16(self):
        expected = MODEL.expected("bf16")
        with mounted(self.source, self.work / "mnt", "dequantize=bf16") as mount:
            rows = self.shows(mount, expected, "bf16")
            self.locators(mount, rows)
            self.views(mount, expected)
            self.slices(mount, expected)
            self.merged(mount, expected)
            self.model_directory(mount, "bf16", {path.name for path in self.source.iterdir()})

    def test_shows_expected_values_in_f16(self):
        expected = MODEL.expected("f16")
        with mounted(self.source, self.work / "mnt", "dequantize=f16") as mount:
            self.shows(mount, expected, "f16")

    def test_works_as_source_of_another_mount(self):
        """A mount of the merged file, and a mount of the mount, have the same tensors."""
        expected = MODEL.expected("bf16")
        with mounted(self.source, self.work / "mnt", "dequantize=bf16") as mount:
            file = self.merged(mount, expected)
            for options in ([], ["dequantize=bf16"]):
                with mounted(file, self.work / "again", *options) as again:
                    self.shows(again, expected, f"merged, mounted with {options}")
            self.reject_other_type(mount)
            with mounted(mount, self.work / "second") as second:
                self.shows(second, expected, "the mount as a source")

    def test_stfs_info_prints_expected_tensors(self):
        for word in numbers.RESULTS:
            expected, option = MODEL.expected(word), f"--dequantize={word}"
            for verb in ("list", "show"):
                rows = json.loads(info(verb, option, "--json", self.source, *(["*"] if verb == "show" else [])))
                listed = {row["name"]: (row["dtype"], tuple(row["shape"])) for row in rows}
                self.assertEqual(listed, {name: (each.dtype, each.shape) for name, each in expected.items()})
            self.assertIn(f"{len(expected)} tensors".encode(), info("check", option, self.source))
            stats = info("stats", option, self.source).decode().splitlines()
            self.assertEqual(len(stats), 1 + len(expected), stats)
            file = self.work / f"{word}.safetensors"
            info("extract", option, "-o", file, self.source, "*")
            others = read_safetensors(file)
            self.assertEqual(others.keys(), expected.keys())
            for name, each in expected.items():
                self.assertEqual((others[name].dtype, others[name].shape), (each.dtype, each.shape))
                self.same(others[name].data, each, f"extract: {name}")
            computed = [name for name, each in MODEL.results.items() if isinstance(each, Computed)]
            for name in self.draw.sample(computed, min(2, len(computed))):
                self.same(info("cat", option, self.source, name), expected[name], f"cat: {name}")

    def test_stored_tensors_are_unchanged_without_option(self):
        info("check", self.source)
        rows = json.loads(info("list", "--json", self.source))
        self.assertEqual({row["name"]: row["dtype"] for row in rows}, {name: each.dtype for name, each in MODEL.tensors.items()})
        with mounted(self.source, self.work / "mnt") as mount:
            for name, each in MODEL.tensors.items():
                self.assertEqual((mount / name).read_bytes(), each.data, name)
            self.reject_single_tensor(mount)

    def reject_single_tensor(self, mount):
        """A single weight in a mount of the stored tensors is rejected as a source, because its scales may be outside."""
        name = sorted(MODEL.tensors)[0]
        done = run(INFO, "list", "--dequantize=bf16", mount / name)
        self.assertEqual(done.returncode, 2, done.stderr)
        self.assertIn(b"scales may lie outside of it: name the mount", done.stderr)
        part = self.work / "part"
        with mounted(mount / name, part):
            done = run(INFO, "list", "--dequantize=bf16", part)
            self.assertEqual(done.returncode, 2, done.stderr)
            self.assertIn(b"scales may lie outside of it: name the mount", done.stderr)
            done = run(INFO, "list", part)
            self.assertEqual(done.returncode, 0, done.stderr)

    def reject_other_type(self, mount):
        """A mount in BF16 is rejected as a source for another type."""
        done = run(INFO, "list", "--dequantize=f32", mount)
        self.assertEqual(done.returncode, 2, done.stderr)
        self.assertIn(b"name the source of the mount for another type", done.stderr)
        info("list", "--dequantize=bf16", mount)

    def test_model_directory_has_expected_files(self):
        files = {path.name for path in self.source.iterdir()}
        for word in (None, *numbers.RESULTS):
            with mounted(self.source, self.work / "mnt", *([f"dequantize={word}"] if word else [])) as mount:
                self.model_directory(mount, word, files)


class ManyExperts(Values):
    """Thousands of quantised weights, in four files."""

    def test_shows_all_of_20000_experts(self):
        expected = MODEL.expected("bf16")
        with mounted(self.source, self.work / "mnt", "dequantize=bf16") as mount:
            rows = json.loads((mount / ".stfs/tensors.json").read_bytes())
            self.assertEqual({row["name"] for row in rows}, expected.keys())
            for name in self.draw.sample(sorted(expected), 200):
                self.same((mount / name).read_bytes(), expected[name], name)


def many_experts():
    model = checkpoint.Checkpoint(shards=4)
    model.config = {"torch_dtype": "bfloat16", "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]}}
    for i in range(20000):
        name = f"model.layers.{i // 1000}.mlp.experts.{i % 1000}.up_proj.weight"
        codes = np.array([[i & 0x3F, i >> 6 & 0x3F], [i >> 12, 0x38]], np.uint8)
        scale = np.array([[2.0 ** -(i % 9)]], np.float32)
        model.put(name, checkpoint.tensor("F8_E4M3", codes))
        model.put(name + "_scale_inv", checkpoint.tensor("F32", scale))
        model.computed(name, numbers.E4M3[codes] * scale, [name, name + "_scale_inv"])
    return model


class RandomCheckpoints(Values):
    """The same tests with random schemes and shapes, and fewer steps for each."""

    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.work = pathlib.Path(directory.name).resolve()
        self.draw = random.Random(SEEDS.start)

    def test_show_expected_values(self):
        global MODEL
        for seed in SEEDS:
            with self.subTest(seed=seed):
                MODEL = random_variants.make(seed)
                source = self.work / f"checkpoint{seed}"
                MODEL.write(source)
                word = self.draw.choice(list(numbers.RESULTS))
                expected = MODEL.expected(word)
                with mounted(source, self.work / "mnt", "dequantize=" + word, "page_cache=direct") as mount:
                    self.ranges(mount, expected)
                    self.slices(mount, expected)
                    self.shows(mount, expected, word)


@functools.lru_cache(maxsize=1)
def made(name):
    return variants.make(name)


def family(word):
    """Returns the names of the variants in a family."""
    names = [name for name in variants.VARIANTS if name.partition("-")[0] == word]
    if not names:
        raise SystemExit(f"{word}: no variant begins with it")
    return names


if __name__ == "__main__":
    if sys.argv[1] == "random":
        import random_variants

        MODEL, SEEDS = None, range(int(sys.argv[2]), int(sys.argv[3]))
        suite = [RandomCheckpoints("test_show_expected_values")]
    elif sys.argv[1] == "many":
        MODEL = many_experts()
        suite = [ManyExperts("test_shows_all_of_20000_experts")]
    else:
        suite = []
        for place, name in enumerate(family(sys.argv[1])):
            case = EveryStep if place == 0 else Values
            suite.append(unittest.defaultTestLoader.loadTestsFromTestCase(type(case.__name__, (case,), {"VARIANT": name})))
    result = unittest.TextTestRunner().run(unittest.TestSuite(suite))
    sys.exit(not result.wasSuccessful())
