"""Mounts of checkpoints on real servers, as users make them: Ceph's S3 gateway, nginx, and the test server of the Hub.

Run by ctest under the label "servers", with STFS_BINARY, STFS_INFO_BINARY and STFS_GPU_BINARY set; skipped
(status 77) unless STFS_REAL_SERVERS=1, which `scripts/test --all` sets. Prints how long each took.
"""

import ast
import contextlib
import datetime
import errno
import hashlib
import json
import os
import random
import re
import signal
import socket
import stat
import struct
import subprocess
import sys
import tempfile
import threading
import time
import unittest
import urllib.request

if os.environ.get("STFS_REAL_SERVERS") != "1":
    print("skipped: STFS_REAL_SERVERS is not 1")
    sys.exit(77)

from real_servers import HANG, HERE, Gateway, Server, safetensors  # noqa: E402

STFS = os.environ["STFS_BINARY"]
INFO = os.environ["STFS_INFO_BINARY"]
GPU = os.environ.get("STFS_GPU_BINARY")
ROWS, COLUMNS = 256, 1024  # the shape of an F32 tensor of 1 MiB
TOKEN = "hf_thetokenoftests"
TIMES = []


def until_true(test, condition, process=None):
    """Polls until the condition holds, for conditions without an event."""
    end = time.monotonic() + HANG
    while not condition():
        test.assertLess(time.monotonic(), end)
        if process is not None:
            test.assertIsNone(process.poll())
        time.sleep(0.01)


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def content(path):
    with open(path, "rb") as file:
        return file.read()


def tensor(seed):
    """Returns the bytes of an F32 tensor of finite numbers."""
    numbers = random.Random(seed)
    return struct.pack(f"<{ROWS * COLUMNS}f", *(numbers.uniform(-1, 1) for _ in range(ROWS * COLUMNS)))


TENSORS = {f"layers.{i}.weight": tensor(i) for i in range(4)}


def one_file(tensors=None):
    return safetensors({name: ("F32", [ROWS, COLUMNS], data) for name, data in (tensors or TENSORS).items()})


def shards():
    """Returns the files of a checkpoint with two shards."""
    files, weight_map = {}, {}
    for shard in range(2):
        name = f"model-{shard + 1:05}-of-00002.safetensors"
        names = list(TENSORS)[2 * shard:2 * shard + 2]
        files[name] = one_file({each: TENSORS[each] for each in names})
        weight_map.update({each: name for each in names})
    files["model.safetensors.index.json"] = json.dumps({"metadata": {}, "weight_map": weight_map}).encode()
    files["config.json"] = b"{}"
    return files


class Mount:
    """A mount in the foreground."""

    def __init__(self, test, source, *options, **changes):
        self.path = tempfile.mkdtemp(prefix="mount-", dir=test.work)
        self.log = self.path + ".log"
        self.test = test
        with open(self.log, "wb") as log:
            self.process = subprocess.Popen(
                [STFS, "-f", "-o", ",".join(["cache_dir=" + test.cache, *options]), source, self.path],
                env=test.environment(**changes), stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        test.addCleanup(self.end)
        try:
            until_true(test, lambda: os.path.ismount(self.path), self.process)
        except AssertionError:
            raise AssertionError(f"{source} is not mounted: {self.said()}") from None

    def end(self):
        if self.process.poll() is None:
            subprocess.run([STFS, "-u", self.path], check=True, timeout=HANG)
            self.process.wait(HANG)

    def kill(self):
        self.process.kill()
        self.process.wait(HANG)
        subprocess.run([STFS, "-u", self.path], check=True, timeout=HANG)

    def said(self):
        return content(self.log).decode()

    def read(self, name):
        return content(os.path.join(self.path, name))

    def fetched(self):
        """Returns the number of bytes that were fetched from the server."""
        return json.loads(self.read(".stfs/counters.json"))["bytes_fetched"]

    def names(self):
        return sorted(os.path.relpath(os.path.join(root, name), self.path)
                      for root, _, names in os.walk(self.path) for name in names)

    def check(self, tensors=None):
        for name, data in (tensors or TENSORS).items():
            self.test.assertTrue(self.read(name) == data, f"{name} has other bytes")

    def fails(self, name, error):
        with self.test.assertRaises(OSError) as failure:
            self.read(name)
        self.test.assertEqual(errno.errorcode[failure.exception.errno], errno.errorcode[error])


class Scenario(unittest.TestCase):
    def setUp(self):
        started = time.monotonic()
        self.addCleanup(lambda: TIMES.append((time.monotonic() - started, self.id().split(".", 1)[1])))
        directory = tempfile.TemporaryDirectory(prefix="stfs-mounts-")
        self.addCleanup(directory.cleanup)
        self.work = directory.name
        self.cache = os.path.join(self.work, "cache")
        self.set_up()

    def set_up(self):
        pass

    def environment(self, **changes):
        """Returns the environment without the machine's credentials. A value of None removes a variable."""
        result = {name: value for name, value in os.environ.items()
                  if not name.startswith(("AWS_", "HF_", "HUGGING", "STFS_", "SSL_", "CURL_")) and
                  not name.lower().endswith("_proxy")}
        result.update(HOME=self.work, XDG_CACHE_HOME=self.work, XDG_RUNTIME_DIR=self.work,
                      STFS_CACHE=self.cache, AWS_EC2_METADATA_DISABLED="true")
        result.update(self.variables())
        result.update(changes)
        return {name: value for name, value in result.items() if value is not None}

    def variables(self):
        return {}

    def run_program(self, *words, **changes):
        return subprocess.run(words, env=self.environment(**changes), timeout=HANG,
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, text=True, check=False)

    def output(self, *words, **changes):
        done = self.run_program(*words, **changes)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout

    def refusal(self, source, *options, **changes):
        """Returns the one line that a failing mount prints."""
        path = tempfile.mkdtemp(prefix="mount-", dir=self.work)
        done = self.run_program(STFS, "-o", ",".join(["cache_dir=" + self.cache, *options]), source, path,
                                **changes)
        if done.returncode == 0:
            subprocess.run([STFS, "-u", path], check=True, timeout=HANG)
        self.assertEqual(done.returncode, 3, done.stderr)
        self.assertRegex(done.stderr, r"\Astfs: [^\n]*\n\Z")
        return done.stderr

    def local(self, files):
        directory = tempfile.mkdtemp(prefix="local-", dir=self.work)
        for name, data in files.items():
            with open(os.path.join(directory, name), "wb") as file:
                file.write(data)
        return directory

    @contextlib.contextmanager
    def holder(self, **changes):
        """Runs a holder, which fetches from the server by itself."""
        program = subprocess.Popen([GPU, "holder"], env=self.environment(**changes), stdin=subprocess.DEVNULL,
                                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            yield
        finally:
            program.terminate()
            program.wait(HANG)

    def npy(self, data):
        """Returns the shape and bytes of a .npy file of little-endian F32."""
        self.assertEqual(data[:8], b"\x93NUMPY\x01\x00")
        length = struct.unpack("<H", data[8:10])[0]
        header = ast.literal_eval(data[10:10 + length].decode())
        self.assertEqual((header["descr"], header["fortran_order"]), ("<f4", False))
        return header["shape"], data[10 + length:]

    def use(self, source, unplug, **changes):
        """Uses a checkpoint like a user. All views equal the views of the local copy, and work without the server."""
        local = self.local(shards())
        near = Mount(self, local)
        far = Mount(self, source, **changes)
        self.assertEqual(far.names(), near.names())
        name = "layers.1.weight"
        # Reading one tensor fetches its bytes and a header.
        self.assertTrue(far.read(name) == TENSORS[name])
        self.assertLess(far.fetched(), len(TENSORS[name]) + 3 * (512 << 10))
        for view in (f".stfs/slice/{name}/3:200,::2", f".stfs/npy-slice/{name}/3:200,::2.npy",
                     ".stfs/merged.safetensors", f".stfs/sha256/{name}"):
            self.assertTrue(far.read(view) == near.read(view), view)
        rows = struct.unpack(f"<{ROWS * COLUMNS}f", TENSORS[name])
        picked = [number for row in range(3, 200) for number in rows[row * COLUMNS:(row + 1) * COLUMNS:2]]
        self.assertEqual(self.npy(far.read(f".stfs/npy-slice/{name}/3:200,::2.npy")),
                         ((197, COLUMNS // 2), struct.pack(f"<{len(picked)}f", *picked)))
        far.check()
        self.assertEqual(self.output(INFO, "hash", source, **changes), self.output(INFO, "hash", local))
        self.output(INFO, "diff", local, source, **changes)
        self.output(INFO, "check", source, **changes)
        if GPU:
            with self.holder(**changes):
                self.output(GPU, "load", "--device", "cpu", "--verify", source, **changes)
        far.end()
        # This cache has only the headers.
        full, self.cache = self.cache, os.path.join(self.work, "cache-of-headers")
        Mount(self, source, **changes).end()
        unplug()
        offline = Mount(self, source, "offline", "timeout=600", **changes)
        self.assertEqual(offline.names(), near.names())
        offline.fails("layers.1.weight", errno.EIO)
        offline.end()
        self.cache = full
        offline = Mount(self, source, "offline", **changes)
        offline.check()
        self.assertTrue(offline.read(".stfs/merged.safetensors") == near.read(".stfs/merged.safetensors"))
        self.assertNotEqual(self.run_program(INFO, "list", source, "--timeout", "2",
                                             **{**changes, "STFS_CACHE": self.work + "/none"}).returncode, 0)


class S3Mounts(Scenario):
    @classmethod
    def setUpClass(cls):
        cls.gateway = Gateway()
        cls.addClassCleanup(cls.gateway.stop)
        cls.client = cls.gateway.client
        cls.client.create_bucket(Bucket="models")

    def variables(self):
        return {"AWS_ENDPOINT_URL_S3": self.gateway.endpoint, "AWS_ACCESS_KEY_ID": self.gateway.rgw.rgw_access,
                "AWS_SECRET_ACCESS_KEY": self.gateway.rgw.rgw_secret}

    def other(self):
        """Returns a checkpoint of the same size and names with other bytes."""
        return one_file({name: data[::-1] for name, data in TENSORS.items()})

    def test_model_under_prefix_works_and_is_available_offline(self):
        for name, data in shards().items():
            self.gateway.put("models", "llm/v1/" + name, data)
        door = Server("nginx", self.work, UPSTREAM=self.gateway.endpoint)
        self.addCleanup(door.stop)
        self.use("s3://models/llm/v1", door.stop, AWS_CA_BUNDLE=door.nginx_ca,
                  AWS_ENDPOINT_URL_S3="https://127.0.0.1:" + door.nginx_tls_port)

    def test_object_changed_within_same_second_and_size_is_estale(self):
        def written():
            return self.client.head_object(Bucket="models", Key="changed.safetensors")["LastModified"]

        while True:  # repeats until both versions were written in the same second
            self.gateway.put("models", "changed.safetensors", one_file())
            first = written()
            mount = Mount(self, "s3://models/changed.safetensors")
            mount.read("layers.0.weight")
            self.gateway.put("models", "changed.safetensors", self.other())
            if written() == first:
                break
            mount.end()
        mount.fails("layers.3.weight", errno.ESTALE)
        mount.check({"layers.0.weight": TENSORS["layers.0.weight"]})
        self.assertEqual(len(mount.said().splitlines()), 1, mount.said())
        mount.fails("layers.2.weight", errno.ESTALE)
        mount.end()
        again = Mount(self, "s3://models/changed.safetensors")
        again.check({name: data[::-1] for name, data in TENSORS.items()})

    def test_deleted_object_is_estale_but_cached_bytes_are_served(self):
        self.gateway.put("models", "vanished.safetensors", one_file())
        mount = Mount(self, "s3://models/vanished.safetensors")
        mount.read("layers.0.weight")
        self.client.delete_object(Bucket="models", Key="vanished.safetensors")
        mount.fails("layers.3.weight", errno.ESTALE)
        mount.check({"layers.0.weight": TENSORS["layers.0.weight"]})
        self.assertIn("no such object", self.refusal("s3://models/vanished.safetensors"))

    def test_old_version_is_readable_after_new_one_was_written(self):
        self.client.create_bucket(Bucket="versions")
        self.client.put_bucket_versioning(Bucket="versions", VersioningConfiguration={"Status": "Enabled"})
        self.gateway.put("versions", "m.safetensors", one_file())
        mount = Mount(self, "s3://versions/m.safetensors")
        self.gateway.put("versions", "m.safetensors", self.other())
        self.client.delete_object(Bucket="versions", Key="m.safetensors")
        mount.check()

    def test_wrong_keys_give_one_line_without_secret(self):
        self.gateway.put("models", "private.safetensors", one_file())
        line = self.refusal("s3://models/private.safetensors", AWS_SECRET_ACCESS_KEY="wrongsecret")
        self.assertIn("the secret key does not belong to the access key", line)
        self.assertNotIn("wrongsecret", line)
        line = self.refusal("s3://models/private.safetensors", AWS_ACCESS_KEY_ID="nobody")
        self.assertIn("does not know this access key", line)
        line = self.refusal("s3://models/private.safetensors", AWS_ACCESS_KEY_ID=None, AWS_SECRET_ACCESS_KEY=None)
        self.assertIn("no AWS credentials were found", line)

    def test_public_bucket_needs_no_credentials(self):
        self.client.create_bucket(Bucket="public", ACL="public-read")
        for name, data in shards().items():
            self.gateway.put("public", "llm/" + name, data, ACL="public-read")
        mount = Mount(self, "s3://public/llm", AWS_ACCESS_KEY_ID=None, AWS_SECRET_ACCESS_KEY=None)
        mount.check()

    def test_awkward_keys_are_mounted(self):
        for key in ("a b+c=d&e/m'o\"d,el.safetensors", "%41%/#1?versionId=x/\u65e5\u672c.safetensors",
                    "/a//b;c/m.safetensors"):
            with self.subTest(key=key):
                self.gateway.put("models", key, one_file())
                mount = Mount(self, "s3://models/" + key)
                mount.check({"layers.2.weight": TENSORS["layers.2.weight"]})
                mount.end()

    def test_confined_server_serves_mount_of_other_process(self):
        confined = os.path.join(HERE, "../support/confined")
        if os.geteuid() != 0 or subprocess.run([confined, "/bin/true"], check=False).returncode != 0:
            self.skipTest("needs root, and user namespaces for users")
        self.gateway.put("models", "confined.safetensors", one_file())
        os.chmod(self.work, 0o755)
        path = os.path.join(self.work, "mnt")
        os.mkdir(path)
        # With shared propagation, unmounting also reaches the namespace of the server.
        subprocess.run(["mount", "--bind", self.work, self.work], check=True)
        self.addCleanup(subprocess.run, ["umount", "-R", "-l", self.work], check=True)
        subprocess.run(["mount", "--make-shared", self.work], check=True)
        with open(self.work + "/log", "wb") as log:
            server = subprocess.Popen(
                [sys.executable, os.path.join(HERE, "../../docs/examples/hand_over.py"), path, "--user", "65534",
                 "--allow-other", "--", confined, STFS, "-f", "-o", "supervise", "s3://models/confined.safetensors",
                 "@FD@"],
                env={"PATH": os.environ["PATH"], "AWS_EC2_METADATA_DISABLED": "true", **self.variables()},
                stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        self.addCleanup(server.kill)
        until_true(self, lambda: os.path.ismount(path), server)

        def worker():
            """Returns the stfs process that is a child of another stfs process."""
            parents = {}
            for process in filter(str.isdigit, os.listdir("/proc")):
                with contextlib.suppress(OSError):
                    if b"s3://models/confined.safetensors" in content(f"/proc/{process}/cmdline").split(b"\0"):
                        name, fields = content(f"/proc/{process}/stat").rsplit(b")", 1)
                        if name.endswith(b"(stfs"):
                            parents[int(process)] = int(fields.split()[1])
            return next((child for child, parent in parents.items() if parent in parents), None)

        for name, data in TENSORS.items():
            with open(os.path.join(path, name), "rb", buffering=0) as file:
                self.assertTrue(file.read(300_000) == data[:300_000])
                until_true(self, worker)
                os.kill(worker(), signal.SIGKILL)
                rest = bytearray()
                while part := file.read():
                    rest += part
                self.assertTrue(rest == data[300_000:], name)
        self.assertEqual(content(self.work + "/log").count(b"was killed by signal 9"), len(TENSORS))
        subprocess.run(["umount", path], check=True)
        self.assertEqual(server.wait(HANG), 0)

    def test_expired_credentials_are_renewed_during_mount(self):
        rgw = self.gateway.rgw
        self.gateway.put("models", "expires.safetensors", one_file())
        keys, calls = os.path.join(self.work, "keys"), os.path.join(self.work, "calls")

        def give(access, secret, seconds):
            expires = datetime.datetime.now(datetime.timezone.utc) + datetime.timedelta(seconds=seconds)
            with open(keys + ".new", "w", encoding="utf-8") as file:
                json.dump({"Version": 1, "AccessKeyId": access, "SecretAccessKey": secret,
                           "Expiration": expires.strftime("%Y-%m-%dT%H:%M:%SZ")}, file)
            os.rename(keys + ".new", keys)

        def called():
            return len(content(calls))

        config = os.path.join(self.work, "config")
        with open(config, "w", encoding="utf-8") as file:
            file.write(f"[default]\ncredential_process = printf x >>{calls}; cat {keys}\n")
        give(rgw.rgw_access, rgw.rgw_secret, 1)
        mount = Mount(self, "s3://models/expires.safetensors", AWS_CONFIG_FILE=config,
                      AWS_ACCESS_KEY_ID=None, AWS_SECRET_ACCESS_KEY=None)
        mount.check({"layers.0.weight": TENSORS["layers.0.weight"]})
        ended = time.time() + 1
        until_true(self, lambda: time.time() > ended)
        # The credentials expire at their time.
        before = called()
        give(rgw.rgw_access, rgw.rgw_secret, 3600)
        mount.check({"layers.1.weight": TENSORS["layers.1.weight"]})
        self.assertEqual(called(), before + 1)
        mount.check({"layers.2.weight": TENSORS["layers.2.weight"]})
        self.assertEqual(called(), before + 1)
        # The server rejects the credentials before they expire.
        admin = {"env": {**os.environ, "CEPH_CONF": rgw.directory + "/ceph.conf"}, "check": True,
                 "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "timeout": HANG}
        subprocess.run(["radosgw-admin", "user", "create", "--uid=other", "--display-name=other",
                        "--access-key=otheraccess", "--secret=othersecret"], **admin)
        give("otheraccess", "othersecret", 3600)
        self.client.put_object_acl(Bucket="models", Key="expires.safetensors", ACL="public-read")
        give("no" + rgw.rgw_access, rgw.rgw_secret, 1)
        stale = Mount(self, "s3://models/expires.safetensors", "cache_dir=" + self.cache + "2",
                      AWS_ACCESS_KEY_ID="otheraccess", AWS_SECRET_ACCESS_KEY="othersecret")
        subprocess.run(["radosgw-admin", "user", "rm", "--uid=other"], **admin)
        stale.fails("layers.0.weight", errno.EACCES)
        self.assertNotIn("othersecret", stale.said())


class BusyS3Mounts(Scenario):
    def test_mount_reads_right_bytes_despite_slow_down(self):
        gateway = Gateway("rgw_scheduler_type=throttler", "rgw_max_concurrent_requests=1")
        self.addCleanup(gateway.stop)
        gateway.client.create_bucket(Bucket="models")
        for name, data in shards().items():
            gateway.put("models", "llm/" + name, data)
        mount = Mount(self, "s3://models/llm", AWS_ENDPOINT_URL_S3=gateway.tls_endpoint,
                      AWS_CA_BUNDLE=gateway.nginx.nginx_ca, AWS_ACCESS_KEY_ID=gateway.rgw.rgw_access,
                      AWS_SECRET_ACCESS_KEY=gateway.rgw.rgw_secret)
        # A client that never reads occupies the only slot, so the server refuses other requests until the client closes.
        gateway.put("models", "large", bytes(64 << 20), ACL="public-read")
        with socket.create_connection(("127.0.0.1", int(gateway.rgw.rgw_port))) as slow:
            slow.sendall(b"GET /models/large HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
            slow.recv(1)
            failures = []

            def read(name):
                try:
                    mount.check({name: TENSORS[name]})
                except BaseException as failure:  # pylint: disable=broad-except
                    failures.append(failure)

            readers = [threading.Thread(target=read, args=(name,)) for name in TENSORS]
            for reader in readers:
                reader.start()
            log = os.path.join(gateway.nginx.directory, "logs", "access.log")
            until_true(self, lambda: b'" 503 ' in content(log))
        for reader in readers:
            reader.join(HANG)
        self.assertEqual(failures, [])
        self.assertEqual(mount.said(), "")


class WebMounts(Scenario):
    def set_up(self):
        self.nginx = Server("nginx", self.work)
        self.addCleanup(self.nginx.stop)
        self.host = "https://localhost:" + self.nginx.nginx_tls_port
        self.put("m.safetensors", one_file())

    def variables(self):
        return {"SSL_CERT_FILE": self.nginx.nginx_ca}

    def put(self, name, data):
        with open(os.path.join(self.nginx.nginx_root, name), "wb") as file:
            file.write(data)

    def sent(self):
        """Returns the number of body bytes that nginx sent, and the number of requests."""
        log = content(os.path.join(self.nginx.directory, "logs", "access.log")).decode()
        sizes = [int(size) for size in re.findall(r'" \d{3} (\d+) "', log)]
        return sum(sizes), len(sizes)

    def pid(self):
        return int(content(os.path.join(self.nginx.directory, "nginx.pid")))

    def worker(self):
        return int(content(f"/proc/{self.pid()}/task/{self.pid()}/children").split()[0])

    def test_sharded_model_works_and_is_available_offline(self):
        for name, data in shards().items():
            self.put(name, data)
        self.use(self.host + "/model.safetensors.index.json", self.nginx.stop)

    def test_unknown_authority_gives_one_line(self):
        self.assertIn("certificate", self.refusal(self.host + "/m.safetensors", SSL_CERT_FILE=None))

    def test_stopped_server_is_eio_after_timeout_and_readable_after_resuming(self):
        mount = Mount(self, self.host + "/m.safetensors", "timeout=1")
        worker = self.worker()
        os.kill(worker, signal.SIGSTOP)
        try:
            mount.fails("layers.3.weight", errno.EIO)
        finally:
            os.kill(worker, signal.SIGCONT)
        mount.check()

    def test_trickling_server_fails_mount_after_timeout(self):
        line = self.refusal(self.host + "/hang/m.safetensors", "timeout=1")
        self.assertNotIn("HTML", line)

    def test_server_that_ignores_ranges_is_refused(self):
        self.assertIn("range", self.refusal(self.host + "/noranges/m.safetensors"))

    def test_server_that_compresses_gives_right_bytes(self):
        mount = Mount(self, self.host + "/gzip/m.safetensors")
        mount.check()

    def test_server_without_etags_gives_warning(self):
        mount = Mount(self, self.host + "/noetag/m.safetensors")
        mount.check()
        self.assertIn("its server sends no strong ETag", mount.said())
        self.assertEqual(len(mount.said().splitlines()), 1)

    def test_redirect_to_other_host_is_followed(self):
        mount = Mount(self, self.host + "/redirect/m.safetensors")
        mount.check()

    def test_redirect_to_http_is_refused(self):
        self.assertIn("redirect", self.refusal(self.host + "/to_http/m.safetensors"))

    def test_permanently_busy_server_gives_one_line(self):
        self.assertIn("503", self.refusal(self.host + "/busy/m.safetensors", "timeout=1"))

    def test_blocks_cached_by_killed_mount_are_used_and_others_fetched(self):
        tensors = {f"t{i}": random.Random(i).randbytes(ROWS * COLUMNS * 4) for i in range(12)}
        data = one_file(tensors)
        self.put("large.safetensors", data)
        url = self.host + "/slow/large.safetensors"
        mount = Mount(self, url, "prefetch=all")
        until_true(self, lambda: mount.fetched() >= 3 << 20)
        mount.kill()
        again = Mount(self, url)
        again.check(tensors)
        self.assertTrue(again.read(".stfs/merged.safetensors")[-(1 << 20):] == data[-(1 << 20):])
        self.assertLess(again.fetched(), len(data) - (1 << 20))

    def test_concurrent_mounts_fetch_each_block_once(self):
        mounts = [Mount(self, self.host + "/m.safetensors") for _ in range(2)]
        before, _ = self.sent()
        failures = []

        def read(mount):
            try:
                mount.check()
            except BaseException as failure:  # pylint: disable=broad-except
                failures.append(failure)

        readers = [threading.Thread(target=read, args=(mount,)) for mount in mounts]
        for reader in readers:
            reader.start()
        for reader in readers:
            reader.join(HANG)
        self.assertEqual(failures, [])
        self.nginx_writes_its_log()
        self.assertLessEqual(self.sent()[0] - before, len(one_file()))

    def nginx_writes_its_log(self):
        """Sends a request, because nginx has written the line of a request once it answers the next one."""
        with socket.create_connection(("127.0.0.1", int(self.nginx.nginx_port))) as one:
            one.sendall(b"GET /none HTTP/1.0\r\n\r\n")
            while one.recv(4096):
                pass

    def test_readers_continue_after_server_restart(self):
        tensors = {f"t{i}": random.Random(i).randbytes(ROWS * COLUMNS * 4) for i in range(16)}
        self.put("large.safetensors", one_file(tensors))
        mount = Mount(self, self.host + "/slow/large.safetensors", "timeout=60")
        failures = []

        def read(names):
            try:
                mount.check({name: tensors[name] for name in names})
            except BaseException as failure:  # pylint: disable=broad-except
                failures.append(failure)

        readers = [threading.Thread(target=read, args=(list(tensors)[i::4],)) for i in range(4)]
        for reader in readers:
            reader.start()
        until_true(self, lambda: mount.fetched() > 2 << 20)
        worker, master = self.worker(), self.pid()
        os.kill(master, signal.SIGKILL)
        os.kill(worker, signal.SIGKILL)
        until_true(self, lambda: not os.path.exists(f"/proc/{worker}/exe"))
        directory = self.nginx.directory
        subprocess.run(["nginx", "-e", directory + "/logs/error.log", "-c", directory + "/nginx.conf"],
                       env={**os.environ, "PATH": os.environ["PATH"] + ":/usr/sbin"}, check=True, timeout=HANG)
        for reader in readers:
            reader.join(HANG)
        self.assertEqual(failures, [])


class HubMounts(Scenario):
    def set_up(self):
        self.models = os.path.join(self.work, "models")
        for model in ("org/name", "org/gated", "org/name@refs%2Fpr%2F1"):
            path = os.path.join(self.models, model)
            os.makedirs(path)
            for name, data in shards().items():
                with open(os.path.join(path, name), "wb") as file:
                    file.write(data + (b" " if "@" in model and name == "config.json" else b""))
        self.urls = None

    def start(self, *options):
        self.log = os.path.join(self.work, "hub.log")
        program = subprocess.Popen(
            [sys.executable, os.path.join(HERE, "servers", "hub.py"), "--log", self.log, *options, self.models],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)

        def stop():
            program.terminate()
            program.wait(HANG)
            program.stdout.close()

        self.addCleanup(stop)
        self.urls = json.loads(program.stdout.readline())
        return stop

    def variables(self):
        return {"HF_ENDPOINT": self.urls["hub"]} if self.urls else {}

    def requests(self, server, part=""):
        return [line for line in map(json.loads, content(self.log).splitlines())
                if line["server"] == server and part in line["path"]]

    def commit(self, revision="main"):
        with urllib.request.urlopen(f"{self.urls['hub']}/api/models/org/name/revision/{revision}") as answer:
            return json.load(answer)["sha"]

    @staticmethod
    def snapshot(directory):
        """Returns all attributes except the time of the last access."""
        def attributes(path):
            status = os.lstat(path)
            return status[:stat.ST_ATIME] + status[stat.ST_MTIME:]

        return {os.path.join(root, name): attributes(os.path.join(root, name))
                for root, directories, names in os.walk(directory) for name in [*directories, *names, "."]}

    def own_cache(self, commit):
        """Makes a cache of the Hub's client with the whole model."""
        os.umask(0o022)
        home = os.path.join(self.work, "hub-cache")
        model = os.path.join(home, "models--org--name")
        for part in ("blobs", "refs", "snapshots/" + commit):
            os.makedirs(os.path.join(model, part))
        for name, data in shards().items():
            blob = hashlib.sha256(data).hexdigest()
            with open(os.path.join(model, "blobs", blob), "wb") as file:
                file.write(data)
            os.symlink("../../blobs/" + blob, os.path.join(model, "snapshots", commit, name))
        with open(os.path.join(model, "refs", "main"), "w", encoding="utf-8") as file:
            file.write(commit)
        return home

    def test_model_works_and_is_available_offline(self):
        self.use("hf://org/name", self.start())

    def test_model_over_tls_works_and_token_reaches_only_first_host(self):
        ports = free_port(), free_port()
        door = Server("nginx", self.work, HUB=f"http://127.0.0.1:{ports[0]}",
                      UPSTREAM=f"http://127.0.0.2:{ports[1]}")
        self.addCleanup(door.stop)
        hub, cdn = f"https://localhost:{door.nginx_tls_port}", f"https://127.0.0.1:{door.nginx_tls_port}"
        self.start("--hub", f"127.0.0.1:{ports[0]}", "--cdn", f"127.0.0.2:{ports[1]}", "--hub-url", hub,
                   "--cdn-url", cdn, "--token", TOKEN, "--private", "org/name")
        changes = {"HF_ENDPOINT": hub, "SSL_CERT_FILE": door.nginx_ca}
        self.assertIn("HF_TOKEN", self.refusal("hf://org/name", **changes))
        self.use("hf://org/name", door.stop, HF_TOKEN=TOKEN, **changes)
        self.assertTrue(self.requests("cdn"))
        self.assertEqual({tuple(line["secrets"]) for line in self.requests("cdn")}, {()})
        self.assertIn(("authorization",), {tuple(line["secrets"]) for line in self.requests("hub")})
        for root, _, names in os.walk(self.work):
            for name in names:
                if "models" not in root and name != "hub.log":
                    data = content(os.path.join(root, name)) if os.path.isfile(os.path.join(root, name)) else b""
                    self.assertNotIn(TOKEN.encode(), data, os.path.join(root, name))

    def test_expired_signed_urls_are_renewed_during_mount(self):
        self.start("--uses", "2")
        mount = Mount(self, "hf://org/name")
        for name, data in TENSORS.items():
            for at in range(0, len(data), 512 << 10):
                descriptor = os.open(os.path.join(mount.path, name), os.O_RDONLY)
                self.assertTrue(os.pread(descriptor, 512 << 10, at) == data[at:at + (512 << 10)])
                os.close(descriptor)
        refused = [line for line in self.requests("cdn") if line["status"] == 403]
        self.assertGreater(len(refused), 0)
        self.assertGreater(len(self.requests("hub", "/resolve/")), 2)
        self.assertEqual(mount.said(), "")

    def test_renamed_model_is_found(self):
        self.start("--renamed", "org/old=org/name")
        mount = Mount(self, "hf://org/old")
        mount.check()
        self.assertIn(f"hf://org/name@{self.commit()}/",
                      os.getxattr(mount.path + "/layers.0.weight", "user.stfs.source").decode())

    def test_refusals_give_one_line(self):
        self.start("--gated", "org/gated", "--token", TOKEN, "--token", "hf_accepted", "--accepted", "hf_accepted")
        self.assertIn("the model is gated", self.refusal("hf://org/gated"))
        line = self.refusal("hf://org/gated", HF_TOKEN=TOKEN)
        self.assertIn("the model is gated", line)
        self.assertNotIn(TOKEN, line)
        Mount(self, "hf://org/gated", HF_TOKEN="hf_accepted").check()
        self.assertIn("no such revision", self.refusal("hf://org/name@none"))
        self.assertIn("no such model", self.refusal("hf://org/none"))
        line = self.refusal("hf://org/name", HF_TOKEN="hf_unknown")
        self.assertIn("does not accept this token", line)
        self.assertNotIn("hf_unknown", line)

    def test_request_to_busy_hub_is_retried(self):
        self.start("--busy", "3", "--busy-seconds", "0")
        Mount(self, "hf://org/name").check()
        self.assertEqual(len([line for line in self.requests("hub") if line["status"] == 429]), 3)

    def test_revisions_are_mounted(self):
        self.start()
        main, request = self.commit(), self.commit("refs%2Fpr%2F1")
        self.assertNotEqual(main, request)
        for name, commit in (("hf://org/name@refs/pr/1", request), ("hf://org/name@" + request, request),
                             ("hf://models/org/name@" + main, main)):
            mount = Mount(self, name)
            mount.check({"layers.3.weight": TENSORS["layers.3.weight"]})
            self.assertIn("@" + commit, os.getxattr(mount.path + "/layers.0.weight", "user.stfs.source").decode())

    def test_cache_of_hub_client_is_used_and_never_written_to(self):
        self.start()
        home = self.own_cache(self.commit())
        before = self.snapshot(home)
        Mount(self, "hf://org/name", HF_HUB_CACHE=home).check()
        self.assertEqual(self.requests("hub", "/resolve/") + self.requests("cdn"), [])
        asked = len(self.requests("hub"))
        Mount(self, "hf://org/name", "cache_dir=" + self.cache + "2", HF_HUB_CACHE=home, HF_HUB_OFFLINE="1").check()
        self.assertEqual(len(self.requests("hub")), asked)
        self.assertEqual(self.snapshot(home), before)

    def test_variable_of_hub_client_enables_offline_mode(self):
        self.start()
        self.assertIn("HF_HUB_OFFLINE", self.refusal("hf://org/name", HF_HUB_OFFLINE="1"))
        Mount(self, "hf://org/name").check()
        asked = len(content(self.log))
        Mount(self, "hf://org/name", HF_HUB_OFFLINE="1").check()
        self.assertEqual(len(content(self.log)), asked)

    def test_prefetch_fetches_all_and_compares_published_digest(self):
        self.start()
        mount = Mount(self, "hf://org/name", "prefetch=all")
        until_true(self, lambda: self.output(INFO, "cache", "verify").count("the published SHA-256") == 2)
        # Prefetching continues without readers, and the fetched bytes need no server.
        mount.end()
        Mount(self, "hf://org/name", "offline").check()

    def test_file_that_differs_from_published_digest_is_estale(self):
        self.start()
        self.commit()  # the server computes the digests of the current files
        path = os.path.join(self.models, "org/name/model-00002-of-00002.safetensors")
        with open(path, "r+b") as file:
            file.seek(-1000, os.SEEK_END)
            file.write(b"\xa5")
        mount = Mount(self, "hf://org/name", "prefetch=all")
        until_true(self, lambda: "SHA-256" in mount.said())
        mount.fails("layers.3.weight", errno.ESTALE)
        mount.check({"layers.0.weight": TENSORS["layers.0.weight"]})
        self.assertEqual(len(mount.said().splitlines()), 1, mount.said())
        done = self.run_program(INFO, "cache", "verify")
        self.assertEqual(done.returncode, 1, done.stdout)


def print_times():
    for seconds, name in sorted(TIMES, key=lambda row: row[1]):
        print(f"{seconds:7.1f} s  {name}")
    print(f"{sum(seconds for seconds, _ in TIMES):7.1f} s  in all")


if __name__ == "__main__":
    program = unittest.main(verbosity=2, exit=False)
    print_times()
    sys.exit(not program.result.wasSuccessful())
