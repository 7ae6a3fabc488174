"""Measures remote sources. bench.py runs this; docs/BENCHMARKS.md explains the rows.

The servers run on loopback: nginx, and stfs_bench_line, which simulates a line with a latency and a rate. Each round begins
with an empty cache and reads the same random bytes.
"""
import contextlib
import json
import os
import pathlib
import random
import shutil
import socket
import subprocess
import time

MIB = 1 << 20
LINE = {"latency": 30, "rate": 90, "total": 400}  # like S3: milliseconds, MB/s per connection, MB/s in total


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@contextlib.contextmanager
def nginx(root, directory):
    """Runs nginx without TLS, because it is faster and thus a harder peer. rclone needs the listing."""
    work = directory / "nginx"
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir()
    port = free_port()
    (work / "nginx.conf").write_text(f"""
daemon off; worker_processes 1; pid {work}/pid; error_log {work}/error.log; user root;
events {{ worker_connections 256; }}
http {{
  access_log off; sendfile on; tcp_nopush on; keepalive_requests 100000;
  client_body_temp_path {work}/t1; proxy_temp_path {work}/t2; fastcgi_temp_path {work}/t3;
  uwsgi_temp_path {work}/t4; scgi_temp_path {work}/t5;
  server {{ listen 127.0.0.1:{port}; root {root}; autoindex on; }}
}}
""")
    server = subprocess.Popen(["nginx", "-p", work, "-c", work / "nginx.conf"])
    try:
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), 1).close()
                break
            except ConnectionRefusedError:
                if server.poll() is not None:
                    raise RuntimeError(f"nginx: {(work / 'error.log').read_text()}") from None
                time.sleep(0.01)
        yield f"http://127.0.0.1:{port}"
    finally:
        server.terminate()
        server.wait()


@contextlib.contextmanager
def line(build, root, **limits):
    words = [build / "tests/bench/stfs_bench_line", root]
    for name, value in limits.items():
        words += [f"--{name}", str(value)]
    server = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        yield f"http://127.0.0.1:{server.stdout.readline().strip()}"
    finally:
        server.stdin.close()
        server.wait()


class Remote:
    """The rows of a checkpoint of random bytes: one file with tensors of 8 MiB."""

    def __init__(self, bench, build):
        self.bench = bench
        self.build = build
        self.table = bench.table
        self.directory = bench.directory
        self.cache = self.directory / "remote-cache"
        self.mnt = self.directory / "remote-mnt"
        self.tensors = 8 if bench.size.is_quick else 64
        self.rounds = bench.size.rounds

    def make(self):
        root = self.directory / "remote-root"
        path = root / "model.safetensors"
        if not path.exists():
            root.mkdir(exist_ok=True)
            header = {f"t{i:03d}": {"dtype": "BF16", "shape": [2048, 2048], "data_offsets": [i * 8 * MIB, (i + 1) * 8 * MIB]}
                      for i in range(self.tensors)}
            text = json.dumps(header).encode()
            text += b" " * (-len(text) % 8)
            with open(path.with_suffix(".partial"), "wb") as out:
                out.write(len(text).to_bytes(8, "little") + text)
                for _ in range(self.tensors):
                    out.write(os.urandom(8 * MIB))
            path.with_suffix(".partial").rename(path)
        return path

    def all(self):
        path = self.make()
        self.bench.programs.seconds("read", [(0, path.stat().st_size, path)])
        if not any(self.table.wants(work) for work in self.WORKS):
            return
        if shutil.which("nginx"):
            with nginx(path.parent, self.directory) as url:
                self.against_peers(path, f"{url}/model.safetensors", url)
        else:
            self.table.skip(self.WORKS[0], "8 parallel downloads, then a local mount", "no nginx")
        with line(self.build, path.parent, **LINE) as url:
            self.along_a_line(path, f"{url}/model.safetensors")

    WORKS = ("remote, first touch in sequence", "remote, second touch",
             "remote, 30 ms and 90 MB/s a connection, in sequence", "remote, 64 random tensors of 8 MiB, 8 readers",
             "remote, 64 random tensors of 8 MiB, one reader")

    def tensors_of(self, mount):
        return [(0, 8 * MIB, mount / f"t{i:03d}") for i in range(self.tensors)]

    def read_remote(self, url, order=None, figures=None, keep=False, readers=1):
        """Mounts with an empty cache unless `keep`, reads the tensors, and returns the seconds since the command started."""
        if not keep:
            shutil.rmtree(self.cache, ignore_errors=True)
        begin = time.perf_counter()
        with self.bench.programs.mounted(url, self.mnt, "-o", f"cache_dir={self.cache}") as mount:
            files = self.tensors_of(mount)
            self.bench.programs.seconds("read", [files[i] for i in order] if order else files, "--readers", readers)
            seconds = time.perf_counter() - begin
            if figures is not None:
                figures.append(self.figures(mount))
        return seconds

    def figures(self, mount):
        counters = json.loads((mount / ".stfs/counters.json").read_text())
        status = (self.bench.programs.daemon_of(mount) / "status").read_text()
        counters["anonymous_kib"] = int(status.split("RssAnon:")[1].split()[0])
        return counters

    def download(self, url):
        """Downloads 8 ranges in parallel into one file, then reads the tensors through a mount of that file."""
        target = self.directory / "downloaded.safetensors"
        target.unlink(missing_ok=True)
        size = (self.directory / "remote-root/model.safetensors").stat().st_size
        begin = time.perf_counter()
        with open(target, "wb") as out:
            out.truncate(size)
        part = -(-size // 8)
        workers = []
        for i in range(8):
            first, last = i * part, min(size, (i + 1) * part) - 1
            with open(target, "r+b") as out:
                out.seek(first)
                workers.append(subprocess.Popen(["curl", "-s", "-r", f"{first}-{last}", url], stdout=out))
        if any(worker.wait() for worker in workers):
            raise RuntimeError("curl failed")
        with self.bench.programs.mounted(target, self.mnt) as mount:
            self.bench.programs.seconds("read", self.tensors_of(mount))
            return time.perf_counter() - begin

    def read_rclone(self, base):
        shutil.rmtree(self.cache, ignore_errors=True)
        mount = self.directory / "rclone-mnt"
        mount.mkdir(exist_ok=True)
        begin = time.perf_counter()
        server = subprocess.Popen(["rclone", "mount", ":http:", mount, "--http-url", base, "--vfs-cache-mode", "full",
                                   "--cache-dir", self.cache, "--read-only"], stderr=subprocess.DEVNULL)
        try:
            while not os.path.ismount(mount):
                if server.poll() is not None:
                    raise RuntimeError("rclone mount failed")
                time.sleep(0.01)
            path = mount / "model.safetensors"
            self.bench.programs.seconds("read", [(path.stat().st_size - self.tensors * 8 * MIB, self.tensors * 8 * MIB, path)])
            return time.perf_counter() - begin
        finally:
            subprocess.run(["fusermount3", "-u", mount], check=False)
            server.wait()

    def against_peers(self, path, url, base):
        table = self.table
        figures = []
        if shutil.which("curl"):
            table.speed(self.WORKS[0], "8 parallel `curl` ranges to a file, then a local mount of it", ">= 0.8",
                        lambda: self.read_remote(url, figures=figures), lambda: self.download(url))
        else:
            table.skip(self.WORKS[0], "8 parallel `curl` ranges", "no curl")
        if figures:
            table.add("remote, memory of the daemon while it streams, MiB", "", "<= 64",
                      [figure["anonymous_kib"] / 1024 for figure in figures])
            table.add("remote, bytes fetched", "the file's bytes", "<= 1.001",
                      [figure["bytes_fetched"] / path.stat().st_size for figure in figures])
        if shutil.which("rclone"):
            table.speed(self.WORKS[0], "`rclone mount`, vfs-cache-mode full", ">= 4",
                        lambda: self.read_remote(url), lambda: self.read_rclone(base))
        else:
            table.skip(self.WORKS[0], "`rclone mount`", "no rclone")
        self.second_touch(path, url)

    def second_touch(self, path, url):
        """Compares reads of a mount with all bytes cached and verified with reads of a mount of the local file."""
        if not self.table.wants(self.WORKS[1]):
            return
        programs, local = self.bench.programs, self.directory / "local-mnt"
        self.read_remote(url)
        with programs.mounted(url, self.mnt, "-o", f"cache_dir={self.cache}") as mount, \
                programs.mounted(path, local) as other:
            ours, theirs = self.tensors_of(mount), self.tensors_of(other)
            self.table.speed(self.WORKS[1], "a mount of the local file", ">= 0.9",
                             lambda: programs.seconds("read", ours), lambda: programs.seconds("read", theirs),
                             lambda: programs.measure("drop", ours + theirs))

    def along_a_line(self, path, url):
        """Compares sequential reads with the rate of the line. Compares random reads with the prototype that determined the
        block size: it fetched blocks of 256 KiB, joined into requests of up to 8 MiB, in 2.18 s for 64 tensors on the
        same line. A single reader waits for the beginning of each tensor, and therefore needs at least
        64 * (30 ms + 21 ms) = 3.3 s."""
        size = self.tensors * 8 * MIB
        if self.table.wants(self.WORKS[2]):
            seconds = [self.read_remote(url) for _ in range(self.rounds)]
            self.table.add(self.WORKS[2], f"the line, {LINE['total']} MB/s", ">= 0.9",
                           [size / (LINE["total"] * 1e6) / second for second in seconds])
        for work, readers, target, peer, bound in (
                (self.WORKS[3], 8, "<= 1", "2.18 s, a prototype on the same line", 2.18),
                (self.WORKS[4], 1, "", "3.3 s, a round trip and the bytes of each", 3.3)):
            if self.table.wants(work) and self.tensors == 64:
                order = list(range(64))
                random.Random(1).shuffle(order)
                seconds = [self.read_remote(url, order, readers=readers) for _ in range(self.rounds)]
                self.table.add(work, peer, target, [second / bound for second in seconds])
