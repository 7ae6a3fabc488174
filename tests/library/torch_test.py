"""stfs beside torch in one process: tensors, modules, loaders. Skipped where torch is not installed.

Run by ctest with STFS_LIBRARY and PYTHONPATH set.
"""

import sys
import threading
import unittest

import numpy

import stfs
from support import ARRAYS, Base, Elsewhere, contents, in_child, write_checkpoint, write_q8_0

try:
    import torch
except ImportError:
    print("skipped: torch is not installed")
    sys.exit(77)


class Tied(torch.nn.Module):
    """Two names of the same weight, as a model that ties its embeddings has them; and a weight with gaps."""

    def __init__(self):
        super().__init__()
        self.embed = torch.nn.Embedding(4, 3)
        self.head = torch.nn.Linear(3, 4)
        self.head.weight = self.embed.weight
        self.turned = torch.nn.Parameter(torch.rand(2, 5).t())


class TorchTest(Base):
    def setUp(self):
        super().setUp()
        self.m = stfs.open(self.path)

    def test_torch_takes_it(self):
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

    def test_blocks_of_gguf_are_float32(self):
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

    def test_torch_saves_and_loads(self):
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

    def test_a_module_is_saved_without_its_second_names_and_loaded_with_them(self):
        model, path, texts = Tied(), self.at("tied.safetensors"), {"a": "b"}
        stfs.torch.save_model(model, path, texts)
        self.assertEqual(stfs.open(path).metadata, {"a": "b", "head.weight": "embed.weight"})
        self.assertEqual((texts, set(stfs.open(path))), ({"a": "b"}, {"embed.weight", "head.bias", "turned"}))
        other = Tied()
        self.assertEqual(stfs.torch.load_model(other, path), ([], []))
        for name, tensor in model.state_dict().items():
            self.assertTrue(torch.equal(other.state_dict()[name], tensor), name)
        # A file may have the other name.
        stfs.open(path, edits=["rename s/embed.weight/head.weight/"]).save(self.at("renamed.safetensors"))
        self.assertEqual(stfs.torch.load_model(Tied(), self.at("renamed.safetensors")), ([], []))
        with self.assertRaisesRegex(ValueError, "force_contiguous=True"):
            stfs.torch.save_model(model, path, force_contiguous=False)

    def test_a_module_and_a_source_that_do_not_fit_are_told(self):
        apart, tied = Tied(), Tied()
        apart.head.weight = torch.nn.Parameter(torch.rand(4, 3))
        stfs.torch.save_model(apart, self.at("apart.safetensors"))
        with self.assertRaisesRegex(RuntimeError, 'Unexpected key.*"head.weight"'):
            stfs.torch.load_model(tied, self.at("apart.safetensors"))
        stfs.torch.save_model(tied, self.at("tied.safetensors"))
        with self.assertRaisesRegex(RuntimeError, 'Missing key.*"head.weight"'):
            stfs.torch.load_model(apart, self.at("tied.safetensors"))
        self.assertEqual(stfs.torch.load_model(apart, self.at("tied.safetensors"), strict=False), (["head.weight"], []))

    def test_memory_that_no_name_has_whole_is_not_saved(self):
        base = torch.rand(6)
        module = torch.nn.Module()
        module.a, module.b = torch.nn.Parameter(base[:4]), torch.nn.Parameter(base[2:])
        with self.assertRaisesRegex(RuntimeError, "'a', 'b'.*none of them has all of it"):
            stfs.torch.save_model(module, self.at("none.safetensors"))
        module.b = torch.nn.Parameter(base[4:])
        stfs.torch.save_model(module, self.at("parts.safetensors"))
        self.assertTrue(torch.equal(stfs.torch.load_file(self.at("parts.safetensors"))["b"], base[4:]))
        meta = torch.empty(2, device="meta")
        self.assertEqual((stfs.torch.storage_ptr(base[2:]), stfs.torch.storage_size(base[2:])), (base.data_ptr(), 24))
        self.assertEqual((stfs.torch.storage_ptr(meta), stfs.torch.storage_size(meta)), (0, 8))


class LoaderTest(Elsewhere):
    def test_children_of_a_transposed_tensor_read_on_beside_threads(self):
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

    def test_tensors_of_torch_that_are_kept_share_a_mapping(self):
        path = write_checkpoint(self.at("many.safetensors"),
                                {f"t{i}": ("U8", numpy.full(300_000, i, "u1")) for i in range(100)})
        with stfs.safe_open(path, "pt") as f:
            kept = {name: f.get_tensor(name) for name in f.keys()}
        self.assertLessEqual(contents("/proc/self/maps").count(b"many.safetensors"), 2)
        kept["t7"].zero_()
        for i in range(100):
            self.assertTrue((kept[f"t{i}"] == (0 if i == 7 else i)).all())

    def test_the_workers_of_a_loader_read_on(self):
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
