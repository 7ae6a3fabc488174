"""The list of the variants of quantised checkpoints, and the tensors and the config that all of them share."""

import numpy as np

from checkpoint import Checkpoint, tensor
from schemes import Draw

VARIANTS = {}
LAYER = "model.layers.0."


def variant(function):
    VARIANTS[function.__name__.replace("_", "-")] = function
    return function


def make(name, seed=0):
    """Returns the checkpoint of a variant. The same seed gives the same checkpoint."""
    number = sum(ord(letter) * (i + 1) for i, letter in enumerate(name))
    model = Checkpoint()
    VARIANTS[name](model, Draw((number, seed)))
    return model


def dress(model, draw, architecture, quantization=None, **more):
    """Adds tensors without quantisation, the config, and the other files of a repository."""
    model.passes("model.embed_tokens.weight", draw.floats("BF16", (17, 24)))
    model.passes(LAYER + "input_layernorm.weight", draw.floats("BF16", (24,)))
    model.passes(LAYER + "mlp.gate.e_score_correction_bias", draw.floats("F32", (5,)))
    model.passes(LAYER + "self_attn.q_norm.weight", draw.floats("F16", (7,)))
    model.passes("model.norm.weight", draw.floats("BF16", (24,)))
    model.passes("model.position_ids", tensor("I64", np.arange(3)))
    model.config = {
        "architectures": [architecture], "hidden_size": 24, "model_type": architecture.split("For")[0].lower(),
        "num_hidden_layers": 1, "torch_dtype": "bfloat16", "transformers_version": "4.51.0", "vocab_size": 17, **more,
    }
    if quantization is not None:
        model.config["quantization_config"] = quantization
    model.files["generation_config.json"] = {"do_sample": True, "temperature": 0.6}
    model.files["tokenizer_config.json"] = {"model_max_length": 4096}
    model.files["tokenizer.json"] = {"version": "1.0"}
    model.files[".env"] = b"TOKEN=secret\n"
    model.files["notes.txt"] = b"not for loaders\n"
