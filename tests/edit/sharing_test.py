"""The output of edit shares blocks with the source on XFS and btrfs, and is complete on ext4.

Skipped with a message if the machine has no loop devices, no permission to mount, or no mkfs.
"""

import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

import numpy

import checkpoints
from checkpoints import plain, read, run, write

SKIPPED = 77  # CTest's SKIP_RETURN_CODE
MKFS = {"xfs": ["mkfs.xfs", "-q", "-m", "reflink=1"], "btrfs": ["mkfs.btrfs", "-q"], "ext4": ["mkfs.ext4", "-q"]}
BLOCK = 4096


class Disk:
    """A file system on a loop device, mounted until close()."""

    def __init__(self, work, kind):
        self.image = work / f"{kind}.img"
        self.path = work / kind
        self.path.mkdir()
        with open(self.image, "wb") as file:
            file.truncate(400 << 20)
        subprocess.run([*MKFS[kind], self.image], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        subprocess.run(["mount", "-o", "loop", self.image, self.path], check=True, stderr=subprocess.DEVNULL)

    def close(self):
        subprocess.run(["umount", self.path], check=True)

    def used(self):
        subprocess.run(["sync", "-f", self.path], check=True)
        status = os.statvfs(self.path)
        return (status.f_blocks - status.f_bfree) * status.f_frsize


def tensors(count=20, elements=1 << 19):
    random = numpy.random.default_rng(3)
    return {f"model.{i}.w": ("F32", random.random(elements, numpy.float32)) for i in range(count)}


class Sharing(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.work = pathlib.Path(directory.name)

    def disk(self, kind):
        try:
            disk = Disk(self.work, kind)
        except (OSError, subprocess.CalledProcessError) as error:
            self.skipTest(f"no {kind} on a loop device: {error}")
        self.addCleanup(disk.close)
        return disk

    def test_shares_blocks_on_xfs_and_btrfs(self):
        for kind in ("xfs", "btrfs"):
            with self.subTest(kind):
                disk = self.disk(kind)
                made = tensors()
                source = disk.path / "model.safetensors"
                write(source, made)
                os.sync()
                size, before = source.stat().st_size, disk.used()
                dry = run("edit", source, "-e", "rename s/model/m/", "--dry-run", "-o", disk.path / "a.safetensors")
                self.assertIn("shared with the source", dry)
                self.assertFalse((disk.path / "a.safetensors").exists())
                run("edit", source, "-e", "rename s/model/m/", "-o", disk.path / "a.safetensors")
                run("edit", source, "-e", "drop *.1*", "-o", disk.path / "b.safetensors")
                run("edit", source, "--shard-size", "9M", "-o", disk.path / "shards")
                self.assertLess(disk.used() - before, size // 4)  # three copies would need 2.5 times the size
                renamed = {name.replace("model", "m"): each for name, each in plain(made).items()}
                self.assertEqual(read(disk.path / "a.safetensors")[0], renamed)
                kept = {name: each for name, each in plain(made).items() if not re.match(r".*\.1", name)}
                self.assertEqual(read(disk.path / "b.safetensors")[0], kept)
                got = {}
                for shard in (disk.path / "shards").glob("*.safetensors"):
                    got.update(read(shard)[0])
                self.assertEqual(got, plain(made))
                # A write to one file must not change another file.
                with open(disk.path / "a.safetensors", "r+b") as file:
                    file.seek(size // 2)
                    file.write(b"x" * BLOCK)
                self.assertEqual(read(source)[0], plain(made))

    def test_copies_bytes_on_ext4(self):
        disk = self.disk("ext4")
        made = tensors(4)
        source = disk.path / "model.safetensors"
        write(source, made)
        dry = run("edit", source, "-e", "rename s/model/m/", "--dry-run", "-o", disk.path / "a.safetensors")
        self.assertNotIn("shared", dry)
        run("edit", source, "-e", "rename s/model/m/", "-o", disk.path / "a.safetensors")
        self.assertEqual(list(read(disk.path / "a.safetensors")[0].values()), list(plain(made).values()))

    def test_full_disk_leaves_no_files(self):
        disk = self.disk("ext4")
        source = self.work / "model.safetensors"
        write(source, tensors(count=250))  # 500 MB on a disk of 400 MiB
        for target in (disk.path / "a.safetensors", disk.path / "directory"):
            self.assertIn("No space left", run("edit", source, "-o", target, status=3))
        self.assertEqual(set(os.listdir(disk.path)) - {"lost+found"}, set())


if __name__ == "__main__":
    missing = [words[0] for words in MKFS.values() if shutil.which(words[0]) is None]
    if os.geteuid() != 0 or missing:
        print("skipped: only root can mount" if os.geteuid() != 0 else f"skipped: {missing} not installed")
        sys.exit(SKIPPED)
    result = unittest.main(exit=False).result
    sys.exit(SKIPPED if result.wasSuccessful() and len(result.skipped) == result.testsRun else not result.wasSuccessful())
