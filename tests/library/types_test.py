"""Expects no finding of mypy in stfs. Skipped if mypy is not installed.

Frameworks are treated as untyped, because mypy takes minutes with the sources of torch.
"""

import pathlib
import shutil
import subprocess
import sys
import tempfile

if shutil.which("mypy") is None:
    print("skipped: mypy is not installed")
    sys.exit(77)
module = pathlib.Path(__file__).resolve().parents[2] / "tools/library/python/stfs"
with tempfile.TemporaryDirectory() as cache:
    words = ["mypy", "--strict", "--no-site-packages", "--ignore-missing-imports", "--cache-dir", cache]
    sys.exit(subprocess.run([*words, module], check=False).returncode)
