#!/usr/bin/env python3
"""A Hub for tests, which answers like the Hub of models on two loopback addresses.

  hub.py [options] DIR     DIR/org/name/FILES is a model; DIR/org/name@REV/FILES another revision

Prints one line, {"hub": "http://127.0.0.1:PORT", "cdn": "http://127.0.0.2:PORT"}, and serves until
SIGTERM arrives or the process that started it ends. If clients reach it through a web server with TLS, --hub-url and
--cdn-url are the names that clients see.

Files of at least --lfs-from bytes are Git LFS files, and /resolve/ redirects to a signed URL of the
second address. Smaller files are served under /api/resolve-cache/, or by /resolve/ with --direct.
Each request is a line of JSON in --log with the server, method, path, range, status, and the names
of the headers with secrets.
"""

import argparse
import hashlib
import hmac
import http.server
import json
import os
import re
import secrets
import signal
import sys
import threading
import time
import urllib.parse


def digest(kind, parts):
    result = hashlib.new(kind)
    for part in parts:
        result.update(part)
    return result.hexdigest()


class File:
    def __init__(self, path, is_lfs):
        self.path = path
        self.size = os.path.getsize(path)
        with open(path, "rb") as file:
            data = file.read()
        self.sha256 = digest("sha256", [data]) if is_lfs else None
        if is_lfs:
            data = (
                "version https://git-lfs.github.com/spec/v1\n"
                f"oid sha256:{self.sha256}\nsize {self.size}\n"
            ).encode()
        self.pointer_size = len(data)
        self.blob = digest("sha1", [b"blob %d\0" % len(data), data])  # git's name of the blob


class Model:
    """A revision of a model as it was at its first request."""

    def __init__(self, directory, lfs_from):
        self.files = {}
        newest = 0.0
        for root, _, names in os.walk(directory):
            for name in names:
                path = os.path.join(root, name)
                newest = max(newest, os.path.getmtime(path))
                relative = os.path.relpath(path, directory)
                self.files[relative] = File(path, os.path.getsize(path) >= lfs_from)
        self.files = dict(sorted(self.files.items()))
        self.modified = time.strftime("%Y-%m-%dT%H:%M:%S.000Z", time.gmtime(newest))
        lines = [f"{name} {file.blob}\n".encode() for name, file in self.files.items()]
        self.commit = digest("sha1", lines)


class Hub:
    def __init__(self, options):
        self.options = options
        self.lock = threading.Lock()
        self.models = {}  # by directory
        self.key = secrets.token_bytes(16)
        self.uses = {}  # the remaining uses of each signed URL
        self.busy = options.busy
        self.renamed = dict(pair.split("=", 1) for pair in options.renamed)
        self.log_file = open(options.log, "a", encoding="utf-8") if options.log else None

    def log(self, line):
        if self.log_file:
            with self.lock:
                self.log_file.write(json.dumps(line) + "\n")
                self.log_file.flush()

    def model(self, directory):
        with self.lock:
            if directory not in self.models:
                self.models[directory] = Model(directory, self.options.lfs_from)
            return self.models[directory]

    def revision(self, model_id, revision):
        """Returns the model at a branch or a commit, or None."""
        main = os.path.join(self.options.directory, model_id)
        if revision == "main":
            return self.model(main)
        branch = f"{main}@{urllib.parse.quote(revision, safe='')}"
        if os.path.isdir(branch):
            return self.model(branch)
        parent, name = os.path.split(main)
        for other in sorted(os.listdir(parent)):
            if other == name or other.startswith(name + "@"):
                model = self.model(os.path.join(parent, other))
                if model.commit == revision:
                    return model
        return None

    def sign(self, path, expires, nonce):
        text = f"{path}|{expires}|{nonce}".encode()
        return hmac.new(self.key, text, hashlib.sha256).hexdigest()

    def signed_url(self, file):
        path = "/xet-bridge/" + urllib.parse.quote(os.path.relpath(file.path, self.options.directory))
        expires = int(time.time() + self.options.seconds)
        nonce = secrets.token_hex(8)
        with self.lock:
            self.uses[nonce] = self.options.uses
        query = {"Expires": expires, "Key": nonce, "Signature": self.sign(path, expires, nonce)}
        return self.options.cdn_url + path + "?" + urllib.parse.urlencode(query)

    def permits(self, path, query):
        nonce = query.get("Key", "")
        expires = query.get("Expires", "0")
        if not hmac.compare_digest(self.sign(path, expires, nonce), query.get("Signature", "")):
            return False
        with self.lock:
            if int(expires) <= time.time() or self.uses.get(nonce, 0) == 0:
                return False
            self.uses[nonce] -= 1
        return True


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server_version = "hub"
    which = ""
    hub = None

    def log_message(self, *_):
        pass

    def do_HEAD(self):
        self.do_GET()

    def do_GET(self):
        url = urllib.parse.urlsplit(self.path)
        self.query = dict(urllib.parse.parse_qsl(url.query))
        self.answer(url.path)

    def send(self, status, headers, body=b"", length=None):
        names = ("authorization", "cookie", "proxy-authorization")
        self.hub.log(
            {
                "server": self.which,
                "method": self.command,
                "host": self.headers.get("Host", ""),
                "path": self.path,
                "range": self.headers.get("Range"),
                "status": status,
                "secrets": [name for name in names if name in self.headers],
            }
        )
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body) if length is None else length))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def send_file(self, file, headers):
        """Sends the file or the requested range."""
        headers = {**headers, "Accept-Ranges": "bytes", "Content-Type": "application/octet-stream"}
        first, last, status = 0, file.size - 1, 200
        asked = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        if asked:
            first = int(asked[1])
            last = min(int(asked[2]) if asked[2] else last, last)
            if first > last:
                return self.send(416, {"Content-Range": f"bytes */{file.size}"})
            status = 206
            headers["Content-Range"] = f"bytes {first}-{last}/{file.size}"
        with open(file.path, "rb") as opened:
            opened.seek(first)
            body = b"" if self.command == "HEAD" else opened.read(last - first + 1)
        return self.send(status, headers, body, last - first + 1)


class CdnHandler(Handler):
    which = "cdn"

    def answer(self, path):
        directory = self.hub.options.directory
        if not self.hub.permits(path, self.query):
            body = b"<Error><Code>AccessDenied</Code><Message>Request has expired</Message></Error>"
            return self.send(403, {"Content-Type": "application/xml"}, body)
        name = urllib.parse.unquote(path.removeprefix("/xet-bridge/"))
        org, model, inner = name.split("/", 2)
        file = self.hub.model(os.path.join(directory, org, model)).files[inner]
        # The ETag has 64 digits, but is not the file's SHA-256.
        return self.send_file(file, {"ETag": '"' + digest("sha256", [file.sha256.encode()]) + '"'})


class HubHandler(Handler):
    which = "hub"

    def refuse(self, status, code, message):
        headers = {"X-Error-Message": message, "Content-Type": "application/json"}
        if code:
            headers["X-Error-Code"] = code
        self.send(status, headers, json.dumps({"error": message}).encode())

    def token(self):
        return self.headers.get("Authorization", "").removeprefix("Bearer ")

    def answer(self, path):
        options = self.hub.options
        with self.hub.lock:
            is_busy = self.hub.busy > 0
            self.hub.busy -= is_busy
        if is_busy:
            wait = options.busy_seconds
            headers = {"RateLimit": f'"api";r=0;t={wait}', "Retry-After": str(wait)}
            return self.send(429, headers, b"{}")
        if self.token() and self.token() not in options.token:
            return self.refuse(401, None, "Invalid credentials in Authorization header")
        route = re.fullmatch(
            r"/(?P<api>api/models/)?(?P<id>[^/]+/[^/]+)/(?P<what>revision|tree|resolve)/"
            r"(?P<revision>[^/]+)(?:/(?P<inner>.+))?",
            path,
        ) or re.fullmatch(
            r"/(?P<api>api/)(?P<what>resolve-cache)/models/(?P<id>[^/]+/[^/]+)/"
            r"(?P<revision>[^/]+)/(?P<inner>.+)",
            path,
        )
        if not route or (route["what"] == "resolve") == bool(route["api"]):
            return self.refuse(404, None, "Not found")
        model_id = route["id"]
        if model_id in self.hub.renamed:
            target = self.path.replace(model_id, self.hub.renamed[model_id], 1)
            return self.send(307, {"Location": target}, b"Temporary Redirect")
        is_there = os.path.isdir(os.path.join(options.directory, model_id)) and "@" not in model_id
        if not is_there or (model_id in options.private and not self.token()):
            if self.token():
                return self.refuse(404, "RepoNotFound", "Repository not found")
            return self.refuse(401, "RepoNotFound", "Invalid username or password.")
        revision = urllib.parse.unquote(route["revision"])
        model = self.hub.revision(model_id, revision)
        if not model:
            return self.refuse(404, "RevisionNotFound", f"Invalid rev id: {revision}")
        inner = urllib.parse.unquote(route["inner"] or "")
        if route["what"] == "revision":
            return self.send_model(model_id, model)
        if route["what"] == "tree":
            return self.send_tree(model, inner, path)
        if model_id in options.gated and self.token() not in options.accepted:
            status = 403 if self.token() else 401
            return self.refuse(status, "GatedRepo", f"Access to model {model_id} is restricted.")
        if inner not in model.files:
            return self.refuse(404, "EntryNotFound", "Entry not found")
        return self.resolve(route["what"], model_id, model, inner)

    def send_json(self, value, headers=None):
        headers = {**(headers or {}), "Content-Type": "application/json; charset=utf-8"}
        self.send(200, headers, json.dumps(value).encode())

    def send_model(self, model_id, model):
        siblings = []
        for name, file in model.files.items():
            entry = {"rfilename": name}
            if self.query.get("blobs") in ("true", "True") and not self.hub.options.no_sizes:
                entry.update({"blobId": file.blob, "size": file.size})
                if file.sha256:
                    entry["lfs"] = {
                        "sha256": file.sha256,
                        "size": file.size,
                        "pointerSize": file.pointer_size,
                    }
            siblings.append(entry)
        self.send_json(
            {
                "_id": model.commit[:24],
                "id": model_id,
                "modelId": model_id,
                "private": model_id in self.hub.options.private,
                "gated": "manual" if model_id in self.hub.options.gated else False,
                "sha": model.commit,
                "lastModified": model.modified,
                "tags": [],
                "siblings": siblings,
            }
        )

    def send_tree(self, model, inner, path):
        prefix = inner + "/" if inner else ""
        entries = {}
        for name, file in model.files.items():
            if not name.startswith(prefix):
                continue
            parts = name[len(prefix) :].split("/")
            depth = len(parts) if self.query.get("recursive") in ("true", "True") else 1
            for i in range(1, min(depth + 1, len(parts))):
                folder = prefix + "/".join(parts[:i])
                oid = digest("sha1", [folder.encode()])
                entries[folder] = {"type": "directory", "oid": oid, "size": 0, "path": folder}
            if depth == len(parts):
                entry = {"type": "file", "oid": file.blob, "size": file.size, "path": name}
                if file.sha256:
                    entry["lfs"] = {
                        "oid": file.sha256,
                        "size": file.size,
                        "pointerSize": file.pointer_size,
                    }
                    entry["xetHash"] = digest("sha256", [b"xet", file.sha256.encode()])
                entries[name] = entry
        if inner and not entries:
            return self.refuse(404, "EntryNotFound", f"{inner} does not exist")
        first = int(self.query.get("cursor", "0"))
        page = self.hub.options.page
        headers = {}
        if first + page < len(entries):
            query = urllib.parse.urlencode({**self.query, "cursor": first + page})
            headers["Link"] = f'<{self.hub.options.hub_url}{path}?{query}>; rel="next"'
        return self.send_json(list(entries.values())[first : first + page], headers)

    def resolve(self, what, model_id, model, inner):
        file = model.files[inner]
        etag = f'"{file.sha256 or file.blob}"'
        headers = {"X-Repo-Commit": model.commit}
        linked = {**headers, "X-Linked-Size": str(file.size), "X-Linked-ETag": etag}
        if file.sha256:
            target = self.hub.signed_url(file)
            body = f"Found. Redirecting to {target}".encode()
            return self.send(302, {**linked, "Location": target}, body)
        if what == "resolve" and not self.hub.options.direct:
            path = urllib.parse.quote(f"/api/resolve-cache/models/{model_id}/{model.commit}/{inner}")
            query = urllib.parse.urlencode({self.path: "", "etag": etag})
            return self.send(307, {**linked, "Location": f"{path}?{query}"}, b"Temporary Redirect")
        return self.send_file(file, {**headers, "ETag": etag})


class Server(http.server.ThreadingHTTPServer):
    request_queue_size = 128


def parse_options():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("directory")
    parser.add_argument("--hub", default="127.0.0.1:0", help="address of the hub")
    parser.add_argument("--cdn", default="127.0.0.2:0", help="address of the CDN")
    parser.add_argument("--hub-url", help="as clients see it")
    parser.add_argument("--cdn-url", help="as clients see it")
    parser.add_argument("--log", help="file for a line of JSON about each request")
    parser.add_argument("--page", type=int, default=1000, help="entries of a page of a tree")
    parser.add_argument("--uses", type=int, default=1 << 30, help="requests that a signed URL permits")
    parser.add_argument("--seconds", type=int, default=3600, help="lifetime of a signed URL")
    parser.add_argument("--lfs-from", type=int, default=1024, help="minimum bytes of a Git LFS file")
    parser.add_argument("--direct", action="store_true", help="/resolve/ serves small files")
    parser.add_argument("--no-sizes", action="store_true", help="ignore blobs=true")
    parser.add_argument("--token", action="append", default=[], help="a valid token")
    parser.add_argument("--private", action="append", default=[], metavar="ID")
    parser.add_argument("--gated", action="append", default=[], metavar="ID")
    parser.add_argument("--accepted", action="append", default=[], metavar="TOKEN")
    parser.add_argument("--renamed", action="append", default=[], metavar="OLD=NEW")
    parser.add_argument("--busy", type=int, default=0, help="number of first requests that get 429")
    parser.add_argument("--busy-seconds", type=int, default=1, help="seconds to wait after 429")
    return parser.parse_args()


def main():
    options = parse_options()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    parent = os.getppid()
    hub = Hub(options)
    servers = {}
    for handler in (HubHandler, CdnHandler):
        host, port = getattr(options, handler.which).rsplit(":", 1)
        bound = type(handler.__name__, (handler,), {"hub": hub})
        server = Server((host, int(port)), bound)
        servers[handler.which] = server
    urls = {}
    for which, server in servers.items():
        urls[which] = getattr(options, which + "_url") or "http://%s:%d" % server.server_address
        setattr(options, which + "_url", urls[which])
        threading.Thread(target=server.serve_forever, daemon=True).start()
    print(json.dumps(urls), flush=True)
    while os.getppid() == parent:
        time.sleep(0.5)


if __name__ == "__main__":
    main()
