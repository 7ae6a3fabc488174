"""spdx.py VERSION EPOCH README: prints an SPDX 2.3 document, in JSON, about the packages that stfs is linked with.

README is the README of the licences in the carried build. It has a line "package version" for each Debian
package with code in that build. The same input gives the same bytes.
"""

import hashlib
import json
import pathlib
import re
import sys
import time

# SPDX expressions for the copyright files of Debian, for the parts that are linked in.
LICENCES = {
    "libc6-dev": "LGPL-2.1-or-later", "libstdc++-12-dev": "GPL-3.0-or-later WITH GCC-exception-3.1",
    "libfuse3-dev": "LGPL-2.1-only", "libssl-dev": "Apache-2.0", "nlohmann-json3-dev": "MIT",
    "libpugixml-dev": "MIT", "libxxhash-dev": "BSD-2-Clause",
    "libre2-dev": "BSD-3-Clause", "libzstd-dev": "BSD-3-Clause", "zlib1g-dev": "Zlib", "curl": "curl",
    "highway": "Apache-2.0 OR BSD-3-Clause", "re2": "BSD-3-Clause",
}


def package(name: str, version: str, licence: str, supplier: str, place: str) -> dict:
    return {"SPDXID": "SPDXRef-" + re.sub(r"[^A-Za-z0-9.-]", "-", name), "name": name, "versionInfo": version,
            "supplier": supplier, "downloadLocation": place, "filesAnalyzed": False,
            "licenseConcluded": licence, "licenseDeclared": licence, "copyrightText": "NOASSERTION"}


def main() -> None:
    version, epoch = sys.argv[1], int(sys.argv[2])
    text = pathlib.Path(sys.argv[3]).read_text()
    linked = re.findall(r"^([a-z0-9][a-z0-9+.-]*) (\d\S*)$", text, re.MULTILINE)
    unknown = sorted({name for name, _ in linked} - LICENCES.keys())
    if not linked or unknown:
        sys.exit(f"spdx.py: {sys.argv[3]}: no licence is known here of {', '.join(unknown) or 'anything'}")
    stfs = package("stfs", version, "Apache-2.0", "NOASSERTION", "NOASSERTION")
    packages = [package(name, of, LICENCES[name], "Organization: Debian", "NOASSERTION") for name, of in sorted(linked)]
    for one, (name, of) in zip(packages, sorted(linked)):
        one["externalRefs"] = [{"referenceCategory": "PACKAGE-MANAGER", "referenceType": "purl",
                                "referenceLocator": f"pkg:deb/debian/{name.replace('+', '%2B')}@{of.replace('+', '%2B')}"}]
    document = {
        "spdxVersion": "SPDX-2.3", "dataLicense": "CC0-1.0", "SPDXID": "SPDXRef-DOCUMENT", "name": f"stfs-{version}",
        "documentNamespace": f"https://spdx.org/spdxdocs/stfs-{version}-{hashlib.sha256(text.encode()).hexdigest()[:32]}",
        "creationInfo": {"created": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(epoch)), "creators": ["Tool: stfs-scripts-release"]},
        "packages": [stfs, *packages],
        "relationships": [
            {"spdxElementId": "SPDXRef-DOCUMENT", "relationshipType": "DESCRIBES", "relatedSpdxElement": stfs["SPDXID"]},
            # The C library is linked dynamically; a few of its functions are linked into each program.
            *({"spdxElementId": stfs["SPDXID"], "relationshipType": "STATIC_LINK", "relatedSpdxElement": one["SPDXID"]} for one in packages)],
    }
    json.dump(document, sys.stdout, indent=2)
    print()


main()
