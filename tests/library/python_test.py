"""import stfs: checkpoints without a mount, with NumPy, torch where it is installed, threads, forks, pickles.

Run by ctest with STFS_LIBRARY and PYTHONPATH set.
"""

import gc
import http.server
import json
import multiprocessing
import os
import pickle
import signal
import struct
import subprocess
import sys
import tempfile
import threading
import types
import unittest
import warnings

import numpy

import stfs

ARRAYS = {
    "f32": ("F32", numpy.arange(24, dtype="<f4").reshape(4, 6) / 7),
    "u8": ("U8", numpy.array([1, 2, 3], "|u1")),
    "f64": ("F64", numpy.array([1.5, -2.5], "<f8")),
    "f16": ("F16", numpy.array([[1, 2], [3, 65504]], "<f2")),
    "c64": ("C64", numpy.array([1 + 2j, -3j], "<c8")),
    "i64": ("I64", numpy.array(-5, "<i8")),
    "bool": ("BOOL", numpy.array([True, False])),
    "empty": ("F32", numpy.zeros((0, 3), "<f4")),
    "bf16": ("BF16", (numpy.array([1, -2.5], "<f4").view("<u4") >> 16).astype("<u2")),
}


def write_checkpoint(path, arrays, metadata=None):
    header, data = {} if metadata is None else {"__metadata__": metadata}, b""
    for name, (dtype, array) in arrays.items():
        content = array.tobytes()
        header[name] = {"dtype": dtype, "shape": array.shape, "data_offsets": [len(data), len(data) + len(content)]}
        data += content
    text = json.dumps(header).encode()
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + data)
    return path


def write_q8_0(path):
    """A GGUF file with a tensor of one block: scale 0.5 and the codes -16 to 15."""
    name = b"w"
    header = (b"GGUF" + struct.pack("<IQQ", 3, 1, 0) + struct.pack("<Q", len(name)) + name +
              struct.pack("<IQIQ", 1, 32, 8, 0))
    with open(path, "wb") as file:
        file.write(header + bytes(-len(header) % 32))
        file.write(numpy.float16(0.5).tobytes() + numpy.arange(-16, 16, dtype="i1").tobytes() + bytes(30))
    return path


def contents(path):
    with open(path, "rb") as file:
        return file.read()


def in_child(body):
    """Whether the body returns in a forked child."""
    child = os.fork()
    if child == 0:
        try:
            body()
            os._exit(0)
        except BaseException as error:
            sys.stderr.write(f"{error!r}\n")
            os._exit(1)
    return os.waitpid(child, 0)[1] == 0


class Ranges(http.server.SimpleHTTPRequestHandler):
    """Answers ranges; those behind the first 100,000 bytes wait for `gate`."""

    def do_GET(self):
        with open(self.server.file, "rb") as file:
            content = file.read()
        begin, end = 0, len(content)
        if "Range" in self.headers:
            first, last = self.headers["Range"][len("bytes="):].split("-")
            begin, end = int(first), min(len(content), int(last) + 1)
            if begin > 100_000:
                self.server.gate.wait()
        self.send_response(206 if "Range" in self.headers else 200)
        self.send_header("Content-Range", f"bytes {begin}-{end - 1}/{len(content)}")
        self.send_header("Content-Length", str(end - begin))
        self.send_header("ETag", '"v1"')
        self.end_headers()
        try:
            self.wfile.write(content[begin:end])
        except OSError:
            pass

    def log_message(self, *words):
        pass


class Base(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.directory = directory.name
        self.path = write_checkpoint(self.at("m.safetensors"), ARRAYS, {"format": "pt"})

    def at(self, name):
        return os.path.join(self.directory, name)


class CheckpointTest(Base):
    def test_is_a_mapping_in_the_order_of_the_bytes(self):
        m = stfs.open(self.path)
        self.assertEqual(list(m), list(ARRAYS))
        self.assertEqual(len(m), len(ARRAYS))
        self.assertIn("f32", m)
        self.assertNotIn("f33", m)
        self.assertNotIn(3, m)
        self.assertEqual([name for name, _ in m.items()], list(ARRAYS))
        self.assertEqual(m.metadata, {"format": "pt"})
        self.assertEqual(m.match("f*"), ["f32", "f64", "f16"])
        self.assertEqual(m.sources, [self.path])
        self.assertEqual(m.info()["tensors"], len(ARRAYS))
        self.assertEqual(len(m.version), 64)
        self.assertEqual(stfs.open(self.at("")).version, m.version)

    def test_failures_are_the_built_in_exceptions_too(self):
        m = stfs.open(self.path)
        for error, call, words in (
                (KeyError, lambda: m["f33"], 'did you mean "f32"'), (KeyError, lambda: m[3], "str"),
                (FileNotFoundError, lambda: stfs.open(self.at("none")), "No such file"),
                (ValueError, lambda: stfs.open(self.path, colour="red"), "colour=red"),
                (ValueError, lambda: stfs.open(self.path, dequantize="q4"), "bf16|f16|f32"),
                (ValueError, lambda: stfs.open([]), "no source"),
                (ValueError, lambda: stfs.open("a\0b"), "NUL")):
            with self.subTest(words):
                with self.assertRaises(error) as raised:
                    call()
                self.assertIsInstance(raised.exception, stfs.Error)
                self.assertIn(words, str(raised.exception))
                copy = pickle.loads(pickle.dumps(raised.exception))
                self.assertEqual((type(copy), str(copy)), (type(raised.exception), str(raised.exception)))
        with open(self.at("broken.safetensors"), "wb") as file:
            file.write(b"nothing")
        with self.assertRaises(stfs.InvalidCheckpoint):
            stfs.open(self.at("broken.safetensors"))

    def test_a_file_that_changes_is_an_error_and_never_other_bytes(self):
        m = stfs.open(self.path)
        with open(self.path, "r+b") as file:
            file.seek(-1, os.SEEK_END)
            file.write(b"\xff")
        for call in (lambda: m["f32"].numpy(), lambda: bytes(m["f32"]), lambda: m["f32"].numpy("f32")):
            with self.assertRaises(stfs.Unreadable) as raised:
                call()
            self.assertEqual(raised.exception.errno, 116)  # ESTALE

    def test_pickles_as_sources_versions_and_options(self):
        m = stfs.open(write_q8_0(self.at("m.gguf")), dequantize="f32")
        for copy in (pickle.loads(pickle.dumps(m)), pickle.loads(pickle.dumps(m["w"])), ):
            tensor = copy if isinstance(copy, stfs.Tensor) else copy["w"]
            self.assertEqual(tensor.dtype, "F32")
        part = pickle.loads(pickle.dumps(stfs.open(self.path)["f32"][1:3, ::2]))
        numpy.testing.assert_array_equal(part.numpy(), ARRAYS["f32"][1][1:3, ::2])
        pickled = pickle.dumps(stfs.open(self.path))
        os.truncate(self.path, os.path.getsize(self.path) - 1)
        with self.assertRaises(stfs.Error):
            pickle.loads(pickled)

    def test_a_spawned_process_and_a_forked_one_read_on(self):
        tensor = stfs.open(self.path)["f32"]
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            self.assertEqual(pool.apply(bytes, (tensor,)), ARRAYS["f32"][1].tobytes())
        self.assertTrue(in_child(lambda: numpy.testing.assert_array_equal(tensor.numpy(copy=True), ARRAYS["f32"][1])))

    def test_a_forked_child_computes_for_itself(self):
        w = stfs.open(write_q8_0(self.at("m.gguf")), dequantize="f32")["w"]
        self.assertTrue(in_child(lambda: self.assertEqual(bytes(w), (numpy.arange(-16, 16, dtype="f4") / 2).tobytes())))

    def test_importing_starts_nothing(self):
        code = ("import sys, threading, os; import stfs; "
                "assert 'numpy' not in sys.modules and 'torch' not in sys.modules; "
                "assert len(os.listdir('/proc/self/task')) == 1; print(stfs.__version__)")
        printed = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
        self.assertEqual(printed.strip(), stfs.version())

    def test_a_process_ends_while_arrays_live(self):
        code = ("import stfs, sys, numpy; kept = [t.numpy() for t in stfs.open(sys.argv[1]).values()]; "
                "more = stfs.open(sys.argv[1])['f32'].memoryview(); numpy.kept = kept, more")
        subprocess.run([sys.executable, "-c", code, self.path], check=True)

    def test_names_of_any_bytes(self):
        path = write_checkpoint(self.at("n.safetensors"), dict.fromkeys(["n\0l", "", "ü\n"], ARRAYS["u8"]))
        m = stfs.open(path)
        self.assertEqual(list(m), ["n\0l", "", "ü\n"])
        self.assertEqual(bytes(m["n\0l"]), bytes(m[""]))
        self.assertNotIn("\n", repr(m["ü\n"]))


class LayersTest(Base):
    def test_edits_show_and_save(self):
        edited = stfs.open(self.path, edits=["rename s/f32/renamed/", "cast renamed f64", "metadata title new"])
        expected = ARRAYS["f32"][1].astype("<f8")
        numpy.testing.assert_array_equal(edited["renamed"].numpy(), expected)
        out = self.at("out.safetensors")
        self.assertEqual(edited.save(out) % 4096, 0)
        saved = stfs.open(out)
        self.assertEqual((set(saved), saved.metadata["title"]), (set(edited), "new"))
        numpy.testing.assert_array_equal(saved["renamed"].numpy(), expected)
        with self.assertRaisesRegex(stfs.Error, "there is a file of this name"):
            edited.save(out)
        edited.save(out, replace=True)
        with self.assertRaisesRegex(stfs.Error, "a file of the source"):
            edited.save(self.path, replace=True)
        with self.assertRaisesRegex(stfs.Error, "line 1: .*matches no name"):
            stfs.open(self.path, edits=["drop nothing"])

    def test_shards_are_saved_whole(self):
        directory = self.at("shards")
        stfs.open(self.path).save(directory, shard_size=100)
        self.assertIn("model.safetensors.index.json", os.listdir(directory))
        again = stfs.open(directory)
        self.assertEqual({name: bytes(again[name]) for name in again},
                         {name: bytes(each) for name, each in stfs.open(self.path).items()})

    def test_adapters_are_merged(self):
        adapter = self.at("adapter")
        os.mkdir(adapter)
        with open(os.path.join(adapter, "adapter_config.json"), "w") as file:
            json.dump({"peft_type": "LORA", "r": 1, "lora_alpha": 2}, file)
        checkpoint = write_checkpoint(self.at("base.safetensors"), {"q.weight": ("F32", numpy.zeros((2, 3), "<f4"))})
        write_checkpoint(os.path.join(adapter, "adapter_model.safetensors"), {
            "base_model.model.q.lora_A.weight": ("F32", numpy.array([[1, 2, 3]], "<f4")),
            "base_model.model.q.lora_B.weight": ("F32", numpy.array([[1], [-1]], "<f4"))})
        merged = stfs.open(checkpoint, lora=[adapter, "0.5@" + adapter])
        numpy.testing.assert_array_equal(merged["q.weight"].numpy(), [[3, 6, 9], [-3, -6, -9]])
        again = pickle.loads(pickle.dumps(merged))
        numpy.testing.assert_array_equal(again["q.weight"].numpy(), [[3, 6, 9], [-3, -6, -9]])

    def test_a_source_that_changed_is_not_saved(self):
        opened = stfs.open(self.path)
        write_checkpoint(self.path, {"other": ARRAYS["u8"]})
        with self.assertRaises(stfs.Error):
            opened.save(self.at("out.safetensors"))
        self.assertFalse(os.path.exists(self.at("out.safetensors")))


class TensorTest(Base):
    def setUp(self):
        super().setUp()
        self.m = stfs.open(self.path)

    def test_knows_what_it_is(self):
        t = self.m["f32"]
        self.assertEqual((t.name, t.dtype, t.shape, t.nbytes, t.elements, len(t)), ("f32", "F32", (4, 6), 96, 24, 4))
        self.assertEqual((t.source, t.from_, repr(t)), (self.path, [], "<stfs.Tensor 'f32' F32 [4,6]>"))
        with open(self.path, "rb") as file:
            file.seek(t[2].offset)
            self.assertEqual(file.read(t[2].nbytes), ARRAYS["f32"][1][2].tobytes())
        self.assertIsNone(t[:, ::2].offset)

    def test_arrays_are_views_where_memory_fits(self):
        for name, (dtype, array) in ARRAYS.items():
            with self.subTest(name):
                got = self.m[name].numpy()
                expected = array if dtype != "BF16" else array.view(got.dtype)
                self.assertEqual(got.tobytes(), expected.tobytes())
                self.assertEqual(got.shape, array.shape)
                if dtype == "U8":  # the others may be unaligned
                    self.assertFalse(got.flags.writeable)
                self.assertTrue(self.m[name].numpy(copy=True).flags.writeable)
                self.assertEqual(bytes(self.m[name]), array.tobytes())
                self.assertEqual(bytes(self.m[name].memoryview()), array.tobytes())
        self.assertTrue(self.m["u8"].memoryview().readonly)

    def test_an_aligned_view_is_no_copy_and_keeps_its_memory(self):
        path = write_checkpoint(self.at("a.safetensors"), {"a": ("U8", numpy.arange(256, dtype="u1"))})
        one, other = stfs.open(path)["a"], None
        view = one.numpy()
        other = one.numpy()
        self.assertEqual(view.__array_interface__["data"], other.__array_interface__["data"])
        strided = one[::3].numpy()
        self.assertEqual(strided.strides, (3,))
        del one, other
        gc.collect()
        numpy.testing.assert_array_equal(view, numpy.arange(256, dtype="u1"))
        numpy.testing.assert_array_equal(strided, numpy.arange(0, 256, 3, dtype="u1"))

    def test_values_as_float32(self):
        numpy.testing.assert_array_equal(self.m["bf16"].numpy(as_="f32"), numpy.array([1, -2.5], "f4"))
        numpy.testing.assert_array_equal(self.m["f16"].numpy("f32"), ARRAYS["f16"][1].astype("f4"))
        w = stfs.open(write_q8_0(self.at("m.gguf")))["w"]
        numpy.testing.assert_array_equal(w.numpy("f32"), numpy.arange(-16, 16, dtype="f4") / 2)
        numpy.testing.assert_array_equal(w[5:20:3].numpy("f32"), (numpy.arange(-16, 16, dtype="f4") / 2)[5:20:3])
        self.assertEqual((w.dtype, w.nbytes), ("Q8_0", 34))
        for error, call in ((TypeError, w.numpy), (ValueError, lambda: self.m["i64"].numpy("f32")),
                            (ValueError, lambda: w.numpy("f16")), (ValueError, lambda: bytes(w[1:3]))):
            with self.assertRaises(error):
                call()

    def test_indexes_are_numpys(self):
        array, t = ARRAYS["f32"][1], self.m["f32"]
        for key in (0, -1, slice(1, 3), (slice(None), 2), (..., slice(0, 6, 4)), (1, 2), (slice(3, 1),), ..., (),
                    (slice(-2, 100), slice(None, None, 5)), (numpy.int64(1),)):
            with self.subTest(key):
                for got in (t[key].numpy(), t[key].numpy(copy=True), t[key].numpy(as_="f32")):
                    numpy.testing.assert_array_equal(got, array[key])
                self.assertEqual(t[key].shape, array[key].shape)
                self.assertEqual(bytes(t[key]), array[key].tobytes())
        numpy.testing.assert_array_equal(t[1:][::2, 1:][1, ::3].numpy(), array[1:][::2, 1:][1, ::3])
        for key, error in ((4, IndexError), (-5, IndexError), ((0, 0, 0), IndexError), ((..., ...), IndexError),
                           (slice(None, None, -1), ValueError), (None, TypeError), ([0, 1], TypeError),
                           (True, TypeError), (1.0, TypeError)):
            with self.subTest(key), self.assertRaises(error):
                t[key]

    def test_an_array_or_a_mask_is_no_integer(self):
        for key in (numpy.array([1]), numpy.array(True), numpy.bool_(True), numpy.array([True] * 4)):
            with self.subTest(key), self.assertRaises(TypeError):
                self.m["f32"][key]
        scalar = self.m["i64"]
        for part in (scalar[()], scalar[...]):
            self.assertEqual(part.numpy(copy=True), -5)

    def test_elements_that_share_bytes_are_not_read_alone(self):
        packed = types.SimpleNamespace(shape=(2, 2), tobytes=lambda: b"\x21\x43")
        w = stfs.open(write_checkpoint(self.at("f4.safetensors"), {"w": ("F4", packed)}))["w"]
        numpy.testing.assert_array_equal(w.numpy("f32"), [[0.5, 1.0], [1.5, 2.0]])
        for call in (lambda: w[0, 1].nbytes, lambda: bytes(w[0, 1]), lambda: w[0, 1].memoryview()):
            with self.assertRaises(ValueError):
                call()
        self.assertIsNone(w[0, 1].offset)

    def test_garbage_in_a_cycle_may_read_to_its_end(self):
        read = []

        class Cycle:
            def __init__(self, tensor):
                self.tensor, self.view, self.me = tensor, tensor.memoryview(), self

            def __del__(self):
                read.append((bytes(self.tensor), bytes(self.view)))

        Cycle(stfs.open(self.path)["f64"])
        gc.collect()
        self.assertEqual(read, [(ARRAYS["f64"][1].tobytes(),) * 2])

    def test_an_export_that_nobody_takes_keeps_the_exception(self):
        with self.assertRaises(ZeroDivisionError):
            [self.m["f64"].__dlpack__(), 1 / 0]

    def test_threads_that_cannot_start_cost_speed_alone(self):
        large = numpy.random.default_rng(3).integers(1, 256, 8 << 20, dtype="u1")
        path = write_checkpoint(self.at("large.safetensors"), {"w": ("U8", large)})
        code = "import stfs, sys; sys.stdout.buffer.write(bytes(stfs.open(sys.argv[1])['w']))"
        failing = {"LD_PRELOAD": os.environ["STFS_FAILING_CALLS"], "STFS_FAIL_CALL": "pthread_create",
                   "STFS_FAIL_AT": "1", "STFS_FAIL_ON": "1"}
        done = subprocess.run([sys.executable, "-c", code, path], check=True, stdout=subprocess.PIPE,
                              env={**os.environ, **failing})
        self.assertEqual(done.stdout, large.tobytes())

    def test_reads_into_a_buffer(self):
        t = self.m["f32"]
        buffer = bytearray(100)
        self.assertEqual(t.readinto(buffer), 96)
        self.assertEqual(bytes(buffer), ARRAYS["f32"][1].tobytes() + bytes(4))
        out = numpy.empty((4, 6), "f4")
        t.readinto(out)
        numpy.testing.assert_array_equal(out, ARRAYS["f32"][1])
        for wrong, error in ((bytearray(3), ValueError), (bytes(96), TypeError), (out.T, BufferError)):
            with self.assertRaises(error):
                t.readinto(wrong)

    def test_numpy_takes_it(self):
        numpy.testing.assert_array_equal(numpy.asarray(self.m["f64"]), ARRAYS["f64"][1])
        numpy.testing.assert_array_equal(numpy.from_dlpack(self.m["f16"]), ARRAYS["f16"][1])
        self.assertEqual(numpy.asarray(self.m["f64"], dtype="f4").dtype, numpy.float32)
        self.m["f16"].__dlpack__()  # dropped without a consumer
        with self.assertRaises(BufferError):
            stfs.open(write_q8_0(self.at("m.gguf")))["w"].__dlpack__()

    def test_torch_takes_it(self):
        try:
            import torch
        except ImportError:
            self.skipTest("torch is not installed")
        before = contents(self.path)
        for name in ("f32", "f16", "bf16", "bool", "i64", "u8", "empty", "c64"):
            with self.subTest(name):
                tensor = self.m[name].torch()
                raw = tensor.view(torch.int16).numpy() if name == "bf16" else tensor.numpy()
                self.assertEqual(raw.tobytes(), ARRAYS[name][1].tobytes())
                self.assertEqual(tuple(tensor.shape), self.m[name].shape)
        f32 = self.m["f32"].torch()
        f32.zero_()
        torch.from_dlpack(self.m["f32"]).zero_()
        self.m["f32"][1:3].torch().zero_()
        self.assertEqual(contents(self.path), before)
        numpy.testing.assert_array_equal(self.m["f32"].torch().numpy(), ARRAYS["f32"][1])

    def test_a_large_tensor_is_mapped_and_only_its_own_memory_is_unmapped(self):
        # munmap(2) of address 0 would take a program that is linked to low addresses, as Debian's Python is.
        large = numpy.random.default_rng(2).integers(1, 256, 16 << 20, dtype="u1")
        path = write_checkpoint(self.at("large.safetensors"), {"w": ("U8", large)})
        for _ in range(3):
            w = stfs.open(path)["w"]
            array = numpy.from_dlpack(w)
            del w
            gc.collect()
            numpy.testing.assert_array_equal(array, large)
            del array
        self.assertNotIn(b"large.safetensors", contents("/proc/self/maps"))

    def test_sixteen_threads_share_a_checkpoint(self):
        wrong = []

        def read():
            for _ in range(20):
                for name, (_, array) in ARRAYS.items():
                    if bytes(self.m[name]) != array.tobytes():
                        wrong.append(name)

        threads = [threading.Thread(target=read) for _ in range(16)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(wrong, [])


class StandInTest(Base):
    def test_safe_open_is_that_of_safetensors(self):
        with stfs.safe_open(self.path, framework="np") as f:
            self.assertEqual(f.keys(), sorted(ARRAYS))
            self.assertEqual(f.offset_keys(), list(ARRAYS))
            self.assertEqual(f.metadata(), {"format": "pt"})
            numpy.testing.assert_array_equal(f.get_tensor("f32"), ARRAYS["f32"][1])
            part = f.get_slice("f32")
            self.assertEqual((part.get_shape(), part.get_dtype()), ([4, 6], "F32"))
            numpy.testing.assert_array_equal(part[1:4:2, -1], ARRAYS["f32"][1][1:4:2, -1])
            self.assertEqual(list(f.get_tensors()), list(ARRAYS))
            with self.assertRaisesRegex(stfs.SafetensorError, "File does not contain tensor x"):
                f.get_tensor("x")
        with self.assertRaisesRegex(stfs.SafetensorError, "File is closed"):
            f.keys()
        numpy.testing.assert_array_equal(part[0], ARRAYS["f32"][1][0])
        self.assertEqual(part[[]].shape, (0, 6))
        for key, words in (((slice(2, None), -7), "Invalid index -7 for dimension 1 of size 6"),
                           ((slice(None), slice(None, 20)), r"\[:, :20\] with shape \[4, 6\]: index 19 out of bounds"),
                           ((slice(2, None), 20), "index 20 out of bounds for tensor dimension #1 of size 6"),
                           ([0, 1], "Non empty lists are not implemented")):
            with self.subTest(key), self.assertRaisesRegex(stfs.SafetensorError, words):
                part[key]
        with self.assertRaises(OverflowError):
            part[-2:]
        for arguments, error, words in ((("x",), stfs.SafetensorError, "framework x is invalid"),
                                        (("np", "nowhere"), stfs.SafetensorError, "device nowhere is invalid"),
                                        (("np", 0), stfs.SafetensorError, "cuda:0 is not supported"),
                                        (("pt", "cuda:x"), ValueError, "number")):
            with self.subTest(arguments), self.assertRaisesRegex(error, words):
                stfs.safe_open(self.path, *arguments)
        with self.assertRaisesRegex(FileNotFoundError, "No such file or directory: "):
            stfs.safe_open(self.at("none"), "np")

    def test_torch_tensors_are_private(self):
        try:
            import torch
        except ImportError:
            self.skipTest("torch is not installed")
        with stfs.safe_open(self.path, "pt") as f:
            f.get_tensor("f32").zero_()
            self.assertEqual(f.get_tensor("f32").numpy().tobytes(), ARRAYS["f32"][1].tobytes())
            part = f.get_slice("f32")
            numpy.testing.assert_array_equal(part[[2, 0]].numpy(), ARRAYS["f32"][1][[2, 0]])
            numpy.testing.assert_array_equal(part[:20, -1].numpy(), ARRAYS["f32"][1][:20, -1])


class ModulesTest(Base):
    ARRAYS = {name: array for name, (dtype, array) in ARRAYS.items() if dtype != "BF16"}

    def test_numpy_saves_and_loads(self):
        stfs.numpy.save_file({**self.ARRAYS, "t": ARRAYS["f32"][1].T, "big": ARRAYS["f32"][1].astype(">f4")},
                             self.at("out.safetensors"), {"a": "b"})
        loaded = stfs.numpy.load_file(self.at("out.safetensors"))
        numpy.testing.assert_array_equal(loaded.pop("t"), ARRAYS["f32"][1].T)
        numpy.testing.assert_array_equal(loaded.pop("big"), ARRAYS["f32"][1])
        for name, array in self.ARRAYS.items():
            numpy.testing.assert_array_equal(loaded[name], array)
            self.assertTrue(loaded[name].flags.writeable)
        data = stfs.numpy.save(self.ARRAYS)
        self.assertEqual(stfs.numpy.load(data).keys(), self.ARRAYS.keys())
        self.assertEqual(struct.unpack("<Q", data[:8])[0] % 8, 0)
        self.assertEqual(stfs.open(self.at("out.safetensors")).metadata, {"a": "b"})
        for wrong, error in (([1], ValueError), ({"a": 1}, stfs.SafetensorError),
                             ({"a": numpy.array(["x"])}, stfs.SafetensorError)):
            with self.subTest(wrong), self.assertRaises(error):
                stfs.numpy.save_file(wrong, self.at("none.safetensors"))
        for wrong in ({}, {"a": 1}), ({"__metadata__": ARRAYS["u8"][1]}, None):
            with self.assertRaises(stfs.SafetensorError):
                stfs.numpy.save_file(wrong[0], self.at("none.safetensors"), wrong[1])
        self.assertEqual(sorted(os.listdir(self.directory)), ["m.safetensors", "out.safetensors"])
        with self.assertRaises(stfs.SafetensorError):
            stfs.numpy.load(b"nothing at all")

    def test_torch_saves_and_loads(self):
        try:
            import torch
        except ImportError:
            self.skipTest("torch is not installed")
        tensors = {"a": torch.arange(6.).reshape(2, 3), "b": torch.ones(3, dtype=torch.bfloat16), "e": torch.ones(0)}
        stfs.torch.save_file(tensors, self.at("out.safetensors"))
        for loaded in (stfs.torch.load_file(self.at("out.safetensors")), stfs.torch.load(stfs.torch.save(tensors))):
            self.assertEqual(loaded.keys(), tensors.keys())
            for name, tensor in tensors.items():
                self.assertTrue(torch.equal(loaded[name], tensor))
                loaded[name].zero_()
        for tensor in torch.tensor([1 + 2j]).conj(), torch.tensor([1., 2.])._neg_view():
            self.assertTrue(torch.equal(stfs.torch.load(stfs.torch.save({"a": tensor}))["a"], tensor.clone()))
        base = torch.ones(4, 4)
        disjoint = {"a": base[1:], "b": base[:1]}
        self.assertEqual(stfs.torch.save(disjoint), stfs.torch.save({name: t.clone() for name, t in disjoint.items()}))
        for wrong, error in ({"a": base.to_sparse()}, ValueError), ({"a": 1}, ValueError), \
                            ({"a": base.t()}, ValueError), ({"a": base, "b": base[0]}, RuntimeError), ([], ValueError):
            with self.assertRaises(error):
                stfs.torch.save(wrong)


class ElsewhereTest(Base):
    def setUp(self):
        super().setUp()
        self.large = numpy.random.default_rng(1).integers(1, 256, 2_000_000, dtype="u1")
        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Ranges)
        self.server.file = write_checkpoint(self.at("large.safetensors"), {"w": ("U8", self.large)})
        self.server.gate = threading.Event()
        self.server.daemon_threads = True
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.addCleanup(self.server.server_close)
        self.addCleanup(self.server.shutdown)
        self.addCleanup(self.server.gate.set)
        self.url = f"http://127.0.0.1:{self.server.server_port}/large.safetensors"

    def open(self):
        return stfs.open(self.url, cache_dir=self.at("cache"))

    def test_reads_views_and_slices(self):
        self.server.gate.set()
        w = self.open()["w"]
        numpy.testing.assert_array_equal(w[1_500_000:1_500_010].numpy(), self.large[1_500_000:1_500_010])
        numpy.testing.assert_array_equal(w[::100_000].numpy(), self.large[::100_000])
        numpy.testing.assert_array_equal(w.numpy(), self.large)

    def test_a_forked_child_makes_its_own_connections(self):
        m = self.open()
        self.server.gate.set()
        self.assertEqual(bytes(m["w"][:4]), self.large[:4].tobytes())
        self.assertTrue(in_child(lambda: numpy.testing.assert_array_equal(m["w"].numpy(copy=True), self.large)))
        self.assertEqual(bytes(m["w"]), self.large.tobytes())

    def test_cancel_ends_the_waits_of_other_threads(self):
        m = self.open()
        ended = []

        def read():
            try:
                bytes(m["w"])
            except stfs.Cancelled as error:
                ended.append(error)

        thread = threading.Thread(target=read)
        thread.start()
        while thread.is_alive():
            m.cancel()
            thread.join(0.01)
        self.assertEqual(len(ended), 1)

    def test_control_c_ends_a_wait(self):
        code = ("import stfs, sys\n"
                "m = stfs.open(sys.argv[1], cache_dir=sys.argv[2])\n"
                "try:\n print('open', flush=True)\n bytes(m['w'])\n"
                "except KeyboardInterrupt:\n print('interrupted')\n")
        child = subprocess.Popen([sys.executable, "-c", code, self.url, self.at("cache")],
                                 stdout=subprocess.PIPE, text=True)
        self.assertEqual(child.stdout.readline(), "open\n")
        child.send_signal(signal.SIGINT)
        self.assertEqual(child.communicate()[0], "interrupted\n")


if __name__ == "__main__":
    warnings.simplefilter("error", ResourceWarning)
    unittest.main()
