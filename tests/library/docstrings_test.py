"""Runs the examples in the docstrings of stfs and compares their output."""

import doctest
import importlib
import os
import pkgutil
import sys
import tempfile

import support

import numpy
import stfs

with tempfile.TemporaryDirectory() as directory:
    path = support.write_checkpoint(os.path.join(directory, "m.safetensors"), {
        "bias": ("F32", numpy.ones(2, "f4")),
        "weight": ("BF16", (numpy.arange(6, dtype="f4").reshape(2, 3).view("u4") >> 16).astype("u2"))},
        {"format": "pt"})
    run = os.path.join(directory, "run")
    os.makedirs(os.path.join(run, "weight_v000002"))
    with open(os.path.join(run, "weight_v000002", "model.safetensors.index.json"), "w") as index:
        index.write('{"weight_map": {}}')
    tried = failed = 0
    names = [f"stfs.{found.name}" for found in pkgutil.iter_modules(stfs.__path__)]
    for module in map(importlib.import_module, ["stfs", *names]):
        outcome = doctest.testmod(module, extraglobs={
            "stfs": stfs, "path": path, "directory": directory, "run": run, "os": os, "numpy": numpy})
        tried, failed = tried + outcome.attempted, failed + outcome.failed
print(f"{tried} examples, {failed} wrong")
sys.exit(1 if failed or tried < 5 else 0)
