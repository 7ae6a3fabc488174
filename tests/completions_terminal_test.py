#!/usr/bin/env python3
"""completions_terminal_test.py COMPLETIONS STFS STFS_INFO STFS_GPU: what a user gets who types the beginning of a word,
Tab and Enter in bash, and in zsh where it is installed. Whatever a file, a mountpoint, a device or a tensor is called,
the command receives that very name, and no part of it is executed. COMPLETIONS is a directory."""
import fcntl
import json
import os
import pty
import select
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import termios

COMPLETIONS, STFS, STFS_INFO, STFS_GPU = map(os.path.abspath, sys.argv[1:5])
LIMIT = float(os.environ.get("STFS_TEST_LIMIT", "60"))  # seconds to wait for a shell

# Each would leave a file `executed` if a shell expanded it.
NAMES = [
    "plain",
    "two words",
    "`>executed`y",
    "$(>executed)y",
    "${x:=$(>executed)}y",
    "<(>executed)y",
    "a;>executed;y",
    "a&>executed&y",
    "a\n>executed\ny",
    "tab\tand\x1b[31mescape",
    "~y",
    "~root",
    "!!y",
    "a!y",
    "-rf",
    "#y",
    "a=~y",
    "it's",
    'say "y"',
    "both'\"y",
    "back\\slash",
    "end\\",
    "[y]*?",
    "{a,b}",
    "$HOME",
    "a|>executed",
    "é\u202ey",
]
if os.fsencode(NAMES[-1]) != NAMES[-1].encode():
    sys.exit("run this in a UTF-8 locale")

RECORDER = """#!/bin/sh
case $0:$1 in
  *-gpu:--complete) cat devices 2>/dev/null || exec "$STFS_GPU" "$@"; exit ;;
  *-info:--complete) exec "$STFS_INFO" "$@" ;;
  *:--complete) exec "$STFS" "$@" ;;
esac
{ printf '%s\\0' "$@"; printf 'end of arguments\\0'; } >"$ARGUMENTS"
"""

BASH = """
shopt -u checkwinsize
set -o history -o histexpand
PROMPT_COMMAND='PS1="@$((++n))@"'
source "$COMPLETIONS/stfs.bash"
"""
ZSH = """
fpath=("$COMPLETIONS" $fpath)
autoload -Uz compinit && compinit -u -D
setopt bang_hist no_beep
unsetopt list_ambiguous prompt_sp
precmd() { PS1="@$((++n))@"; }
"""


class Shell:
    """An interactive shell in a terminal of its own."""

    def __init__(self, name, directory):
        self.name = name
        self.fifo_path = os.path.join(directory, f"arguments-{name}")
        os.mkfifo(self.fifo_path)
        self.fifo = os.open(self.fifo_path, os.O_RDWR | os.O_NONBLOCK)
        words = ["bash", "--noprofile", "--norc", "-i"] if name == "bash" else ["zsh", "-f", "-i"]
        self.pid, self.terminal = pty.fork()
        if self.pid == 0:
            os.chdir(directory)
            os.environ.update(PATH=f"{directory}/bin:{os.environ['PATH']}", ARGUMENTS=self.fifo_path, TERM="xterm",
                              STFS=STFS, STFS_INFO=STFS_INFO, STFS_GPU=STFS_GPU, COMPLETIONS=COMPLETIONS, INPUTRC="/dev/null", PS1="@0@",
                              HISTFILE=f"{directory}/history", LC_ALL="C.UTF-8", ZDOTDIR=directory)
            os.execvp(words[0], words)
        fcntl.ioctl(self.terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 50, 2000, 0, 0))
        self.prompts = 0
        self.shown = b""
        self.wait_for_prompt()
        with open(os.path.join(directory, f"setup-{name}"), "w") as setup:
            setup.write(BASH if name == "bash" else ZSH)
        self.type(f" . ./setup-{name}\r")
        self.prompts = 1
        self.wait_for_prompt()

    def type(self, keys):
        os.write(self.terminal, keys.encode())

    def next_output(self, others=()):
        ready, _, _ = select.select([self.terminal, *others], [], [], LIMIT)
        if not ready:
            raise TimeoutError
        if self.terminal in ready:
            self.shown += os.read(self.terminal, 1 << 16)
        return ready

    # A shell takes a Tab as a key only after it has drawn its prompt.
    def wait_for_prompt(self):
        mark = b"@%d@" % self.prompts
        while mark not in self.shown:
            self.next_output()
        self.shown = self.shown.split(mark, 1)[1]
        self.prompts += 1

    def run(self, line):
        self.type(line + "\r")
        self.wait_for_prompt()

    def arguments(self, keys):
        """The words that a command gets after `keys`; None if it is not run."""
        self.type(keys)
        found = b""
        try:
            while not found.endswith(b"\0end of arguments\0"):
                if self.fifo in self.next_output([self.fifo]):
                    found += os.read(self.fifo, 1 << 16)
        except TimeoutError:
            self.type("\x03")
            return None
        finally:
            self.wait_for_prompt()
        return [os.fsdecode(word) for word in found.split(b"\0")[:-2]]

    # Not SIGHUP: bash outlived it where the environment had almost nothing.
    def end(self):
        os.kill(self.pid, signal.SIGKILL)
        os.close(self.terminal)
        os.waitpid(self.pid, 0)


def safetensors(path, names):
    header = json.dumps({n: {"dtype": "U8", "shape": [0], "data_offsets": [0, 0]} for n in names}).encode()
    with open(path, "wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)


failures = 0
played = 0


def fail(text):
    global failures
    failures += 1
    print(text, file=sys.stderr, flush=True)


def expect(shell, keys, wanted, executed):
    global played
    played += 1
    got = shell.arguments(keys)
    if os.path.exists(executed):
        fail(f"{shell.name}: {keys!r}: executed a part of the name {wanted[-1]!r}")
        os.unlink(executed)
    elif got != wanted:
        fail(f"{shell.name}: {keys!r}: the command got {got}, and {wanted} was expected")


class Place:
    """A directory for one name, with a short name of its own."""

    def __init__(self, directory, kind, number):
        self.name = f"{kind}{number}"
        self.path = os.path.join(directory, self.name)
        os.mkdir(self.path)
        self.executed = os.path.join(self.path, "executed")


def in_place(shell, place, keys, wanted):
    shell.run(f"cd {place.name}")
    expect(shell, keys, wanted, place.executed)
    shell.run("cd ..")


# Whether a name is completed. What follows a beginning with control characters is not, and zsh leaves more
# to the user: a leading dash, an apostrophe in a word that begins with one, and a second part that begins with $.
def completes(shell, name, quote="", again=False):
    if shell.name == "bash":
        return not (again and not name.isprintable())
    is_hard = again and (not name.isprintable() or "\\" in name or "$" in name)
    return not name.startswith("-") and not (quote == "'" and "'" in name) and not is_hard


def files(shells, directory):
    for number, name in enumerate(NAMES):
        leading = "./" if name.startswith("-") else ""
        for kind, command, made in (("file", "stfs-info where", name),
                                    ("source", "stfs-info check", name + ".safetensors"),
                                    ("directory", "stfs-info where", name + "/f"),
                                    ("tensor_path", "stfs-gpu load -d cpu", name)):
            place = Place(directory, kind, number)
            os.makedirs(os.path.dirname(os.path.join(place.path, made)), exist_ok=True)
            open(os.path.join(place.path, made), "w").close()
            for shell in shells:
                for quote in ("", "'", '"'):
                    if completes(shell, name, quote, again=kind == "directory"):
                        tabs = "\t\t" if kind == "directory" else "\t"
                        in_place(shell, place, f"{command} {quote}{tabs}\r", command.split()[1:] + [leading + made])
        # The common beginning of two names; a user tells which.
        place = Place(directory, "pair", number)
        for end in ("1y", "2y"):
            open(os.path.join(place.path, f"d{name}{end}"), "w").close()
        for shell in shells:
            if completes(shell, name, again=True):
                in_place(shell, place, "stfs-info where \t2\t\r", ["where", f"d{name}2y"])


def tensors(shells, directory):
    # A name that a terminal could not show, or that would be an option, is not offered.
    names = [n for n in NAMES if n.isprintable() and not n.startswith("-") and "\u202e" not in n]
    for number, name in enumerate(names):
        place = Place(directory, "tensor", number)
        safetensors(os.path.join(place.path, "t.safetensors"), [name])
        for shell in shells:
            for quote in ("", "'", '"'):
                if completes(shell, name, quote):
                    in_place(shell, place, f"stfs-info show t.safetensors {quote}\t\r", ["show", "t.safetensors", name])
            in_place(shell, place, "stfs-gpu get -d cpu t.safetensors::\t\r",
                     ["get", "-d", "cpu", f"t.safetensors::{name}"])
        # The SOURCE is completed too, and then read.
        place = Place(directory, "tensors_of", number)
        source = name + ".safetensors"
        safetensors(os.path.join(place.path, source), ["w"])
        for shell in shells:
            in_place(shell, place, "stfs-info show \t\t\r", ["show", source, "w"])


# Mounts `source`, and waits until the mount is there.
def mount(source, mountpoint):
    os.makedirs(mountpoint)
    daemon = subprocess.Popen([STFS, "-f", source, mountpoint], start_new_session=True)
    while not os.path.ismount(mountpoint):
        if daemon.poll() is not None:
            sys.exit("the mount failed")
        select.select([], [], [], 0.01)
    return daemon


# bash itself does not quote a name that is no file, and the common beginning of two mountpoints is none. A dead mount
# is one too, for its user wants to unmount it.
def mountpoints(shells, directory):
    for number, name in enumerate(NAMES):
        place = Place(directory, "mountpoint", number)
        source = os.path.join(place.path, "s.safetensors")
        safetensors(source, ["w"])
        parent = os.path.join(place.path, "m", "")
        first, second = f"{parent}d{name}1y", f"{parent}d{name}2y"
        daemons = {}
        try:
            daemons[first] = mount(source, first)
            for shell in shells:
                for quote in ("", "'", '"'):
                    if completes(shell, name, quote):
                        in_place(shell, place, f"stfs -u {quote}{parent}\t\r", ["-u", first])
            daemons[second] = mount(source, second)
            daemons[second].kill()
            daemons[second].wait()
            for shell in shells:
                if completes(shell, name, again=True):
                    in_place(shell, place, f"stfs -u {parent}\t\r", ["-u", f"{parent}d{name}"])
                    in_place(shell, place, f"stfs -u {parent}\t2\t\r", ["-u", second])
        finally:
            for mountpoint, daemon in daemons.items():
                subprocess.run([STFS, "-u", mountpoint], check=True, timeout=LIMIT)
                daemon.wait(LIMIT)


def devices(shells, directory):
    for number, name in enumerate(NAMES):
        place = Place(directory, "device", number)
        with open(os.path.join(place.path, "devices"), "w") as lines:
            lines.write(f"device\0\0d{name} \0\0")
        for shell in shells:
            if completes(shell, name):
                in_place(shell, place, "stfs-gpu load -d \t\r", ["load", "-d", f"d{name}"])


def choices(shells, directory):
    place = Place(directory, "choice", 0)
    for shell in shells:
        in_place(shell, place, "stfs -o page_cache=kernel,allow_o\t\r", ["-o", "page_cache=kernel,allow_other"])
        in_place(shell, place, "stfs-info list --sort=of\t\r", ["list", "--sort=offset"])
        in_place(shell, place, "stfs-info list --sort off\t\r", ["list", "--sort", "offset"])
        in_place(shell, place, "stfs-info list --all\t\r", ["list", "--allow-missing"])
    safetensors(os.path.join(place.path, "t.safetensors"), ["model.a.w", "model.b.w", "head"])
    for shell in shells:
        edit, end = ["edit", "t.safetensors", "-e"], "" if shell.name == "bash" else "'"  # zsh closes no quote here
        in_place(shell, place, f"stfs-info {' '.join(edit)} 'drop model.a\t{end}\r", edit + ["drop model.a.w"])
        in_place(shell, place, f"stfs-info {' '.join(edit)} 'keep head mo\tb\t{end}\r", edit + ["keep head model.b.w"])
        in_place(shell, place, f"stfs-info {' '.join(edit)} unse\t\r", edit + ["unset"])


def main():
    directory = os.path.realpath(tempfile.mkdtemp())
    os.mkdir(os.path.join(directory, "bin"))
    for name in ("stfs", "stfs-info", "stfs-gpu"):
        path = os.path.join(directory, "bin", name)
        with open(path, "w") as file:
            file.write(RECORDER)
        os.chmod(path, 0o755)
    shells = [Shell(name, directory) for name in ("bash", "zsh") if shutil.which(name)]
    try:
        for kind in (choices, files, tensors, mountpoints, devices):
            kind(shells, directory)
    finally:
        for shell in shells:
            shell.end()
        shutil.rmtree(directory)
    print(f"{played} words in {', '.join(shell.name for shell in shells)}, {failures} wrong")
    return 1 if failures else 0


sys.exit(main())
