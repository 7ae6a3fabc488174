#!/usr/bin/env python3
"""Checks that the test server servers/hub.py behaves as the Hub's clients expect."""

import hashlib
import http.client
import json
import os
import subprocess
import sys
import tempfile
import unittest
import urllib.parse

SERVER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "servers", "hub.py")
WEIGHTS = bytes(range(256)) * 16


class HubServer(unittest.TestCase):
    def start(self, *options):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        model = os.path.join(directory.name, "models", "org", "name")
        os.makedirs(os.path.join(model, "sub"))
        for name, data in (
            ("config.json", b"{}"),
            ("model.safetensors", WEIGHTS),
            ("sub/a b.txt", b"small"),
        ):
            with open(os.path.join(model, name), "wb") as file:
                file.write(data)
        self.log = os.path.join(directory.name, "log")
        server = subprocess.Popen(
            [sys.executable, SERVER, "--log", self.log, *options, os.path.dirname(os.path.dirname(model))],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
        )

        def end():
            server.terminate()
            server.stdout.close()
            server.wait()

        self.addCleanup(end)
        self.urls = json.loads(server.stdout.readline())

    def get(self, path, method="GET", **headers):
        url = urllib.parse.urlsplit(urllib.parse.urljoin(self.urls["hub"], path))
        connection = http.client.HTTPConnection(url.netloc)
        target = url.path + ("?" + url.query if url.query else "")
        connection.request(method, target, headers={k.replace("_", "-"): v for k, v in headers.items()})
        answer = connection.getresponse()
        body = answer.read()
        connection.close()
        return answer, body

    def commit(self):
        return json.loads(self.get("/api/models/org/name/revision/main")[1])["sha"]

    def test_revision_has_commit_sizes_and_digests(self):
        self.start()
        model = json.loads(self.get("/api/models/org/name/revision/main?blobs=true")[1])
        self.assertRegex(model["sha"], "^[0-9a-f]{40}$")
        files = {entry["rfilename"]: entry for entry in model["siblings"]}
        self.assertEqual(
            files["model.safetensors"]["lfs"]["sha256"], hashlib.sha256(WEIGHTS).hexdigest()
        )
        self.assertEqual(files["model.safetensors"]["size"], len(WEIGHTS))
        self.assertEqual(files["config.json"]["blobId"], hashlib.sha1(b"blob 2\0{}").hexdigest())
        self.assertNotIn("lfs", files["config.json"])
        same = json.loads(self.get(f"/api/models/org/name/revision/{model['sha']}")[1])
        self.assertEqual(same["sha"], model["sha"])
        self.assertNotIn("size", same["siblings"][0])

    def test_large_file_redirects_to_signed_url_that_expires(self):
        self.start("--uses", "1")
        answer, _ = self.get("/org/name/resolve/main/model.safetensors", Authorization="Bearer ")
        self.assertEqual(answer.status, 302)
        self.assertEqual(answer.headers["X-Repo-Commit"], self.commit())
        self.assertEqual(answer.headers["X-Linked-Size"], str(len(WEIGHTS)))
        self.assertEqual(
            answer.headers["X-Linked-ETag"].strip('"'), hashlib.sha256(WEIGHTS).hexdigest()
        )
        target = answer.headers["Location"]
        self.assertTrue(target.startswith(self.urls["cdn"]))
        part, body = self.get(target, Range="bytes=2-4")
        self.assertEqual((part.status, body), (206, WEIGHTS[2:5]))
        self.assertNotEqual(part.headers["ETag"], answer.headers["X-Linked-ETag"])
        self.assertEqual(self.get(target)[0].status, 403)
        self.assertEqual(self.get(target.replace("Signature=", "Signature=0"))[0].status, 403)

    def test_small_file_is_served_by_hub(self):
        self.start()
        answer, _ = self.get("/org/name/resolve/main/sub/a%20b.txt")
        self.assertEqual(answer.status, 307)
        self.assertTrue(answer.headers["Location"].startswith("/api/resolve-cache/models/org/name/"))
        part, body = self.get(answer.headers["Location"], Range="bytes=0-1")
        self.assertEqual((part.status, body), (206, b"sm"))
        self.assertEqual(part.headers["ETag"].strip('"'), hashlib.sha1(b"blob 5\0small").hexdigest())
        head, body = self.get(answer.headers["Location"], method="HEAD")
        self.assertEqual((head.headers["Content-Length"], body), ("5", b""))

    def test_trees_have_pages(self):
        self.start("--page", "2")
        path, names, pages = "/api/models/org/name/tree/main?recursive=true", [], 0
        while path:
            answer, body = self.get(path)
            names += [entry["path"] for entry in json.loads(body)]
            link = answer.headers["Link"]
            path = link[1 : link.index(">")] if link else None
            pages += 1
        self.assertEqual(sorted(names), ["config.json", "model.safetensors", "sub", "sub/a b.txt"])
        self.assertEqual(pages, 2)

    def test_refusals_have_codes_of_hub(self):
        self.start("--token", "t", "--private", "org/name", "--renamed", "old/name=org/name")
        code = lambda answer: (answer.status, answer.headers["X-Error-Code"])
        info = "/api/models/org/name/revision/"
        known = {"Authorization": "Bearer t"}
        self.assertEqual(code(self.get(info + "main")[0]), (401, "RepoNotFound"))
        self.assertEqual(self.get(info + "main", **known)[0].status, 200)
        self.assertEqual(self.get(info + "main", Authorization="Bearer u")[0].status, 401)
        self.assertEqual(code(self.get(info + "no", **known)[0]), (404, "RevisionNotFound"))
        missing = self.get("/org/name/resolve/main/no", **known)[0]
        self.assertEqual(code(missing), (404, "EntryNotFound"))
        other = self.get("/api/models/org/other/revision/main", **known)[0]
        self.assertEqual(code(other), (404, "RepoNotFound"))
        moved = self.get("/api/models/old/name/revision/main?blobs=true")[0]
        self.assertEqual(moved.status, 307)
        self.assertEqual(moved.headers["Location"], info + "main?blobs=true")

    def test_gated_models_and_rate_limits(self):
        self.start("--gated", "org/name", "--token", "t", "--accepted", "t", "--busy", "1")
        busy = self.get("/api/models/org/name/revision/main")[0]
        self.assertEqual((busy.status, busy.headers["RateLimit"]), (429, '"api";r=0;t=1'))
        self.assertEqual(busy.headers["Retry-After"], "1")
        self.assertEqual(self.get("/api/models/org/name/revision/main")[0].status, 200)
        gated = self.get("/org/name/resolve/main/config.json")[0]
        self.assertEqual((gated.status, gated.headers["X-Error-Code"]), (401, "GatedRepo"))
        open_now = self.get("/org/name/resolve/main/config.json", Authorization="Bearer t")[0]
        self.assertEqual(open_now.status, 307)

    def test_log_names_servers_that_received_secrets(self):
        self.start("--token", "t")
        self.get("/api/models/org/name/revision/main", Authorization="Bearer t")
        self.get(self.urls["cdn"] + "/xet-bridge/org/name/x", Cookie="a=b")
        with open(self.log, encoding="utf-8") as file:
            lines = [json.loads(line) for line in file]
        self.assertEqual([line["server"] for line in lines], ["hub", "cdn"])
        self.assertEqual([line["secrets"] for line in lines], [["authorization"], ["cookie"]])


if __name__ == "__main__":
    unittest.main()
