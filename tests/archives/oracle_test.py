"""Compares files that PyTorch and NumPy have written with what they read from them, bit for bit."""

import argparse
import json
import os
import pathlib
import struct
import subprocess
import sys
import tempfile
import unittest

try:
    import numpy
    import torch
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)  # CTest's SKIP_RETURN_CODE

INFO = os.environ["STFS_INFO_BINARY"]


def run(*words):
    return subprocess.run([INFO, *map(str, words)], capture_output=True, check=False)


def tensors_in(value, path=""):
    """Returns the tensors in a loaded object by the path of their keys."""
    if isinstance(value, torch.Tensor):
        return {path or "tensor": value}
    if isinstance(value, dict):
        parts = value.items()
    elif isinstance(value, (list, tuple)):
        parts = enumerate(value)
    else:
        parts = getattr(value, "__dict__", {}).items()
    found = {}
    for key, part in parts:
        found.update(tensors_in(part, f"{path}.{key}" if path else str(key)))
    return found


def bytes_of(tensor):
    tensor = tensor.detach().contiguous()
    return (tensor.view(torch.int16) if tensor.dtype == torch.bfloat16 else tensor).numpy().tobytes()


DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int8, torch.uint8, torch.int16,
          torch.int32, torch.int64, torch.bool, torch.complex64]


def everything():
    base = torch.randn(60, 80)
    images = torch.randn(2, 3, 40, 50)
    model = torch.nn.Sequential(torch.nn.Linear(7, 5), torch.nn.BatchNorm1d(5), torch.nn.LSTM(5, 3))
    optimizer = torch.optim.Adam(model[:2].parameters())
    model[1](model[0](torch.randn(9, 7))).sum().backward()
    optimizer.step()
    return {
        "dtypes": {str(dtype): (torch.randn(5, 3) * 9).to(dtype) for dtype in DTYPES},
        "views": {"t": base.t(), "row": base[7], "column": base[:, 3], "step": base[3::7, 1::9], "same": base,
                  "expanded": base[:, :1].expand(60, 4), "outer": base[:1].expand(5, 80),
                  "windows": base.unfold(1, 5, 2), "permuted": images.permute(2, 0, 3, 1),
                  "channels_last": images.to(memory_format=torch.channels_last), "diagonal": base.diagonal(),
                  "scalar": torch.tensor(3.5), "empty": torch.empty(0, 3), "of_empty": base[:0, ::2]},
        "model": model.state_dict(), "optimizer": optimizer.state_dict(), "parameter": torch.nn.Parameter(base),
        "tied": [base, base], "namespace": argparse.Namespace(deep=[{"x": (torch.ones(2),)}], steps=3),
        "whole": model, "rng": torch.get_rng_state(), "size": base.shape, "array": numpy.ones(3), "epoch": 7,
    }


class Oracle(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.work = pathlib.Path(directory.name)
        torch.manual_seed(3)

    def names(self, path):
        listed = run("list", "--json", path)
        self.assertEqual(listed.returncode, 0, listed.stderr)
        return {tensor["name"] for tensor in json.loads(listed.stdout)}

    def check(self, path, expected):
        self.assertEqual(self.names(path), set(expected))
        for name, data in expected.items():
            with self.subTest(f"{path.name}: {name}"):
                self.assertTrue(run("cat", path, name).stdout == data)

    def test_reads_torch_files_in_every_protocol(self):
        for protocol in (2, 3, 4, 5):
            path = self.work / f"{protocol}.pt"
            torch.save(everything(), path, pickle_protocol=protocol)
            expected = {name: bytes_of(tensor) for name, tensor in tensors_in(torch.load(path)).items()}
            self.check(path, expected)

    def test_reads_single_tensor_and_list(self):
        torch.save(torch.arange(5), self.work / "bare.pt")
        self.check(self.work / "bare.pt", {"tensor": bytes_of(torch.arange(5))})
        torch.save([torch.ones(2), {3: torch.zeros(1)}], self.work / "list.pt")
        self.check(self.work / "list.pt", {"0": bytes_of(torch.ones(2)), "1.3": bytes_of(torch.zeros(1))})

    def test_names_refused_tensors_and_shows_others(self):
        path = self.work / "odd.pt"
        torch.save({"sparse": torch.eye(3).to_sparse(), "csr": torch.eye(3).to_sparse_csr(),
                    "quantised": torch.quantize_per_tensor(torch.randn(3), 0.1, 0, torch.qint8),
                    "double": torch.randn(2, dtype=torch.complex128), "good": torch.ones(3)}, path)
        self.check(path, {"good": bytes_of(torch.ones(3))})
        info = run("info", path).stdout.decode()
        for name in ("sparse", "csr", "quantised", "double"):
            self.assertIn(f'tensor "{name}": ', info)

    def test_refuses_old_files_and_scripts(self):
        torch.save(torch.ones(3), self.work / "old.pt", _use_new_zipfile_serialization=False)
        torch.jit.script(torch.nn.Linear(2, 2)).save(str(self.work / "script.pt"))
        for name, words in (("old.pt", "torch.save"), ("script.pt", "torch.jit.load")):
            listed = run("list", self.work / name)
            self.assertEqual(listed.returncode, 1)
            self.assertIn(words, listed.stderr.decode())

    def test_reads_many_storages(self):
        path = self.work / "many.pt"
        torch.save({f"layer.{i}.weight": torch.full((3,), i) for i in range(20_000)}, path)
        self.assertEqual(len(self.names(path)), 20_000)
        self.assertEqual(run("cat", path, "layer.19999.weight").stdout, bytes_of(torch.full((3,), 19_999)))

    def test_reads_numpy_archives(self):
        random = numpy.random.default_rng(3)
        arrays = {code: (random.random((7, 5)) * 99).astype(code)
                  for code in ("<f4", "<f8", "<f2", "<i1", "<u2", "<i4", "<u8", "|b1", "<c8")}
        arrays |= {"scalar": numpy.float32(3), "empty": numpy.zeros((0, 4)), "in/a folder": numpy.arange(9),
                   "fortran": numpy.asfortranarray(random.random((300, 20, 11))), "T": random.random((2000, 500)).T,
                   "opaque": numpy.frombuffer(b"abcdef", "V2"), "large": random.random((700, 900))}
        refused = {"big": numpy.ones(3, ">f4"), "text": numpy.array(["abc"]), "bytes": numpy.array([b"ab"]),
                   "date": numpy.array(["2020-01-01"], "M8[D]"), "object": numpy.array([None], object),
                   "fields": numpy.zeros(2, [("a", "i4")]), "quad": numpy.ones(1, numpy.longdouble)}
        for save in (numpy.savez, numpy.savez_compressed):
            path = self.work / f"{save.__name__}.npz"
            save(path, **arrays, **refused)
            self.check(path, {name: numpy.ascontiguousarray(array).tobytes() for name, array in arrays.items()})

    def test_reads_storages_above_4_gib(self):
        # Like a file from PyTorch, except that the large storage is a hole.
        path = self.work / "large.pt"
        torch.save({"hole": torch.zeros(4, dtype=torch.uint8), "last": torch.arange(5)}, path)
        size = 5 << 30
        pickle = (b"\x80\x02}(" + self.pickled("hole", "ByteStorage", "0", size) +
                  self.pickled("last", "LongStorage", "1", 5) + b"u.")
        members = [("a/data.pkl", pickle, len(pickle)), ("a/data/0", b"", size),
                   ("a/data/1", bytes_of(torch.arange(5)), 40)]
        directory = b""
        with open(path, "wb") as file:
            for name, data, length in members:
                offset = file.tell()
                file.write(struct.pack("<4s5HIIIHH", b"PK\3\4", 0, 0x808, 0, 0, 0, 0, 0, 0, len(name), 0))
                file.write(name.encode() + data)
                file.seek(length - len(data), os.SEEK_CUR)
                file.write(struct.pack("<4sIQQ", b"PK\7\10", 0, length, length))
                extra = struct.pack("<HHQQQ", 1, 24, length, length, offset)
                directory += struct.pack("<4s6HIIIHHHHHII", b"PK\1\2", 0, 0, 0x808, 0, 0, 0, 0, 0xFFFFFFFF, 0xFFFFFFFF,
                                         len(name), len(extra), 0, 0, 0, 0, 0xFFFFFFFF) + name.encode() + extra
            begin = file.tell()
            file.write(directory)
            record = file.tell()
            file.write(struct.pack("<4sQHHIIQQQQ", b"PK\6\6", 44, 45, 45, 0, 0, 3, 3, len(directory), begin))
            file.write(struct.pack("<4sIQI", b"PK\6\7", 0, record, 1))
            file.write(struct.pack("<4sHHHHIIH", b"PK\5\6", 0, 0, 3, 3, 0xFFFFFFFF, 0xFFFFFFFF, 0))
        self.assertEqual(self.names(path), {"hole", "last"})
        self.assertEqual(run("cat", path, "last").stdout, bytes_of(torch.arange(5)))
        self.assertEqual(run("cat", "--slice", f"{size - 3}:", path, "hole").stdout, b"\0\0\0")

    @staticmethod
    def pickled(name, kind, key, count):
        def text(value):
            return b"X" + struct.pack("<I", len(value)) + value.encode()

        def number(value):
            return b"\x8a\x08" + struct.pack("<q", value)

        storage = (b"(" + text("storage") + f"ctorch\n{kind}\n".encode() + text(key) + text("cpu") + number(count) +
                   b"tQ")
        return (text(name) + b"ctorch._utils\n_rebuild_tensor_v2\n(" + storage + b"K\0" + number(count) + b"\x85" +
                b"K\1\x85\x89NtR")


if __name__ == "__main__":
    unittest.main()
