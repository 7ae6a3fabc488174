"""The Python module with a holder, NumPy and DLPack consumers.

Run by ctest with STFS_GPU_BINARY, STFS_LIBRARY and PYTHONPATH set.
"""

import ctypes
import gc
import json
import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
import unittest

import numpy

import stfs_gpu

BINARY = os.environ["STFS_GPU_BINARY"]
NUMPY = tuple(map(int, numpy.__version__.split(".")[:2]))


def write_checkpoint(path, tensors):
    header, data = {}, b""
    for name, (dtype, shape, content) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape,
                        "data_offsets": [len(data), len(data) + len(content)]}
        data += content
    text = json.dumps(header).encode()
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + data)


def write_gguf(path, tensors):
    infos, data = b"", b""
    for name, dims, dtype, content in tensors:
        name = name.encode(errors="surrogateescape")
        infos += struct.pack("<Q", len(name)) + name + struct.pack("<I", len(dims))
        infos += struct.pack(f"<{len(dims)}QIQ", *dims, dtype, len(data))
        data += content + bytes(-len(content) % 32)
    header = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), 0) + infos
    with open(path, "wb") as file:
        file.write(header + bytes(-len(header) % 32) + data)


def mappings():
    with open("/proc/self/maps") as maps:
        return sum("memfd:stfs-gpu" in line for line in maps)


ARRAYS = {
    "f32": ("F32", numpy.arange(12, dtype="<f4").reshape(3, 4) / 7),
    "f64": ("F64", numpy.array([1.5, -2.5], "<f8")),
    "f16": ("F16", numpy.array([[1, 2], [3, 65504]], "<f2")),
    "c64": ("C64", numpy.array([1 + 2j, -3j], "<c8")),
    "i64": ("I64", numpy.array([-1, 2**62], "<i8")),
    "u32": ("U32", numpy.array([[[7]]], "<u4")),
    "i16": ("I16", numpy.array([-2, 3], "<i2")),
    "u8": ("U8", numpy.arange(256, dtype="u1")),
    "bool": ("BOOL", numpy.array([True, False, True, True])),
    "scalar": ("F32", numpy.array(42, "<f4")),
}
RAW = {
    "bf16": ("BF16", [2, 2], b"\x80\x3f\x00\x40\x40\x40\x80\x40"),
    "f8": ("F8_E4M3", [3], b"\x01\x02\x03"),
    "f4": ("F4", [4], b"\x21\x43"),
    "empty": ("F32", [0, 5], b""),
}


# A DLPack consumer. It follows the specification, and does not depend on the module under test.
class DLTensor(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("device_type", ctypes.c_int32),
                ("device_id", ctypes.c_int32), ("ndim", ctypes.c_int32), ("code", ctypes.c_uint8),
                ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16),
                ("shape", ctypes.POINTER(ctypes.c_int64)),
                ("strides", ctypes.POINTER(ctypes.c_int64)), ("byte_offset", ctypes.c_uint64)]


class Versioned(ctypes.Structure):
    _fields_ = [("major", ctypes.c_uint32), ("minor", ctypes.c_uint32),
                ("manager_ctx", ctypes.c_void_p), ("deleter", ctypes.c_void_p),
                ("flags", ctypes.c_uint64), ("tensor", DLTensor)]
    names = b"dltensor_versioned", b"used_dltensor_versioned"


class Unversioned(ctypes.Structure):
    _fields_ = [("tensor", DLTensor), ("manager_ctx", ctypes.c_void_p),
                ("deleter", ctypes.c_void_p)]
    names = b"dltensor", b"used_dltensor"


Deleter = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


def api(name, result, *arguments):
    return ctypes.PYFUNCTYPE(result, *arguments)((name, ctypes.pythonapi))


capsule_name = api("PyCapsule_GetName", ctypes.c_char_p, ctypes.py_object)
capsule_pointer = api("PyCapsule_GetPointer", ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)
capsule_rename = api("PyCapsule_SetName", ctypes.c_int, ctypes.py_object, ctypes.c_char_p)


class Consumer:
    """Reads a capsule and counts the calls of its deleter."""

    def __init__(self, capsule, kind):
        self.kind, self.calls = kind, 0
        self.address = capsule_pointer(capsule, kind.names[0])
        self.managed = kind.from_address(self.address)
        self.original = Deleter(self.managed.deleter)
        self.counting = Deleter(self.count)
        self.managed.deleter = ctypes.cast(self.counting, ctypes.c_void_p).value

    def count(self, address):
        self.calls += 1
        self.original(address)

    def consume(self, capsule):
        capsule_rename(capsule, self.kind.names[1])

    def delete(self):
        self.counting(self.address)


class PythonTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.directory = tempfile.TemporaryDirectory()
        cls.source = os.path.join(cls.directory.name, "m.safetensors")
        tensors = {name: (dtype, list(array.shape), array.tobytes())
                   for name, (dtype, array) in ARRAYS.items()}
        write_checkpoint(cls.source, {**tensors, **RAW})
        path = os.environ["STFS_GPU_SOCKET"] = os.path.join(cls.directory.name, "socket")
        # Socket activation: clients can connect before the holder runs.
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(path)
            listener.listen()
            fd = listener.fileno()
            cls.holder = subprocess.Popen(
                ["sh", "-c", f'LISTEN_FDS=1 LISTEN_PID=$$ exec "$0" holder 3<&{fd}', BINARY],
                pass_fds=[fd])
        cls.connection = stfs_gpu.connect(start_holder=False)

    @classmethod
    def tearDownClass(cls):
        cls.connection.close()
        cls.holder.terminate()
        cls.holder.wait()
        cls.directory.cleanup()

    def setUp(self):
        gc.collect()
        self.assertEqual(mappings(), 0)

    def acquire(self, *names, **options):
        options = {"device": "cpu", "load_if_missing": True, **options}
        return self.connection.acquire(*[f"{self.source}::{name}" for name in names], **options)

    def test_numpy_arrays_equal_source_values(self):
        tensors = self.acquire("*")
        self.assertEqual(sorted(tensors.names()), sorted([*ARRAYS, *RAW]))
        for name, (dtype, expected) in ARRAYS.items():
            tensor = tensors[name]
            array = tensor.numpy()
            self.assertEqual(tensor.dtype, dtype)
            self.assertEqual(tensor.shape, expected.shape)
            self.assertEqual(tensor.nbytes, expected.nbytes)
            self.assertEqual(array.dtype, expected.dtype, name)
            numpy.testing.assert_array_equal(array, expected)
            self.assertEqual(array.ctypes.data, tensor.ptr)
            numpy.testing.assert_array_equal(numpy.asarray(tensor), expected)

    def test_tensor_describes_itself(self):
        tensor = self.acquire("f32")[0]
        self.assertEqual(tensor.name, "f32")
        self.assertEqual(tensor.label, f"{self.source}::f32")
        self.assertEqual(tensor.device, "cpu")
        self.assertTrue(tensor.uuid.startswith("CPU-"))
        self.assertEqual(tensor.__dlpack_device__(), (1, 0))
        self.assertIn("F32 [3, 4] on cpu", repr(tensor))
        self.assertEqual(tensor.__array_interface__["version"], 3)
        self.assertFalse(hasattr(tensor, "__cuda_array_interface__"))
        with open("/proc/self/maps") as maps:
            self.assertNotIn("libcuda", maps.read())  # host memory loads no driver

    def test_types_that_numpy_lacks_are_not_replaced(self):
        tensors = self.acquire("bf16", "f8", "f4")
        try:
            import ml_dtypes
            bf16 = numpy.dtype(ml_dtypes.bfloat16)
        except ImportError:
            bf16 = numpy.dtype("V2")
        self.assertEqual(tensors["bf16"].numpy().dtype, bf16)
        self.assertEqual(numpy.asarray(tensors["bf16"]).dtype, bf16)
        self.assertEqual(tensors["bf16"].numpy().tobytes(), RAW["bf16"][2])
        self.assertEqual(tensors["f8"].numpy().itemsize, 1)
        self.assertFalse(hasattr(tensors["bf16"], "__array_interface__"))
        with self.assertRaises(TypeError):
            tensors["f4"].numpy()
        with self.assertRaises(TypeError):
            numpy.asarray(tensors["f4"])
        self.assertEqual(tensors["f4"].raw().tobytes(), RAW["f4"][2])
        self.assertEqual(tensors["f4"].raw().dtype, numpy.uint8)

    def test_gguf_blocks_give_bytes_and_values(self):
        path = os.path.join(self.directory.name, "m.gguf")
        block = struct.pack("<e32b", 0.5, *range(32))
        write_gguf(path, [("blocks", [64], 8, block * 2), ("empty", [0, 2**62, 2**62], 0, b"")])
        values = numpy.tile(numpy.arange(32, dtype="<f4") / 2, 2)

        def acquire(name, **options):
            return self.connection.acquire(f"{path}::{name}", device="cpu", load_if_missing=True,
                                           **options)

        tensors = acquire("*")
        self.assertEqual(tensors["empty"].shape, (2**62, 2**62, 0))
        blocks = tensors["blocks"]
        raw = blocks.raw()
        with self.assertRaisesRegex(TypeError, r'use numpy\(as_="f32"\) or raw\(\)$'):
            blocks.numpy()
        with self.assertRaisesRegex(BufferError, "DLPack has no type for Q8_0"):
            blocks.__dlpack__(max_version=(1, 0))
        numpy.testing.assert_array_equal(blocks.numpy(as_="f32"), values)
        tensors.release()
        self.assertEqual(raw.tobytes(), block * 2)
        part = acquire("blocks", as_="f32", shard="1/4@0")[0]
        numpy.testing.assert_array_equal(part.numpy(), values[16:32])
        with self.assertRaisesRegex(stfs_gpu.Error, "lies in blocks of 32 elements"):
            acquire("blocks", shard="1/4@0")

    def test_conversions_and_shards(self):
        converted = self.acquire("bf16", as_="f32")[0].numpy()
        numpy.testing.assert_array_equal(converted, [[1, 2], [3, 4]])
        part = self.acquire("f32", shard="1/2@1")[0].numpy()
        numpy.testing.assert_array_equal(part, ARRAYS["f32"][1][:, 2:])

    def test_copies_any_floating_type_as_float32(self):
        expected = {
            "bf16": [[1, 2], [3, 4]], "f8": [2.0**-9, 2.0**-8, 3 * 2.0**-9],
            "f4": [0.5, 1.0, 1.5, 2.0], "f16": ARRAYS["f16"][1], "f32": ARRAYS["f32"][1],
            "f64": [1.5, -2.5], "scalar": 42, "empty": numpy.empty((0, 5)),
        }
        tensors = self.acquire("*")
        for name, values in expected.items():
            array = tensors[name].numpy(as_="f32")
            self.assertEqual(array.dtype, numpy.float32, name)
            self.assertEqual(array.shape, tensors[name].shape, name)
            numpy.testing.assert_array_equal(array, values, name)
            array[...] = 7  # the caller may write to the copy
        numpy.testing.assert_array_equal(tensors["f32"].numpy(), ARRAYS["f32"][1])
        part = self.acquire("bf16", shard="1/2@0")[0].numpy(as_="f32")
        numpy.testing.assert_array_equal(part, [[3, 4]])
        for name in ("i64", "bool", "c64"):
            with self.assertRaisesRegex(TypeError, "is not a floating-point type: use numpy"):
                tensors[name].numpy(as_="f32")
        for wrong in ("f16", "float32", numpy.float32, 1):
            with self.assertRaisesRegex(ValueError, 'expected "f32" or None'):
                tensors["f32"].numpy(as_=wrong)
        tensors.release()
        with self.assertRaises(stfs_gpu.Error):
            tensors["f32"].numpy(as_="f32")

    def test_empty_tensor_gives_empty_arrays(self):
        tensor = self.acquire("empty")[0]
        self.assertEqual(tensor.ptr, 0)
        for array in (tensor.numpy(), numpy.asarray(tensor)):
            self.assertEqual(array.shape, (0, 5))
            self.assertEqual(array.dtype, numpy.float32)

    def test_arrays_are_read_only(self):
        tensor = self.acquire("f32")[0]
        for array in (tensor.numpy(), numpy.asarray(tensor), tensor.raw()):
            with self.assertRaises(ValueError):
                array[...] = 0
        copy = numpy.array(tensor)
        copy[...] = 0

    def test_array_keeps_memory_mapped(self):
        expected = ARRAYS["f32"][1]
        tensors = self.acquire("f32")
        tensor = tensors[0]
        by_method, by_interface = tensor.numpy(), numpy.asarray(tensor)
        tensors.release()
        with self.assertRaises(stfs_gpu.Error):
            tensor.numpy()
        del tensors, tensor
        gc.collect()
        numpy.testing.assert_array_equal(by_method, expected)
        numpy.testing.assert_array_equal(by_interface, expected)
        del by_method
        self.assertEqual(mappings(), 1)
        del by_interface
        self.assertEqual(mappings(), 0)

    def test_with_statement_releases_and_closes(self):
        with stfs_gpu.connect(start_holder=False) as connection:
            with connection.acquire(f"{self.source}::f32", device="cpu",
                                    load_if_missing=True) as tensors:
                self.assertEqual(mappings(), 1)
            self.assertEqual(mappings(), 0)
        with self.assertRaises(stfs_gpu.Error) as caught:
            connection.acquire(f"{self.source}::f32")
        self.assertEqual(caught.exception.status, stfs_gpu.USAGE)
        self.assertEqual(len(tensors), 1)

    def test_errors_have_status(self):
        for names, options, status in (
                (["/nowhere"], {}, stfs_gpu.UNREADABLE),
                ([f"{self.source}::nothing"], {}, stfs_gpu.USAGE),
                ([f"{self.source}::f32"], {"shard": "0/5@0"}, stfs_gpu.USAGE),
                ([f"{self.source}::f32"], {"device": "toaster"}, stfs_gpu.USAGE)):
            with self.assertRaises(stfs_gpu.Error) as caught:
                self.connection.acquire(*names, **options)
            self.assertEqual(caught.exception.status, status, str(caught.exception))
            self.assertTrue(str(caught.exception))
        with self.assertRaises(ValueError):
            self.connection.acquire(f"{self.source}::f32", device="cpu\0x")

    def test_finds_tensors_by_name(self):
        tensors = self.acquire("f32", "f64")
        self.assertEqual(tensors[1].name, "f64")
        self.assertIs(tensors[f"{self.source}::f64"], tensors[1])
        with self.assertRaises(KeyError):
            tensors["nothing"]
        self.assertEqual(list(tensors), ["f32", "f64"])
        self.assertEqual([t.name for t in tensors.values()], ["f32", "f64"])
        self.assertIs(dict(tensors.items())["f64"], tensors[1])
        for name in ("f32", "f64", f"{self.source}::f64"):
            self.assertIn(name, tensors)
            self.assertTrue(tensors[name])
        for name in ("nothing", 0, tensors[0], None):
            self.assertNotIn(name, tensors)
        self.assertEqual(tensors.get("nothing"), None)
        self.assertEqual(list(self.acquire("f32", "f32")), ["f32", "f32"])
        with tempfile.TemporaryDirectory() as directory:  # two sources with the same name
            copy = shutil.copy(self.source, directory)
            both = self.connection.acquire(f"{self.source}::f32", f"{copy}::f32", device="cpu", load_if_missing=True)
            self.assertNotIn("f32", both)
            with self.assertRaisesRegex(KeyError, "several have this name"):
                both["f32"]
            self.assertEqual(list(both), [f"{self.source}::f32", f"{copy}::f32"])
            self.assertTrue(all(name in both for name in both))

    def test_names_may_contain_nul(self):
        path = os.path.join(self.directory.name, "nul.safetensors")
        write_checkpoint(path, {"a\0b": ("U8", [1], b"1")})
        load = {"device": "cpu", "load_if_missing": True}
        tensors = self.connection.acquire(path, **load)
        self.assertEqual(tensors.names(), ["a\0b"])
        self.assertEqual(tensors[0].label, f"{path}::a\0b")
        with self.assertRaises(KeyError):
            tensors["a"]
        self.assertIs(tensors["a\0b"], tensors[0])
        tensors.release()
        write_checkpoint(path, {"a": ("U8", [1], b"2"), "a\0b": ("U8", [1], b"3"),
                                "": ("U8", [1], b"4")})
        for name, content in (("a", b"2"), ("a\0b", b"3"), ("", b"4")):
            tensors = self.connection.acquire(f"{path}::{name}", **load)
            self.assertEqual(tensors.names(), [name])
            self.assertEqual(tensors[name].raw().tobytes(), content)
        for name in (f"{path}\0::a", f"{path}\0", f"{path}::a\0", "\0", "hf://a/b\0c::w",
                     "https://127.0.0.1:1/m\0.safetensors::w"):
            with self.assertRaises(stfs_gpu.Error, msg=name):
                self.connection.acquire(name, **load)

    def test_names_may_be_any_bytes(self):
        path = os.path.join(self.directory.name, "bytes.gguf")
        name = b"\xffw".decode(errors="surrogateescape")
        write_gguf(path, [("plain", [1], 24, b"1"), (name, [1], 24, b"2")])
        load = {"device": "cpu", "load_if_missing": True}
        tensors = self.connection.acquire(path, **load)
        self.assertEqual(sorted(tensors.names()), ["plain", name])
        self.assertEqual(tensors[name].raw().tobytes(), b"2")
        self.assertEqual(tensors[name].label, f"{path}::{name}")
        tensors.release()
        tensors = self.connection.acquire(f"{path}::{name}", **load)
        self.assertEqual(tensors.names(), [name])

    def test_versioned_capsule_keeps_memory_until_deleted(self):
        tensor = self.acquire("f32")[0]
        capsule = tensor.__dlpack__(max_version=(1, 0))
        self.assertEqual(capsule_name(capsule), b"dltensor_versioned")
        consumer = Consumer(capsule, Versioned)
        managed = consumer.managed
        self.assertEqual(managed.major, 1)
        self.assertEqual(managed.flags, 1)  # read-only
        self.assertEqual(managed.tensor.data, tensor.ptr)
        self.assertEqual((managed.tensor.code, managed.tensor.bits, managed.tensor.lanes),
                         (2, 32, 1))
        self.assertEqual(managed.tensor.shape[:2], [3, 4])
        self.assertEqual(managed.tensor.strides[:2], [4, 1])

        consumer.consume(capsule)
        del capsule, tensor
        gc.collect()
        self.assertEqual(consumer.calls, 0)
        self.assertEqual(mappings(), 1)
        consumer.delete()
        self.assertEqual(consumer.calls, 1)
        self.assertEqual(mappings(), 0)

    def test_unconsumed_capsule_is_deleted_once(self):
        for kind, options in ((Versioned, {"max_version": (1, 1)}), (Unversioned, {"copy": True})):
            tensor = self.acquire("f32")[0]
            capsule = tensor.__dlpack__(**options)
            consumer = Consumer(capsule, kind)
            del tensor, capsule
            self.assertEqual(consumer.calls, 1, kind)
            self.assertEqual(mappings(), 0)

    def test_capsule_may_live_until_interpreter_exits(self):
        script = ("import stfs_gpu, builtins\n"
                  "t = stfs_gpu.acquire(%r, device='cpu', load_if_missing=True)\n"
                  "builtins.kept = [t[0].__dlpack__(max_version=(1, 0)), t[0].numpy(), t]\n"
                  % f"{self.source}::f32")
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
        self.assertEqual((done.returncode, done.stderr), (0, ""))

    def test_refuses_old_consumer_without_copy(self):
        tensor = self.acquire("f32")[0]
        with self.assertRaises(BufferError):
            tensor.__dlpack__()
        with self.assertRaises(BufferError):
            tensor.__dlpack__(max_version=(0, 8))
        capsule = tensor.__dlpack__(copy=True)
        self.assertEqual(capsule_name(capsule), b"dltensor")
        versioned = tensor.__dlpack__(copy=True, max_version=(1, 0))
        self.assertEqual(Consumer(versioned, Versioned).managed.flags, 2)  # a copy

    def test_numpy_consumes_capsules(self):
        tensor = self.acquire("f32")[0]

        class Copied:
            def __dlpack__(self, **options):
                return tensor.__dlpack__(**{**options, "copy": True})

            def __dlpack_device__(self):
                return tensor.__dlpack_device__()

        array = numpy.from_dlpack(Copied())
        numpy.testing.assert_array_equal(array, ARRAYS["f32"][1])
        if NUMPY >= (2, 1):
            view = numpy.from_dlpack(tensor)
            self.assertFalse(view.flags.writeable)
            self.assertEqual(view.ctypes.data, tensor.ptr)
        else:  # a NumPy without DLPack 1.0
            with self.assertRaises(BufferError):
                numpy.from_dlpack(tensor)

    def test_refuses_unsupported_dlpack_requests(self):
        tensor = self.acquire("f32")[0]
        with self.assertRaises(ValueError):
            tensor.__dlpack__(stream=1, max_version=(1, 0))
        with self.assertRaises(BufferError):
            tensor.__dlpack__(dl_device=(2, 0), max_version=(1, 0))
        tensor.__dlpack__(dl_device=(1, 0), max_version=(1, 0))

    def test_forked_child_cannot_use_parent_handles(self):
        tensors = self.acquire("f32")
        array = tensors[0].numpy()
        child = os.fork()
        if child == 0:
            failures = 0
            for use in (lambda: self.acquire("f32"), lambda: tensors[0].numpy()):
                try:
                    use()
                    failures += 1
                except stfs_gpu.Error as error:
                    failures += error.status != stfs_gpu.USAGE
            tensors.release()
            self.connection.close()
            failures += not numpy.array_equal(array, ARRAYS["f32"][1])
            os._exit(failures)
        deadline = time.monotonic() + 60
        done = (0, 0)
        while done[0] == 0 and time.monotonic() < deadline:
            done = os.waitpid(child, os.WNOHANG)
            time.sleep(0.01)
        if done[0] == 0:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
        self.assertEqual(done, (child, 0))
        numpy.testing.assert_array_equal(array, ARRAYS["f32"][1])

    def test_run_passes_tensors_to_command(self):
        script = ("import stfs_gpu\n"
                  "t = stfs_gpu.acquire()\n"
                  "print([(x.name, x.numpy().tolist()) for x in t.values()])\n"
                  "print(stfs_gpu.acquire(%r)[0].numpy().tolist())\n" % f"{self.source}::i64")
        command = [BINARY, "run", "--device", "cpu", f"{self.source}::i64", f"{self.source}::f64",
                   "--", sys.executable, "-c", script]
        environment = {**os.environ, "STFS_GPU_SOCKET": "/nowhere/socket"}
        done = subprocess.run(command, capture_output=True, text=True, env=environment)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(done.stdout, "[('i64', [-1, 4611686018427387904]), ('f64', [1.5, -2.5])]\n"
                                      "[-1, 4611686018427387904]\n")

    def test_run_passes_names_to_command(self):
        nul = os.path.join(self.directory.name, "模型.safetensors")
        write_checkpoint(nul, {"a\0b": ("U8", [1], b"1")})
        other = os.path.join(self.directory.name, "run.gguf")
        name = b"\xffw".decode(errors="surrogateescape")
        write_gguf(other, [(name, [1], 24, b"2")])
        script = ("import stfs_gpu\n"
                  "t = stfs_gpu.acquire()\n"
                  "print([(ascii(x.name), x.raw().tobytes()) for x in t.values()])\n"
                  "print([ascii(x.label) for x in t.values()])\n")
        done = subprocess.run([BINARY, "run", "--device", "cpu", nul, other, "--",
                               sys.executable, "-c", script], capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(done.stdout.splitlines(), [
            repr([(ascii("a\0b"), b"1"), (ascii(name), b"2")]),
            repr([ascii(f"{nul}::a\0b"), ascii(f"{other}::{name}")])])


if __name__ == "__main__":
    unittest.main()
