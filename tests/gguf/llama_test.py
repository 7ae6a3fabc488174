"""llama_test.py: llama.cpp generates the same tokens from a mounted model and from its file.

It reads .stfs/merged.gguf, .stfs/subset/*.gguf, and a file that `stfs-info edit` has written with another name.
STFS_LLAMA names node-llama-cpp (tests/gguf/install_llama), which needs Node.js 20.
"""

import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
MODEL = HERE.parent / "data/gguf/llama-2-tiny-random.gguf"
stfs, stfs_info = os.environ["STFS_BINARY"], os.environ["STFS_INFO_BINARY"]


def skip(why):
    if os.environ.get("STFS_REQUIRE_LLAMA") == "1" and "Node.js" not in why:
        sys.exit(f"llama_test: STFS_REQUIRE_LLAMA=1, and {why}")
    print(f"skipped: {why}")
    sys.exit(77)


def generate(*models):
    found = subprocess.run(["node", HERE / "generate.mjs", os.environ["STFS_LLAMA"], *models], check=True, timeout=240,
                           stdout=subprocess.PIPE, text=True).stdout
    return [json.loads(line) for line in found.splitlines()]


def main():
    node = shutil.which("node")
    if not os.environ.get("STFS_LLAMA") or not node:
        skip("STFS_LLAMA does not name node-llama-cpp (tests/gguf/install_llama gets it)")
    version = subprocess.run([node, "--version"], check=True, stdout=subprocess.PIPE, text=True).stdout
    if int(version.lstrip("v").split(".")[0]) < 20:
        skip(f"node-llama-cpp needs Node.js 20, and this is {version.strip()}")
    if not os.access("/dev/fuse", os.W_OK):
        skip("no permission to open /dev/fuse")
    with tempfile.TemporaryDirectory() as name:
        work = pathlib.Path(name)
        mountpoint, edited = work / "mnt", work / "edited.gguf"
        mountpoint.mkdir()
        subprocess.run([stfs_info, "edit", MODEL, "-e", "metadata general.name other", "-o", edited], check=True)
        subprocess.run([stfs, MODEL, mountpoint], check=True)
        try:
            tokens = generate(MODEL, mountpoint / ".stfs/merged.gguf", mountpoint / ".stfs/subset/*.gguf", edited)
        finally:
            subprocess.run([stfs, "-u", "-z", mountpoint], check=True)
    assert len(tokens) == 4 and len(tokens[0]) == 16 and len(set(tokens[0])) > 4, tokens
    assert all(found == tokens[0] for found in tokens), tokens


main()
