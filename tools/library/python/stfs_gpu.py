"""Tensors that stfs-gpu keeps in device memory: the module stfs.gpu, under another name."""

from stfs.gpu import *  # noqa: F401,F403
from stfs.gpu import DEVICE, INVALID, UNREADABLE, USAGE, __all__  # noqa: F401
