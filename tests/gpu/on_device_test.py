"""on_device finds what is wrong: a byte on the device, a step that hangs, programs that are missing.

Run by ctest with STFS_BUILD, and on the fake driver. A copy of the build's tree has another stfs-gpu
in it: a script that does wrong, and else runs the real one.
"""

import json
import os
import re
import stat
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

HERE = Path(__file__).resolve().parent
BUILD = Path(os.environ["STFS_BUILD"])
SPACE = f"on_device_test_{os.getpid()}"
EIGHT_MINUTES = 480  # seconds

# Of the fake driver: its device memory is a file of each process that has it open.
FLIP = r"""
import glob, os
changed = set()
for link in glob.glob("/proc/[0-9]*/fd/*"):
    try:
        if os.readlink(link).startswith("/memfd:stfs_fake_cuda." + os.environ["STFS_FAKE_CUDA_SPACE"]):
            with open(link, "r+b") as memory:
                if os.fstat(memory.fileno()).st_ino in changed:
                    continue
                changed.add(os.fstat(memory.fileno()).st_ino)
                memory.seek(100)
                byte = memory.read(1)[0]
                memory.seek(100)
                memory.write(bytes([byte ^ 1]))
    except OSError:
        pass
"""


class OnDevice(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.directory = Path(directory.name)

    def tree(self, verb, instead):
        """A tree whose stfs-gpu runs `instead` for one verb; $STFS_GPU is the real one."""
        tree = self.directory / "tree"
        for path, target in (("bin/stfs-info", BUILD / "tools/stfs-info"),
                             ("lib/libstfs_gpu.so.0", BUILD / "tools/gpu/libstfs_gpu.so.0"),
                             ("lib/python3/dist-packages/stfs_gpu.py",
                              HERE.parents[1] / "tools/gpu/library/python/stfs_gpu.py")):
            (tree / path).parent.mkdir(parents=True, exist_ok=True)
            (tree / path).symlink_to(target)
        program = tree / "bin/stfs-gpu"
        program.write_text(f'#!/bin/sh\nSTFS_GPU={BUILD}/tools/gpu/stfs-gpu\n'
                           f'if [ "$1" = {verb} ]; then\n{instead}\nfi\nexec "$STFS_GPU" "$@"\n')
        program.chmod(program.stat().st_mode | stat.S_IXUSR)
        return tree

    def start_on(self, tree, *options):
        return subprocess.Popen(
            [sys.executable, str(HERE / "on_device"), "--small", "--tree", str(tree), "--output",
             str(self.directory / "results.json"), "--directory", str(self.directory), *options],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            env={**os.environ, "STFS_FAKE_CUDA_SPACE": SPACE})

    def lines(self):
        text = (self.directory / "results.jsonl").read_text()
        return [json.loads(line) for line in text.splitlines()]

    def run_on(self, tree, *options):
        """The exit status, the rows, and what was printed."""
        process = self.start_on(tree, *options)
        said = "".join(process.communicate())
        rows = json.loads((self.directory / "results.json").read_text())["rows"]
        self.assertEqual(self.lines(), rows, "what was written as it went on is all that there is")
        return process.returncode, rows, said

    def test_a_wrong_byte_is_found_and_named(self):
        flip = self.directory / "flip.py"
        flip.write_text(FLIP)
        tree = self.tree("load", f'"$STFS_GPU" "$@" || exit\nexec {sys.executable} {flip}\n')

        status, rows, said = self.run_on(tree, "--only", "correct.stored")

        self.assertEqual(status, 1, said)
        self.assertRegex(said, r"on_device: correct\.stored: .*: byte 100 differs from the source")
        self.assertEqual(rows[-1]["status"], "failed")

    def test_a_step_that_hangs_is_killed_with_its_processes_and_the_next_one_runs(self):
        pids = self.directory / "pids"
        # In a session of its own, as a daemon is: a signal to the group does not reach it.
        tree = self.tree("load", f"setsid sleep 1000 &\necho $! >>{pids}\necho $$ >>{pids}\n"
                                 "exec sleep 1000")

        status, rows, said = self.run_on(tree, "--only", "correct.converted", "--only",
                                         "correct.sharded", "--limit", "3")

        self.assertEqual(status, 1, said)
        for step in ("correct.converted", "correct.sharded"):
            ends = [row for row in rows if row["step"] == step]
            self.assertEqual(ends[-1]["status"], "failed")
            self.assertEqual(ends[-1]["note"], "killed after its limit of 3 seconds")
        started = pids.read_text().split() if pids.exists() else []  # a slow machine may not get so far
        left = [pid for pid in started if Path(f"/proc/{pid}").exists()]
        self.assertEqual(left, [])

    def test_what_was_found_before_a_hang_stays_and_a_signal_leaves_nothing(self):
        hangs = self.directory / "hangs"
        os.mkfifo(hangs)
        tree = self.tree("get", f"echo $$ >{hangs}\nexec sleep 1000")

        process = self.start_on(tree, "--only", "correct.loaded")
        with open(hangs) as pid:
            hanging = pid.read().strip()
        process.terminate()
        process.communicate()

        self.assertEqual(process.returncode, 143)
        self.assertIn("every byte", [line["row"] for line in self.lines()])
        self.assertFalse(Path(f"/proc/{hanging}").exists())
        self.assertEqual(list(self.directory.glob("stfs-*")), [])

    def test_a_missing_program_is_named_and_nothing_else_runs(self):
        status, rows, said = self.run_on(self.directory / "nothing")

        self.assertEqual(status, 1, said)
        self.assertIn("nothing/bin/stfs-gpu", rows[0]["note"])
        self.assertEqual({row["step"] for row in rows}, {"machine", "all others"})

    def test_a_missing_device_is_named(self):
        status, rows, said = self.run_on(BUILD, "--device", "cuda:9", "--only", "machine")

        self.assertEqual(status, 1, said)
        self.assertIn("there is no device cuda:9", [row["note"] for row in rows])

    def test_a_step_that_there_is_not_is_an_error(self):
        done = subprocess.run([sys.executable, str(HERE / "on_device"), "--only", "corect"],
                              capture_output=True, text=True)

        self.assertEqual(done.returncode, 2)
        self.assertIn("no step begins with corect", done.stderr)

    def test_when_the_time_is_over_the_rest_is_said_not_to_have_run(self):
        status, rows, said = self.run_on(BUILD, "--seconds", "0")

        self.assertEqual(status, 1, said)
        self.assertEqual({row["note"] for row in rows}, {"not run: the time for all steps is over"})
        self.assertGreater(len(rows), 20)

    def test_all_steps_may_take_eight_minutes(self):
        found = re.search(r"^WHOLE = (\d+)", (HERE / "on_device").read_text(), re.MULTILINE)
        self.assertLess(int(found[1]), EIGHT_MINUTES)


if __name__ == "__main__":
    unittest.main(verbosity=2)
