#!/usr/bin/env python3
"""Mounts for a server that may not mount, and hands it the descriptor of /dev/fuse.

  hand_over.py MOUNTPOINT [--user UID] [--allow-other] -- COMMAND...
      Mounts, then runs COMMAND with the descriptor. It replaces @FD@ in COMMAND by /dev/fd/N:
        hand_over.py /mnt/w --user 65534 -- setpriv --reuid 65534 --clear-groups stfs -f model.safetensors @FD@

  hand_over.py MOUNTPOINT [--user UID] [--allow-other] --send SOCKET
      Mounts, waits at the Unix socket SOCKET for one client, and sends it the descriptor.

  hand_over.py --receive SOCKET -- COMMAND...
      Receives the descriptor, in another container if the socket is there, and runs COMMAND with it.

Mounting needs CAP_SYS_ADMIN and /dev/fuse; the server needs neither. The mount ends with
`umount MOUNTPOINT`, or with the last process that has the descriptor: this program keeps none.
"""

import argparse
import ctypes
import os
import socket
import stat
import sys

MS_RDONLY, MS_NOSUID, MS_NODEV = 1, 2, 4


def mount(mountpoint, user, allow_other):
    """Makes a mount of type fuse.stfs that waits for its server. Returns the descriptor."""
    device = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
    mode = stat.S_IFMT(os.stat(mountpoint).st_mode)
    options = f"fd={device},rootmode={mode:o},user_id={user},group_id={user},default_permissions"
    if allow_other:
        options += ",allow_other"
    libc = ctypes.CDLL(None, use_errno=True)
    flags = ctypes.c_ulong(MS_RDONLY | MS_NOSUID | MS_NODEV)
    if libc.mount(b"stfs", os.fsencode(mountpoint), b"fuse.stfs", flags, options.encode()) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), mountpoint)
    return device


def send(path, device):
    """Gives the descriptor to the first client of a Unix socket."""
    if os.path.exists(path):
        os.unlink(path)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen(1)
        client, _ = listener.accept()
        with client:
            socket.send_fds(client, [b"fuse"], [device])


def receive(path):
    with socket.socket(socket.AF_UNIX) as server:
        server.connect(path)
        _, descriptors, _, _ = socket.recv_fds(server, 16, 1)
    return descriptors[0]


def run(device, command):
    os.set_inheritable(device, True)
    command = [word.replace("@FD@", f"/dev/fd/{device}") for word in command]
    os.execvp(command[0], command)


def main():
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("mountpoint", nargs="?")
    parser.add_argument("--user", type=int, default=os.getuid())
    parser.add_argument("--allow-other", action="store_true")
    parser.add_argument("--send", metavar="SOCKET")
    parser.add_argument("--receive", metavar="SOCKET")
    arguments = sys.argv[1:]
    command = []
    if "--" in arguments:
        at = arguments.index("--")
        arguments, command = arguments[:at], arguments[at + 1:]
    options = parser.parse_args(arguments)
    if options.receive:
        run(receive(options.receive), command)
    device = mount(options.mountpoint, options.user, options.allow_other)
    if options.send:
        send(options.send, device)
    else:
        run(device, command)


if __name__ == "__main__":
    main()
