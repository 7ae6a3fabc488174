"""Tests of `import stfs`: checkpoints without a mount, with NumPy, threads, forks and pickles.

Run by ctest with STFS_LIBRARY and PYTHONPATH set.
"""

import ctypes
import gc
import json
import multiprocessing
import os
import pathlib
import pickle
import re
import signal
import subprocess
import sys
import textwrap
import threading
import time
import types
import unittest
import warnings

import numpy

import stfs
from support import ARRAYS, Base, RemoteBase, contents, in_child, write_checkpoint, write_q8_0


def run_python(code, *words):
    subprocess.run([sys.executable, "-c", textwrap.dedent(code), *words], check=True, timeout=60)


class CheckpointTest(Base):
    def test_is_mapping_ordered_by_offset(self):
        m = stfs.open(self.path)
        self.assertEqual(list(m), list(ARRAYS))
        self.assertEqual(len(m), len(ARRAYS))
        self.assertIn("f32", m)
        self.assertNotIn("f33", m)
        self.assertNotIn(3, m)
        self.assertEqual([name for name, _ in m.items()], list(ARRAYS))
        self.assertEqual(m.metadata, {"format": "pt"})
        self.assertEqual(m.match("f*"), ["f32", "f64", "f16"])
        self.assertEqual(m.sources, [self.path])
        self.assertEqual(m.info()["tensors"], len(ARRAYS))
        self.assertEqual(len(m.version), 64)
        self.assertEqual(stfs.open(self.at("")).version, m.version)

    def test_saved_delta_works_as_layer(self):
        old = write_checkpoint(self.at("old.safetensors"), {"a": ("F32", numpy.arange(1000, dtype="<f4")), "b": ("U8", numpy.arange(9, dtype="u1")),
                                                            "": ("I64", numpy.arange(3, dtype="<i8"))})
        new = write_checkpoint(self.at("new.safetensors"), {"a": ("F32", numpy.arange(1000, dtype="<f4") * 2), "b": ("U8", numpy.arange(9, dtype="u1")),
                                                            "": ("I64", numpy.arange(3, dtype="<i8") + 1)})
        before, after = stfs.open(old), stfs.open(new)
        for number, options in enumerate(({}, {"encoding": "overwrite", "checksum": "adler32"}, {"shard_size": 1}, {"version": 7, "base": 0}), 1):
            with self.subTest(options):
                delta = self.at(f"weight_v{number:06}")
                self.assertEqual(after.save_delta(delta, before, **({"base": 0} | options)), 2)
                shown = stfs.open(old, delta=delta)
                self.assertEqual({name: bytes(shown[name]) for name in shown}, {name: bytes(after[name]) for name in after})
                self.assertEqual(len([name for name in os.listdir(delta) if name.endswith(".safetensors")]), 2 if "shard_size" in options else 1)
        with self.assertRaisesRegex(stfs.UsageError, "encoding, checksum, version, base"):
            after.save_delta(self.at("weight_v000009"), before, colour="red")
        with self.assertRaisesRegex(stfs.UsageError, "end in the number of a version"):
            after.save_delta(self.at("weights"), before)
        with self.assertRaisesRegex(stfs.UsageError, "no empty directory|exists|there is"):
            after.save_delta(self.at("weight_v000001"), before)
        with self.assertRaisesRegex(stfs.UsageError, "it is only in the old checkpoint"):
            stfs.open(new, edits=["drop b"]).save_delta(self.at("weight_v000009"), before)
        numpy.savez(self.at("m.npz"), __metadata__=numpy.zeros(3))
        with self.assertRaisesRegex(stfs.UsageError, "safetensors has no tensor of this name"):
            stfs.open(self.at("m.npz")).save_delta(self.at("weight_v000009"), stfs.open(self.at("m.npz")))
        self.assertFalse(os.path.exists(self.at("weight_v000009")))

    def test_documents_list_every_option(self):
        with self.assertRaises(ValueError) as raised:
            stfs.open(self.path, colour="red")
        known = str(raised.exception).partition("the options are ")[2].split(", ")
        self.assertGreater(len(known), 15)
        root = pathlib.Path(__file__).resolve().parent.parent.parent
        for document in (stfs.open.__doc__, *((root / path).read_text() for path in ("tools/library/include/stfs.h", "docs/man/stfs.3"))):
            self.assertEqual([word for word in known if not re.search(rf"\b{word}\b", document)], [])

    def test_failures_are_also_builtin_exceptions(self):
        m = stfs.open(self.path)
        for error, call, words in (
                (KeyError, lambda: m["f33"], 'did you mean "f32"'), (KeyError, lambda: m[3], "str"),
                (FileNotFoundError, lambda: stfs.open(self.at("none")), "No such file"),
                (ValueError, lambda: stfs.open(self.path, colour="red"), "colour=red"),
                (ValueError, lambda: stfs.open(self.path, dequantize="q4"), "expected one of bf16, f16, f32"),
                (ValueError, lambda: stfs.open([]), "no source"),
                (ValueError, lambda: stfs.open("a\0b"), "NUL")):
            with self.subTest(words):
                with self.assertRaises(error) as raised:
                    call()
                self.assertIsInstance(raised.exception, stfs.Error)
                self.assertIn(words, str(raised.exception))
                copy = pickle.loads(pickle.dumps(raised.exception))
                self.assertEqual((type(copy), str(copy)), (type(raised.exception), str(raised.exception)))
        with open(self.at("broken.safetensors"), "wb") as file:
            file.write(b"nothing")
        with self.assertRaises(stfs.InvalidCheckpoint):
            stfs.open(self.at("broken.safetensors"))

    def test_changed_file_is_estale_and_never_other_bytes(self):
        m = stfs.open(self.path)
        with open(self.path, "r+b") as file:
            file.seek(-1, os.SEEK_END)
            file.write(b"\xff")
        for call in (lambda: m["f32"].numpy(), lambda: bytes(m["f32"]), lambda: m["f32"].numpy("f32")):
            with self.assertRaises(stfs.Unreadable) as raised:
                call()
            self.assertEqual(raised.exception.errno, 116)  # ESTALE

    def test_pickle_keeps_sources_version_and_options(self):
        m = stfs.open(write_q8_0(self.at("m.gguf")), dequantize="f32")
        for copy in (pickle.loads(pickle.dumps(m)), pickle.loads(pickle.dumps(m["w"])), ):
            tensor = copy if isinstance(copy, stfs.Tensor) else copy["w"]
            self.assertEqual(tensor.dtype, "F32")
        part = pickle.loads(pickle.dumps(stfs.open(self.path)["f32"][1:3, ::2]))
        numpy.testing.assert_array_equal(part.numpy(), ARRAYS["f32"][1][1:3, ::2])
        pickled = pickle.dumps(stfs.open(self.path))
        os.truncate(self.path, os.path.getsize(self.path) - 1)
        with self.assertRaises(stfs.Error):
            pickle.loads(pickled)

    def test_pickle_opens_in_other_directory(self):
        before = os.getcwd()
        self.addCleanup(os.chdir, before)
        os.chdir(self.directory)
        with open("e.txt", "w") as file:
            file.write("rename s/u8/w/\n")
        numpy.save("new.npy", numpy.array([7], "u1"))
        options = {"edits": ["rename s/u8/w/"]}, {"edit": "e.txt"}, {"edits": ["add new.npy as w"], "cache_dir": "cache"}
        opened = [stfs.open("m.safetensors", **each) for each in options]
        pickled = [pickle.dumps(m) for m in opened]
        os.remove("e.txt")  # the pickle contains the edits
        os.chdir("/")
        opened[0].save(self.at("out.safetensors"))
        self.assertEqual(bytes(stfs.open(self.at("out.safetensors"))["w"]), bytes(opened[0]["w"]))
        self.assertTrue(in_child(lambda: bytes(opened[0]["w"])))
        for m, data in zip(opened, pickled):
            copy = pickle.loads(data)
            self.assertEqual((bytes(copy["w"]), copy.version), (bytes(m["w"]), m.version))
        self.assertEqual(stfs.open(self.path, edits=["rename s/u8/w/"]).version, opened[0].version)

    def test_spawned_and_forked_processes_read(self):
        tensor = stfs.open(self.path)["f32"]
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            self.assertEqual(pool.apply(bytes, (tensor,)), ARRAYS["f32"][1].tobytes())
        self.assertTrue(in_child(lambda: numpy.testing.assert_array_equal(tensor.numpy(copy=True), ARRAYS["f32"][1])))

    def test_pool_of_forked_processes_reads(self):
        tensors = [each for each in stfs.open(self.path).values()]
        with multiprocessing.get_context("fork").Pool(3) as pool:
            self.assertEqual(pool.map(bytes, tensors), [array.tobytes() for _, array in ARRAYS.values()])

    def test_forked_children_read_every_kind_of_checkpoint_despite_threads(self):
        numpy.savez_compressed(self.at("m.npz"), a=numpy.tile(numpy.arange(256, dtype="u1"), 1 << 14))
        kinds = [(self.path, {}), (self.at("m.npz"), {}), (self.path, {"edits": ["cast f32 BF16"]}),
                 (write_q8_0(self.at("m.gguf")), {"dequantize": "f32"})]
        for source, options in kinds:
            with self.subTest(source):
                m = stfs.open(source, **options)
                part = m[list(m)[0]][-1:]
                # A forked child reopens a computed checkpoint, because its caches have locks.
                is_computed = source.endswith(".npz") or bool(options)

                def opened():
                    fds = [f"/proc/self/fd/{fd}" for fd in os.listdir("/proc/self/fd")]
                    return sum(os.path.exists(fd) and os.path.realpath(fd) == source for fd in fds)

                expected, has_ended = bytes(part), threading.Event()

                def read():
                    while not has_ended.is_set():
                        bytes(part)
                        m.info()

                threads = [threading.Thread(target=read) for _ in range(3)]
                for thread in threads:
                    thread.start()
                try:
                    for _ in range(10):
                        self.assertTrue(in_child(lambda: self.assertEqual((bytes(part), m.info()["tensors"], opened()),
                                                                          (expected, len(m), 1 + is_computed))))
                finally:
                    has_ended.set()
                    for thread in threads:
                        thread.join()

    def test_forked_child_rejects_other_version(self):
        """A forked child reopens a computed checkpoint by its name."""
        for name, options in ("m.npz", {}), ("m.safetensors", {"edits": ["cast w BF16"]}):
            with self.subTest(name):
                def write(path, first):
                    w = numpy.arange(first, first + 100, dtype="f4")
                    numpy.savez_compressed(path, w=w) if name.endswith(".npz") else write_checkpoint(path, {"w": ("F32", w)})

                write(self.at(name), 0)
                w = stfs.open(self.at(name), **options)["w"]
                expected = bytes(w)
                self.assertTrue(in_child(lambda: self.assertEqual(bytes(w), expected)))
                write(self.at("new-" + name), 1)
                os.replace(self.at("new-" + name), self.at(name))

                self.assertTrue(in_child(lambda: self.assertRaises(OSError, bytes, w)))

    def test_read_fails_if_one_of_its_threads_fails(self):
        """The checksum of the last of many pieces is wrong."""
        numpy.savez_compressed(self.at("m.npz"), w=numpy.random.default_rng(1).integers(0, 255, 5 << 20, dtype="u1"))
        with open(self.at("m.npz"), "r+b") as file:
            data = bytearray(file.read())
            data[data.rindex(b"PK\1\2") + 16] ^= 1  # the checksum in the directory
            file.seek(0)
            file.write(data)
        w = stfs.open(self.at("m.npz"))["w"]
        self.assertEqual(len(bytes(w[: 4 << 20])), 4 << 20)
        with self.assertRaises(OSError):
            bytes(w)

    def test_child_saves_and_grandchild_reads(self):
        m = stfs.open(self.path)
        out = self.at("out.safetensors")
        self.assertTrue(in_child(lambda: (m.save(out), in_child(lambda: bytes(m["f32"])) or os._exit(1))))
        self.assertEqual(bytes(stfs.open(out)["f32"]), bytes(m["f32"]))

    def test_forked_child_computes_tensor(self):
        w = stfs.open(write_q8_0(self.at("m.gguf")), dequantize="f32")["w"]
        self.assertTrue(in_child(lambda: self.assertEqual(bytes(w), (numpy.arange(-16, 16, dtype="f4") / 2).tobytes())))

    def test_signal_handler_does_not_change_text_of_interrupted_call(self):
        """Simulates a signal handler at each opcode of Python while a text is read."""
        checkpoint = stfs.open(self.path)
        expected, first = checkpoint.info(), next(iter(checkpoint.values()))

        def at(step):
            left = step

            def trace(frame, event, _):
                nonlocal left
                if "/stfs/" not in frame.f_code.co_filename:
                    return None
                frame.f_trace_opcodes = True
                if event == "opcode":
                    left -= 1
                    if left == -1:
                        sys.settrace(None)
                        first.inputs  # the handler reads its own text
                return trace

            sys.settrace(trace)
            try:
                self.assertEqual(checkpoint.info(), expected)
            finally:
                sys.settrace(None)
            return left >= 0

        step = 0
        while not at(step):
            step += 1
        self.assertGreater(step, 10)

    def test_call_succeeds_if_no_thread_starts(self):
        """start_new_thread of gevent makes a greenlet, which runs only when the caller yields."""
        run_python("""
            import _thread, stfs, sys
            _thread.start_new_thread = lambda *_: 1
            stfs.open(sys.argv[1]).save(sys.argv[2])
        """, self.path, self.at("saved.safetensors"))
        self.assertEqual(list(stfs.open(self.at("saved.safetensors"))), list(stfs.open(self.path)))

    def test_exception_at_any_step_leaks_nothing(self):
        class Raised(Exception):
            pass

        class At:
            """Raises at a given step of the package, because a signal handler may run between any two opcodes of Python."""

            def __init__(self, step):
                self.left = step

            def __call__(self, frame, event, _):
                if "/stfs/" not in frame.f_code.co_filename:
                    return None
                frame.f_trace_opcodes = True
                if event == "opcode":
                    if self.left == 0:
                        self.left = -1
                        raise Raised
                    self.left -= 1
                return self

        def held():
            gc.collect()
            files = [os.path.realpath(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd")]
            with open("/proc/self/maps") as maps:
                return (sum(file.startswith(self.directory) for file in files), sum(self.directory in line for line in maps))

        large = write_checkpoint(self.at("large.safetensors"), {"w": ("U8", numpy.full(1 << 20, 7, "u1"))})
        tensor = stfs.open(large)["w"]
        bytes(tensor.memoryview()[:1])
        for name, call in (("open", lambda: stfs.open(self.path)), ("export", tensor.__dlpack__), ("private", tensor._private),
                           ("follow", lambda: stfs._follow._Follower(self.directory, {}))):
            with self.subTest(name):
                call()
                before, step, has_raised = held(), 0, True
                while has_raised:
                    at = At(step)
                    sys.settrace(at)
                    try:
                        call()
                    except Raised:
                        pass
                    finally:
                        sys.settrace(None)
                    has_raised, step = at.left == -1, step + 1
                self.assertGreater(step, 20)
                self.assertEqual(held(), before)

    def test_reads_and_saves_while_python_exits(self):
        code = ("import atexit, os, stfs, sys\n"
                "class AtTheEnd:\n"
                "    def __init__(self, m, directory): self.m, self.directory, self.write = m, directory, os.write\n"
                "    def save(self, name):\n"
                "        self.m.save(self.directory + name)\n"
                "        self.write(1, bytes(self.m['f32'])[:4])\n"
                "    def __del__(self): self.save('/del.safetensors')\n"
                "kept = AtTheEnd(stfs.open(sys.argv[1]), sys.argv[2])\n"
                "atexit.register(lambda: kept.save('/exit.safetensors'))\n")
        done = subprocess.run([sys.executable, "-c", code, self.path, self.directory], timeout=60, capture_output=True,
                              check=True)
        self.assertEqual((done.stdout, done.stderr), (ARRAYS["f32"][1].tobytes()[:4] * 2, b""))
        for name in "exit.safetensors", "del.safetensors":
            self.assertEqual(bytes(stfs.open(self.at(name))["f32"]), ARRAYS["f32"][1].tobytes())

    def test_exception_in_signal_handler_ends_save(self):
        class Raised(Exception):
            pass

        def handler(*_):
            raise Raised

        # In Fortran order, each piece of 8 MiB decompresses the whole array.
        numpy.savez_compressed(self.at("m.npz"), a=numpy.zeros((8192, 8192), "u1").T)
        m = stfs.open(self.at("m.npz"))
        began = time.process_time()
        m.save(self.at("whole.safetensors"))
        whole = time.process_time() - began
        m = stfs.open(self.at("m.npz"))  # opened again, so that nothing is computed yet
        before = signal.signal(signal.SIGPROF, handler)
        began = time.process_time()
        try:
            with self.assertRaises(Raised):
                signal.setitimer(signal.ITIMER_PROF, whole / 10)
                m.save(self.at("out.safetensors"))
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
            signal.signal(signal.SIGPROF, before)
        self.assertLess(time.process_time() - began, whole / 2)
        self.assertEqual([name for name in os.listdir(self.directory) if "out" in name or name.startswith(".stfs")], [])

    def test_import_starts_no_thread_and_loads_no_framework(self):
        code = ("import sys, threading, os; import stfs; "
                "assert 'numpy' not in sys.modules and 'torch' not in sys.modules; "
                "assert len(os.listdir('/proc/self/task')) == 1; print(stfs.__version__)")
        printed = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
        self.assertEqual(printed.strip(), stfs.version())

    def test_local_read_opens_no_credentials(self):
        for name in (".aws/credentials", ".aws/config", ".cache/huggingface/token", ".huggingface/token", ".netrc"):
            os.makedirs(os.path.dirname(self.at(name)), exist_ok=True)
            os.mkfifo(self.at(name))  # opening it blocks for ever
        environment = {key: value for key, value in os.environ.items() if not key.startswith(("AWS_", "HF_", "XDG_"))}
        subprocess.run([sys.executable, "-c", "import stfs, sys; bytes(stfs.open(sys.argv[1])['f32'])", self.path],
                       check=True, env={**environment, "HOME": self.directory})

    def test_process_exits_while_arrays_live(self):
        code = ("import stfs, sys, numpy; kept = [t.numpy() for t in stfs.open(sys.argv[1]).values()]; "
                "more = stfs.open(sys.argv[1])['f32'].memoryview(); numpy.kept = kept, more")
        subprocess.run([sys.executable, "-c", code, self.path], check=True)

    def test_accepts_names_with_any_bytes(self):
        path = write_checkpoint(self.at("n.safetensors"), dict.fromkeys(["n\0l", "", "ü\n"], ARRAYS["u8"]))
        m = stfs.open(path)
        self.assertEqual(list(m), ["n\0l", "", "ü\n"])
        self.assertEqual(bytes(m["n\0l"]), bytes(m[""]))
        self.assertNotIn("\n", repr(m["ü\n"]))
        m = stfs.open(write_q8_0(self.at("n.gguf"), b"n\xff/.."))
        self.assertEqual([os.fsencode(name) for name in m], [b"n\xff/.."])
        for copy in (m[next(iter(m))], pickle.loads(pickle.dumps(m))[m.match("n*")[0]]):
            self.assertEqual(len(bytes(copy)), 34)


class LayersTest(Base):
    def test_edits_are_shown_and_saved(self):
        edited = stfs.open(self.path, edits=["rename s/f32/renamed/", "cast renamed f64", "metadata title new"])
        expected = ARRAYS["f32"][1].astype("<f8")
        numpy.testing.assert_array_equal(edited["renamed"].numpy(), expected)
        out = self.at("out.safetensors")
        self.assertEqual(edited.save(out) % 4096, 0)
        saved = stfs.open(out)
        self.assertEqual((set(saved), saved.metadata["title"]), (set(edited), "new"))
        numpy.testing.assert_array_equal(saved["renamed"].numpy(), expected)
        with self.assertRaisesRegex(stfs.Error, "already exists.*`replace`"):
            edited.save(out)
        with self.assertRaisesRegex(ValueError, "shard_size -1"):
            edited.save(self.at("shards"), shard_size=-1)
        edited.save(out, replace=True)
        with self.assertRaisesRegex(stfs.Error, "a file of the source"):
            edited.save(self.path, replace=True)
        with self.assertRaisesRegex(stfs.Error, "line 1: .*matches no name"):
            stfs.open(self.path, edits=["drop nothing"])

    def test_sharded_save_keeps_every_tensor(self):
        directory = self.at("shards")
        stfs.open(self.path).save(directory, shard_size=100)
        self.assertIn("model.safetensors.index.json", os.listdir(directory))
        again = stfs.open(directory)
        self.assertEqual({name: bytes(again[name]) for name in again},
                         {name: bytes(each) for name, each in stfs.open(self.path).items()})

    def test_saves_source_replaced_by_rename(self):
        opened = stfs.open(self.path)
        os.rename(write_checkpoint(self.at("new"), {"other": ARRAYS["u8"]}), self.path)
        opened.save(self.at("out.safetensors"))
        saved = stfs.open(self.at("out.safetensors"))
        self.assertEqual({name: bytes(saved[name]) for name in saved}, {n: a.tobytes() for n, (_, a) in ARRAYS.items()})
        with self.assertRaisesRegex(stfs.Error, "open it again"):
            opened.save(self.at("directory"))  # a directory also gets the other files, which may belong to another model

    def test_interrupted_save_leaves_whole_file_or_none(self):
        large = write_checkpoint(self.at("large.safetensors"), {"w": ("U8", numpy.ones(32 << 20, "u1"))})
        out = self.at("saved/out.safetensors")
        os.mkdir(self.at("saved"))
        code = ("import stfs, sys\n"
                "m = stfs.open(sys.argv[1])\n"
                "try:\n print('open', flush=True)\n m.save(sys.argv[2])\n"
                "except KeyboardInterrupt:\n print('interrupted')\n"
                "else:\n print('saved')\n")
        child = subprocess.Popen([sys.executable, "-c", code, large, out], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                 text=True)
        self.assertEqual(child.stdout.readline(), "open\n")
        child.send_signal(signal.SIGINT)
        child.communicate()
        left = os.listdir(self.at("saved"))
        self.assertIn(left, ([], ["out.safetensors"]))  # the signal may arrive after the file is complete
        if left:
            self.assertEqual(bytes(stfs.open(out)["w"]), bytes(stfs.open(large)["w"]))

    def test_adapters_are_merged(self):
        adapter = self.at("adapter")
        os.mkdir(adapter)
        with open(os.path.join(adapter, "adapter_config.json"), "w") as file:
            json.dump({"peft_type": "LORA", "r": 1, "lora_alpha": 2}, file)
        checkpoint = write_checkpoint(self.at("base.safetensors"), {"q.weight": ("F32", numpy.zeros((2, 3), "<f4"))})
        write_checkpoint(os.path.join(adapter, "adapter_model.safetensors"), {
            "base_model.model.q.lora_A.weight": ("F32", numpy.array([[1, 2, 3]], "<f4")),
            "base_model.model.q.lora_B.weight": ("F32", numpy.array([[1], [-1]], "<f4"))})
        merged = stfs.open(checkpoint, lora=[adapter, "0.5@" + adapter])
        numpy.testing.assert_array_equal(merged["q.weight"].numpy(), [[3, 6, 9], [-3, -6, -9]])
        again = pickle.loads(pickle.dumps(merged))
        numpy.testing.assert_array_equal(again["q.weight"].numpy(), [[3, 6, 9], [-3, -6, -9]])

    def test_saved_directory_has_adapted_config(self):
        os.mkdir(self.at("model"))
        with open(self.at("model/config.json"), "w") as file:
            file.write('{"torch_dtype":"float32","num_hidden_layers":2}')
        write_checkpoint(self.at("model/model.safetensors"),
                         {f"layers.{i}.w": ("F32", numpy.ones((2, 3), "<f4")) for i in range(2)})
        opened = stfs.open(self.at("model"), edits=["cast * F16", "drop layers.1.*"])
        with self.assertWarnsRegex(Warning, '"num_hidden_layers" is 2, but the tensors have 1 of "layers"'):
            opened.save(self.at("out"))
        with open(self.at("out/config.json")) as file:
            self.assertEqual(file.read(), '{"torch_dtype":"float16","num_hidden_layers":2}')

    def test_changed_source_is_not_saved(self):
        opened = stfs.open(self.path)
        write_checkpoint(self.path, {"other": ARRAYS["u8"]})
        with self.assertRaises(stfs.Error):
            opened.save(self.at("out.safetensors"))
        self.assertFalse(os.path.exists(self.at("out.safetensors")))


class TensorTest(Base):
    def setUp(self):
        super().setUp()
        self.m = stfs.open(self.path)

    def test_has_name_type_shape_and_place(self):
        t = self.m["f32"]
        self.assertEqual((t.name, t.dtype, t.shape, t.nbytes, t.elements, len(t)), ("f32", "F32", (4, 6), 96, 24, 4))
        self.assertEqual((t.source, t.inputs, repr(t)), (self.path, [], "<stfs.Tensor 'f32' F32 [4,6]>"))
        with open(self.path, "rb") as file:
            file.seek(t[2].offset)
            self.assertEqual(file.read(t[2].nbytes), ARRAYS["f32"][1][2].tobytes())
        self.assertIsNone(t[:, ::2].offset)

    def test_arrays_equal_tensor_and_views_are_readonly(self):
        for name, (dtype, array) in ARRAYS.items():
            with self.subTest(name):
                got = self.m[name].numpy()
                expected = array if dtype != "BF16" else array.view(got.dtype)
                self.assertEqual(got.tobytes(), expected.tobytes())
                self.assertEqual(got.shape, array.shape)
                if dtype == "U8":  # other types may be unaligned and are then copied
                    self.assertFalse(got.flags.writeable)
                self.assertTrue(self.m[name].numpy(copy=True).flags.writeable)
                self.assertEqual(bytes(self.m[name]), array.tobytes())
                self.assertEqual(bytes(self.m[name].memoryview()), array.tobytes())
        self.assertTrue(self.m["u8"].memoryview().readonly)

    def test_aligned_view_is_not_a_copy_and_keeps_its_memory(self):
        path = write_checkpoint(self.at("a.safetensors"), {"a": ("U8", numpy.arange(256, dtype="u1"))})
        one, other = stfs.open(path)["a"], None
        view = one.numpy()
        other = one.numpy()
        self.assertEqual(view.__array_interface__["data"], other.__array_interface__["data"])
        strided = one[::3].numpy()
        self.assertEqual(strided.strides, (3,))
        del one, other
        gc.collect()
        numpy.testing.assert_array_equal(view, numpy.arange(256, dtype="u1"))
        numpy.testing.assert_array_equal(strided, numpy.arange(0, 256, 3, dtype="u1"))

    def test_nothing_makes_a_view_writable(self):
        t = stfs.open(write_checkpoint(self.at("a.safetensors"), {"a": ("U8", numpy.arange(256, dtype="u1"))}))["a"]
        memory = t.memoryview()
        views = [t.numpy(), t[::3].numpy(), t[3:].numpy(), numpy.asarray(t), numpy.asarray(memory),
                 numpy.frombuffer(memory, "u1"), numpy.ndarray((256,), "u1", memory)]
        while len(views) < 20 and isinstance(views[-1].base, numpy.ndarray):
            views.append(views[-1].base)
        for view in views:
            for change in (lambda: view.setflags(write=True), lambda: view.__setitem__(0, 1),
                           lambda: view[:].view("V1").setflags(write=True)):
                with self.assertRaises(ValueError):
                    change()
        for change in (lambda: memory.__setitem__(0, 1), lambda: ctypes.c_char.from_buffer(memory),
                       lambda: ctypes.c_char.from_buffer(memory.obj)):
            with self.assertRaises(TypeError):
                change()
        numpy.testing.assert_array_equal(t.numpy(), numpy.arange(256, dtype="u1"))

    def test_unaligned_tensors_are_copied_or_read(self):
        byte = ("U8", numpy.array([7], "u1"))
        large = numpy.random.default_rng(4).standard_normal((512, 512))
        path = write_checkpoint(self.at("odd.safetensors"), {"b": byte, "x": ("F64", large), "c": byte, "y": ("F64", large)})
        m = stfs.open(path)
        self.assertNotEqual(m["x"].offset % 8, m["y"].offset % 8)
        for name in "x", "y":
            t = m[name]
            for got in (t.numpy(), numpy.asarray(t), numpy.from_dlpack(t), t[::2, 1:].numpy(), t.numpy("f32")):
                self.assertTrue(got.flags.aligned)
                numpy.testing.assert_array_equal(got, (large if got.shape == (512, 512) else large[::2, 1:]).astype(got.dtype))
            self.assertEqual(bytes(t.memoryview()), large.tobytes())

    def test_values_as_float32(self):
        numpy.testing.assert_array_equal(self.m["bf16"].numpy(as_="f32"), numpy.array([1, -2.5], "f4"))
        numpy.testing.assert_array_equal(self.m["f16"].numpy("f32"), ARRAYS["f16"][1].astype("f4"))
        w = stfs.open(write_q8_0(self.at("m.gguf")))["w"]
        numpy.testing.assert_array_equal(w.numpy("f32"), numpy.arange(-16, 16, dtype="f4") / 2)
        numpy.testing.assert_array_equal(w[5:20:3].numpy("f32"), (numpy.arange(-16, 16, dtype="f4") / 2)[5:20:3])
        self.assertEqual((w.dtype, w.nbytes), ("Q8_0", 34))
        for error, call in ((TypeError, w.numpy), (ValueError, lambda: self.m["i64"].numpy("f32")),
                            (ValueError, lambda: w.numpy("f16")), (ValueError, lambda: bytes(w[1:3]))):
            with self.assertRaises(error):
                call()

    def test_indexing_equals_numpy(self):
        array, t = ARRAYS["f32"][1], self.m["f32"]
        for key in (0, -1, slice(1, 3), (slice(None), 2), (..., slice(0, 6, 4)), (1, 2), (slice(3, 1),), ..., (),
                    (slice(-2, 100), slice(None, None, 5)), (numpy.int64(1),)):
            with self.subTest(key):
                for got in (t[key].numpy(), t[key].numpy(copy=True), t[key].numpy(as_="f32")):
                    numpy.testing.assert_array_equal(got, array[key])
                self.assertEqual(t[key].shape, array[key].shape)
                self.assertEqual(bytes(t[key]), array[key].tobytes())
        numpy.testing.assert_array_equal(t[1:][::2, 1:][1, ::3].numpy(), array[1:][::2, 1:][1, ::3])
        for key, error in ((4, IndexError), (-5, IndexError), ((0, 0, 0), IndexError), ((..., ...), IndexError),
                           (slice(None, None, -1), ValueError), (None, TypeError), ([0, 1], TypeError),
                           (True, TypeError), (1.0, TypeError)):
            with self.subTest(key), self.assertRaises(error):
                t[key]

    def test_rejects_arrays_and_masks_as_index(self):
        for key in (numpy.array([1]), numpy.array(True), numpy.bool_(True), numpy.array([True] * 4)):
            with self.subTest(key), self.assertRaises(TypeError):
                self.m["f32"][key]
        scalar = self.m["i64"]
        for part in (scalar[()], scalar[...]):
            self.assertEqual(part.numpy(copy=True), -5)

    def test_rejects_raw_bytes_of_half_byte_element(self):
        packed = types.SimpleNamespace(shape=(2, 2), tobytes=lambda: b"\x21\x43")
        w = stfs.open(write_checkpoint(self.at("f4.safetensors"), {"w": ("F4", packed)}))["w"]
        numpy.testing.assert_array_equal(w.numpy("f32"), [[0.5, 1.0], [1.5, 2.0]])
        for call in (lambda: w[0, 1].nbytes, lambda: bytes(w[0, 1]), lambda: w[0, 1].memoryview()):
            with self.assertRaises(ValueError):
                call()
        self.assertIsNone(w[0, 1].offset)

    def test_finalizer_in_reference_cycle_may_read(self):
        read = []

        class Cycle:
            def __init__(self, tensor):
                self.tensor, self.view, self.me = tensor, tensor.memoryview(), self

            def __del__(self):
                read.append((bytes(self.tensor), bytes(self.view)))

        Cycle(stfs.open(self.path)["f64"])
        gc.collect()
        self.assertEqual(read, [(ARRAYS["f64"][1].tobytes(),) * 2])

    def test_unused_dlpack_export_keeps_current_exception(self):
        with self.assertRaises(ZeroDivisionError):
            [self.m["f64"].__dlpack__(), 1 / 0]

    def test_read_succeeds_if_threads_cannot_start(self):
        large = numpy.random.default_rng(3).integers(1, 256, 8 << 20, dtype="u1")
        path = write_checkpoint(self.at("large.safetensors"), {"w": ("U8", large)})
        code = "import stfs, sys; sys.stdout.buffer.write(bytes(stfs.open(sys.argv[1])['w']))"
        failing = {"LD_PRELOAD": os.environ["STFS_FAILING_CALLS"], "STFS_FAIL_CALL": "pthread_create",
                   "STFS_FAIL_AT": "1", "STFS_FAIL_ON": "1"}
        done = subprocess.run([sys.executable, "-c", code, path], check=True, stdout=subprocess.PIPE,
                              env={**os.environ, **failing})
        self.assertEqual(done.stdout, large.tobytes())

    def test_reads_into_buffer(self):
        t = self.m["f32"]
        buffer = bytearray(100)
        self.assertEqual(t.readinto(buffer), 96)
        self.assertEqual(bytes(buffer), ARRAYS["f32"][1].tobytes() + bytes(4))
        out = numpy.empty((4, 6), "f4")
        t.readinto(out)
        numpy.testing.assert_array_equal(out, ARRAYS["f32"][1])
        for wrong, error in ((bytearray(3), ValueError), (bytes(96), TypeError), (out.T, BufferError)):
            with self.assertRaises(error):
                t.readinto(wrong)

    def test_iterates_over_first_dimension_and_rejects_slow_search(self):
        self.assertEqual([row.shape for row in self.m["f32"]], [(6,)] * 4)
        for call in (lambda: list(self.m["i64"]), lambda: 3 in self.m["u8"]):
            with self.assertRaises(TypeError):
                call()
        with self.assertRaisesRegex(ValueError, "a list of names"):
            self.m.prefetch("u8")

    def test_numpy_accepts_tensor(self):
        numpy.testing.assert_array_equal(numpy.asarray(self.m["f64"]), ARRAYS["f64"][1])
        numpy.testing.assert_array_equal(numpy.from_dlpack(self.m["f16"]), ARRAYS["f16"][1])
        self.assertEqual(numpy.asarray(self.m["f64"], dtype="f4").dtype, numpy.float32)
        numpy.testing.assert_array_equal(numpy.asarray(self.m["bf16"], dtype="f8"), [1, -2.5])
        self.m["f16"].__dlpack__()  # dropped without a consumer
        with self.assertRaises(BufferError):
            stfs.open(write_q8_0(self.at("m.gguf")))["w"].__dlpack__()

    def test_unmaps_only_memory_of_large_tensor(self):
        # munmap(2) of address 0 would unmap the program itself if it is linked to low addresses, like Debian's Python.
        large = numpy.random.default_rng(2).integers(1, 256, 16 << 20, dtype="u1")
        path = write_checkpoint(self.at("large.safetensors"), {"w": ("U8", large)})
        for _ in range(3):
            w = stfs.open(path)["w"]
            array = numpy.from_dlpack(w)
            del w
            gc.collect()
            numpy.testing.assert_array_equal(array, large)
            del array
        self.assertNotIn(b"large.safetensors", contents("/proc/self/maps"))

    def test_private_memory_of_all_tensors_is_one_mapping(self):
        count, size = 60, 300_000  # bytes, so that only the first tensor begins at a page
        arrays = {f"t{i}": ("U8", numpy.full(size, i % 251, "u1")) for i in range(count)}
        path = write_checkpoint(self.at("many.safetensors"), arrays)
        m = stfs.open(path)

        def mappings():
            return contents("/proc/self/maps").count(b"many.safetensors")

        def private(tensor):  # as torch() uses it
            return numpy.frombuffer(tensor._private(), "u1")

        before = mappings()
        kept = [private(tensor) for tensor in m.values()]
        self.assertLessEqual(mappings(), before + 1)
        second = private(m["t7"])
        kept[7][:] = 255  # no other array may show this
        for array, i in ((kept[6], 6), (kept[8], 8), (second, 7), (private(m["t7"]), 7)):
            self.assertTrue((array == i).all())
        for i in range(0, count, 2):
            kept[i][:] = 255
        del kept[::2], array, second
        gc.collect()
        for i in range(0, count, 2):  # reused memory shows the file again
            self.assertTrue((private(m[f"t{i}"]) == i % 251).all(), i)
        self.assertTrue((private(m["t8"][5_000:-5_000]) == 8).all())
        self.assertTrue((kept[3] == 255).all())  # t7
        self.assertLessEqual(mappings(), before + 3)
        del m
        gc.collect()
        self.assertTrue((kept[5] == 11).all())
        del kept
        gc.collect()
        self.assertEqual(mappings(), 0)

    def test_sixteen_threads_share_checkpoint(self):
        wrong = []

        def read():
            for _ in range(20):
                for name, (_, array) in ARRAYS.items():
                    if bytes(self.m[name]) != array.tobytes():
                        wrong.append(name)

        threads = [threading.Thread(target=read) for _ in range(16)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(wrong, [])


class FollowTest(Base):
    def publish(self, number):
        version = self.at(f"run/weight_v{number:06d}")
        os.makedirs(version + ".tmp")
        with open(version + ".tmp/model.safetensors.index.json", "w") as index:
            index.write('{"weight_map": {}}')
        os.rename(version + ".tmp", version)
        return version

    def test_yields_versions_when_published(self):
        first, second = self.publish(1), self.publish(2)
        versions = stfs.follow(self.at("run"))
        self.assertEqual([next(versions), next(versions)], [first, second])
        third = self.publish(3)
        self.assertEqual(next(versions), third)
        self.assertEqual(list(stfs.follow(self.at("run"), latest=True)), [third])
        with self.assertRaises(stfs.Unreadable):
            next(stfs.follow(self.at("run"), latest=True, marker="STABLE"))

    def test_absent_directory_is_warning(self):
        versions = stfs.follow(self.at("run"))
        with self.assertWarnsRegex(UserWarning, "trying again") as warned:
            threading.Timer(0.1, self.publish, [1]).start()
            self.assertEqual(next(versions), self.at("run/weight_v000001"))
        self.assertEqual(len(warned.warnings), 1)
        for directory, options in (("https://127.0.0.1:1/run", {}), ("run", {"marker": "a/b"}), ("run", {"no": 1})):
            with self.assertRaises(stfs.UsageError):
                next(stfs.follow(directory, **options))

    def test_control_c_ends_wait(self):
        self.publish(1)
        code = ("import stfs, sys\n"
                "try:\n"
                " for version in stfs.follow(sys.argv[1]): print('found', flush=True)\n"
                "except KeyboardInterrupt:\n print('interrupted')\n")
        child = subprocess.Popen([sys.executable, "-c", code, self.at("run")], stdout=subprocess.PIPE, text=True)
        self.assertEqual(child.stdout.readline(), "found\n")
        child.send_signal(signal.SIGINT)
        self.assertEqual(child.communicate()[0], "interrupted\n")


class RemoteTest(RemoteBase):
    def test_reads_views_and_slices(self):
        self.server.gate.set()
        w = self.open()["w"]
        numpy.testing.assert_array_equal(w[1_500_000:1_500_010].numpy(), self.large[1_500_000:1_500_010])
        numpy.testing.assert_array_equal(w[::100_000].numpy(), self.large[::100_000])
        numpy.testing.assert_array_equal(w.numpy(), self.large)

    def test_forked_child_opens_its_own_connections(self):
        m = self.open()
        self.server.gate.set()
        self.assertEqual(bytes(m["w"][:4]), self.large[:4].tobytes())
        self.assertTrue(in_child(lambda: numpy.testing.assert_array_equal(m["w"].numpy(copy=True), self.large)))
        self.assertEqual(bytes(m["w"]), self.large.tobytes())

    @unittest.skipUnless(os.geteuid() == 0, "needs a namespace of processes")
    def test_forked_child_with_same_pid_opens_its_own_connections(self):
        code = ("import ctypes, os, stfs, sys\n"
                "m = stfs.open(sys.argv[1], cache_dir=sys.argv[2])\n"
                "first = bytes(m['w'][:4])\n"
                "assert os.getpid() == 1 and ctypes.CDLL(None).unshare(0x20000000) == 0  # CLONE_NEWPID\n"
                "if os.fork() == 0:\n"
                " assert os.getpid() == 1 and len(bytes(m['w'])) == 2_000_000\n"
                " del m\n"
                " os._exit(0)\n"
                "os._exit(os.wait()[1] != 0)\n")
        self.server.gate.set()
        subprocess.run(["unshare", "--pid", "--fork", "--kill-child", sys.executable, "-c", code, self.url, self.at("cache")],
                       check=True, timeout=120)  # a timeout here, because process 1 of a namespace ignores its alarm

    def test_pickle_never_contains_secret(self):
        self.server.gate.set()
        signed = self.url + "?X-Amz-Signature=SECRET"
        for m in (self.open(signed), self.open(self.path, edits=[f"add {signed}::w as x"]),
                  self.open(self.path, edits=[f"add '{signed}::w' as 'x y'"])):
            for each in (m, m[list(m)[0]]):
                with self.assertRaisesRegex(ValueError, "a pickle may hold no secret: open it in the other process") as raised:
                    pickle.dumps(each)
                self.assertNotIn("SECRET", str(raised.exception))
            self.assertTrue(in_child(lambda: [bytes(tensor) for tensor in m.values()]))
        for m in self.open(), self.open(self.path, edits=[f"add {self.url}::w as x"]):
            self.assertEqual(list(pickle.loads(pickle.dumps(m))), list(m))

    def test_other_processes_read_same_version(self):
        self.server.gate.set()
        part = self.open()["w"][1_500_000:1_500_100]
        for how in "fork", "spawn":
            with multiprocessing.get_context(how).Pool(1) as pool:
                self.assertEqual(pool.map(bytes, [part] * 4), [self.large[1_500_000:1_500_100].tobytes()] * 4)

    def test_changed_object_is_error_and_never_other_bytes(self):
        self.server.gate.set()
        w = self.open()["w"]
        first = bytes(w[:10])
        write_checkpoint(self.server.file, {"w": ("U8", self.large[::-1])})
        self.server.tag = '"v2"'
        for call in (lambda: w[1_500_000:].numpy(), lambda: bytes(w), lambda: w.numpy("f32")):
            with self.assertRaises(stfs.Error) as raised:
                call()
        self.assertEqual(bytes(w[:10]), first)  # these bytes are cached

    def test_sixteen_threads_read_correct_bytes(self):
        self.server.gate.set()
        w, wrong = self.open()["w"], []

        def read(begin):
            for at in range(begin, 2_000_000 - 1000, 90_000):
                if bytes(w[at:at + 1000]) != self.large[at:at + 1000].tobytes():
                    wrong.append(at)

        threads = [threading.Thread(target=read, args=(1000 * i,)) for i in range(16)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(wrong, [])

    def test_process_exits_while_thread_waits(self):
        code = ("import stfs, sys, threading\n"
                "w = stfs.open(sys.argv[1], cache_dir=sys.argv[2])['w']\n"
                "threading.Thread(target=lambda: bytes(w), daemon=True).start()\n")
        subprocess.run([sys.executable, "-c", code, self.url, self.at("cache")], check=True)

    def test_cancel_ends_waits_of_other_threads(self):
        m = self.open()
        ended = []

        def read():
            try:
                bytes(m["w"])
            except stfs.Cancelled as error:
                ended.append(error)

        thread = threading.Thread(target=read)
        thread.start()
        while thread.is_alive():
            m.cancel()
            thread.join(0.01)
        self.assertEqual(len(ended), 1)

    def test_cancel_ends_waiting_delta(self):
        local = write_checkpoint(self.at("other.safetensors"), {"w": ("U8", self.large[::-1])})
        for before, after in ((stfs.open(local), self.open()), (self.open(), stfs.open(local))):
            ended = []

            def save():
                try:
                    after.save_delta(self.at("weight_v000001"), before)
                except stfs.Cancelled as error:
                    ended.append(error)

            thread = threading.Thread(target=save)
            thread.start()
            while thread.is_alive():
                after.cancel()
                thread.join(0.01)
            self.assertEqual(len(ended), 1)
            self.assertFalse(os.path.exists(self.at("weight_v000001")))

    def test_exception_in_signal_handler_ends_read_before_it_propagates(self):
        class Raised(BaseException):
            pass

        for kind in KeyboardInterrupt, Raised:
            with self.subTest(kind):
                self.server.gate.clear()
                handled, has_ended = [], threading.Event()

                def handler(_, frame):
                    handled.append(1)
                    if "/stfs/" in frame.f_code.co_filename:
                        raise kind

                def interrupt():  # repeatedly, and also while the call is being cancelled
                    while not has_ended.wait(0.0001):
                        os.kill(os.getpid(), signal.SIGUSR1)

                before = signal.signal(signal.SIGUSR1, handler)
                sender = threading.Thread(target=interrupt)
                m = stfs.open(self.url, cache_dir=self.at(f"cache-{kind.__name__}"))
                buffer = bytearray(m["w"].nbytes)
                try:
                    sender.start()
                    m["w"].readinto(buffer)
                except kind:
                    has_ended.set()
                finally:
                    has_ended.set()
                    sender.join()
                    signal.signal(signal.SIGUSR1, before)
                self.assertTrue(handled)
                seen = bytes(buffer)
                self.server.gate.set()
                self.assertEqual(bytes(m["w"]), self.large.tobytes())  # the abandoned read gets its bytes as well
                self.assertEqual(buffer, seen)
                self.assertNotEqual(buffer, self.large.tobytes())
                buffer.append(0)  # raises BufferError if an export still exists

    def test_child_forked_by_signal_handler_gets_error(self):
        for ends in False, True:  # whether the handler in the child raises SystemExit
            with self.subTest(ends=ends):
                self.server.gate.clear()
                self.server.waits.clear()
                parent, children = os.getpid(), []

                def handler(*_):
                    child = os.fork()
                    if child:
                        children.append(child)
                        self.server.gate.set()
                    elif ends:
                        raise SystemExit

                def interrupt():
                    self.server.waits.wait()
                    os.kill(parent, signal.SIGUSR1)

                before = signal.signal(signal.SIGUSR1, handler)
                m = stfs.open(self.url, cache_dir=self.at(f"cache-{ends}"))
                sender = threading.Thread(target=interrupt)
                sender.start()
                try:
                    self.assertEqual(bytes(m["w"]), self.large.tobytes())
                except (stfs.Error, SystemExit) as error:
                    if os.getpid() == parent:
                        raise
                    is_right = isinstance(error, SystemExit) if ends else "forked while this call waited" in str(error)
                    os._exit(0 if is_right else 1)
                finally:
                    signal.signal(signal.SIGUSR1, before)
                self.assertEqual(os.waitpid(children[0], 0)[1], 0)

    def test_control_c_ends_wait(self):
        code = ("import stfs, sys\n"
                "m = stfs.open(sys.argv[1], cache_dir=sys.argv[2])\n"
                "try:\n print('open', flush=True)\n bytes(m['w'])\n"
                "except KeyboardInterrupt:\n print('interrupted')\n")
        child = subprocess.Popen([sys.executable, "-c", code, self.url, self.at("cache")],
                                 stdout=subprocess.PIPE, text=True)
        self.assertEqual(child.stdout.readline(), "open\n")
        child.send_signal(signal.SIGINT)
        self.assertEqual(child.communicate()[0], "interrupted\n")


if __name__ == "__main__":
    warnings.simplefilter("error", ResourceWarning)
    unittest.main()
