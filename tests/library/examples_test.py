"""examples_test.py LIBRARY_SOURCES LIBSTFS: expects that the examples in C, Go and Rust print the sums of a checkpoint.

Skips a language, with a message, if its compiler is not installed.
"""

import json
import os
import pathlib
import struct
import subprocess
import sys
import tempfile

sources, library = pathlib.Path(sys.argv[1]).resolve(), pathlib.Path(sys.argv[2]).resolve()
examples, include, directory = sources / "examples", sources / "include", library.parent
environment = dict(os.environ, LD_LIBRARY_PATH=str(directory), GO111MODULE="off", CGO_ENABLED="1",
                   CGO_CFLAGS=f"-I{include}", CGO_LDFLAGS=f"-L{directory} -lstfs")
HEADER = {"half": {"dtype": "BF16", "shape": [3], "data_offsets": [0, 6]},
          "number": {"dtype": "I32", "shape": [2], "data_offsets": [6, 14]},
          "single": {"dtype": "F32", "shape": [2, 2], "data_offsets": [14, 30]}}
EXPECTED = [["3", "BF16", "half"], ["10.25", "F32", "single"]]


def commands(work):
    """Returns a dict from each language to the command that builds `sum`."""
    return {
        "C": ["cc", "-std=c99", f"-I{include}", examples / "sum.c", "-o", work / "sum", f"-L{directory}", "-lstfs"],
        "Go": ["go", "build", "-o", work / "sum", examples / "sum.go"],
        "Rust": ["rustc", "-D", "warnings", "-o", work / "sum", "-L", directory, examples / "sum.rs"],
    }


def is_installed(compiler):
    """Returns True if the compiler runs. A launcher may be installed without any compiler."""
    try:
        return subprocess.run([compiler, "version" if compiler == "go" else "--version"], capture_output=True,
                              check=False).returncode == 0
    except FileNotFoundError:
        return False


def try_language(language, command, work, checkpoint):
    subprocess.run(command, env=dict(environment, GOCACHE=str(work / "go")), check=True)
    printed = subprocess.run([work / "sum", checkpoint], env=environment, check=True, capture_output=True, text=True)
    rows = [line.split() for line in printed.stdout.splitlines()]
    missing = subprocess.run([work / "sum", work / "missing.safetensors"], env=environment, capture_output=True,
                             text=True, check=False)
    is_right = rows == EXPECTED and missing.returncode == 1 and "missing.safetensors" in missing.stderr
    print(f"{language}: {'right' if is_right else f'WRONG: {printed.stdout!r} {missing}'}")
    return is_right


failed = False
with tempfile.TemporaryDirectory() as name:
    work = pathlib.Path(name)
    text = json.dumps(HEADER).encode()
    data = b"\x80\x3f" * 3 + bytes(8) + struct.pack("<4f", 1, 2, 3, 4.25)
    (work / "m.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + data)
    for language, command in commands(work).items():
        if is_installed(command[0]):
            failed |= not try_language(language, command, work, work / "m.safetensors")
        else:
            print(f"{language}: skipped: {command[0]} is not installed")
sys.exit(failed)
