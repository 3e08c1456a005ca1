"""Folders that `tessera export --weights` writes, loaded by transformers with bitsandbytes: every tensor equals what bitsandbytes makes of the
same weights, and what it dequantises is what `tessera` reads back.

usage: bitsandbytes_peers.py TESSERA   (the command; needs torch, transformers, bitsandbytes)
Prints what differs, and ends with 1 if anything does, with 77 where bitsandbytes is not installed."""
import json
import pathlib
import subprocess
import sys
import tempfile

try:
    import bitsandbytes
    import torch
    import transformers
    from safetensors.torch import load_file
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)

tessera = sys.argv[1]
# Rows of whole blocks: bitsandbytes 0.50 dequantises others wrongly on a CPU.
SIZES = dict(vocab_size=97, hidden_size=128, intermediate_size=192, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
             max_position_embeddings=64, tie_word_embeddings=False, initializer_range=0.1)
MODELS = {
    "llama": (transformers.LlamaConfig(**SIZES), transformers.LlamaForCausalLM),
    "qwen2": (transformers.Qwen2Config(**SIZES), transformers.Qwen2ForCausalLM),
    "phi3": (transformers.Phi3Config(**SIZES, pad_token_id=0), transformers.Phi3ForCausalLM),
}
FORMATS = {"nf4": ("nf4", False), "nf4_double": ("nf4", True), "fp4": ("fp4", False)}


def run(*arguments):
    return subprocess.run([tessera, *map(str, arguments)], check=True, stdout=subprocess.PIPE, text=True).stdout


def of_bitsandbytes(weight, kind, double):
    """The tensors that a Linear4bit of the weight saves, by what follows `weight`, and what it dequantises."""
    parameter = bitsandbytes.nn.Params4bit(weight.clone(), requires_grad=False, compress_statistics=double, quant_type=kind).to("cpu")
    parts = {"": parameter.data, **{"." + name: value for name, value in parameter.quant_state.as_dict(packed=True).items()}}
    return parts, bitsandbytes.functional.dequantize_4bit(parameter.data, parameter.quant_state)


def check(name, weights, folder):
    config, kind = MODELS[name]
    torch.manual_seed(1)
    kind(config).to(torch.float32).save_pretrained(folder / "whole")
    run("export", folder / "whole", folder / weights, "--to", "huggingface", "--weights", weights, "--no-compare")
    whole, ours = load_file(folder / "whole" / "model.safetensors"), load_file(folder / weights / "model.safetensors")
    run("checkpoint", "convert", folder / weights, "--to", "huggingface", "--out", folder / "back")
    back = load_file(folder / "back" / "model.safetensors")
    model = transformers.AutoModelForCausalLM.from_pretrained(folder / weights, device_map="cpu", dtype=torch.float32)
    loaded = dict(model.named_modules())
    problems = []
    for key, weight in whole.items():
        quantised = key.endswith("_proj.weight")
        if not quantised:
            problems += [] if torch.equal(ours[key], weight) else [key]
            continue
        module = loaded[key.removesuffix(".weight")]
        if weights == "int8":
            codes, scales, _ = bitsandbytes.functional.int8_vectorwise_quant(weight.half())
            # Rounded from float32 here, from float16 there: a code may be off by one.
            if (ours[key].int() - codes.int()).abs().max() > 1 or not isinstance(module, bitsandbytes.nn.Linear8bitLt):
                problems.append(key)
            values = ours[key].float() * (ours[key.removesuffix("weight") + "SCB"][:, None] * 7.874015718698502e-3)
            if (back[key] - values).abs().max() > 1e-6:
                problems.append(key + " read back")
            continue
        parts, values = of_bitsandbytes(weight, *FORMATS[weights])
        for suffix, value in parts.items():
            if "quant_state" in suffix:  # JSON, whose blanks are nobody's matter
                same = json.loads(bytes(value)) == json.loads(bytes(ours[key + suffix]))
            else:
                same = torch.equal(value.flatten(), ours[key + suffix].flatten())
            problems += [] if same else [key + suffix]
        theirs = bitsandbytes.functional.dequantize_4bit(module.weight.data, module.weight.quant_state)
        problems += [] if torch.equal(theirs, values) else [key + " in transformers"]
        problems += [] if torch.equal(back[key], values) else [key + " read back"]
    run("export", folder / "back", folder / "again", "--to", "huggingface", "--weights", weights.removesuffix("_double"), "--no-compare")
    again = load_file(folder / "again" / "model.safetensors")
    for key in whole:
        if key.endswith("_proj.weight") and weights != "fp4" and not torch.equal(again[key], ours[key]):  # FP4 has two zeros
            problems.append(key + " quantised again")
    print("FAIL" if problems else "ok  ", name, weights, problems[:5])
    return not problems


def main():
    torch.set_num_threads(1)
    good = True
    for name in MODELS:
        for weights in ("nf4", "nf4_double", "fp4", "int8"):
            with tempfile.TemporaryDirectory() as folder:
                good = check(name, weights, pathlib.Path(folder)) and good
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
