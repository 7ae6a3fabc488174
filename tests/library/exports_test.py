"""exports_test.py TOOLS LIBSTFS LIBSTFS_GPU: what a library shows is what its header declares, and no more."""

import pathlib
import re
import subprocess
import sys

tools = pathlib.Path(sys.argv[1])
failed = False
for library, header in ((sys.argv[2], tools / "library/include/stfs.h"),
                        (sys.argv[3], tools / "gpu/library/include/stfs_gpu.h")):
    listing = subprocess.run(["nm", "-D", "--defined-only", library], check=True, capture_output=True, text=True)
    symbols = (line.split()[-2:] for line in listing.stdout.splitlines())
    shown = {name.split("@")[0] for kind, name in symbols if kind != "A"}  # A: the name of a version
    declared = set(re.findall(r"^STFS(?:_GPU)?_API [^(]*?(\w+)\(", header.read_text(), re.MULTILINE))
    if not declared or shown != declared:
        failed = True
        print(f"{library}: {sorted(shown - declared)} are visible, {sorted(declared - shown)} are not")
sys.exit(failed)
