"""stfs-info reads over https only from a server with the right certificate. STFS_INFO_BINARY names the program."""

import os
import pathlib
import ssl
import subprocess
import sys
import tempfile
import unittest

sys.path.append(str(pathlib.Path(__file__).resolve().parent.parent / "docs"))
import object_server  # noqa: E402

# A checkpoint with one tensor, `w`, of four bytes.
HEADER = b'{"w":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}}'
CHECKPOINT = len(HEADER).to_bytes(8, "little") + HEADER + b"abcd"


class Certificates(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.directory = pathlib.Path(directory.name)
        (self.directory / "m.safetensors").write_bytes(CHECKPOINT)

    def certificate(self, name):
        """Returns a file with a self-signed certificate for the host `name` and its key."""
        file, key = self.directory / f"{name}.pem", self.directory / f"{name}.key"
        subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2",
                        "-subj", f"/CN={name}", "-addext", f"subjectAltName=DNS:{name}", "-keyout", key, "-out", file],
                       check=True, capture_output=True)
        file.write_bytes(file.read_bytes() + key.read_bytes())
        return file

    def read(self, certificate, trusted):
        """Runs `stfs-info cat` on the server `localhost` with this certificate."""
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        tls.load_cert_chain(certificate)
        url = object_server.serve(self.directory, tls).replace("127.0.0.1", "localhost")
        environment = {**os.environ, "SSL_CERT_FILE": str(trusted), "STFS_CACHE": str(self.directory / "cache")}
        for name in "CURL_CA_BUNDLE", "https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY":
            environment.pop(name, None)
        return subprocess.run([os.environ["STFS_INFO_BINARY"], "cat", f"{url}/m.safetensors", "w"], capture_output=True,
                              env=environment, timeout=120)

    def test_reads_from_server_with_certificate_for_its_name(self):
        certificate = self.certificate("localhost")
        done = self.read(certificate, certificate)
        self.assertEqual((done.returncode, done.stdout, done.stderr), (0, b"abcd", b""))

    def test_rejects_server_with_certificate_for_other_name(self):
        certificate = self.certificate("other.test")
        done = self.read(certificate, certificate)
        self.assertEqual((done.returncode, done.stdout), (3, b""), done.stderr)
        self.assertIn(b"cannot trust localhost", done.stderr)

    def test_rejects_server_with_untrusted_certificate(self):
        done = self.read(self.certificate("localhost"), self.certificate("other.test"))
        self.assertEqual((done.returncode, done.stdout), (3, b""), done.stderr)
        self.assertIn(b"cannot trust localhost", done.stderr)


if __name__ == "__main__":
    unittest.main()
