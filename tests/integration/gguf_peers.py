"""GGUF files of `tessera export` beside those of llama.cpp's convert_hf_to_gguf.py: small random models of each family, every tensor's
type, shape and bytes in f32, f16, bf16 and q8_0, and every key that both write; q4_0 beside the package gguf's own quantisation.

usage: gguf_peers.py TESSERA LLAMA_CPP [NAME..]   (the command, and a checkout of llama.cpp, which llama-cpp-python's source package
has, too; models by name, else all; needs torch, transformers, sentencepiece)
Prints what differs, and ends with 1 if anything does."""
import json
import pathlib
import subprocess
import sys
import tempfile

import numpy as np

tessera, llama_cpp = sys.argv[1], pathlib.Path(sys.argv[2])
sys.path[:0] = [str(llama_cpp / "gguf-py")]

import gguf
import sentencepiece
import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

SENTENCEPIECE_MODEL = pathlib.Path(__file__).resolve().parents[1] / "fixtures/tokenizers/sentencepiece_bpe/tokenizer.model"
SIZES = dict(vocab_size=512, hidden_size=64, intermediate_size=160, num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=2,
             max_position_embeddings=128, tie_word_embeddings=False)
LLAMA3 = dict(rope_type="llama3", rope_theta=500000.0, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
              original_max_position_embeddings=32)
GEMMA = dict(head_dim=32, sliding_window=32, query_pre_attn_scalar=32, pad_token_id=0, bos_token_id=1, eos_token_id=2,
             tie_word_embeddings=True)
MODELS = {
    "llama": (transformers.LlamaConfig, transformers.LlamaForCausalLM, {}),
    "llama_tied_llama3": (transformers.LlamaConfig, transformers.LlamaForCausalLM,
                          dict(tie_word_embeddings=True, rope_parameters=LLAMA3)),
    "mistral": (transformers.MistralConfig, transformers.MistralForCausalLM, dict(sliding_window=None)),
    "qwen2": (transformers.Qwen2Config, transformers.Qwen2ForCausalLM, {}),
    "qwen3": (transformers.Qwen3Config, transformers.Qwen3ForCausalLM, dict(head_dim=32)),
    "olmo2": (transformers.Olmo2Config, transformers.Olmo2ForCausalLM, {}),
    "smollm3": (transformers.SmolLM3Config, transformers.SmolLM3ForCausalLM, dict(pad_token_id=0)),
    "gpt2": (transformers.GPT2Config, transformers.GPT2LMHeadModel, {}),
    "phi3": (transformers.Phi3Config, transformers.Phi3ForCausalLM, dict(pad_token_id=0, sliding_window=None, original_max_position_embeddings=128)),
    "gemma2": (transformers.Gemma2Config, transformers.Gemma2ForCausalLM, GEMMA),
    "gemma3": (transformers.Gemma3TextConfig, transformers.Gemma3ForCausalLM, dict(GEMMA, num_hidden_layers=7)),
}
OWN_SIZES = {"gpt2": dict(vocab_size=512, n_embd=64, n_inner=256, n_layer=4, n_head=4, n_positions=128, n_ctx=128)}
SENTENCEPIECE = {"phi3", "gemma2", "gemma3"}  # the converter reads no other tokenizer of these
# The converter knows tokenizers by what they make of one text, and a newly trained one is not among them.
CONVERT = """import runpy, sys
sys.path[:0] = [{root!r}, {root!r} + "/gguf-py"]
from conversion import base
base.TextModel.get_vocab_base_pre = lambda self, tokenizer: "gpt-2"
sys.argv = sys.argv[:1] + sys.argv[1:]
runpy.run_path({root!r} + "/convert_hf_to_gguf.py", run_name="__main__")
"""


def write_sentencepiece(folder):
    (folder / "tokenizer.model").write_bytes(SENTENCEPIECE_MODEL.read_bytes())
    (folder / "tokenizer_config.json").write_text(json.dumps(dict(tokenizer_class="LlamaTokenizer", bos_token="<s>", eos_token="</s>",
                                                                  unk_token="<unk>", add_bos_token=True)))


def write_model(folder, name, config_type, model_type, own):
    torch.manual_seed(0)
    sizes = dict(OWN_SIZES.get(name, SIZES))
    if name in SENTENCEPIECE:
        sizes["vocab_size"] = sentencepiece.SentencePieceProcessor(str(SENTENCEPIECE_MODEL)).vocab_size()
    model = model_type(config_type(**{**sizes, **own}))
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.1)
    model.save_pretrained(folder)
    (folder / "chat_template.jinja").write_text("{% for m in messages %}{{ m.content }}{% endfor %}")
    if name in SENTENCEPIECE:
        return write_sentencepiece(folder)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    text = [path.read_text() for path in sorted(llama_cpp.glob("*.md"))]
    tokenizer.train_from_iterator(text, trainers.BpeTrainer(
        vocab_size=500, special_tokens=["<s>", "</s>", "<|endoftext|>"], initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False))
    transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>").save_pretrained(folder)


def opened(path):
    reader = gguf.GGUFReader(path)
    keys = {name: field.contents() for name, field in reader.fields.items() if not name.startswith("GGUF.")}
    return keys, {tensor.name: tensor for tensor in reader.tensors}


def differences(ours, theirs):
    (our_keys, ours), (their_keys, theirs) = opened(ours), opened(theirs)
    for name in sorted(their_keys.keys() - our_keys.keys()):
        yield f"key {name}: theirs alone"
    for name in sorted(our_keys.keys() & their_keys.keys() - {"general.name"}):
        if our_keys[name] != their_keys[name]:
            yield f"key {name}: {str(our_keys[name])[:80]} and {str(their_keys[name])[:80]}"
    for name in sorted(ours.keys() ^ theirs.keys()):
        yield f"tensor {name}: in one alone"
    for name in sorted(ours.keys() & theirs.keys()):
        a, b = ours[name], theirs[name]
        if a.tensor_type != b.tensor_type or list(a.shape) != list(b.shape):
            yield f"tensor {name}: {a.tensor_type.name} {a.shape} and {b.tensor_type.name} {b.shape}"
        elif a.data.tobytes() != b.data.tobytes():
            yield f"tensor {name}: bytes differ"


def q4_differences(q4, f32):
    _, values = opened(f32)
    for name, tensor in opened(q4)[1].items():
        if tensor.tensor_type == gguf.GGMLQuantizationType.Q4_0:
            expected = gguf.quants.quantize(np.array(values[name].data), gguf.GGMLQuantizationType.Q4_0)
            if expected.tobytes() != tensor.data.tobytes():
                yield f"tensor {name}: bytes differ"


# What a converter writes about a model's name and size, which no reader needs.
ABOUT = {"general.size_label", "general.finetune", "general.basename", "general.version", "general.tags", "general.license"}
# The converter says that no text begins with a blank, whatever tokenizer.model says; the fixture's says that it does.
FIXED = {"gemma2": {"tokenizer.ggml.add_space_prefix"}, "gemma3": {"tokenizer.ggml.add_space_prefix"}}
failed = False
with tempfile.TemporaryDirectory() as scratch:
    scratch = pathlib.Path(scratch)
    script = scratch / "convert.py"
    script.write_text(CONVERT.format(root=str(llama_cpp)))
    for name, spec in MODELS.items():
        if sys.argv[3:] and name not in sys.argv[3:]:
            continue
        folder = scratch / name
        write_model(folder, name, *spec)
        count = 0
        for outtype in ("f32", "f16", "bf16", "q8_0", "q4_0"):
            ours, theirs = scratch / f"{name}.{outtype}.gguf", scratch / f"{name}.{outtype}.theirs.gguf"
            subprocess.run([tessera, "export", folder, ours, "--to", "gguf", "--type", outtype], check=True, stdout=subprocess.DEVNULL)
            if outtype == "q4_0":
                found = list(q4_differences(ours, scratch / f"{name}.f32.gguf"))
            else:
                done = subprocess.run([sys.executable, script, folder, "--outfile", theirs, "--outtype", outtype], capture_output=True, text=True)
                if done.returncode:
                    sys.exit(f"{name} {outtype}: the converter failed: {done.stderr}")
                found = [line for line in differences(ours, theirs) if line.split(":")[0].removeprefix("key ") not in ABOUT | FIXED.get(name, set())]
            count += len(opened(ours)[1])
            for line in found:
                print(f"{name} {outtype}: {line}")
            failed |= bool(found)
        print(f"{name}: {count} tensors compared", flush=True)
sys.exit(failed)
