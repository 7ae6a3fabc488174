"""Computed tensors under faults: no memory, signals, a rewritten source. A read returns correct bytes or fails."""

import errno
import os
import pathlib
import resource
import signal
import subprocess
import tempfile
import threading
import unittest

import number_types as numbers
import registry
import schemes
from checkpoint import Checkpoint
from mounts import HANG, STFS, mounted, run

READ = 1 << 20  # bytes
TRANSPOSED = "model.layers.0.self_attn.q_proj.weight"  # computed in tiles
PLAIN = "model.layers.0.mlp.up_proj.weight"


def checkpoint():
    model, draw = Checkpoint(shards=1), schemes.Draw(17)
    registry.dress(model, draw, "Qwen2ForCausalLM", {"quant_method": "gptq", "bits": 4, "group_size": 128, "desc_act": True})
    schemes.gptq(model, draw, TRANSPOSED.removesuffix(".weight"), 1024, 1024, 4, 128, 1, "order")
    schemes.fp8_block(model, draw, PLAIN, (1024, 1024), (128, 128))
    return model


class Faults(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.work = pathlib.Path(directory.name).resolve()
        self.source, self.mount = self.work / "checkpoint", self.work / "mnt"
        self.mount.mkdir()
        model = checkpoint()
        model.write(self.source)
        self.expected = {name: model.expected("bf16")[name].data for name in (TRANSPOSED, PLAIN)}

    def same(self, raw, expected):
        self.assertEqual(len(raw), len(expected))
        self.assertTrue(numbers.without_nans(raw, "BF16") == numbers.without_nans(expected, "BF16"), "wrong bytes")

    def read(self, name, offset):
        """Reads at `offset` and expects correct bytes. Returns 0 or the errno of the read."""
        descriptor = os.open(self.mount / name, os.O_RDONLY)
        try:
            raw = os.pread(descriptor, READ, offset)
        except OSError as error:
            return error.errno
        finally:
            os.close(descriptor)
        self.assertGreater(len(raw), 0)
        whole = len(raw) // 2 * 2
        self.same(raw[:whole], self.expected[name][offset : offset + whole])
        return 0

    def test_read_without_memory_is_enomem_or_correct(self):
        daemon = subprocess.Popen([STFS, "-f", "-o", "dequantize=bf16,page_cache=direct", self.source, self.mount], stderr=subprocess.DEVNULL)
        self.addCleanup(daemon.wait, HANG)
        self.addCleanup(run, STFS, "-u", "-z", self.mount)
        while not os.path.ismount(self.mount):
            self.assertIsNone(daemon.poll())
            os.sched_yield()
        outcomes = []

        def reader(name, offset):
            try:
                outcomes.append(self.read(name, offset))
            except (AssertionError, OSError) as error:
                outcomes.append(error)

        for megabytes in (1, 2, 4, 8, 16, 64):
            status = pathlib.Path(f"/proc/{daemon.pid}/status").read_text()
            (size,) = [int(line.split()[1]) << 10 for line in status.splitlines() if line.startswith("VmSize")]
            before = resource.prlimit(daemon.pid, resource.RLIMIT_AS, (size + (megabytes << 20), resource.RLIM_INFINITY))
            threads = [threading.Thread(target=reader, args=(name, i << 18)) for name in self.expected for i in range(8)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            resource.prlimit(daemon.pid, resource.RLIMIT_AS, before)
            self.assertIsNone(daemon.poll())
            for name, data in self.expected.items():
                self.same((self.mount / name).read_bytes(), data)
        wrong = [each for each in outcomes if each not in (0, errno.ENOMEM) and getattr(each, "errno", None) != errno.ENOMEM]
        self.assertEqual(wrong, [])

    def test_signal_during_read_changes_no_byte(self):
        before = signal.signal(signal.SIGALRM, lambda *_: None)
        self.addCleanup(signal.signal, signal.SIGALRM, before)
        with mounted(self.source, self.mount, "dequantize=bf16", "page_cache=direct"):
            signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
            try:
                raw = {name: (self.mount / name).read_bytes() for name in self.expected for _ in range(5)}
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
            for name, data in self.expected.items():
                self.same(raw[name], data)

    def test_rewritten_source_is_estale_in_every_view(self):
        """This includes tiles that were computed before the change, and all views."""
        with mounted(self.source, self.mount, "dequantize=bf16", "page_cache=direct"):
            for name in self.expected:
                self.assertEqual(self.read(name, 0), 0)
            with open(self.source / "model.safetensors", "r+b") as file:
                file.seek(-64, os.SEEK_END)
                file.write(b"\1" * 64)
            # The open or the read may fail.
            for name in self.expected:
                for view in (name, f".stfs/npy/{name}.npy", f".stfs/f32/{name}", f".stfs/slice/{name}/:3", f".stfs/sha256/{name}",
                             f".stfs/stats/{name}.json", ".stfs/merged.safetensors", ".stfs/model/model.safetensors"):
                    with self.assertRaises(OSError, msg=view) as failed:
                        (self.mount / view).read_bytes()
                    self.assertEqual(failed.exception.errno, errno.ESTALE, view)


if __name__ == "__main__":
    unittest.main()
