"""module_directory.py PREFIX: prints the directory below the prefix where this Python looks for
modules; without one, the directory where a Python installed in the prefix would look."""

import os
import sys

prefix = os.path.normpath(sys.argv[1])
conventional = "%s/lib/python%d.%d/site-packages" % (prefix, *sys.version_info[:2])
searched = [d for d in sys.path if d.startswith(prefix + "/lib/") and d.endswith("-packages")]
print(os.path.relpath((searched + [conventional])[0], prefix))
