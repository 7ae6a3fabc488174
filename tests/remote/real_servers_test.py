"""Reads objects from real servers: Ceph's S3 gateway and nginx, which this test starts and stops.

Run by ctest under the label "servers", with STFS_STORE_TOOL, STFS_BINARY and STFS_INFO_BINARY set;
skipped (status 77) unless STFS_REAL_SERVERS=1, which `scripts/test --all` sets.
"""

import json
import os
import socket
import subprocess
import sys
import time
import unittest

if os.environ.get("STFS_REAL_SERVERS") != "1":
    print("skipped: STFS_REAL_SERVERS is not 1")
    sys.exit(77)

from real_servers import HANG, Gateway, sharded_checkpoint  # noqa: E402

STORE_TOOL = os.environ["STFS_STORE_TOOL"]

AWKWARD = [
    "a b", "a+b", "a=b", "a'b", 'a"b', "a%b", "a%20b", "a%2Fb", "%", "~a~", "a&b=c", "a?b",
    "?versionId=1", "a#b", "a;b,c", "a:b@c", "a$b!", "a(b)*", "[a]{b}", "a\\b|c^d`e", "<a>",
    "\u00e4\u00f6", "\u65e5\u672c\u8a9e", "\U0001f600", "...", "a//b", "/leading", "a/ b/+c", "a.b.",
    "-_.~",
]


class S3(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.gateway = Gateway()
        cls.addClassCleanup(cls.gateway.stop)
        cls.gateway.client.create_bucket(Bucket="models")

    def tool(self, *words, **changes):
        done = self.gateway.run(STORE_TOOL, *words, **changes)
        self.assertEqual(done.returncode, 0, done.stderr.decode())
        return done.stdout

    def refusal(self, *words, **changes):
        done = self.gateway.run(STORE_TOOL, *words, **changes)
        self.assertEqual(done.returncode, 3, done.stdout[:200])
        message = done.stderr.decode()
        self.assertNotIn(self.gateway.rgw.rgw_secret, message)
        return message

    def find(self, name, **changes):
        return self.tool("find", name, **changes).decode().strip()

    def version(self, found):
        """Converts the output of `find` to the form that `get` takes."""
        fields = json.loads(found)
        del fields["first"], fields["retries"]
        return json.dumps(fields)

    def test_awkward_keys(self):
        client = self.gateway.client
        client.create_bucket(Bucket="awkward")
        for key in AWKWARD:
            self.gateway.put("awkward", "dir/" + key, key.encode())
        stored = {entry["Key"] for entry in client.list_objects_v2(Bucket="awkward")["Contents"]}
        self.assertEqual(stored, {"dir/" + key for key in AWKWARD})
        for key in AWKWARD:
            with self.subTest(key=key):
                content = self.tool("get", "s3://awkward/dir/" + key, "0",
                                    str(len(key.encode())))
                self.assertEqual(content.decode(), key)
                self.assertEqual(json.loads(self.tool("list", "s3://awkward/dir/" + key)), None)
        self.assertEqual(json.loads(self.tool("list", "s3://awkward/dir")),
                         sorted((key for key in AWKWARD if "/" not in key), key=str.encode))

    def test_key_that_begins_with_slash(self):
        self.gateway.put("models", "/slash/file", b"slash")
        self.assertEqual(self.tool("get", "s3://models//slash/file", "0", "5"), b"slash")
        self.assertEqual(json.loads(self.tool("list", "s3://models//slash")), ["file"])

    def test_listing_of_many_pages(self):
        names = [f"n {i:04}" for i in range(1100)]
        for name in names:
            self.gateway.put("models", "many/" + name, b"")
        self.assertEqual(json.loads(self.tool("list", "s3://models/many")), names)

    def test_checkpoint_under_prefix(self):
        files, _ = sharded_checkpoint()
        for name, content in files.items():
            self.gateway.put("models", "llm/" + name, content)
        self.gateway.put("models", "llm/sub/other", b"x")
        self.gateway.put("models", "llm-2", b"x")
        self.assertEqual(json.loads(self.tool("list", "s3://models/llm")), sorted(files))
        self.assertEqual(json.loads(self.tool("list", "s3://models/llm-2")), None)
        shard = "model-00002-of-00003.safetensors"
        found = json.loads(self.find("s3://models/llm/" + shard))
        self.assertEqual(found["size"], len(files[shard]))
        self.assertEqual(found["first"], 256 * 1024)
        self.assertEqual(self.tool("get", "s3://models/llm/" + shard, "300000", "70000"),
                         files[shard][300000:370000])

    def test_object_takes_precedence_over_prefix(self):
        self.gateway.put("models", "both", b"object")
        self.gateway.put("models", "both/inside", b"x")
        self.assertEqual(json.loads(self.tool("list", "s3://models/both")), None)
        self.assertEqual(json.loads(self.tool("list", "s3://models/both/")), ["inside"])

    def test_empty_object(self):
        self.gateway.put("models", "empty", b"")
        found = json.loads(self.find("s3://models/empty"))
        self.assertEqual((found["size"], found["first"]), (0, 0))

    def test_object_changed_within_same_second_and_size(self):
        name = "s3://models/changed"
        # Repeats until both versions have the same second as their time.
        while True:
            self.gateway.put("models", "changed", b"version 1")
            first = self.find(name)
            self.gateway.put("models", "changed", b"version 2")
            second = self.find(name)
            if json.loads(first)["last_modified"] == json.loads(second)["last_modified"]:
                break
        self.assertNotEqual(json.loads(first)["token"], json.loads(second)["token"])
        self.assertIn("ESTALE", self.refusal("get", name, "0", "9", self.version(first)))
        self.assertEqual(self.tool("get", name, "0", "9", self.version(second)), b"version 2")

    def test_deleted_object(self):
        name = "s3://models/vanished"
        self.gateway.put("models", "vanished", b"data")
        found = self.find(name)
        self.gateway.client.delete_object(Bucket="models", Key="vanished")
        self.assertIn("ESTALE", self.refusal("get", name, "0", "4", self.version(found)))
        self.assertIn("no such object", self.refusal("find", name))

    def test_old_version_stays_readable(self):
        client = self.gateway.client
        client.create_bucket(Bucket="versions")
        client.put_bucket_versioning(Bucket="versions",
                                     VersioningConfiguration={"Status": "Enabled"})
        name = "s3://versions/a"
        put = self.gateway.put("versions", "a", b"version 1")
        found = self.find(name)
        self.assertEqual(json.loads(found)["version_id"], put["VersionId"])
        self.gateway.put("versions", "a", b"version 2")
        self.assertEqual(self.tool("get", name, "0", "9", self.version(found)), b"version 1")
        self.assertEqual(self.tool("get", name, "0", "9"), b"version 2")
        client.delete_object(Bucket="versions", Key="a", VersionId=put["VersionId"])
        self.assertIn("ESTALE", self.refusal("get", name, "0", "9", self.version(found)))
        client.delete_object(Bucket="versions", Key="a")
        self.assertIn("no such object", self.refusal("find", name))

    def test_etag_of_multipart_upload(self):
        client = self.gateway.client
        content = b"0123456789abcdef" * (6 * 1024 * 64)
        upload = client.create_multipart_upload(Bucket="models", Key="parts")["UploadId"]
        where = {"Bucket": "models", "Key": "parts", "UploadId": upload}
        size = 5 * 1024 * 1024
        parts = [{"PartNumber": i + 1,
                  "ETag": client.upload_part(**where, PartNumber=i + 1,
                                             Body=content[i * size:(i + 1) * size])["ETag"]}
                 for i in range(2)]
        client.complete_multipart_upload(**where, MultipartUpload={"Parts": parts})
        self.assertTrue(json.loads(self.find("s3://models/parts"))["etag"].endswith('-2"'))
        self.assertEqual(self.tool("get", "s3://models/parts", str(size - 8), "16"),
                         content[size - 8:size + 8])

    def test_insufficient_credentials(self):
        self.gateway.put("models", "private", b"private")
        self.gateway.put("models", "public", b"public", ACL="public-read")
        anonymous = {"AWS_ACCESS_KEY_ID": None, "AWS_SECRET_ACCESS_KEY": None}
        self.assertIn("no AWS credentials were found",
                      self.refusal("find", "s3://models/private", **anonymous))
        self.assertEqual(self.tool("get", "s3://models/public", "0", "6", **anonymous), b"public")
        self.assertIn("the secret key does not belong to the access key",
                      self.refusal("find", "s3://models/private", AWS_SECRET_ACCESS_KEY="wrong"))
        self.assertIn("does not know this access key",
                      self.refusal("find", "s3://models/private", AWS_ACCESS_KEY_ID="nobody"))

    def test_missing_bucket_and_object(self):
        self.assertIn("no such bucket", self.refusal("find", "s3://no-such-bucket/a"))
        self.assertIn("no such bucket", self.refusal("list", "s3://no-such-bucket/a"))
        self.assertIn("no such object", self.refusal("find", "s3://models/no-such"))
        self.assertIn("no such object", self.refusal("list", "s3://models/no-such"))

    def test_https_with_private_ca(self):
        self.gateway.put("models", "tls", b"over https")
        endpoint = {"AWS_ENDPOINT_URL_S3": self.gateway.tls_endpoint}
        self.assertEqual(self.tool("get", "s3://models/tls", "0", "10", **endpoint,
                                   AWS_CA_BUNDLE=self.gateway.nginx.nginx_ca), b"over https")
        self.assertIn("certificate", self.refusal("find", "s3://models/tls", **endpoint))


class BusyS3(unittest.TestCase):
    """A gateway that serves two requests at a time and answers 503 SlowDown to others."""

    @staticmethod
    def has_line(path, text):
        with open(path, encoding="utf-8") as lines:
            return text in lines.read()

    def test_slow_down_is_retried(self):
        gateway = Gateway("rgw_scheduler_type=throttler", "rgw_max_concurrent_requests=2")
        self.addCleanup(gateway.stop)
        gateway.client.create_bucket(Bucket="models")
        gateway.put("models", "large", bytes(64 << 20), ACL="public-read")
        gateway.put("models", "small", b"small")
        readers = []
        for _ in range(2):  # each occupies a slot until it reads or closes
            reader = socket.create_connection(("127.0.0.1", int(gateway.rgw.rgw_port)))
            self.addCleanup(reader.close)
            reader.sendall(b"GET /models/large HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
            reader.recv(1)
            readers.append(reader)
        program = subprocess.Popen(
            [STORE_TOOL, "find", "s3://models/small"], stdout=subprocess.PIPE,
            env=gateway.environment(AWS_ENDPOINT_URL_S3=gateway.tls_endpoint,
                                    AWS_CA_BUNDLE=gateway.nginx.nginx_ca))
        log = os.path.join(gateway.nginx.directory, "logs", "access.log")
        end = time.monotonic() + HANG
        while not self.has_line(log, '" 503 '):
            self.assertLess(time.monotonic(), end)
            self.assertIsNone(program.poll())
            time.sleep(0.05)
        for reader in readers:
            reader.close()
        found = json.loads(program.communicate(timeout=HANG)[0])
        self.assertEqual(program.returncode, 0)
        self.assertEqual(found["size"], 5)
        self.assertGreater(found["retries"], 0)


if __name__ == "__main__":
    unittest.main(verbosity=2)
