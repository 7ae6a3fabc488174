"""on_device reports errors: a wrong byte on the device, a step that hangs, missing programs.

ctest runs this with STFS_BUILD and the fake driver. Some tests use a tree with another stfs-gpu: a
script that misbehaves for one command and runs the real program for all others.
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

# Flips a bit in the memory of the fake driver, which processes hold open as memfds.
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

# A substitute for PyTorch, in host memory: it prints, sums, and exits at the third type.
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
        print("torch exits", file=__import__("sys").stderr, flush=True)
        os._exit(9)
    return Array(tensor)
"""


class OnDevice(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.directory = Path(directory.name)

    def tree(self, verb, instead):
        """Returns a tree in which stfs-gpu runs `instead` for one command. $STFS_GPU is the real program."""
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
        """Runs on_device. Returns the exit status, the rows, and the printed text."""
        process = self.start_on(tree, *options, **environment)
        text = "".join(process.communicate())
        rows = json.loads((self.directory / "results.json").read_text())["rows"]
        self.assertEqual(self.lines(), rows, "OUTPUT.jsonl and OUTPUT have the same rows")
        return process.returncode, rows, text

    def test_reports_wrong_byte(self):
        flip = self.directory / "flip.py"
        flip.write_text(FLIP)
        tree = self.tree("load", f'"$STFS_GPU" "$@" || exit\nexec {sys.executable} {flip}\n')

        status, rows, text = self.run_on(tree, "--only", "correct.loaded")

        self.assertEqual(status, 1, text)
        self.assertRegex(text, r"on_device: correct\.loaded: .*: byte 100 differs from the source")
        self.assertEqual(rows[-1]["status"], "failed")

    def test_kills_hanging_step_with_its_processes_and_runs_next(self):
        pids = self.directory / "pids"
        # A new session, like a daemon: a signal to the process group does not reach it.
        tree = self.tree("load", f"setsid sleep 1000 &\necho $! >>{pids}\necho $$ >>{pids}\n"
                                 "exec sleep 1000")

        status, rows, text = self.run_on(tree, "--only", "correct.converted", "--only",
                                         "correct.sharded", "--limit", "3")

        self.assertEqual(status, 1, text)
        for step in ("correct.converted", "correct.sharded"):
            ends = [row for row in rows if row["step"] == step]
            self.assertEqual(ends[-1]["status"], "failed")
            self.assertEqual(ends[-1]["note"], "killed after its limit of 3 seconds")
        started = pids.read_text().split() if pids.exists() else []  # a slow machine may start none
        left = [pid for pid in started if Path(f"/proc/{pid}").exists()]
        self.assertEqual(left, [])

    def test_keeps_results_before_hang_and_removes_files_on_signal(self):
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
        text = "".join(process.communicate())

        self.assertNotEqual(hanging, "", text)
        self.assertEqual(process.returncode, 143)
        self.assertIn("every byte", [line["row"] for line in self.lines()])
        self.assertFalse(Path(f"/proc/{hanging}").exists())
        self.assertEqual(list(self.directory.glob("stfs-*")), [])

    def test_measures_other_rows_if_driver_refuses_read_only(self):
        status, rows, text = self.run_on(BUILD, "--only", "correct.stored", "--only", "speed.stages",
                                         STFS_FAKE_CUDA_READ_ONLY="refused")

        self.assertEqual(status, 1, text)
        self.assertEqual([(row["row"], row["status"]) for row in rows
                          if row["step"] == "correct.stored"],
                         [("by the driver", "failed"), ("the bytes are as they were", "failed"),
                          ("by a kernel of PyTorch", "skipped"), ("", "failed")])
        names = {row["row"]: row["status"] for row in rows if row["step"] == "speed.stages"}
        self.assertEqual(names["map (no read-only)"], "measured")
        self.assertEqual(names[""], "ok")

    def test_reports_stages_before_failure(self):
        status, rows, text = self.run_on(BUILD, "--only", "speed.stages", STFS_FAKE_CUDA_FAIL=
                                         "cuMemImportFromShareableHandle:1:1")

        self.assertEqual(status, 1, text)
        self.assertIn("unmap and release", [row["row"] for row in rows])
        self.assertIn("cuMemImportFromShareableHandle", text)

    def test_reports_conversion_on_host(self):
        status, rows, text = self.run_on(BUILD, "--only", "correct.converted",
                                         STFS_FAKE_CUDA_CODE="none")

        self.assertEqual(status, 0, text)
        self.assertIn("converted on the host", rows[0]["note"])

    def test_failed_doctor_is_only_a_note(self):
        tree = self.tree("doctor", "echo no doctor >&2; exit 5")

        status, rows, text = self.run_on(tree, "--only", "machine")

        self.assertEqual(status, 0, text)
        found = {row["row"]: row for row in rows}
        self.assertIn("no doctor", found["doctor"]["note"])
        self.assertIn("a context", found)

    def test_keeps_results_of_library_that_exits(self):
        (self.directory / "torch.py").write_text(TORCH)

        status, rows, text = self.run_on(BUILD, "--device", "cpu", "--only", "correct.torch",
                                         PYTHONPATH=str(self.directory) + ":" +
                                         str(HERE / "device_steps"))

        self.assertEqual(status, 1, text)
        self.assertEqual([(row["row"], row["status"]) for row in rows],
                         [("import torch", "measured"), ("F32", "ok"), ("F16", "ok"),
                          ("correct.torch", "failed"), ("", "failed")])
        self.assertIn("torch exits", rows[3]["note"])

    def test_missing_program_is_reported_and_ends_run(self):
        status, rows, text = self.run_on(self.directory / "nothing")

        self.assertEqual(status, 1, text)
        self.assertIn("nothing/bin/stfs-gpu", rows[0]["note"])
        self.assertEqual({row["step"] for row in rows}, {"machine", "all others"})

    def test_reports_missing_device(self):
        status, rows, text = self.run_on(BUILD, "--device", "cuda:9", "--only", "machine")

        self.assertEqual(status, 1, text)
        self.assertIn("there is no device cuda:9", [row["note"] for row in rows])

    def test_unknown_step_is_an_error(self):
        done = subprocess.run([sys.executable, str(HERE / "on_device"), "--only", "corect"],
                              capture_output=True, text=True)

        self.assertEqual(done.returncode, 2)
        self.assertIn("no step begins with corect", done.stderr)

    def test_reports_steps_that_did_not_run_in_time(self):
        status, rows, text = self.run_on(BUILD, "--seconds", "0")

        self.assertEqual(status, 1, text)
        self.assertEqual({row["note"] for row in rows}, {"not run: the time for all steps is over"})
        self.assertGreater(len(rows), 20)

    def test_limit_for_all_steps_is_below_eight_minutes(self):
        found = re.search(r"^WHOLE = (\d+)", (HERE / "on_device").read_text(), re.MULTILINE)
        self.assertLess(int(found[1]), EIGHT_MINUTES)


class ClientResults(unittest.TestCase):
    """The results of clients on a GPU, checked without a GPU."""

    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.rows = []
        self.step = Step("a step", "cuda:0", Places.of(BUILD), Path(directory.name),
                         Path(directory.name), True, self.rows.append)

    def test_refusing_a_required_type_fails(self):
        for dtype in ("BF16", "F8_E4M3"):
            correct.check_client(self.step, "torch", {"row": dtype, "refused": "CUDA error 700"})

        self.assertEqual([row["status"] for row in self.rows], ["failed", "skipped"])
        self.assertTrue(self.step.has_failed)

    def test_wrong_sum_or_address_fails(self):
        for seen in ({"sum": 1.0, "same_address": True},
                     {"sum": correct.checkpoints.SUM, "same_address": False}):
            correct.check_client(self.step, "torch", {"row": "F32", **seen})

        self.assertEqual([row["status"] for row in self.rows], ["failed", "failed"])

    def test_reports_why_client_ended(self):
        client = Client([sys.executable, "-c", "import sys; sys.exit('the reason')"], self.step.own)
        self.addCleanup(client.kill)
        with self.assertRaisesRegex(Failed, "status 1: the reason"):
            client.line()


if __name__ == "__main__":
    unittest.main(verbosity=2)
