"""Adapters as PEFT writes them, compared bit for bit with NumPy, and the files next to the weights that must match."""

import json
import os
import pathlib
import tempfile
import unittest

import numpy

from checkpoints import read, run, to_bf16, write

RANDOM = numpy.random.default_rng(11)
H, V, R, E = 8, 20, 2, 3
Q = "model.layers.0.self_attn.q_proj"
EXPERTS = "model.layers.0.mlp.experts"
LLAMA = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": V}
TIED = {**LLAMA, "tie_word_embeddings": True}


def some(*shape):
    return RANDOM.standard_normal(shape, numpy.float32)


def update(weight, a, b, scale, transposed=False):
    """Returns W + s·B·A, summed in ascending k without fused operations."""
    total = numpy.zeros((len(b), a.shape[1]), numpy.float32)
    for k in range(len(a)):
        total += b[:, k:k + 1] * a[k:k + 1, :]
    total *= numpy.float32(scale)
    return weight + (total.T if transposed else total)


def lora(module, inputs=H, outputs=H, rank=R, prefix="base_model.model."):
    return {f"{prefix}{module}.lora_A.weight": some(rank, inputs), f"{prefix}{module}.lora_B.weight": some(outputs, rank)}


class Adapters(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.work = pathlib.Path(directory.name)
        self.out = self.work / "out"

    def base(self, tensors=None, config=LLAMA, dtype="F32"):
        tensors = tensors or {"model.embed_tokens.weight": some(V, H), f"{Q}.weight": some(H, H), "model.norm.weight": some(H)}
        directory = self.work / "base"
        directory.mkdir()
        write(directory / "model.safetensors",
              {name: (dtype, to_bf16(each) if dtype == "BF16" else each) for name, each in tensors.items()}, {"format": "pt"})
        if config is not None:
            (directory / "config.json").write_text(json.dumps(config))
        return tensors

    def adapter(self, tensors, name="adapter", file="adapter_model.safetensors", **config):
        directory = self.work / name
        directory.mkdir(exist_ok=True)
        write(directory / file, {key: (each if isinstance(each, tuple) else ("F32", each)) for key, each in tensors.items()})
        (directory / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", "r": R, "lora_alpha": 2 * R, **config}))
        return directory

    def edited(self, *arguments):
        """Returns the tensors, the config, and the printed text."""
        said = run("edit", self.work / "base", *arguments, "-o", self.out)
        tensors, _ = read(self.out / "model.safetensors")
        config = json.loads((self.out / "config.json").read_text()) if (self.out / "config.json").exists() else None
        return tensors, config, said

    def merged(self, *names):
        return self.edited(*[f"--lora={self.work / name}" for name in names or ("adapter",)])

    def refused(self, path="adapter", option=""):
        return run("list", self.work / "base", f"--lora={option}{self.work / path}", status=1)

    def check(self, tensors, name, expected):
        dtype, shape, data = tensors[name]
        self.assertEqual(shape, expected.shape, name)
        self.assertEqual(data, (to_bf16(expected) if dtype == "BF16" else expected).tobytes(), name)

    # --- replacements of tensors

    def test_checks_replacements(self):
        self.base({"model.embed_tokens.weight": some(V, H), f"{Q}.weight": some(H, H), "model.norm.weight": some(H),
                   "lm_head.weight": some(V, H)})
        head, p = "base_model.model.lm_head.weight", "base_model.model."
        names = {"modules_to_save": ["embed_tokens", "lm_head", "norm"]}
        for tensors, rule in (
                ({head: some(0)}, "placeholder that DeepSpeed's ZeRO-3"),
                ({key: some(0) for key in lora(Q)}, "placeholder that DeepSpeed's ZeRO-3"),
                ({head: some(3, 3, 3)}, 'is [3,3,3], but "lm_head.weight" of the base is [20,8]'),
                ({head: some(V, H + 1)}, "only the first dimension of embeddings and heads"),
                ({head: some(V)}, "only the first dimension of embeddings and heads"),
                ({p + "model.norm.weight": some(H + 1)}, "only the first dimension of embeddings and heads"),
                ({p + Q + ".weight": some(H + 1, H)}, "only the first dimension of embeddings and heads"),
                ({head: ("U8", numpy.zeros((V, H), numpy.uint8))}, "is U8: a replacement must have a floating-point type"),
                ({head: ("I64", numpy.zeros((V, H), numpy.int64))}, "is I64: a replacement must have a floating-point type")):
            with self.subTest(rule=rule, tensors=list(tensors)):
                self.adapter(tensors, **names)
                said = self.refused()
                self.assertIn(rule, said)
                self.assertIn(next(iter(tensors)), said)
        norm, rows = some(H), some(V + 2, H)
        self.adapter({p + "model.norm.weight": norm, p + "model.embed_tokens.weight": rows, head: rows}, **names)
        tensors, config, _ = self.merged()
        self.check(tensors, "model.norm.weight", norm)
        self.check(tensors, "lm_head.weight", rows)
        self.assertEqual(config["vocab_size"], V + 2)

    def test_adds_head_that_base_lacks(self):
        self.base()
        score, tensors = some(5, H), lora(Q)
        self.adapter({**tensors, "base_model.model.score.weight": score}, modules_to_save=["classifier", "score"])
        got, config, said = self.merged()
        self.check(got, "score.weight", score)
        self.assertEqual(len(got), 4)
        self.assertIn('"architectures" of config.json names "LlamaForCausalLM"', said)
        self.assertNotIn("tie_word_embeddings", config)
        self.adapter({"base_model.model.score.weight": score})
        self.assertIn('the base has no tensor "score.weight"', self.refused())

    def test_ignores_original_module_next_to_saved_copy(self):
        base = self.base()
        norm, score = some(H), some(5, H)
        for i, saved in enumerate((".modules_to_save.default.", ".modules_to_save.", ".")):
            with self.subTest(saved=saved):
                self.adapter({f"base_model.model.model.norm{saved}weight": norm,
                              "base_model.model.model.norm.original_module.weight": some(H),
                              f"base_model.model.score{saved}weight": score,
                              "base_model.model.score.original_module.weight": some(3, H)}, modules_to_save=["norm", "score"])
                self.out = self.work / f"out{i}"
                got, _, said = self.merged()
                self.assertEqual(set(got), {*base, "score.weight"})
                self.check(got, "model.norm.weight", norm)
                self.check(got, "score.weight", score)
                self.assertNotIn("original_module", said)
        self.adapter({"base_model.model.model.norm.original_module.weight": norm}, modules_to_save=["norm"])
        self.assertIn('the base has no tensor "model.norm.original_module.weight"', self.refused())

    # --- one adapter

    def test_rejects_file_with_two_adapters_by_name(self):
        other = "model.layers.1.self_attn.q_proj"
        base = self.base({"model.embed_tokens.weight": some(V, H), f"{Q}.weight": some(H, H), f"{other}.weight": some(H, H),
                          "model.norm.weight": some(H)})
        p, a, b = "base_model.model.", some(R, H), some(H, R)
        x = {f"{p}{Q}.lora_A.x.weight": a, f"{p}{Q}.lora_B.x.weight": b}
        embedding = {f"{p}model.embed_tokens.lora_embedding_A.y": some(R, V), f"{p}model.embed_tokens.lora_embedding_B.y": some(H, R)}
        for names, tensors in ((("x", "y"), {f"{p}{Q}.lora_A.x.weight": a, f"{p}{Q}.lora_B.y.weight": b}),
                               (("x", "y"), {**x, f"{p}{Q}.lora_A.y.weight": a, f"{p}{Q}.lora_B.y.weight": b}),
                               (("x", "y"), {**x, f"{p}{other}.lora_A.y.weight": a, f"{p}{other}.lora_B.y.weight": b}),
                               (("x", "y"), {**x, **embedding}),
                               (("x", "default"), {f"{p}{Q}.lora_A.x.weight": a, f"{p}{Q}.lora_B.weight": b}),
                               (("x", "default"), {**x, f"{p}model.norm.modules_to_save.default.weight": some(H)})):
            with self.subTest(tensors=list(tensors)):
                self.adapter(tensors, modules_to_save=["norm"])
                self.assertIn(f'has the adapters "{names[0]}" and "{names[1]}": name a file with one adapter', self.refused())
        # Only a part of the names contains the adapter name "default" of PEFT.
        self.adapter({f"{p}{Q}.lora_A.default.weight": a, f"{p}{Q}.lora_B.weight": b,
                      f"{p}model.norm.modules_to_save.default.weight": some(H)}, modules_to_save=["norm"])
        got, _, _ = self.merged()
        self.check(got, f"{Q}.weight", update(base[f"{Q}.weight"], a, b, 2))

    # --- models with tied head and embeddings

    def test_adapter_for_head_unties_base(self):
        base = self.base(config={**TIED, "text_config": {"x": 1}})
        tensors = lora("lm_head", H, V)
        self.adapter(tensors)
        got, config, _ = self.merged()
        self.check(got, "model.embed_tokens.weight", base["model.embed_tokens.weight"])
        self.check(got, "lm_head.weight", update(base["model.embed_tokens.weight"], *tensors.values(), 2))
        self.assertEqual((config["tie_word_embeddings"], config["text_config"]["tie_word_embeddings"]), (False, False))

    def test_update_of_tied_embeddings_leaves_head_unchanged(self):
        base = self.base(config=TIED)
        embedding = base["model.embed_tokens.weight"]
        a, b = some(R, V), some(H, R)
        self.adapter({"base_model.model.model.embed_tokens.lora_embedding_A": a,
                      "base_model.model.model.embed_tokens.lora_embedding_B": b})
        got, config, _ = self.merged()
        self.check(got, "lm_head.weight", embedding)
        self.check(got, "model.embed_tokens.weight", update(embedding, a, b, 2, True))
        self.assertIs(config["tie_word_embeddings"], False)

    def test_saved_embeddings_and_head_untie_base(self):
        self.base(config=TIED)
        embedding, head = some(V, H), some(V, H)
        self.adapter({"base_model.model.model.embed_tokens.weight": embedding, "base_model.model.lm_head.weight": head},
                     modules_to_save=["embed_tokens", "lm_head"])
        got, config, _ = self.merged()
        self.check(got, "model.embed_tokens.weight", embedding)
        self.check(got, "lm_head.weight", head)
        self.assertIs(config["tie_word_embeddings"], False)

    def test_resized_vocabulary_stays_tied_and_replaces_tokenizer(self):
        self.base(config={**TIED, "text_config": {"vocab_size": V}})
        (self.work / "base/tokenizer.json").write_text("old")
        (self.work / "base/vocab.json").write_text("old")
        (self.work / "base/generation_config.json").write_text("kept")
        for rows in (V + 2, V - 3):
            with self.subTest(rows=rows):
                embedding = some(rows, H)
                directory = self.adapter({"base_model.model.model.embed_tokens.weight": embedding})
                (directory / "tokenizer.json").write_text("new")
                (directory / "README.md").write_text("not part of the model")
                self.out = self.work / f"out{rows}"
                got, config, _ = self.merged()
                self.check(got, "model.embed_tokens.weight", embedding)
                self.assertNotIn("lm_head.weight", got)
                self.assertEqual((config["vocab_size"], config["text_config"]["vocab_size"]), (rows, rows))
                self.assertIs(config["tie_word_embeddings"], True)
                self.assertEqual((self.out / "tokenizer.json").read_text(), "new")
                self.assertEqual(sorted(os.listdir(self.out)),
                                 ["config.json", "generation_config.json", "model.safetensors", "tokenizer.json"])

    # --- which weights are transposed

    def test_module_decides_orientation_of_square_weight(self):
        query, projection = "encoder.layer.0.attention.query", "decoder.transformer.h.0.attn.c_proj"
        pair = {query + ".weight": some(H, H), projection + ".weight": some(H, H)}
        fused = {"decoder.transformer.h.0.attn.c_attn.weight": some(H, 3 * H)}
        linear = {"decoder.transformer.h.0.attn.c_attn.weight": some(3 * H, H)}
        mixed = {"model_type": "vision-encoder-decoder", "encoder": {"model_type": "vit"}, "decoder": {"model_type": "gpt2"}}
        for flag in (False, True):
            for config, tensors, conv1d in ((mixed, pair, True), ({"model_type": "gpt_bigcode"}, pair, False),
                                            (None, {**pair, **fused}, True), ({"model_type": "own"}, {**pair, **fused}, True),
                                            (mixed, {**pair, **linear}, False)):
                if config is None and flag:
                    continue  # the flag contradicts a Linear, and no config decides
                with self.subTest(flag=flag, config=config, tensors=list(tensors)), tempfile.TemporaryDirectory() as work:
                    self.work = pathlib.Path(work)
                    self.out = self.work / "out"
                    self.base(tensors, config)
                    factors = {**lora(query), **lora(projection)}
                    self.adapter(factors, fan_in_fan_out=flag)
                    got, _, _ = self.edited(f"--lora={self.work / 'adapter'}")
                    a, b, c, d = factors.values()
                    self.check(got, query + ".weight", update(tensors[query + ".weight"], a, b, 2))
                    self.check(got, projection + ".weight", update(tensors[projection + ".weight"], c, d, 2, conv1d))

    def test_rejects_square_weight_of_unknown_orientation(self):
        self.base({"h.0.attn.c_proj.weight": some(H, H), "own.weight": some(H, H)}, None)
        for module, flag in (("h.0.attn.c_proj", False), ("own", True)):
            self.adapter(lora(module), fan_in_fan_out=flag)
            said = self.refused()
            self.assertIn(f'"{module}.weight" is square, and there is no config.json beside the base', said)
            self.assertIn("Conv1D", said)

    # --- experts

    def test_merges_stacked_experts_one_by_one(self):
        W, r, dtype = 5, 3, "BF16"
        for transposed, model, experts in ((False, "qwen3_moe", E), (True, "qwen3_moe", E), (True, "gpt_oss", E), (True, "llama4", E),
                                           (False, "qwen3_moe", 1), (True, "qwen3_moe", 1)):
            size = H if model in ("gpt_oss", "llama4") else W  # square matrices
            with self.subTest(transposed=transposed, model=model, experts=experts), tempfile.TemporaryDirectory() as work:
                self.work = pathlib.Path(work)
                self.out = self.work / "out"
                up, down = (experts, H, 2 * size), (experts, size, H)
                if not transposed:
                    up, down = (experts, 2 * size, H), (experts, H, size)
                weights = {f"{EXPERTS}.gate_up_proj": some(*up), f"{EXPERTS}.down_proj": some(*down)}
                self.base(weights, {"model_type": model}, dtype)
                stored, _ = read(self.work / "base/model.safetensors")
                factors = {"base_layer.lora_A": some(experts * r, H), "base_layer.lora_B": some(2 * size, r * experts),
                           "lora_A": some(experts * r, size), "lora_B": some(H, r * experts)}
                self.adapter({f"base_model.model.{EXPERTS}.{name}.weight": each for name, each in factors.items()}, r=r,
                             lora_alpha=2 * r, target_parameters=["mlp.experts.gate_up_proj", "mlp.experts.down_proj"])
                got, _, _ = self.edited(f"--lora={self.work / 'adapter'}")
                for name, nested in (("gate_up_proj", "base_layer."), ("down_proj", "")):
                    _, shape, data = stored[f"{EXPERTS}.{name}"]
                    weight = (numpy.frombuffer(data, numpy.uint16).astype(numpy.uint32) << 16).view(numpy.float32).reshape(shape)
                    a, b = factors[nested + "lora_A"], factors[nested + "lora_B"]
                    a, b = a.reshape(experts, r, -1), b.reshape(len(b), r, experts)
                    self.check(got, f"{EXPERTS}.{name}",
                               numpy.stack([update(weight[e], a[e], b[:, :, e], 2, transposed) for e in range(experts)]))

    def test_rejects_experts_of_unknown_orientation(self):
        self.base({f"{EXPERTS}.down_proj": some(E, H, H), f"{EXPERTS}.up_proj": some(E, H, H)})
        factors = {f"base_model.model.{EXPERTS}.lora_A.weight": some(E * R, H),
                   f"base_model.model.{EXPERTS}.lora_B.weight": some(H, E * R)}
        self.adapter(factors, target_parameters=["experts.down_proj"])
        self.assertIn("has square matrices, and nothing shows whether they are stored transposed", self.refused())
        self.adapter(factors, target_parameters=["experts.down_proj", "experts.up_proj"])
        self.assertIn("they fit several parameters", self.refused())
        self.adapter(factors, target_parameters=["experts.down_proj"], r=R + 1)
        self.assertIn("they fit no parameter", self.refused())
        self.adapter(factors)
        self.assertIn(f'the base has no tensor "{EXPERTS}.weight"', self.refused())

    # --- other files

    def test_reads_old_adapter_from_pickle(self):
        try:
            import torch
        except ImportError:
            self.skipTest("no torch")
        base = self.base()
        tensors = lora(Q)
        directory = self.adapter(tensors)
        (directory / "adapter_model.safetensors").unlink()
        torch.save({name: torch.from_numpy(each) for name, each in tensors.items()}, directory / "adapter_model.bin")
        got, _, _ = self.merged()
        self.check(got, f"{Q}.weight", update(base[f"{Q}.weight"], *tensors.values(), 2))
        torch.save({name: torch.from_numpy(each.T.copy()).t() for name, each in tensors.items()}, directory / "adapter_model.bin")
        self.assertIn("its rows are not contiguous in its file", self.refused())

    def test_reads_shards_and_reports_merge_into_one_file(self):
        base = self.base()
        tensors = lora(Q)
        directory = self.adapter(tensors)
        (directory / "adapter_model.safetensors").unlink()
        for i, (where, kind, names) in enumerate(((directory, "adapter_model", tensors), (self.work / "base", "model", base))):
            shards = {name: f"{kind}-{number}.safetensors" for number, name in enumerate(names)}
            for name, shard in shards.items():
                write(where / shard, {name: ("F32", names[name])})
            (where / f"{kind}.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": shards}))
            self.out = self.work / f"out{i}"
            if i == 1:
                (where / "model.safetensors").unlink()
            got, _, said = self.merged()
            self.check(got, f"{Q}.weight", update(base[f"{Q}.weight"], *tensors.values(), 2))
            (self.assertIn if i == 1 else self.assertNotIn)("3 files become one, of ", said)
        self.assertIn("a file: name the directory", self.refused("adapter/adapter_model-0.safetensors"))

    def test_accepts_names_of_wrapped_models(self):
        base = self.base()
        for prefix in ("base_model.model._orig_mod.", "_orig_mod.base_model.model.", "module.base_model.model."):
            with self.subTest(prefix=prefix):
                tensors = lora(Q, prefix=prefix)
                self.adapter(tensors)
                self.out = self.work / prefix
                got, _, _ = self.merged()
                self.check(got, f"{Q}.weight", update(base[f"{Q}.weight"], *tensors.values(), 2))

    def test_names_adapters_of_other_libraries_and_what_to_do(self):
        self.base()
        write(self.work / "kohya.safetensors", {"lora_unet_x.lora_down.weight": ("F32", some(R, H)), "lora_unet_x.alpha": ("F32", some())})
        write(self.work / "other.safetensors", {"unet.x.lora_A.weight": ("F32", some(R, H))})
        write(self.work / "peft.safetensors", {"base_model.model.x.lora_A.weight": ("F32", some(R, H))})
        (self.work / "a.gguf").write_bytes(b"GGUF")
        for name in ("diffusers", "mlx", "nested/french"):
            (self.work / name).mkdir(parents=True)
        write(self.work / "diffusers/pytorch_lora_weights.safetensors", {"unet.x.lora_A.weight": ("F32", some(R, H))})
        write(self.work / "mlx/adapters.safetensors", {"x.lora_a": ("F32", some(H, R))})
        self.adapter(lora(Q), "nested/french")
        self.adapter(lora(Q))
        cases = [("kohya.safetensors", "kohya's sd-scripts"), ("other.safetensors", "fuse_lora()"), ("diffusers", "fuse_lora()"),
                 ("mlx", "mlx_lm.fuse"), ("a.gguf", "llama-export-lora"), ("nested", 'its subfolder "french/" has one: name that'),
                 ("peft.safetensors", "a file: name the directory"), ("mlx/adapters.safetensors", "mlx_lm.fuse"),
                 ("adapter/adapter_model.safetensors", "a file: name the directory"),
                 ("adapter/adapter_config.json", "a file: name the directory")]
        for path, rule in cases:
            with self.subTest(path=path):
                self.assertIn(rule, self.refused(path))
        (self.work / "mlx/adapter_config.json").write_text('{"fine_tune_type": "lora", "lora_parameters": {"rank": 2}}')
        self.assertIn("mlx_lm.fuse", self.refused("mlx"))

    # --- edits and config.json

    def test_config_is_adapted_to_edited_tensors(self):
        layers = {f"model.layers.{i}.mlp.up_proj.weight": some(H, H) for i in range(4)}
        config = {**LLAMA, "num_hidden_layers": 4, "torch_dtype": "float32", "tie_word_embeddings": False}
        self.base({"model.embed_tokens.weight": some(V, H), **layers, "lm_head.weight": some(V, H)}, config)
        drop = ["drop model.layers.1.*", r"rename s/layers\.2\./layers.1./", r"rename s/layers\.3\./layers.2./"]
        cases = (
            (["cast * BF16"], {"torch_dtype": "bfloat16"}, None),
            (["cast * F16", "drop lm_head.weight"], {"torch_dtype": "float16", "tie_word_embeddings": True}, "the head was dropped"),
            (["cast lm_head.* BF16"], {}, None),
            (["cast * F8_E4M3"], {}, '"torch_dtype" is "float32", but most values are now F8_E4M3'),
            (["slice model.embed_tokens.weight 0:18", "slice lm_head.weight 0:18"], {"vocab_size": 18}, None),
            (["slice lm_head.weight 0:18"], {}, "only the embeddings: they have 20 rows, but the head has 18"),
            (drop, {}, '"num_hidden_layers" is 4, but the tensors have 3 of "model.layers"'),
            (["drop model.layers.1.*"], {}, '3 of "model.layers", up to number 3'),
            (["copy s/layers.3/layers.4/"], {}, '"num_hidden_layers" is 4, but the tensors have 5'),
            ([r"rename s/^model\.//"], {}, None),
            (["metadata x y"], {}, None))
        for i, (lines, changes, rule) in enumerate(cases):
            with self.subTest(lines=lines):
                self.out = self.work / f"out{i}"
                _, got, said = self.edited(*[word for line in lines for word in ("-e", line)])
                self.assertEqual(got, {**config, **changes})
                if rule is None:
                    self.assertNotIn("config.json", said)
                else:
                    self.assertIn(rule, said)

    def test_cast_leaves_integers_and_reports_it(self):
        self.base({"model.embed_tokens.weight": some(V, H)})
        write(self.work / "base/model.safetensors",
              {"w": ("F32", some(4)), "ids": ("I64", numpy.arange(4)), "mask": ("BOOL", numpy.ones(3, bool))})
        got, _, said = self.edited("-e", "cast * BF16")
        self.assertEqual([got[name][0] for name in ("w", "ids", "mask")], ["BF16", "I64", "BOOL"])
        self.assertIn('-e: line 1: cast: 2 matching tensors stay unchanged ("ids" is I64)', said)
        self.assertIn("only floating-point types can be cast", run("list", self.work / "base", "-e", "cast ids BF16", status=1))

    def quantised(self, **config):
        """Writes an FP8 weight with a scale, and a head with most of the bytes."""
        fp8 = {"quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]}, **config}
        self.base({"norm": some(4)}, {**LLAMA, "torch_dtype": "bfloat16", **fp8})
        write(self.work / "base/model.safetensors",
              {f"{Q}.weight": ("F8_E4M3", numpy.full((H, H), 0x38, numpy.uint8)), f"{Q}.weight_scale_inv": ("F32", some(1, 1)),
               "model.norm.weight": ("BF16", to_bf16(some(4))), "lm_head.weight": ("BF16", to_bf16(some(V, 4 * H)))})

    def test_cast_of_codes_without_scales_is_reported(self):
        self.quantised()
        rule = "(FP8 with scales): cast shows codes without their scales: use --dequantize=bf16 first"
        for i, (lines, message) in enumerate(((["cast * BF16"], f'line 1: cast: "{Q}.weight" and 1 more belong to quantised weights {rule}'),
                                           (["rename s/q_proj/x/", "cast *.x.weight F16"], f'.x.weight" belongs to quantised weights {rule}'),
                                           (["cast *_scale_inv BF16"], f'"{Q}.weight_scale_inv" belongs to quantised weights {rule}'),
                                           (["cast model.norm.weight F32"], None), ([f"drop {Q}.weight"], None))):
            with self.subTest(lines=lines):
                self.out = self.work / f"out{i}"
                _, _, said = self.edited(*[word for line in lines for word in ("-e", line)])
                (self.assertIn if message else self.assertNotIn)(message or "to quantised weights", said)
        self.assertNotIn("quantised", run("list", self.work / "base", "--dequantize=bf16", "-e", "cast * F32"))

    def test_existing_codes_do_not_contradict_torch_dtype(self):
        for i, config in enumerate(({}, {"quantization_config": None})):
            with self.subTest(config=config), tempfile.TemporaryDirectory() as work:
                self.work = pathlib.Path(work)
                self.out = self.work / "out"
                self.quantised(**config)
                _, got, said = self.edited("-e", "drop lm_head.*")
                self.assertEqual(got["torch_dtype"], "bfloat16")
                self.assertNotIn("torch_dtype", said)


if __name__ == "__main__":
    unittest.main()
