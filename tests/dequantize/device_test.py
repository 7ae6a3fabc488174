"""Expects the expected values, bit for bit, in the host memory that stfs-gpu keeps: device_test.py [VARIANT...].

The tensors of a variant are loaded from its directory with --dequantize, verified, and read through the paths that `get`
prints. The two other ways to request them, a mount with -o dequantize and stfs_gpu.h, must find the same memory. All NaNs
compare equal.
"""

import json
import os
import pathlib
import socket
import subprocess
import sys
import tempfile
import unittest

import variants
from dequantize_test import comparable
from mounts import mounted, run

GPU = os.environ["STFS_GPU_BINARY"]
HAS_LIBRARY = "STFS_LIBRARY" in os.environ  # Python cannot load a library with sanitizers
if HAS_LIBRARY:
    import stfs_gpu


class Device(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.work = pathlib.Path(directory.name).resolve()
        path = str(self.work / "gpu.sock")
        os.environ["STFS_GPU_SOCKET"] = path
        with socket.socket(socket.AF_UNIX) as listener:  # clients can connect before the holder runs
            listener.bind(path)
            listener.listen()
            number = listener.fileno()
            holder = subprocess.Popen(
                ["sh", "-c", f'LISTEN_FDS=1 LISTEN_PID=$$ exec "$0" holder 3<&{number}', GPU], pass_fds=[number])
        self.addCleanup(holder.wait)
        self.addCleanup(holder.terminate)

    def gpu(self, verb, *words):
        done = run(GPU, verb, "--json", "--device", "cpu", *words)
        self.assertEqual(done.returncode, 0, done.stderr.decode(errors="replace"))
        return json.loads(done.stdout)

    def bytes_of(self, row):
        with open(row["path"], "rb") as memory:
            memory.seek(row["offset"])
            return memory.read(row["bytes"])

    def same(self, raw, each, about):
        self.assertEqual(comparable(raw, each.dtype), comparable(each.data, each.dtype), about)

    def variant(self, name, word):
        model = variants.make(name)
        source = self.work / name
        if not source.exists():
            model.write(source)
        expected = model.expected(word)
        self.gpu("load", "--verify", "--tile", "4096", "--dequantize", word, source)
        rows = self.gpu("get", "--dequantize", word, source)
        resident = {row["label"].split("::", 1)[1].split(" computed as ")[0]: row for row in rows}
        self.assertEqual(resident.keys(), expected.keys())
        for tensor, each in expected.items():
            row = resident[tensor]
            self.assertEqual((row["dtype"], tuple(row["shape"])), (each.dtype, each.shape), (name, tensor))
            self.same(self.bytes_of(row) if row["bytes"] else b"", each, (name, word, tensor))
        with mounted(source, self.work / "mnt", "dequantize=" + word) as mount:
            self.assertEqual(self.gpu("load", mount)["copied_bytes"], 0, name)
        if HAS_LIBRARY:
            with stfs_gpu.connect(start_holder=False) as connection:
                with connection.acquire(source, dequantize=word) as tensors:
                    self.assertEqual(len(tensors), len(expected))
                    for tensor in tensors.values():
                        self.same(tensor.raw().tobytes(), expected[tensor.name], (name, word, tensor.name))
        run(GPU, "evict", "--all")

    def test_device_memory_equals_every_variant(self):
        for name in NAMES:
            with self.subTest(variant=name):
                self.variant(name, "bf16")

    def test_device_memory_equals_other_types(self):
        for name in NAMES[:: max(1, len(NAMES) // 5)]:
            for word in ("f16", "f32"):
                with self.subTest(variant=name, word=word):
                    self.variant(name, word)


NAMES = sys.argv[1:] or list(variants.VARIANTS)

if __name__ == "__main__":
    print(len(NAMES), "variants:", *NAMES)
    result = unittest.TextTestRunner().run(unittest.defaultTestLoader.loadTestsFromTestCase(Device))
    sys.exit(not result.wasSuccessful())
