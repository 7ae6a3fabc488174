"""Compares the expectation of each variant with PyTorch, which unpacks the files like the library of each format.

oracle_test.py [VARIANT...]. ORACLE_SEEDS=N also compares N random checkpoints. Skipped (status 77) without PyTorch
(Debian's python3-torch).
"""

import os
import pathlib
import sys
import tempfile
import unittest

try:
    import torch  # noqa: F401
except ImportError:
    print("skipped: no PyTorch")
    sys.exit(77)

import number_types as numbers
import random_variants
import reference
import variants
from checkpoint import Computed


class Oracle(unittest.TestCase):
    def agree(self, model):
        with tempfile.TemporaryDirectory() as directory:
            model.write(directory)
            other = reference.Reference(pathlib.Path(directory))
            expected = {word: model.expected(word) for word in numbers.RESULTS}
            for name, each in model.results.items():
                if not isinstance(each, Computed):
                    continue
                values = other.values(name)
                for word, dtype in numbers.RESULTS.items():
                    mine = expected[word][name]
                    self.assertEqual(tuple(values.shape), mine.shape, name)
                    self.assertEqual(numbers.without_nans(reference.bytes_of(values, word), dtype),
                                     numbers.without_nans(mine.data, dtype), f"{name} as {word}")

    def test_every_variant_equals_pytorch(self):
        for name in NAMES:
            with self.subTest(name):
                self.agree(variants.make(name))

    def test_random_checkpoints_equal_pytorch(self):
        for seed in range(int(os.environ.get("ORACLE_SEEDS", "100"))):
            with self.subTest(seed=seed):
                self.agree(random_variants.make(seed))

    def test_every_code_of_small_types_equals_pytorch(self):
        codes = torch.arange(256, dtype=torch.uint8)
        for table, function in ((numbers.E4M3, reference.e4m3), (numbers.E5M2, reference.e5m2), (numbers.E8M0, reference.e8m0)):
            self.assertEqual(numbers.without_nans(reference.bytes_of(function(codes), "f32"), "F32"),
                             numbers.without_nans(table.tobytes(), "F32"))


if __name__ == "__main__":
    NAMES = sys.argv[1:] or list(variants.VARIANTS)
    unittest.main(argv=sys.argv[:1])
