"""Deltas: chains of both encodings compared with the tensors that they represent, and every fault of a delta.

python3-zstandard makes the frames; python3-xxhash and zlib compute the checksums.
"""

import concurrent.futures
import contextlib
import errno
import functools
import hashlib
import http.server
import json
import os
import pathlib
import shutil
import signal
import struct
import subprocess
import tempfile
import threading
import time
import unittest
import zipfile

import numpy
import zstandard

import versions

STFS, STFS_INFO = os.environ["STFS_BINARY"], os.environ["STFS_INFO_BINARY"]
SHAPES = {"model.0.w": (300, 64), "model.1.w": (50, 8), "model.2.w": (70000, 4), "norm": (64,)}
COMPRESS = zstandard.ZstdCompressor(level=1).compress


def info(*words, status=0):
    done = subprocess.run([STFS_INFO, *map(str, words)], capture_output=True, text=True)
    assert done.returncode == status, f"{words}: exit status {done.returncode}\n{done.stdout}{done.stderr}"
    return done.stdout + done.stderr


def kill_worker(mnt):
    """Kills the worker of a supervised mount, and returns after another worker serves the mount."""
    daemons = [int(pid) for pid in os.listdir("/proc") if pid.isdigit() and str(mnt) in arguments(pid)]
    parents = {pid: int(pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1]) for pid in daemons}
    worker = next(pid for pid in daemons if parents[pid] in daemons)
    os.kill(worker, signal.SIGKILL)
    os.stat(mnt / "norm", follow_symlinks=False)
    os.statvfs(mnt)


def arguments(pid):
    try:
        return pathlib.Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return []  # the process has ended


class Base(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.work = pathlib.Path(directory.name)
        self.run_ = self.work / "run"
        self.random = numpy.random.default_rng(5)
        self.states = [{name: self.random.integers(0, 1 << 16, rows * (columns[0] if columns else 1), numpy.uint16).tobytes()
                        for name, (rows, *columns) in SHAPES.items()}]
        self.base = self.full(self.states[0], self.work / "base.safetensors")

    @staticmethod
    def full(tensors, path):
        versions.write_file(path, {name: ("BF16", SHAPES[name], data) for name, data in tensors.items()}, {"format": "pt"})
        return path

    def step(self, names=None, **options):
        """Publishes the next version."""
        old = self.states[-1]
        new = versions.step(self.random, old)
        new = {name: new[name] if names is None or name in names else old[name] for name in old}
        self.states.append(new)
        return versions.write_version(self.run_, len(self.states) - 1, old, new, **options)

    def digests(self, *words):
        return info("hash", *words)

    def assert_shows(self, number, *words):
        self.assertEqual(self.digests(*words), self.digests(self.full(self.states[number], self.work / "expected.safetensors")))

    @contextlib.contextmanager
    def mount(self, options, source=None):
        path = self.work / f"mnt{len(os.listdir(self.work))}"
        path.mkdir()
        done = subprocess.run([STFS, "-o", options, source or self.base, path], capture_output=True, text=True)
        if done.returncode == 4 and "STFS_REQUIRE_MOUNT" not in os.environ:
            self.skipTest(f"cannot mount: {done.stderr}")
        self.assertEqual(done.returncode, 0, done.stderr)
        try:
            yield path
        finally:
            subprocess.run([STFS, "-u", path], check=True)

    def serve(self):
        """Serves the work directory and sets an empty cache. Returns the URL."""
        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Ranges, directory=str(self.work)))
        threading.Thread(target=server.serve_forever, daemon=True).start()
        self.addCleanup(server.server_close)
        self.addCleanup(server.shutdown)
        os.environ["STFS_CACHE"] = str(self.work / "cache")
        self.addCleanup(os.environ.pop, "STFS_CACHE")
        return f"http://127.0.0.1:{server.server_port}"

    def refused(self, delta, words, base=None):
        text = info("list", base or self.base, f"--delta={delta}", status=1)
        self.assertIn(words, text)


class Chains(Base):
    def test_chain_of_both_encodings_and_checksums_shows_each_version(self):
        for number in range(1, 6):
            self.step(encoding=("xor", "overwrite")[number % 2], checksum=("xxh3-128", "adler32")[number % 3 == 0],
                      shards=number % 3 + 1, names=None if number % 2 else ["model.2.w"])
        for number in range(1, 6):
            delta = self.run_ / f"weight_v{number:06d}"
            self.assert_shows(number, self.base, f"--delta={delta}")
            self.assert_shows(number, self.base, f"--delta={delta / 'model.safetensors.index.json'}", "--delta-memory=1")

    def test_mount_reads_any_range_with_and_without_memory(self):
        self.step(), self.step(encoding="overwrite"), self.step()
        expected = self.states[3]
        for memory in ("256M", "1", "30000"):
            with self.mount(f"delta={self.run_ / 'weight_v000003'},delta_memory={memory}") as mnt:
                for name, data in expected.items():
                    with open(mnt / name, "rb") as file:
                        for begin in sorted(self.random.integers(0, len(data), 12), key=lambda at: at % 7):
                            file.seek(begin)
                            self.assertEqual(file.read(70000), data[begin:begin + 70000])
                    self.assertEqual((mnt / name).read_bytes(), data)
                self.assert_shows(3, mnt)

    def test_tensor_outside_deltas_keeps_its_offset(self):
        delta = self.step(names=["model.0.w"])
        listed = {each["name"]: each for each in json.loads(info("list", self.base, f"--delta={delta}", "--json"))}
        plain = {each["name"]: each for each in json.loads(info("list", self.base, "--json"))}
        self.assertEqual(listed["norm"]["offset"], plain["norm"]["offset"])
        self.assertIsNone(listed["model.0.w"]["offset"])

    def test_empty_version_changes_nothing(self):
        self.step()
        delta = self.step(names=[])
        self.assertFalse(list(delta.glob("*.safetensors")))
        self.assert_shows(2, self.base, f"--delta={delta}")

    def test_chain_ends_at_full_checkpoint_in_same_run(self):
        first = self.run_ / "weight_v000000"
        first.mkdir(parents=True)
        self.full(self.states[0], first / "model.safetensors")
        delta = self.step()
        self.assert_shows(1, delta)
        self.assert_shows(1, first, f"--delta={delta}")
        self.refused(delta, "name that checkpoint as the source")
        self.step()
        with self.mount("threads=4", self.run_ / "weight_v000002") as mnt:
            self.assertEqual((mnt / "norm").read_bytes(), self.states[2]["norm"])
            self.assert_shows(2, mnt)

    def test_version_with_deleted_base_applies_to_source(self):
        self.step()
        delta = self.step()
        shutil.rmtree(self.run_ / "weight_v000001")
        one = self.full(self.states[1], self.work / "one.safetensors")
        text = info("stats", one, f"--delta={delta}", "norm")
        self.assertIn("the source is taken as version 1", text)
        self.refused(delta, "is not the base of this delta")
        self.assertIn("name the checkpoint of that version as the source", info("list", delta, status=1))

    def test_rejects_two_deltas(self):
        for run in ("a", "b"):
            first = self.work / run / "weight_v000000"
            first.mkdir(parents=True)
            versions.write_file(first / "model.safetensors", {run: ("U8", (4,), b"1111")})
            for number in (1, 2):
                versions.write_version(self.work / run, number, {run: b"%d111" % number}, {run: b"%d111" % (number + 1)})
        one, two, other = (self.work / each for each in ("a/weight_v000001", "a/weight_v000002", "b/weight_v000002"))
        self.assertIn("name one full checkpoint", info("list", one, f"--delta={two}", status=2))
        done = subprocess.run([STFS, two, other, self.work], capture_output=True, text=True)
        self.assertEqual((done.returncode, "name one full checkpoint" in done.stderr), (2, True), done.stderr)
        self.assertEqual(self.digests(two, f"--delta={two}"), self.digests(two))
        with self.mount(f"delta={one}", self.work / "a/weight_v000000") as mnt:
            self.assertIn("already: name only the mount", info("list", mnt, f"--delta={one}", status=2))
            self.assertIn("for another version", info("list", mnt, f"--delta={two}", status=2))

    def test_rejects_shard_of_delta_as_source(self):
        delta = self.step()
        self.assertIn("one shard of a delta", info("list", next(delta.glob("*.safetensors")), status=1))

    def test_edits_apply_after_deltas(self):
        delta = self.step()
        text = info("list", self.base, f"--delta={delta}", "-e", "drop model.*", "--json")
        self.assertEqual([each["name"] for each in json.loads(text)], ["norm"])

    def test_quantised_checkpoint_with_delta_dequantises_like_written_checkpoint(self):
        numbers = lambda dtype, *shape: self.random.integers(1, 100, shape).astype(dtype).tobytes()
        f16 = lambda *shape: self.random.random(shape).astype("<f2").tobytes()
        fp8 = {"quant_method": "fp8", "weight_block_size": [8, 8]}
        gptq = {"quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": False, "sym": False}
        groups = numpy.repeat(numpy.arange(2, dtype="<i4"), 32).tobytes()
        models = {  # name: (dtype, shape, bytes before and after the delta)
            "fp8": (fp8, {"a.weight": ("F8_E4M3", (8, 8), numbers("u1", 64), numbers("u1", 64)),
                          "a.weight_scale_inv": ("F32", (1, 1), *[numpy.float32(0.5).tobytes()] * 2)}),
            "scale": (fp8, {"a.weight": ("F8_E4M3", (8, 8), *[numbers("u1", 64)] * 2),
                            "a.weight_scale_inv": ("F32", (1, 1), numpy.float32(0.5).tobytes(), numpy.float32(3).tobytes())}),
            "transposed": (gptq, {"a.qweight": ("I32", (8, 32), numbers("<i4", 8, 32), numbers("<i4", 8, 32)),
                                  "a.qzeros": ("I32", (2, 4), numbers("<i4", 2, 4), numbers("<i4", 2, 4)),
                                  "a.scales": ("F16", (2, 32), f16(2, 32), f16(2, 32)),
                                  "a.g_idx": ("I32", (64,), groups, groups)})}
        for number, (name, (quantised, tensors)) in enumerate(models.items(), 1):
            model, patched = self.work / name, self.work / f"{name}_patched"
            config = json.dumps({"quantization_config": quantised})
            for directory, at in ((model, 2), (patched, 3)):
                directory.mkdir()
                versions.write_file(directory / "model.safetensors", {key: (*row[:2], row[at]) for key, row in tensors.items()})
                (directory / "config.json").write_text(config)
            old, new = ({key: row[at] for key, row in tensors.items()} for at in (2, 3))
            delta = versions.write_version(self.run_, number, old, new, base=0)
            info("edit", model, f"--delta={delta}", "-o", self.work / f"{name}_stored")
            self.assertEqual((self.work / f"{name}_stored/config.json").read_text(), config)
            expected = self.digests(patched, "--dequantize=bf16")
            self.assertIn(" a.weight", expected)
            self.assertNotEqual(expected, self.digests(model, "--dequantize=bf16"))
            self.assertEqual(self.digests(model, f"--delta={delta}", "--dequantize=bf16"), expected)
            self.assertEqual(self.digests(model, f"--delta={delta}", "--dequantize=bf16", "--delta-memory=1"), expected)
            with self.mount(f"delta={delta}", model) as mnt:
                self.assertEqual(self.digests(mnt, "--dequantize=bf16"), expected)
            with self.mount(f"delta={delta},dequantize=bf16", model) as mnt:
                self.assertEqual(self.digests(mnt), expected)
                self.assertEqual(os.listdir(mnt / ".stfs/metadata"), [])  # no checksum of the delta
                self.assertNotIn("quant", (mnt / ".stfs/model/config.json").read_text())

    def test_reads_versions_from_server(self):
        self.step(), self.step(encoding="overwrite")
        url = self.serve()
        self.assert_shows(2, f"{url}/base.safetensors", f"--delta={url}/run/weight_v000002")
        self.assert_shows(2, self.base, f"--delta={url}/run/weight_v000002")
        with self.mount(f"supervise,delta={url}/run/weight_v000002") as mnt:
            self.assert_shows(2, mnt)

    def test_sixteen_readers_and_ten_versions_at_once(self):
        for number in range(10):
            self.step(encoding=("xor", "overwrite")[number % 2])
        with contextlib.ExitStack() as stack:
            mounts = {number: stack.enter_context(self.mount(f"delta={self.run_ / f'weight_v{number:06d}'},delta_memory={number % 2}"))
                      for number in range(1, 11)}
            read = lambda number: (mounts[number] / "model.2.w").read_bytes() == self.states[number]["model.2.w"]
            with concurrent.futures.ThreadPoolExecutor(16) as pool:
                self.assertTrue(all(pool.map(read, [10] * 16 + [9] * 16 + list(mounts))))

    def test_new_worker_shows_same_bytes(self):
        self.step(), self.step(encoding="overwrite")
        with self.mount(f"supervise,delta_memory=1,delta={self.run_ / 'weight_v000002'}") as mnt:
            read = lambda _: (mnt / "model.2.w").read_bytes() == self.states[2]["model.2.w"]
            with concurrent.futures.ThreadPoolExecutor(4) as pool:
                reading = pool.map(read, range(12))
                kill_worker(mnt)  # during a verification or a read
                self.assertTrue(all(reading))
            self.assert_shows(2, mnt)


class WithoutCache(Base):
    """Remote sources without a cache directory, so that stfs keeps 16 MiB in memory."""

    def shown(self, size, status):
        old, new = {"w": self.random.bytes(size)}, {"w": self.random.bytes(size)}
        versions.write_file(self.base, {"w": ("U8", (size,), old["w"])})
        versions.write_version(self.run_, 1, old, new)
        url = self.serve()
        os.environ["STFS_CACHE"] = "/proc/none"
        text = info("hash", self.base, f"--delta={url}/run/weight_v000001", status=status)
        return text, hashlib.sha256(new["w"]).hexdigest()

    def test_tensor_that_fits_memory_is_verified(self):
        text, expected = self.shown(12 << 20, 0)
        self.assertIn(expected, text)

    def test_tensor_larger_than_memory_is_rejected(self):
        text, _ = self.shown(17 << 20, 3)
        self.assertIn('tensor "w" needs a cache, because it is checked as a whole, and without a cache stfs keeps only 16.0 MiB of a '
                      'source: name a directory with cache_dir', text)


class SlowLine(Base):
    def test_read_does_not_time_out_while_blocks_arrive(self):
        old = {"w": self.random.bytes(6 << 20)}
        new = {"w": self.random.bytes(6 << 20)}
        versions.write_file(self.base, {"w": ("U8", (6 << 20,), old["w"])})
        versions.write_version(self.run_, 1, {**old, "v": b""}, {**new, "v": b""})
        Ranges.pause = 0.1  # per 256 KiB, so at least 2.4 s for a file
        self.addCleanup(setattr, Ranges, "pause", 0)
        url = self.serve()
        with self.mount(f"timeout=1,delta={url}/run/weight_v000001") as mnt:
            self.assertEqual((mnt / "w").read_bytes(), new["w"])
        shutil.rmtree(self.work / "cache")
        self.assertIn(hashlib.sha256(new["w"]).hexdigest(), info("hash", self.base, f"--delta={url}/run/weight_v000001", "--timeout=1"))


class Ranges(http.server.SimpleHTTPRequestHandler):
    pause = 0

    def do_GET(self):
        path = pathlib.Path(self.translate_path(self.path))
        if not path.is_file():
            return self.send_error(404)
        content = path.read_bytes()
        begin, end = 0, len(content)
        if "Range" in self.headers:
            first, last = self.headers["Range"][len("bytes="):].split("-")
            begin, end = int(first), min(len(content), int(last) + 1)
        self.send_response(206 if "Range" in self.headers else 200)
        self.send_header("Content-Range", f"bytes {begin}-{end - 1}/{len(content)}")
        self.send_header("Content-Length", str(end - begin))
        self.send_header("ETag", f'"{hash(content)}"')
        self.end_headers()
        for at in range(begin, end, 256 << 10):
            if self.pause:
                time.sleep(self.pause)  # a slow connection
            self.wfile.write(content[at:min(end, at + (256 << 10))])

    def log_message(self, *words):
        pass


class Faults(Base):
    """The smallest tensor is verified when the command starts, so each fault in it gives exit status 1."""

    def test_rejects_unknown_metadata_by_name(self):
        for number, (key, value, words) in enumerate([
                ("delta_encoding", "rle", '"rle"'), ("compression_format", "lz4", '"lz4"'),
                ("checksum_format", "blake3", '"blake3": only xxh3-128 and adler32 are supported: publish with'), ("version", "x", "is not a number"),
                ("base_version", None, "is not a number"), ("base_version", 1, "does not come before"),
                ("base_version", 7, "does not come before")]):
            run = self.work / f"run{number}"
            new = versions.step(self.random, self.states[0])
            delta = versions.write_version(run, 1, self.states[0], new, **{key: value})
            self.refused(delta, words)
        self.refused(self.work, "not a delta")
        self.assertIn("No such file", info("list", self.base, f"--delta={self.work / 'nowhere'}", status=3))

    def test_malformed_frames_never_become_tensor_bytes(self):
        old, new = self.states[0], versions.step(self.random, self.states[0])
        size = len(old["norm"])
        good = COMPRESS(versions.xor(old["norm"], new["norm"]))
        positions = lambda *at, values=None: COMPRESS(struct.pack(f"<I{len(at)}I", len(at), *at) + bytes(values or len(at)))
        frames = {
            "xor": [b"", b"x", good[:-1], good + b"x", good + good, good[:len(good) // 2], COMPRESS(b""), COMPRESS(bytes(size - 1)),
                    COMPRESS(bytes(size + 1)), COMPRESS(bytes(size)), COMPRESS(bytes(1 << 20)),
                    good[:4] + bytes([good[4] ^ 0xC0]) + good[5:]],
            "overwrite": [COMPRESS(b""), COMPRESS(struct.pack("<I", 1 << 31)), COMPRESS(struct.pack("<II", 1, 0)),
                          positions(5, 4), positions(4, 4), positions(size), positions(0, values=2), positions(), good],
        }
        for encoding, made in frames.items():
            for i, frame in enumerate(made):
                delta = versions.write_version(self.work / f"{encoding}{i}", 1, old, new, encoding=encoding, frames={"norm": frame})
                with self.subTest(encoding=encoding, frame=i):
                    # The last frame of xor declares a window that is larger than the memory for deltas.
                    is_window = (encoding, i) == ("xor", len(made) - 1)
                    self.refused(delta, "needs a larger window than" if is_window else "its checksum does not match")

    def test_detects_each_damaged_byte_of_frame(self):
        old, new = self.states[0], dict(self.states[0])
        new["norm"] = versions.step(self.random, {"norm": old["norm"]}, share=0.1)["norm"]
        good = COMPRESS(versions.xor(old["norm"], new["norm"]))
        for at in range(len(good)):
            frame = good[:at] + bytes([good[at] ^ 0x10]) + good[at + 1:]
            delta = versions.write_version(self.work / f"at{at}", 1, old, new, frames={"norm": frame})
            done = subprocess.run([STFS_INFO, "hash", self.base, f"--delta={delta}", "norm"], capture_output=True, text=True)
            if done.returncode == 0:  # the damaged frame decompresses to the same bytes
                self.assertIn(versions.hashlib_sha256(new["norm"]), done.stdout)
            else:
                self.assertEqual(done.returncode, 1, done.stderr)

    def test_reports_missing_tensors_and_checksums(self):
        delta = self.step()
        shard = next(delta.glob("*.safetensors"))
        content = shard.read_bytes()
        (length,) = struct.unpack("<Q", content[:8])
        header = json.loads(content[8:8 + length])
        del header["__metadata__"]["norm"]
        text = json.dumps(header).encode()
        shard.write_bytes(struct.pack("<Q", len(text)) + text + content[8 + length:])
        self.refused(delta, "its checksum is missing")
        versions.write_file(self.work / "less.safetensors", {"norm": ("BF16", (64,), self.states[0]["norm"])})
        self.refused(delta, "not in the base", self.work / "less.safetensors")
        shard.unlink()
        self.assertIn("missing", info("list", self.base, f"--delta={delta}", status=3))

    def test_rejects_wrong_base_at_start(self):
        delta = self.step()
        other = self.full(versions.step(self.random, self.states[0]), self.work / "other.safetensors")
        self.refused(delta, "is not the base of this delta", other)
        self.refused(delta, "is not the base of this delta", self.full(self.states[1], self.work / "twice.safetensors"))

    def test_damaged_compressed_base_is_named(self):
        """A compressed array is computed, so it has no place in a file that the message could name."""
        path = self.work / "base.npz"
        numpy.savez_compressed(path, **{name: numpy.frombuffer(data, "<i2").reshape(SHAPES[name]) for name, data in self.states[0].items()})
        delta = self.step()
        info("list", path, f"--delta={delta}")
        raw = bytearray(path.read_bytes())
        with zipfile.ZipFile(path) as archive:
            member = archive.getinfo("norm.npy")
        raw[member.header_offset + 30 + len("norm.npy") + member.compress_size // 2] ^= 0xFF
        path.write_bytes(raw)
        self.assertIn('tensor "norm"', info("list", path, f"--delta={delta}", status=3))

    def test_rejects_version_in_wrong_directory_and_too_long_chain(self):
        self.step()
        (self.run_ / "weight_v000001").rename(self.run_ / "weight_v000002")
        third = versions.write_version(self.run_, 3, self.states[0], self.states[1])
        self.refused(third, "version 1, but in the directory of version 2")
        long = self.work / "long"
        empty = {"norm": b""}
        for number in range(1, 258):
            last = versions.write_version(long, number, empty, empty)
        self.refused(last, "more than 256 links")
        self.assert_shows(0, self.base, f"--delta={long / 'weight_v000256'}")

    def test_damaged_large_tensor_makes_whole_mount_estale(self):
        old, new = self.states[0], versions.step(self.random, self.states[0])
        frame = COMPRESS(versions.xor(old["model.2.w"], new["model.0.w"] + bytes(len(old["model.2.w"]) - len(new["model.0.w"]))))
        delta = versions.write_version(self.run_, 1, old, new, frames={"model.2.w": frame})
        text = info("hash", self.base, f"--delta={delta}", status=3)
        self.assertIn('the checksum of tensor "model.2.w" does not match', text)
        with self.mount(f"supervise,delta={delta}") as mnt:
            self.assertEqual((mnt / "model.0.w").read_bytes(), new["model.0.w"])
            for is_next in (False, True):
                for name in ("model.2.w", "model.0.w", "model.1.w"):
                    with self.assertRaises(OSError) as caught:
                        with open(mnt / name, "rb", buffering=0) as file:
                            os.pread(file.fileno(), 10, 3)
                    self.assertEqual(caught.exception.errno, errno.ESTALE, name)
                if not is_next:
                    kill_worker(mnt)  # the next worker knows it without a verification

    def test_changed_delta_makes_mount_estale(self):
        delta = self.step()
        with self.mount(f"delta={delta}") as mnt:
            shard = next(delta.glob("*.safetensors"))
            with open(shard, "r+b") as file:
                file.seek(-1, os.SEEK_END)
                file.write(b"x")
            with self.assertRaises(OSError) as caught:
                (mnt / "model.2.w").read_bytes()
            self.assertEqual(caught.exception.errno, errno.ESTALE)


if __name__ == "__main__":
    unittest.main()
