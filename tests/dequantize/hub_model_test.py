"""`.stfs/model/` for a model of the Hub: mounting requests only config.json, and reading another file fetches it."""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

import variants
from mounts import HANG, STFS, run

SERVER = pathlib.Path(__file__).resolve().parent.parent / "remote/servers/hub.py"
TOKENIZER = b'{"version": "1.0"}' + b" " * 300000


class HubModel(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.work = pathlib.Path(directory.name).resolve()
        self.model = variants.make("fp8-block-f32")
        self.model.files["tokenizer.json"] = TOKENIZER
        self.model.write(self.work / "models/org/name")
        self.log = self.work / "log"
        self.server = subprocess.Popen([sys.executable, SERVER, "--log", self.log, self.work / "models"], stdout=subprocess.PIPE)
        self.addCleanup(self.server.stdout.close)
        self.addCleanup(self.server.wait)
        self.addCleanup(self.server.terminate)
        self.endpoint = json.loads(self.server.stdout.readline())["hub"]

    def requests_for(self, name):
        """Returns the requests for a file."""
        rows = [json.loads(line) for line in self.log.read_text().splitlines()]
        return [row for row in rows if row["path"].split("?")[0].endswith("/" + name)]

    def mounted(self, *options):
        self.mount = self.work / "mnt"
        self.mount.mkdir(exist_ok=True)
        cache = self.work / ("cache" + "-".join(options))
        environment = {**os.environ, "HF_ENDPOINT": self.endpoint, "STFS_CACHE": str(cache), "HOME": str(self.work)}
        done = subprocess.run([STFS, "-o", ",".join(options), "hf://org/name", self.mount], env=environment,
                              stdin=subprocess.DEVNULL, capture_output=True, timeout=HANG)
        self.assertEqual((done.returncode, done.stderr), (0, b""))
        self.addCleanup(run, STFS, "-u", "-z", self.mount)

    def test_fetches_file_only_when_read(self):
        for options in (["dequantize=bf16"], ["dequantize=bf16", "supervise"]):
            with self.subTest(options):
                self.log.write_text("")
                self.mounted(*options)
                names = set(os.listdir(self.mount / ".stfs/model"))
                self.assertEqual(names, {"config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"})
                self.assertEqual((self.mount / ".stfs/model/tokenizer.json").stat().st_size, len(TOKENIZER))
                self.assertTrue(self.requests_for("config.json"))
                for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
                    self.assertEqual(self.requests_for(name), [])

                self.assertEqual((self.mount / ".stfs/model/tokenizer.json").read_bytes(), TOKENIZER)

                self.assertTrue(self.requests_for("tokenizer.json"))
                self.assertNotIn("quantization_config", json.loads((self.mount / ".stfs/model/config.json").read_bytes()))
                self.assertEqual(run(STFS, "-u", self.mount).returncode, 0)


if __name__ == "__main__":
    unittest.main()
