"""What fails: one class for each kind, and each is also the built-in class that fits."""

import errno
from typing import Any, Tuple


class Error(Exception):
    """A failed call: `str()` is one line, "place: subject: rule" and what to do.

    status  the exit status of stfs-info for the same failure: 1 the checkpoint breaks its format, 2 the
            request is invalid, 3 a source cannot be read, 5 the device, or the holder, failed
    errno   the errno behind it, or None
    """

    errno: Any

    def __init__(self, message: str, status: int = 3, error: int = 0):
        if isinstance(self, OSError):
            super().__init__(error, message)
        else:
            super().__init__(message)
            self.errno = error or None
        self.message, self.status, self._error = message, status, error

    def __str__(self) -> str:
        return self.message

    def __reduce__(self) -> Tuple[Any, ...]:
        return type(self), (self.message, self.status, self._error)


class InvalidCheckpoint(Error, ValueError):
    """The checkpoint breaks its format."""


class UsageError(Error, ValueError):
    """The request is invalid."""


class NoSuchTensor(Error, KeyError):
    """The checkpoint has no tensor of this name."""


class Unreadable(Error, OSError):
    """A source cannot be read, or has changed (errno ESTALE)."""


class NotFound(Unreadable, FileNotFoundError):
    """There is no such file or object."""


class NotPermitted(Unreadable, PermissionError):
    """The file may not be read."""


class Cancelled(Unreadable):
    """Checkpoint.cancel() ended the call."""


class SafetensorError(Error):
    """What safe_open and its companions raise where those of safetensors do."""


_BY_ERRNO = {errno.ENOENT: NotFound, errno.EACCES: NotPermitted, errno.EPERM: NotPermitted,
             errno.ECANCELED: Cancelled}


def error_of(status: int, message: str, error: int) -> Error:
    if status == 1:
        return InvalidCheckpoint(message, status, error)
    if status == 2:
        return UsageError(message, status, error)
    if status == 5:
        return Error(message, status, error)
    return _BY_ERRNO.get(error, Unreadable)(message, status, error)
