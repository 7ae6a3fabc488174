"""messages_test.py SOURCE: table.py refuses a tree with a message that MESSAGES.md would lack."""

import pathlib
import shutil
import subprocess
import sys
import tempfile

SOURCE = pathlib.Path(sys.argv[1])
GOOD = 'void good() { throw Error(ErrorCode::kUsage, "", "too many cats: name one of them"); }\n'
ADVISED = 'void advised() { throw Error(ErrorCode::kUsage, "", "no cat at all"); }\n'
ADVICE = 'Usage\tno cat at all\tget a cat\n'

# (the source, the advice, what table.py says; nothing when it makes the table)
TREES = {
    "good": (GOOD + ADVISED, ADVICE, ""),
    "a throw without advice": (GOOD + ADVISED, "", "Usage: no cat at all"),
    "advice for no message": (GOOD, ADVICE, "advice for no message"),
    "a literal that no message uses":
        (GOOD + 'void odd() { meow("the cat is gone"); }\n', "", 'is "the cat is gone" in odd a message?'),
    "a throw of something else": ('void odd() { throw 5; }\n', "", "throws something else"),
}


def run(tree, *arguments):
    return subprocess.run([sys.executable, "-B", tree / "docs/messages/table.py", *arguments],
                          capture_output=True, text=True)


def main():
    for name, (source, advice, said) in TREES.items():
        with tempfile.TemporaryDirectory() as directory:
            tree = pathlib.Path(directory)
            shutil.copytree(SOURCE / "docs/messages", tree / "docs/messages")
            (tree / "core/base").mkdir(parents=True)
            shutil.copy(SOURCE / "core/base/error.cpp", tree / "core/base")  # the names of the errors
            (tree / "tools/gpu/library/python").mkdir(parents=True)
            (tree / "tools/gpu/library/python/stfs_gpu.py").write_text("")
            (tree / "core/cats.cpp").write_text(source)
            (tree / "docs/messages/advice.tsv").write_text(advice)
            written = run(tree, "--write")
            if (written.returncode == 0) != (said == "") or said not in written.stderr:
                sys.exit(f"{name}: status {written.returncode}: {written.stderr}")
            if said:
                continue
            assert run(tree).returncode == 0, "the table that it wrote"
            (tree / "core/cats.cpp").write_text(source.replace("cats", "dogs"))
            changed = run(tree)
            assert changed.returncode == 1 and "too many dogs" in changed.stdout, changed


main()
