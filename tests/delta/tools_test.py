"""What the tools print and do with versions: `info`, `diff` with a server, `delta`, `follow`."""

import functools
import http.server
import json
import os
import signal
import struct
import subprocess
import threading
import unittest

import delta_test

info = delta_test.info


class Counted(delta_test.Ranges):
    requests = []

    def do_GET(self):
        self.requests.append((self.path, self.headers.get("Range")))
        super().do_GET()


class Found(delta_test.Base):
    """A chain is found by any name of its newest version."""

    def test_accepts_numbers_without_leading_zeros(self):
        for _ in range(10):
            self.step(names=["norm"])
        for number in range(1, 11):
            (self.run_ / f"weight_v{number:06d}").rename(self.run_ / f"step_{number}")
        self.assert_shows(10, self.base, f"--delta={self.run_ / 'step_10'}")

    def test_accepts_symlinks_and_relative_paths(self):
        first = self.run_ / "weight_v000000"
        first.mkdir(parents=True)
        self.full(self.states[0], first / "model.safetensors")
        self.step()
        delta = self.step()
        (self.run_ / "latest").symlink_to(delta.name)
        self.assert_shows(2, self.run_ / "latest")
        self.addCleanup(os.chdir, os.getcwd())
        os.chdir(delta)
        for name in (".", "./", "../weight_v000002/.", "model.safetensors.index.json", "../latest"):
            self.assert_shows(2, name)
            self.assert_shows(2, first, f"--delta={name}")

    def test_name_without_number_does_not_find_earlier_versions(self):
        self.step(names=["norm"])
        delta = self.step(names=["model.1.w"])
        first, second = self.work / "first", self.work / "second"
        (self.run_ / "weight_v000001").rename(first)
        delta.rename(second)
        self.assert_shows(1, self.base, f"--delta={first}")  # applies to version 0, which is the source
        self.refused(second, "is based on version 1, which stfs cannot find")

    def test_finds_full_checkpoint_on_web_server(self):
        first = self.run_ / "weight_v000000"
        first.mkdir(parents=True)
        self.full(self.states[0], first / "model.safetensors")
        self.step()
        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(delta_test.Ranges, directory=str(self.run_)))
        threading.Thread(target=server.serve_forever, daemon=True).start()
        self.addCleanup(server.server_close)
        self.addCleanup(server.shutdown)
        os.environ["STFS_CACHE"] = str(self.work / "cache")
        self.addCleanup(os.environ.pop, "STFS_CACHE")
        url = f"http://127.0.0.1:{server.server_port}"
        self.assert_shows(1, f"{url}/weight_v000001")
        self.assert_shows(1, f"{url}/weight_v000000/model.safetensors", f"--delta={url}/weight_v000001")

    def test_frames_are_never_shown_as_tensors(self):
        delta = self.step()
        index = delta / "model.safetensors.index.json"
        shard = next(delta.glob("*.safetensors"))
        for text in ('{"metadata": {"delta_encoding": 5}, "weight_map": {}}',
                     '{"metadata": {"delta_encoding": "xor"}, "x":' + 100 * "[" + 100 * "]" + "}"):
            index.write_text(text)
            info("list", delta, status=1)
        index.unlink()
        other = self.work / "x.safetensors"
        os.link(shard, other)
        for name in (delta, shard, other):
            self.assertIn("holds frames of a delta, but its index is missing", info("list", name, status=1))


class Info(delta_test.Base):
    def test_prints_table_of_chain(self):
        self.step(), self.step(encoding="overwrite", checksum="adler32", names=["norm"])
        delta = self.run_ / "weight_v000002"
        rows = [line.split() for line in info("info", self.base, f"--delta={delta}").splitlines()]
        self.assertIn(["DELTA", "BASE", "ENCODING", "CHECKSUM", "TENSORS", "SIZE", "SHARE"], rows)
        self.assertIn(["1", "0", "xor", "xxh3-128", "4"], [row[:5] for row in rows])
        last = next(row for row in rows if row[:5] == ["2", "1", "overwrite", "adler32", "1"])
        self.assertRegex(last[-1], r"^0\.0\d%$")
        deltas = json.loads(info("info", self.base, f"--delta={delta}", "--json"))["deltas"]
        self.assertEqual([each["version"] for each in deltas], [1, 2])
        header = (delta / "model-00000-of-00001.safetensors").stat().st_size
        self.assertLess(deltas[1]["bytes"], header)

    def test_delta_with_full_checkpoint_in_run_needs_no_option(self):
        first = self.run_ / "weight_v000000"
        first.mkdir(parents=True)
        self.full(self.states[0], first / "model.safetensors")
        delta = self.step()
        text = info("info", delta)
        self.assertIn("parameters", text)
        self.assertIn("xxh3-128", text)

    def test_delta_without_base_says_what_it_needs(self):
        self.step()
        delta = self.step()
        text = info("info", delta)
        self.assertIn(f"a delta on version 0, which has no directory: name that checkpoint, with --delta={delta}", text)
        self.assertEqual([row.split()[:2] for row in text.splitlines()[-2:]], [["1", "0"], ["2", "1"]])
        self.assertEqual(len(json.loads(info("info", delta, "--json"))["deltas"]), 2)
        self.assertIn("this delta with delta=", info("list", delta, status=1))
        self.assertIn("one shard of a delta", info("info", next(delta.glob("*.safetensors")), status=1))


class Differences(delta_test.Base):
    def test_reads_only_tensors_of_delta(self):
        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Counted, directory=str(self.work)))
        threading.Thread(target=server.serve_forever, daemon=True).start()
        self.addCleanup(server.server_close)
        self.addCleanup(server.shutdown)
        os.environ["STFS_CACHE"] = str(self.work / "cache")
        self.addCleanup(os.environ.pop, "STFS_CACHE")
        base = f"http://127.0.0.1:{server.server_port}/base.safetensors"
        delta = self.step(names=["norm"])  # in the last of three blocks of 256 KiB
        text = info("diff", base, base, f"--new-delta={delta}", "--values", status=1)
        self.assertIn("norm", text)
        self.assertEqual({range_ for path, range_ in Counted.requests if path == "/base.safetensors"},
                         {"bytes=0-262143", f"bytes=524288-{self.base.stat().st_size - 1}"})
        self.assertEqual(info("diff", base, base, f"--old-delta={delta}", f"--new-delta={delta}"), "")


class Written(delta_test.Base):
    def test_rejects_name_that_is_not_utf8(self):
        for file in ("old", "new"):
            header = b"GGUF" + struct.pack("<IQQ", 3, 1, 0) + struct.pack("<Q2sIQIQ", 2, b"a\xff", 1, 4, 0, 0)
            (self.work / f"{file}.gguf").write_bytes(header + bytes(-len(header) % 32) + self.random.bytes(16) + bytes(16))
        text = info("delta", self.work / "old.gguf", self.work / "new.gguf", "-o", self.work / "v_1", status=2)
        self.assertIn("is not UTF-8", text)
        self.assertFalse((self.work / "v_1").exists())


class Follow(delta_test.Base):
    def test_waits_for_directory_prints_versions_and_ends_by_signal(self):
        follower = subprocess.Popen([delta_test.STFS_INFO, "follow", self.run_], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.addCleanup(follower.stdout.close)
        self.addCleanup(follower.stderr.close)
        self.addCleanup(follower.wait)
        self.addCleanup(follower.kill)
        self.assertIn("trying again", follower.stderr.readline())
        first = self.step()
        self.assertEqual(follower.stdout.readline(), f"{first}\n")
        second = self.step()
        self.assertEqual(follower.stdout.readline(), f"{second}\n")
        follower.send_signal(signal.SIGINT)
        self.assertEqual(follower.wait(), -signal.SIGINT)
        self.assertEqual(follower.stderr.read(), "")  # no second line

    def test_prints_newest_version_and_rejects_bad_runs(self):
        self.step()
        last = self.step()
        self.assertEqual(info("follow", self.run_, "--latest"), f"{last}\n")
        self.assertIn("no complete version", info("follow", self.run_, "--latest", "--marker=STABLE", status=3))
        self.assertIn("does not list its directories", info("follow", "https://127.0.0.1:1/run", status=2))
        self.assertIn("not the name of a file", info("follow", self.run_, "--marker=a/b", status=2))


if __name__ == "__main__":
    unittest.main()
