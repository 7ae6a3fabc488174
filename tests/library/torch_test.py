"""stfs and torch in one process: tensors, modules and data loaders. Skipped if torch is not installed.

Run by ctest with STFS_LIBRARY and PYTHONPATH set.
"""

import sys
import threading
import unittest

import numpy

import stfs
from support import ARRAYS, Base, RemoteBase, contents, in_child, write_checkpoint, write_q8_0

try:
    import torch
except ImportError:
    print("skipped: torch is not installed")
    sys.exit(77)


class TorchTest(Base):
    def setUp(self):
        super().setUp()
        self.m = stfs.open(self.path)

    def test_torch_accepts_tensor_and_writes_stay_private(self):
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

    def test_gguf_blocks_are_float32(self):
        path = write_q8_0(self.at("m.gguf"))
        with stfs.safe_open(path, "pt") as f:
            for got in f.get_tensor("w"), f.get_tensors()["w"], stfs.torch.load_file(path)["w"]:
                self.assertTrue(torch.equal(got, torch.arange(-16, 16) / 2))

    def test_torch_tensors_are_private(self):
        with stfs.safe_open(self.path, "pt") as f:
            f.get_tensor("f32").zero_()
            self.assertEqual(f.get_tensor("f32").numpy().tobytes(), ARRAYS["f32"][1].tobytes())
            part = f.get_slice("f32")
            numpy.testing.assert_array_equal(part[[2, 0]].numpy(), ARRAYS["f32"][1][[2, 0]])
            numpy.testing.assert_array_equal(part[:20, -1].numpy(), ARRAYS["f32"][1][:20, -1])

    def test_torch_loads_writable_tensors(self):
        for loaded in stfs.torch.load_file(self.path), stfs.torch.load(contents(self.path)):
            self.assertEqual(list(loaded), list(ARRAYS))
            numpy.testing.assert_array_equal(loaded["f32"].numpy(), ARRAYS["f32"][1])
            self.assertEqual(loaded["bf16"].dtype, torch.bfloat16)
            loaded["f32"].zero_()


class LoaderTest(RemoteBase):
    def test_forked_children_read_transposed_tensor_despite_threads(self):
        torch.save({"w": torch.arange(1 << 20, dtype=torch.float32).reshape(1024, 1024).t()}, self.at("t.pt"))
        rows = stfs.open(self.at("t.pt"))["w"][:2]
        expected, has_ended = bytes(rows), threading.Event()

        def read():
            while not has_ended.is_set():
                bytes(rows._checkpoint["w"])

        threads = [threading.Thread(target=read) for _ in range(4)]
        for thread in threads:
            thread.start()
        try:
            for _ in range(12):
                self.assertTrue(in_child(lambda: self.assertEqual(bytes(rows), expected)))
        finally:
            has_ended.set()
            for thread in threads:
                thread.join()

    def test_kept_torch_tensors_share_mapping(self):
        path = write_checkpoint(self.at("many.safetensors"),
                                {f"t{i}": ("U8", numpy.full(300_000, i, "u1")) for i in range(100)})
        with stfs.safe_open(path, "pt") as f:
            kept = {name: f.get_tensor(name) for name in f.keys()}
        self.assertLessEqual(contents("/proc/self/maps").count(b"many.safetensors"), 2)
        kept["t7"].zero_()
        for i in range(100):
            self.assertTrue((kept[f"t{i}"] == (0 if i == 7 else i)).all())

    def test_workers_of_data_loader_read(self):
        self.server.gate.set()
        w, f32 = self.open()["w"], stfs.open(self.path)["f32"]

        class Rows(torch.utils.data.Dataset):
            def __len__(self):
                return 8

            def __getitem__(self, i):
                return w[i * 250_000:i * 250_000 + 100].torch(), f32[i % 4].torch()

        loader = torch.utils.data.DataLoader(Rows(), num_workers=2, batch_size=4)
        large, small = (torch.cat(parts).numpy() for parts in zip(*loader))
        numpy.testing.assert_array_equal(large, self.large.reshape(8, -1)[:, :100])
        numpy.testing.assert_array_equal(small, ARRAYS["f32"][1][[0, 1, 2, 3] * 2])


if __name__ == "__main__":
    unittest.main()
