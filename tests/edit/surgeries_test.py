"""The seven surgeries of README and other edits, compared bit for bit with results of NumPy."""

import json
import os
import pathlib
import signal
import subprocess
import tempfile
import unittest

import numpy

import checkpoints
from checkpoints import from_bf16, plain, read, run, to_bf16, write

RANDOM = numpy.random.default_rng(7)


def bf16(*shape):
    return "BF16", to_bf16(RANDOM.standard_normal(shape, numpy.float32))


class Surgeries(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.work = pathlib.Path(directory.name)
        self.tensors = {
            "model.embed_tokens.weight": bf16(40, 16),
            "model.layers.0.q_proj.weight": bf16(24, 16),
            "model.layers.1.q_proj.weight": bf16(24, 16),
            "model.norm.weight": ("F32", RANDOM.standard_normal(16, numpy.float32)),
            "vision_tower.w": bf16(8, 8),
            "lm_head.weight": bf16(40, 16),
            "steps": ("I64", numpy.array(7)),
        }
        self.source = self.work / "model.safetensors"
        write(self.source, self.tensors, {"format": "pt", "title": "old"})
        (self.work / "config.json").write_text('{"model_type": "llama"}')
        self.out = self.work / "out.safetensors"

    def edited(self, *lines, options=()):
        arguments = [word for line in lines for word in ("-e", line)]
        run("edit", self.source, *arguments, *options, "-o", self.out)
        run("check", self.out)
        return read(self.out)

    def lines(self, text):
        path = self.work / "lines.edit"
        path.write_text(text)
        return path

    def adapter(self, directory, module, a, b, **config):
        directory.mkdir()
        config = {"peft_type": "LORA", "r": len(a), "lora_alpha": 8, **config}
        (directory / "adapter_config.json").write_text(json.dumps(config))
        prefix = f"base_model.model.{module}."
        write(directory / "adapter_model.safetensors",
              {prefix + "lora_A.weight": ("F32", a), prefix + "lora_B.weight": ("F32", b)})
        return directory

    def mount(self, *arguments):
        """Mounts, and unmounts at the end of the test."""
        if subprocess.run([checkpoints.STFS, *arguments], check=False).returncode != 0:
            self.assertNotIn("STFS_REQUIRE_MOUNT", os.environ, "cannot mount")
            self.skipTest("cannot mount")
        self.addCleanup(subprocess.run, [checkpoints.STFS, "-u", arguments[-1]], check=True)

    def test_renames_prefix(self):
        expected = {name.removeprefix("model."): each for name, each in self.tensors.items()}
        self.assertEqual(self.edited(r"rename s/^model\.//"), (plain(expected), {"format": "pt", "title": "old"}))

    def test_ties_lm_head(self):
        expected = dict(self.tensors)
        expected["lm_head.weight"] = expected["model.embed_tokens.weight"]
        got, _ = self.edited("drop lm_head.*", "copy s/^model.embed_tokens/lm_head/")
        self.assertEqual(got, plain(expected))

    def test_drops_tower(self):
        got, _ = self.edited("drop vision_tower.*")
        expected = plain(self.tensors)
        del expected["vision_tower.w"]
        self.assertEqual(got, expected)

    def test_changes_title(self):
        got, metadata = self.edited("metadata title 'a new one'")
        self.assertEqual((got, metadata), (plain(self.tensors), {"format": "pt", "title": "a new one"}))

    def test_merges_adapter(self):
        a = RANDOM.standard_normal((4, 16), numpy.float32)
        b = RANDOM.standard_normal((24, 4), numpy.float32)
        adapter = self.adapter(self.work / "adapter", "model.layers.1.q_proj", a, b)
        weight = from_bf16(self.tensors["model.layers.1.q_proj.weight"][1])
        update = numpy.zeros_like(weight)
        for k in range(4):
            update = update + b[:, k:k + 1] * a[k:k + 1, :]
        expected = plain(self.tensors)
        merged = to_bf16(weight + numpy.float32(0.5 * 8 / 4) * update)
        expected["model.layers.1.q_proj.weight"] = ("BF16", (24, 16), merged.tobytes())
        got, _ = self.edited(options=["--lora", f"0.5@{adapter}"])
        self.assertEqual(got, expected)
        # A mount shows the same values under the same name.
        mount = self.work / "mnt"
        mount.mkdir()
        self.mount("-o", f"lora=0.5@{adapter}", self.source, mount)
        self.assertEqual((mount / "model.layers.1.q_proj.weight").read_bytes(), merged.tobytes())
        run("diff", mount, self.out)
        # The directory for loaders equals the output of merge_and_unload() and save_pretrained().
        model = mount / ".stfs/model"
        self.assertEqual((read(model / "model.safetensors")[0], sorted(os.listdir(model))),
                         (expected, ["config.json", "model.safetensors"]))
        # The message cannot name the changed source, which may be the adapter.
        os.utime(adapter / "adapter_model.safetensors", ns=(1, 1))
        again = subprocess.run([checkpoints.STFS_INFO, "list", mount], check=False, capture_output=True, text=True)
        self.assertEqual(again.returncode, 3)
        self.assertIn("its sources have changed since it was mounted", again.stderr)

    def test_splits_and_merges_shards(self):
        shards = self.work / "shards"
        run("edit", self.source, "--shard-size", "1500", "-o", shards)
        index = json.loads((shards / "model.safetensors.index.json").read_text())
        self.assertEqual(set(index["weight_map"]), set(self.tensors))
        total, got = 0, {}
        for name in sorted(set(index["weight_map"].values())):
            tensors, metadata = read(shards / name)
            self.assertEqual(metadata, {"format": "pt", "title": "old"})
            self.assertEqual(set(tensors), {each for each, file in index["weight_map"].items() if file == name})
            size = sum(len(each[2]) for each in tensors.values())
            self.assertTrue(size <= 1500 or len(tensors) == 1)
            total += size
            got.update(tensors)
        self.assertEqual((got, index["metadata"]["total_size"]), (plain(self.tensors), total))
        self.assertEqual((shards / "config.json").read_bytes(), (self.work / "config.json").read_bytes())
        self.assertEqual(sorted(os.listdir(self.work)), ["config.json", "model.safetensors", "shards"])
        run("edit", shards, "-o", self.out)
        self.assertEqual(read(self.out)[0], plain(self.tensors))

    def test_prints_changes_without_output(self):
        listed = json.loads(run("edit", self.source, "-e", "rename s/^model.norm/norm/", "-e", "drop steps",
                                "-e", "cast lm_head.* f32", "-e", "unset title", "--json"))
        self.assertEqual(listed, [
            {"change": "renamed", "name": "norm.weight", "from": "model.norm.weight", "dtype": "F32", "shape": [16]},
            {"change": "cast", "name": "lm_head.weight", "from": "lm_head.weight", "dtype": "F32", "shape": [40, 16]},
            {"change": "dropped", "from": "steps", "dtype": "I64", "shape": []},
            {"change": "metadata", "key": "title", "before": "old"}])
        self.assertIn("renamed", run("edit", self.source, "-e", "rename s/^model.norm/norm/"))

    def test_accepts_empty_name(self):
        ones, twos = ("F32", numpy.ones(3, numpy.float32)), ("F32", numpy.full(3, 2, numpy.float32))
        old, new = self.work / "old.safetensors", self.work / "new.safetensors"
        write(old, {"": ones, "w": ones})
        write(new, {"": twos, "w": ones})
        self.assertEqual(run("list", old).splitlines()[1:], ["\tF32\t[3]\t12", "w\tF32\t[3]\t12"])
        shape = {"dtype": "F32", "shape": [3]}
        for line, changes in (("drop ''", [{"change": "dropped", "from": "", **shape}]),
                              ("copy s/^$/v/", [{"change": "copied", "name": "v", "from": "", **shape}]),
                              ("cast '' F16", [{"change": "cast", "name": "", "from": "", "dtype": "F16", "shape": [3]}]),
                              (f"replace w {new}::", [{"change": "replaced", "name": "w", "from": "w", **shape}]),
                              (f"add {new}::w as v", [{"change": "added", "name": "v", **shape}])):
            self.assertEqual(json.loads(run("edit", old, "-e", line, "--json")), changes)
        for line in ("rename s/^w$//", "copy s/^w$//", f"add {new}:: as ''"):
            run("edit", old, "-e", "drop ''", "-e", line, "-o", self.out, "--force")
            self.assertIn("", read(self.out)[0])
        first = self.work / "weight_v000000"
        first.mkdir()
        old.rename(first / "model.safetensors")
        delta = self.work / "weight_v000001"
        run("delta", first, new, "-o", delta)
        run("diff", delta, new)
        self.assertEqual(read(delta / "model-00000-of-00001.safetensors")[0].keys(), {""})

    def test_overwrites_only_with_force_and_never_a_source(self):
        before = self.source.read_bytes()
        link = self.work / "link.safetensors"
        link.symlink_to(self.source)
        hard = self.work / "hard.safetensors"
        os.link(self.source, hard)
        for target in (self.source, link, hard):
            run("edit", self.source, "-e", "drop steps", "-o", target, "--force", status=2)
        self.out.write_text("mine")
        run("edit", self.source, "-e", "drop steps", "-o", self.out, status=2)
        self.assertEqual(self.out.read_text(), "mine")
        run("edit", self.source, "-e", "drop steps", "-o", self.out, "--force")
        self.assertNotIn("steps", read(self.out)[0])
        for name in ("x.safetensors", "x.gguf", "-"):
            self.assertIn("shards need a directory",
                          run("edit", self.source, "--shard-size", "1MB", "-o", name, status=2))
        full = self.work / "full"
        full.mkdir()
        (full / "a").touch()
        run("edit", self.source, "-o", full, status=2)
        self.assertEqual((os.listdir(full), self.source.read_bytes()), (["a"], before))

    def test_rejects_output_that_is_also_read(self):
        """This holds for any name of the file: another path, a bind mount, or a mount of stfs."""
        other, array, lines = self.work / "other.safetensors", self.work / "a.npy", self.work / "lines.edit"
        write(other, {"x": ("F32", numpy.zeros(3, numpy.float32))})
        numpy.save(array, numpy.arange(3))
        lines.write_text(f"add {other}::x\nadd a.npy\n")
        adapter = self.adapter(self.work / "adapter", "model.layers.1.q_proj", numpy.zeros((4, 16), numpy.float32),
                               numpy.zeros((24, 4), numpy.float32))
        read_files = [self.source, other, array, lines, *adapter.iterdir()]
        before = {path: path.read_bytes() for path in read_files}
        mount = self.work / "mnt"
        mount.mkdir()
        self.mount(self.source, mount)
        layered = self.work / "layered"
        layered.mkdir()
        self.mount("-o", f"lora={adapter}", "-o", f"edit={lines}", self.source, layered)
        bound = self.work / "bound"
        bound.mkdir()
        is_bound = os.geteuid() == 0 and subprocess.run(["mount", "--bind", self.work, bound], check=False).returncode == 0
        try:
            for path in read_files:
                names = [path, self.work / "adapter/.." / path.relative_to(self.work)]
                if is_bound:
                    names.append(bound / path.relative_to(self.work))
                for source in (self.source, mount, mount / ".stfs/merged.safetensors"):
                    for name in names:
                        told = run("edit", source, "-f", lines, "--lora", adapter, "-o", name, "--force", status=2)
                        if path != array:  # no format that is written has this ending
                            self.assertIn(f"{name}: a file of the source: choose another name", told)
                if path.suffix in (".safetensors", ".npy"):  # the mount has read the others, and this command has not
                    run("extract", layered / ".stfs/merged.safetensors", "x", "-o", path, "--force", status=2)
                run("report", self.source, "--edit", lines, "--lora", adapter, "-o", path, "--force", status=2)
            self.assertEqual({path: path.read_bytes() for path in read_files}, before)
        finally:
            if is_bound:
                subprocess.run(["umount", bound], check=True)

    def test_add_from_mount_uses_its_names(self):
        mount = self.work / "mnt"
        mount.mkdir()
        self.mount("-o", f"edit={self.lines('rename s/^model/shown/')}", self.source, mount)
        write(self.work / "base.safetensors", {"x": ("F32", numpy.zeros(3, numpy.float32))})
        self.source = self.work / "base.safetensors"
        got, _ = self.edited("drop x", f"add {mount}::shown.layers.*", f"add {mount}::steps as s")
        expected = {name.replace("model", "shown"): each for name, each in self.tensors.items() if "layers" in name}
        self.assertEqual(got, plain({**expected, "s": self.tensors["steps"]}))

    def test_computed_tensor_with_new_name_is_printed_once(self):
        listed = json.loads(run("edit", self.source, "-e", "cast model.norm.weight bf16",
                                "-e", "rename s/^model.norm/norm/", "--json"))
        self.assertEqual(listed, [{"change": "renamed", "name": "norm.weight", "from": "model.norm.weight",
                                   "dtype": "BF16", "shape": [16]}])

    def test_rejects_output_in_unsupported_format(self):
        for verb in (["extract", self.source, "lm_head.*"], ["edit", self.source]):
            refused = run(*verb, "-o", self.work / "new.npz", status=2)
            self.assertIn("stfs writes only safetensors and GGUF", refused)
        self.assertFalse((self.work / "new.npz").exists())

    def test_wrong_line_writes_nothing(self):
        self.assertIn("line 1", run("edit", self.source, "-e", "drop nothing.*", "-o", self.out, status=1))
        self.assertIn("line 1", run("edit", self.source, "-e", "drop nothing.*", "-o", self.work / "d", status=1))
        self.assertEqual(sorted(os.listdir(self.work)), ["config.json", "model.safetensors"])

    def test_signal_leaves_whole_output_or_none(self):
        big = numpy.lib.format.open_memmap(self.work / "big.npy", "w+", "<f4", (100_000_000,))  # sparse
        del big
        target = self.work / "d"
        child = subprocess.Popen([checkpoints.STFS_INFO, "edit", self.source, "-e", "add big.npy", "--shard-size", "1G",
                                  "-o", target], cwd=self.work, stderr=subprocess.DEVNULL)
        while child.poll() is None and not any(name.startswith(".stfs-") for name in os.listdir(self.work)):
            pass
        child.send_signal(signal.SIGTERM)
        child.wait()
        left = sorted(os.listdir(self.work))
        if "d" in left:  # complete before the signal arrived
            run("check", target)
            left.remove("d")
        self.assertEqual(left, ["big.npy", "config.json", "model.safetensors"])

    def test_full_disk_leaves_no_files(self):
        limited = ["bash", "-c", 'ulimit -f 1; exec "$0" "$@"', checkpoints.STFS_INFO, "edit", self.source]
        for target in (self.out, self.work / "d"):
            done = subprocess.run([*limited, "-o", target], capture_output=True, text=True)
            self.assertEqual(done.returncode, 3, done.stderr)
            self.assertIn("File too large", done.stderr)
        self.assertEqual(sorted(os.listdir(self.work)), ["config.json", "model.safetensors"])


if __name__ == "__main__":
    unittest.main()
