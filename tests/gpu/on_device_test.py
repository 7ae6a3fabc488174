"""on_device finds what is wrong: a byte on the device, a step that hangs, programs that are missing.

Run by ctest with STFS_BUILD, and on the fake driver. A copy of the build's tree has another stfs-gpu
in it: a script that does wrong, and else runs the real one.
"""

import json
import os
import re
import select
import stat
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE / "device_steps"))

import correct  # noqa: E402
from house import Client, Failed, Places, Step  # noqa: E402

BUILD = Path(os.environ["STFS_BUILD"])
SPACE = f"on_device_test_{os.getpid()}"
EIGHT_MINUTES = 480  # seconds

# Of the fake driver: its device memory is a file of each process that has it open.
FLIP = r"""
import glob, os
changed = set()
for link in glob.glob("/proc/[0-9]*/fd/*"):
    try:
        if os.readlink(link).startswith("/memfd:stfs_fake_cuda." + os.environ["STFS_FAKE_CUDA_SPACE"] + "."):
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

# In place of PyTorch, on host memory: it talks, sums, and dies of the third type.
TORCH = r"""
import os
from checkpoints import SUM
print("a line of a library")
float64 = None

class Array:
    def __init__(self, tensor):
        self.data_ptr = lambda: tensor.ptr
        self.to = lambda dtype: self
        self.sum = lambda: self
        self.item = lambda: SUM

def from_dlpack(tensor):
    if tensor.dtype == "BF16":
        print("it dies", file=__import__("sys").stderr, flush=True)
        os._exit(9)
    return Array(tensor)
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
                             ("lib/libstfs.so.0", BUILD / "tools/library/libstfs.so.0"),
                             *((f"lib/python3/dist-packages/{name}", HERE.parents[1] / "tools/library/python" / name)
                               for name in ("stfs", "stfs_gpu.py"))):
            (tree / path).parent.mkdir(parents=True, exist_ok=True)
            (tree / path).symlink_to(target)
        program = tree / "bin/stfs-gpu"
        program.write_text(f'#!/bin/sh\nSTFS_GPU={BUILD}/tools/gpu/stfs-gpu\n'
                           f'if [ "$1" = {verb} ]; then\n{instead}\nfi\nexec "$STFS_GPU" "$@"\n')
        program.chmod(program.stat().st_mode | stat.S_IXUSR)
        return tree

    def start_on(self, tree, *options, **environment):
        return subprocess.Popen(
            [sys.executable, str(HERE / "on_device"), "--small", "--tree", str(tree), "--output",
             str(self.directory / "results.json"), "--directory", str(self.directory), *options],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            env={**os.environ, "STFS_FAKE_CUDA_SPACE": SPACE, **environment})

    def lines(self):
        text = (self.directory / "results.jsonl").read_text()
        return [json.loads(line) for line in text.splitlines()]

    def run_on(self, tree, *options, **environment):
        """The exit status, the rows, and what was printed."""
        process = self.start_on(tree, *options, **environment)
        said = "".join(process.communicate())
        rows = json.loads((self.directory / "results.json").read_text())["rows"]
        self.assertEqual(self.lines(), rows, "what was written as it went on is all that there is")
        return process.returncode, rows, said

    def test_a_wrong_byte_is_found_and_named(self):
        flip = self.directory / "flip.py"
        flip.write_text(FLIP)
        tree = self.tree("load", f'"$STFS_GPU" "$@" || exit\nexec {sys.executable} {flip}\n')

        status, rows, said = self.run_on(tree, "--only", "correct.loaded")

        self.assertEqual(status, 1, said)
        self.assertRegex(said, r"on_device: correct\.loaded: .*: byte 100 differs from the source")
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

        pid = os.open(hangs, os.O_RDONLY | os.O_NONBLOCK)
        self.addCleanup(os.close, pid)
        process = self.start_on(tree, "--only", "correct.loaded")
        hanging = ""
        while not hanging and process.poll() is None:
            if select.select([pid], [], [], 1)[0]:
                hanging = os.read(pid, 100).decode().strip()
        process.terminate()
        said = "".join(process.communicate())

        self.assertNotEqual(hanging, "", said)
        self.assertEqual(process.returncode, 143)
        self.assertIn("every byte", [line["row"] for line in self.lines()])
        self.assertFalse(Path(f"/proc/{hanging}").exists())
        self.assertEqual(list(self.directory.glob("stfs-*")), [])

    def test_a_driver_that_refuses_read_only_hides_no_other_row(self):
        status, rows, said = self.run_on(BUILD, "--only", "correct.stored", "--only", "speed.stages",
                                         STFS_FAKE_CUDA_READ_ONLY="refused")

        self.assertEqual(status, 1, said)
        self.assertEqual([(row["row"], row["status"]) for row in rows
                          if row["step"] == "correct.stored"],
                         [("by the driver", "failed"), ("the bytes are as they were", "failed"),
                          ("by a kernel of PyTorch", "skipped"), ("", "failed")])
        names = {row["row"]: row["status"] for row in rows if row["step"] == "speed.stages"}
        self.assertEqual(names["map (no read-only)"], "measured")
        self.assertEqual(names[""], "ok")

    def test_stages_before_a_failure_are_said(self):
        status, rows, said = self.run_on(BUILD, "--only", "speed.stages", STFS_FAKE_CUDA_FAIL=
                                         "cuMemImportFromShareableHandle:1:1")

        self.assertEqual(status, 1, said)
        self.assertIn("unmap and release", [row["row"] for row in rows])
        self.assertIn("cuMemImportFromShareableHandle", said)

    def test_a_conversion_on_the_host_is_said(self):
        status, rows, said = self.run_on(BUILD, "--only", "correct.converted",
                                         STFS_FAKE_CUDA_CODE="none")

        self.assertEqual(status, 0, said)
        self.assertIn("converted on the host", rows[0]["note"])

    def test_what_only_informs_stops_nothing(self):
        tree = self.tree("doctor", "echo no doctor >&2; exit 5")

        status, rows, said = self.run_on(tree, "--only", "machine")

        self.assertEqual(status, 0, said)
        found = {row["row"]: row for row in rows}
        self.assertIn("no doctor", found["doctor"]["note"])
        self.assertIn("a context", found)

    def test_what_a_library_saw_before_it_died_stays(self):
        (self.directory / "torch.py").write_text(TORCH)

        status, rows, said = self.run_on(BUILD, "--device", "cpu", "--only", "correct.torch",
                                         PYTHONPATH=str(self.directory) + ":" +
                                         str(HERE / "device_steps"))

        self.assertEqual(status, 1, said)
        self.assertEqual([(row["row"], row["status"]) for row in rows],
                         [("import torch", "measured"), ("F32", "ok"), ("F16", "ok"),
                          ("correct.torch", "failed"), ("", "failed")])
        self.assertIn("it dies", rows[3]["note"])

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


class Judged(unittest.TestCase):
    """What clients say of a GPU, without one."""

    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.rows = []
        self.step = Step("a step", "cuda:0", Places.of(BUILD), Path(directory.name),
                         Path(directory.name), True, self.rows.append)

    def test_a_library_that_refuses_a_type_fails_where_it_must_take_it(self):
        for dtype in ("BF16", "F8_E4M3"):
            correct.judge(self.step, "torch", {"row": dtype, "refused": "CUDA error 700"})

        self.assertEqual([row["status"] for row in self.rows], ["failed", "skipped"])
        self.assertTrue(self.step.has_failed)

    def test_a_wrong_sum_or_address_fails(self):
        for seen in ({"sum": 1.0, "same_address": True},
                     {"sum": correct.checkpoints.SUM, "same_address": False}):
            correct.judge(self.step, "torch", {"row": "F32", **seen})

        self.assertEqual([row["status"] for row in self.rows], ["failed", "failed"])

    def test_why_a_client_ended_is_said(self):
        client = Client([sys.executable, "-c", "import sys; sys.exit('the reason')"], self.step.own)
        self.addCleanup(client.kill)
        with self.assertRaisesRegex(Failed, "status 1: the reason"):
            client.line()


if __name__ == "__main__":
    unittest.main(verbosity=2)
