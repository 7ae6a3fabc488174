"""Tensors in device memory: the module stfs_gpu, under this name."""

from stfs_gpu import *  # noqa: F401,F403
