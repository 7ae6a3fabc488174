"""A threaded web server with ranges and a small S3 on the same port, which serve the files of one directory.

/bucket?list-type=2 lists the directory `bucket` like S3. Signatures are not verified.
"""

import hashlib
import http.server
import pathlib
import re
import threading
import urllib.parse
from xml.sax.saxutils import escape


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    root = pathlib.Path()

    def log_message(self, *_):
        pass

    def send(self, status, body, **headers):
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        url = urllib.parse.urlsplit(self.path)
        query = dict(urllib.parse.parse_qsl(url.query))
        path = self.root / urllib.parse.unquote(url.path).strip("/")
        if query.get("list-type") == "2":
            return self.send_listing(path, query)
        if not path.is_file():
            return self.send(404, b"<Error><Code>NoSuchKey</Code></Error>")
        content = path.read_bytes()
        etag = f'"{hashlib.md5(content).hexdigest()}"'
        if self.headers.get("If-None-Match") == etag:
            return self.send(304, b"", ETag=etag)
        if self.headers.get("If-Match", etag) != etag:
            return self.send(412, b"<Error><Code>PreconditionFailed</Code></Error>")
        wanted = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        if not wanted:
            return self.send(200, content, ETag=etag)
        first, last = int(wanted[1]), min(int(wanted[2]), len(content) - 1)
        if first > last:
            return self.send(416, b"", Content_Range=f"bytes */{len(content)}")
        return self.send(206, content[first:last + 1], ETag=etag, Content_Range=f"bytes {first}-{last}/{len(content)}")

    def send_listing(self, bucket, query):
        prefix, delimiter = query.get("prefix", ""), query.get("delimiter")
        keys = sorted(str(file.relative_to(bucket)) for file in bucket.rglob("*") if file.is_file())
        keys = [key for key in keys if key.startswith(prefix)]
        if delimiter:
            keys = [key for key in keys if delimiter not in key[len(prefix):]]
        keys = keys[:int(query.get("max-keys", "1000"))]
        rows = "".join(f"<Contents><Key>{escape(key)}</Key></Contents>" for key in keys)
        self.send(200, f"<ListBucketResult><IsTruncated>false</IsTruncated>{rows}</ListBucketResult>".encode())


def serve(root, tls=None):
    """Serves until the process ends, over https if `tls` is an ssl.SSLContext. Returns the URL."""
    handler = type("RootedHandler", (Handler,), {"root": root})
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    if tls is not None:
        server.handle_error = lambda *_: None  # a client that does not trust the certificate reports it
        server.socket = tls.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return f"http{'s' if tls else ''}://127.0.0.1:{server.server_port}"
