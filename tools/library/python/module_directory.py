"""module_directory.py PREFIX: prints the directory below the prefix in which this Python looks for
modules. If there is none, prints the directory in which a Python installed in the prefix would look."""

import os
import sys

prefix = os.path.normpath(sys.argv[1])
conventional = "%s/lib/python%d.%d/site-packages" % (prefix, *sys.version_info[:2])
searched = [d for d in sys.path if d.startswith(prefix + "/lib/") and d.endswith("-packages")]
print(os.path.relpath((searched + [conventional])[0], prefix))
