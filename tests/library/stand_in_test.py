"""stfs.safe_open and stfs.numpy stand in for those of safetensors.

Run by ctest with STFS_LIBRARY and PYTHONPATH set.
"""

import os
import stat
import struct
import subprocess
import unittest

import numpy

import stfs
from support import ARRAYS, Base, write_q8_0


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
        for wrong, error in (({1: ARRAYS["u8"][1], "a": ARRAYS["u8"][1]}, TypeError),
                             ({"a": numpy.ma.array([1, 2], mask=[0, 1])}, stfs.SafetensorError)):
            with self.subTest(wrong), self.assertRaises(error):
                stfs.numpy.save(wrong)
        with self.assertRaisesRegex(FileNotFoundError, "none/t.safetensors'$"):
            stfs.numpy.save_file(self.ARRAYS, self.at("none/t.safetensors"))
        for wrong in ({}, {"a": 1}), ({"__metadata__": ARRAYS["u8"][1]}, None):
            with self.assertRaises(stfs.SafetensorError):
                stfs.numpy.save_file(wrong[0], self.at("none.safetensors"), wrong[1])
        self.assertEqual(sorted(os.listdir(self.directory)), ["m.safetensors", "out.safetensors"])
        with self.assertRaises(stfs.SafetensorError):
            stfs.numpy.load(b"nothing at all")

    def test_a_pipe_is_written_to_and_stays(self):
        pipe = self.at("pipe")
        os.mkfifo(pipe)
        reader = subprocess.Popen(["cat", pipe], stdout=subprocess.PIPE)
        stfs.numpy.save_file(self.ARRAYS, pipe)
        self.assertEqual(reader.communicate()[0], stfs.numpy.save(self.ARRAYS))
        self.assertTrue(stat.S_ISFIFO(os.stat(pipe).st_mode))

    def test_blocks_of_gguf_are_float32(self):
        expected = numpy.arange(-16, 16, dtype="f4") / 2
        with stfs.safe_open(write_q8_0(self.at("m.gguf")), "np") as f:
            for got in (f.get_tensor("w"), f.get_tensors()["w"], f.get_slice("w")[:]):
                numpy.testing.assert_array_equal(got, expected)


if __name__ == "__main__":
    unittest.main()
