"""broken_test.py PREFIX...: expects that checkpoints that only look quantised fail with an error that names the tensor.

Tests each checkpoint of broken.py with one of the prefixes. The first checkpoint that is rejected is also checked with
stfs-info, mounted without the option, and read over HTTP.
"""

import pathlib
import sys
import tempfile
import unittest

import broken
import number_types as numbers
from checkpoint import Computed, move_data_past_first_block
from mounts import INFO, STFS, http_root, info, mounted, run, unmount


class Broken(unittest.TestCase):
    is_first = True

    def reads_right(self, mount, model):
        for name, each in model.expected("bf16").items():
            raw = (mount / name).read_bytes()
            if isinstance(model.results[name], Computed):
                raw, data = (numbers.without_nans(part, each.dtype) for part in (raw, each.data))
            else:
                data = each.data
            self.assertEqual(raw, data, f"mounted, but {name} has wrong values")

    def reads_fail(self, mount, words):
        """Expects that the read of each tensor with one of the words in its name fails."""
        named = [path for path in mount.iterdir() if any(word in path.name for word in words)]
        self.assertTrue(named)
        for path in named:
            with self.assertRaises(OSError, msg=path.name):
                path.read_bytes()

    def outcome(self, name, work):
        model, expected = broken.make(name)
        source, mountpoint = work / name, work / "mnt"
        model.write(source)
        info("list", source)
        mountpoint.mkdir(exist_ok=True)
        done = run(STFS, "-o", "dequantize=bf16", source, mountpoint)
        message = done.stderr.decode(errors="replace")
        if done.returncode == 0:
            try:
                self.assertIn(expected["outcome"], ("late", "either", "right", "silent", "warned"), "it is mounted")
                if expected["outcome"] == "warned":
                    self.assertTrue(all(word in message for word in expected["words"]), message)
                    self.assertEqual(message.count("\n"), 1, message)
                if expected["outcome"] == "silent":
                    self.assertEqual(message, "")
                if expected["outcome"] == "late":
                    self.reads_fail(mountpoint, expected["words"])
                else:
                    self.reads_right(mountpoint, model)
            finally:
                unmount(mountpoint)
            return
        self.assertNotIn(expected["outcome"], ("right", "silent", "warned"), message)
        self.assertEqual(done.returncode, 1, message)
        self.assertEqual(message.count("\n"), 1, message)
        self.assertTrue(message.startswith("stfs: "), message)
        self.assertTrue(any(word.lower() in message.lower() for word in expected["words"]), f"{message}: none of {expected['words']}")
        listed = run(INFO, "list", "--dequantize=bf16", source)
        self.assertEqual(listed.returncode, 1, listed)
        self.assertEqual(listed.stderr.decode(errors="replace"), message.replace("stfs: ", "stfs-info: ", 1))
        if self.is_first:
            checked = run(INFO, "check", "--dequantize=bf16", source)
            self.assertEqual(checked.returncode, 1, checked)
            info("check", source)
            with mounted(source, mountpoint):
                pass
        if self.is_first or name.startswith("gptq-symmetric"):  # the error must not depend on local bytes
            self.is_first = False
            index = source / ("model.safetensors" if model.shards == 1 else "model.safetensors.index.json")
            move_data_past_first_block(source)
            listed = run(INFO, "list", "--dequantize=bf16", f"{http_root()}{index}", STFS_CACHE=str(work / name / "cache"))
            self.assertEqual(listed.returncode, 1, listed)
            self.assertEqual(listed.stderr.decode(errors="replace").replace(http_root(), ""), message.replace("stfs: ", "stfs-info: ", 1), "over http")

    def test_broken_checkpoints_have_expected_outcome(self):
        names = [name for name in broken.BROKEN if name.startswith(tuple(sys.argv[1:]))]
        self.assertTrue(names)
        with tempfile.TemporaryDirectory() as directory:
            for name in names:
                with self.subTest(name):
                    self.outcome(name, pathlib.Path(directory).resolve())


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
