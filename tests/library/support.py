"""Shared by the tests of `import stfs`: checkpoints, a server, and base classes with a directory."""

import http.server
import json
import os
import signal
import struct
import sys
import tempfile
import threading
import unittest

import numpy

import stfs

ARRAYS = {
    "f32": ("F32", numpy.arange(24, dtype="<f4").reshape(4, 6) / 7),
    "u8": ("U8", numpy.array([1, 2, 3], "|u1")),
    "f64": ("F64", numpy.array([1.5, -2.5], "<f8")),
    "f16": ("F16", numpy.array([[1, 2], [3, 65504]], "<f2")),
    "c64": ("C64", numpy.array([1 + 2j, -3j], "<c8")),
    "i64": ("I64", numpy.array(-5, "<i8")),
    "bool": ("BOOL", numpy.array([True, False])),
    "empty": ("F32", numpy.zeros((0, 3), "<f4")),
    "bf16": ("BF16", (numpy.array([1, -2.5], "<f4").view("<u4") >> 16).astype("<u2")),
}


def write_checkpoint(path, arrays, metadata=None):
    header, data = {} if metadata is None else {"__metadata__": metadata}, b""
    for name, (dtype, array) in arrays.items():
        content = array.tobytes()
        header[name] = {"dtype": dtype, "shape": array.shape, "data_offsets": [len(data), len(data) + len(content)]}
        data += content
    text = json.dumps(header).encode()
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + data)
    return path


def write_q8_0(path, name=b"w"):
    """Writes a GGUF file with a tensor of one block of Q8_0: the scale 0.5 and the codes -16 to 15."""
    header = (b"GGUF" + struct.pack("<IQQ", 3, 1, 0) + struct.pack("<Q", len(name)) + name +
              struct.pack("<IQIQ", 1, 32, 8, 0))
    with open(path, "wb") as file:
        file.write(header + bytes(-len(header) % 32))
        file.write(numpy.float16(0.5).tobytes() + numpy.arange(-16, 16, dtype="i1").tobytes() + bytes(30))
    return path


def contents(path):
    with open(path, "rb") as file:
        return file.read()


def in_child(body):
    """Returns True if the body returns without an exception in a forked child."""
    child = os.fork()
    if child == 0:
        try:
            signal.alarm(60)  # a child that hangs is killed
            body()
            os._exit(0)
        except BaseException as error:
            sys.stderr.write(f"{error!r}\n")
            os._exit(1)
    return os.waitpid(child, 0)[1] == 0


class Ranges(http.server.SimpleHTTPRequestHandler):
    """Serves ranges. Requests for bytes after the first 100,000 wait for `gate`."""

    def do_GET(self):
        with open(self.server.file, "rb") as file:
            content = file.read()
        begin, end = 0, len(content)
        if "Range" in self.headers:
            first, last = self.headers["Range"][len("bytes="):].split("-")
            begin, end = int(first), min(len(content), int(last) + 1)
            if begin > 100_000:
                self.server.waits.set()
                self.server.gate.wait()
        self.send_response(206 if "Range" in self.headers else 200)
        self.send_header("Content-Range", f"bytes {begin}-{end - 1}/{len(content)}")
        self.send_header("Content-Length", str(end - begin))
        self.send_header("ETag", self.server.tag)
        self.end_headers()
        try:
            self.wfile.write(content[begin:end])
        except OSError:
            pass

    def log_message(self, *words):
        pass


class Base(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.directory = directory.name
        self.path = write_checkpoint(self.at("m.safetensors"), ARRAYS, {"format": "pt"})

    def at(self, name):
        return os.path.join(self.directory, name)


class RemoteBase(Base):
    """Starts a server with a checkpoint of 2 MB. The server sends most of the tensor only after `gate` is set."""

    def setUp(self):
        super().setUp()
        self.large = numpy.random.default_rng(1).integers(1, 256, 2_000_000, dtype="u1")
        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Ranges)
        self.server.file = write_checkpoint(self.at("large.safetensors"), {"w": ("U8", self.large)})
        self.server.gate = threading.Event()
        self.server.waits = threading.Event()  # set while a request waits for the gate
        self.server.tag = '"v1"'
        self.server.daemon_threads = True
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.addCleanup(self.server.server_close)
        self.addCleanup(self.server.shutdown)
        self.addCleanup(self.server.gate.set)
        self.url = f"http://127.0.0.1:{self.server.server_port}/large.safetensors"

    def open(self, source=None, **options):
        return stfs.open(source or self.url, cache_dir=self.at("cache"), **options)
