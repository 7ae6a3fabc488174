"""stfs.safe_open and stfs.numpy replace safetensors.safe_open and safetensors.numpy.

Run by ctest with STFS_LIBRARY and PYTHONPATH set.
"""

import unittest

import numpy

import stfs
from support import ARRAYS, Base, contents, write_q8_0


class StandInTest(Base):
    def test_safe_open_behaves_like_safetensors(self):
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
    def test_numpy_loads_writable_arrays(self):
        for loaded in stfs.numpy.load_file(self.path), stfs.numpy.load(contents(self.path)):
            self.assertEqual(list(loaded), list(ARRAYS))
            for name, (dtype, array) in ARRAYS.items():
                self.assertEqual(loaded[name].tobytes(), array.tobytes())
                self.assertTrue(loaded[name].flags.writeable)
        with self.assertRaises(stfs.SafetensorError):
            stfs.numpy.load(b"nothing at all")

    def test_save_functions_refer_to_safetensors(self):
        for module, name in (("numpy", "save_file"), ("torch", "save_file"), ("torch", "load_model")):
            with self.assertRaisesRegex(AttributeError, f"use safetensors.{module}.{name}$"):
                getattr(getattr(stfs, module), name)
        with self.assertRaisesRegex(AttributeError, "has no attribute 'none'$"):
            stfs.torch.none

    def test_gguf_blocks_are_float32(self):
        expected = numpy.arange(-16, 16, dtype="f4") / 2
        with stfs.safe_open(write_q8_0(self.at("m.gguf")), "np") as f:
            for got in (f.get_tensor("w"), f.get_tensors()["w"], f.get_slice("w")[:]):
                numpy.testing.assert_array_equal(got, expected)


if __name__ == "__main__":
    unittest.main()
