"""exports_test.py TOOLS LIBSTFS: expects that the library exports exactly the functions that its headers declare,
with their symbol versions."""

import pathlib
import re
import subprocess
import sys

tools = pathlib.Path(sys.argv[1])
listing = subprocess.run(["nm", "-D", "--defined-only", sys.argv[2]], check=True, capture_output=True, text=True)
symbols = (line.split()[-2:] for line in listing.stdout.splitlines())
exported = {name for kind, name in symbols if kind != "A"}  # A marks the name of a version
declared = set()
for header, version in (("library/include/stfs.h", "STFS_1"), ("gpu/library/include/stfs_gpu.h", "STFS_GPU_1")):
    names = re.findall(r"^STFS(?:_GPU)?_API [^(]*?(\w+)\(", (tools / header).read_text(), re.MULTILINE)
    assert names, header
    declared.update(f"{name}@@{version}" for name in names)
# Names of 0.2.0 that were replaced: still exported, and declared by no header.
declared.update(f"{name}@@STFS_1" for name in ("stfs_is_elsewhere", "stfs_measure_part", "stfs_version_of"))
if exported != declared:
    sys.exit(f"{sorted(exported - declared)} are visible, {sorted(declared - exported)} are not")
