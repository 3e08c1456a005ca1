"""GGUF files of `tessera export` run by llama.cpp: logits of small models beside those that transformers computed
(tests/fixtures), greedy texts beside `tessera generate`, blocks beside ggml's reference quantisation, and tokens beside the
libraries that a tokenizer was made for.

usage: gguf_run_peers.py TESSERA [CASES]   (from the root of a checkout; needs numpy, gguf, sentencepiece, tokenizers and xllamacpp,
whose library has llama.cpp's C interface)
Prints what was compared, and ends with 1 if anything differs."""
import ctypes
import glob
import json
import pathlib
import random
import struct
import subprocess
import sys
import tempfile

import gguf
import numpy as np
import sentencepiece
import tokenizers
import xllamacpp
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers

tessera, fixtures = pathlib.Path(sys.argv[1]).resolve(), pathlib.Path("tests/fixtures")
num_cases = int(sys.argv[2]) if len(sys.argv) > 2 else 1000
failed = False


class Structure(ctypes.Structure):
    """Options of llama.cpp, whose members depend on its version: at least as large, and always the last argument."""
    _fields_ = [("words", ctypes.c_uint64 * 256)]


class Batch(ctypes.Structure):
    _fields_ = [("words", ctypes.c_uint64 * 7)]


llama = ctypes.CDLL(glob.glob(str(pathlib.Path(xllamacpp.__file__).parent / "*.so"))[0])
for name, result, arguments in (
        ("llama_model_default_params", Structure, []), ("llama_context_default_params", Structure, []),
        ("llama_model_load_from_file", ctypes.c_void_p, [ctypes.c_char_p, Structure]),
        ("llama_init_from_model", ctypes.c_void_p, [ctypes.c_void_p, Structure]),
        ("llama_batch_get_one", Batch, [ctypes.c_void_p, ctypes.c_int32]),
        ("llama_decode", ctypes.c_int32, [ctypes.c_void_p, Batch]),
        ("llama_get_logits", ctypes.POINTER(ctypes.c_float), [ctypes.c_void_p]),
        ("llama_free", None, [ctypes.c_void_p]), ("llama_model_free", None, [ctypes.c_void_p]),
        ("llama_model_get_vocab", ctypes.c_void_p, [ctypes.c_void_p]),
        ("llama_tokenize", ctypes.c_int32, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int32, ctypes.c_void_p, ctypes.c_int32,
                                            ctypes.c_bool, ctypes.c_bool]),
        ("ggml_quantize_chunk", ctypes.c_size_t, [ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64,
                                                  ctypes.c_int64, ctypes.c_void_p])):
    function = getattr(llama, name)
    function.restype, function.argtypes = result, arguments
SAID = []
LOG = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)
log = LOG(lambda _, text, __: SAID.append(text.decode(errors="replace")))
llama.llama_log_set(log, None)
llama.llama_backend_init()


def tell(line, fine):
    global failed
    failed |= not fine
    print(line if fine else f"DIFFERS: {line}", flush=True)


def load(path):
    model = llama.llama_model_load_from_file(str(path).encode(), llama.llama_model_default_params())
    if not model:
        sys.exit("".join(SAID[-12:]))
    return model


class Row:
    """One text in a model of llama.cpp, token by token."""

    def __init__(self, model, vocab_size):
        self.context, self.vocab_size = llama.llama_init_from_model(model, llama.llama_context_default_params()), vocab_size

    def logits(self, token):
        one = (ctypes.c_int32 * 1)(int(token))
        assert llama.llama_decode(self.context, llama.llama_batch_get_one(ctypes.addressof(one), 1)) == 0
        return np.ctypeslib.as_array(llama.llama_get_logits(self.context), (self.vocab_size,)).copy()

    def close(self):
        llama.llama_free(self.context)


def read_safetensors(path):
    data = path.read_bytes()
    size = struct.unpack("<Q", data[:8])[0]
    types = {"F32": np.float32, "I64": np.int64, "F64": np.float64}
    header = {name: info for name, info in json.loads(data[8:8 + size]).items() if name != "__metadata__"}
    return {name: np.frombuffer(data[8 + size:][slice(*info["data_offsets"])], types[info["dtype"]]).reshape(info["shape"])
            for name, info in header.items()}


def write_model(folder, config, tensors):
    folder.mkdir(exist_ok=True)
    header, offset = {}, 0
    for name, values in tensors.items():
        header[name] = dict(dtype="F32", shape=list(values.shape), data_offsets=[offset, offset + values.nbytes])
        offset += values.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + b"".join(v.tobytes() for v in tensors.values()))
    (folder / "config.json").write_text(json.dumps(config))


def export(folder, path, kind="f32"):
    return subprocess.run([tessera, "export", folder, path, "--to", "gguf", "--type", kind, "--no-compare"], capture_output=True,
                          text=True)


def compare_logits(scratch):
    """llama.cpp keeps keys and values in half precision."""
    for folder in [fixtures / "gpt2_micro", *sorted((fixtures / "families").iterdir())]:
        path = scratch / f"{folder.name}.gguf"
        if not (folder / "config.json").exists():
            continue
        done = export(folder, path)
        if done.returncode != 0:
            tell(f"{folder.name}: refused: {done.stderr.strip().split('/: ')[-1]}", "llama.cpp's" in done.stderr)
            continue
        expected = read_safetensors(folder / "expected.safetensors")
        model, off = load(path), 0
        for ids, logits in zip(expected["input_ids"], expected["logits"]):
            row = Row(model, logits.shape[-1])
            off = max(off, max(np.abs(row.logits(token) - each).max() for token, each in zip(ids, logits)))
            row.close()
        llama.llama_model_free(model)
        tell(f"{folder.name}: logits differ by {off:.2g} at most, of {np.abs(expected['logits']).max():.3g}", off < 0.01)


def compare_greedy(scratch):
    """Gemma's fixtures with what llama.cpp fixes. Tokens below 128 are the bytes of a text."""
    for name in ("gemma2", "gemma3", "qwen3", "gpt2_micro"):
        source = fixtures / (name if name == "gpt2_micro" else f"families/{name}")
        config = json.loads((source / "config.json").read_text())
        if name.startswith("gemma"):
            config |= dict(query_pre_attn_scalar=config["head_dim"])
        if name == "gemma3":
            config |= dict(layer_types=["sliding_attention"] * 2)
        folder, path = scratch / f"{name}_greedy", scratch / f"{name}_greedy.gguf"
        write_model(folder, config, read_safetensors(source / "model.safetensors"))
        done = export(folder, path)
        if done.returncode != 0:
            tell(f"{name}: {done.stderr}", False)
            continue
        model, prompt, count = load(path), b"def add(a, b):", 12
        row = Row(model, config["vocab_size"])
        for token in prompt:
            logits = row.logits(token)
        tokens = []
        for _ in range(count):
            tokens.append(int(logits.argmax()))
            logits = row.logits(tokens[-1])
        row.close()
        llama.llama_model_free(model)
        ours = subprocess.run([tessera, "generate", folder, prompt, "--temperature", "0", "--max-new-tokens", str(count), "--dtype",
                               "fp32"], capture_output=True, check=True).stdout.removesuffix(b"\n")
        theirs = b"".join(bytes([t]) if t < 256 else b"<%d>" % t for t in tokens)
        tell(f"{name}: {count} greedy tokens: {ours!r}" + ("" if ours == theirs else f" and {theirs!r}"), ours == theirs)


def compare_blocks(scratch):
    """Q4_K_M (Q4_K, Q6_K, and for short rows Q5_0, Q8_0) and Q4_0; rows of zeros, of constants, of outliers, tiny ones."""
    random_numbers = np.random.default_rng(0)
    for dim, ffn in ((512, 1024), (96, 160)):
        layers, vocab, tensors = 4, 320, {}
        shapes = {"model.embed_tokens.weight": (vocab, dim), "model.norm.weight": (dim,), "lm_head.weight": (vocab, dim)}
        for i in range(layers):
            block = {"input_layernorm": (dim,), "post_attention_layernorm": (dim,), "self_attn.q_proj": (dim, dim),
                     "self_attn.k_proj": (dim, dim), "self_attn.v_proj": (dim, dim), "self_attn.o_proj": (dim, dim),
                     "mlp.gate_proj": (ffn, dim), "mlp.up_proj": (ffn, dim), "mlp.down_proj": (dim, ffn)}
            shapes |= {f"model.layers.{i}.{name}.weight": shape for name, shape in block.items()}
        for i, (name, shape) in enumerate(shapes.items()):
            values = random_numbers.standard_t(3, shape) if i % 3 == 0 else random_numbers.standard_normal(shape) * 0.02
            if len(shape) == 2:
                values[0], values[1, :40], values[2], values[3] = 0, 0, 0.25, -0.25
                values[4] *= 1e-9
                values[5, :20] *= 1e4
            tensors[name] = values.astype(np.float32)
        folder = scratch / f"blocks{dim}"
        write_model(folder, dict(model_type="llama", vocab_size=vocab, hidden_size=dim, intermediate_size=ffn, num_hidden_layers=layers,
                                 num_attention_heads=4, max_position_embeddings=64, tie_word_embeddings=False), tensors)
        plain = scratch / f"blocks{dim}.f32.gguf"
        export(folder, plain)
        values = {tensor.name: tensor.data for tensor in gguf.GGUFReader(plain).tensors}
        for kind in ("q4_k_m", "q8_0", "q4_0"):
            path = scratch / f"blocks{dim}.{kind}.gguf"
            export(folder, path, kind)
            counts, same = {}, True
            for tensor in gguf.GGUFReader(path).tensors:
                number = tensor.tensor_type
                counts[number.name] = counts.get(number.name, 0) + 1
                if number == gguf.GGMLQuantizationType.F32:
                    continue
                stored, given = np.frombuffer(tensor.data.tobytes(), np.uint8), np.ascontiguousarray(values[tensor.name])
                expected = np.zeros_like(stored)
                llama.ggml_quantize_chunk(number, given.ctypes.data, expected.ctypes.data, 0, *given.shape, None)
                read = gguf.quants.dequantize(tensor.data, number)
                error = np.linalg.norm(read - given, axis=-1) / np.maximum(np.linalg.norm(given, axis=-1), 1e-30)
                same &= np.array_equal(expected, stored)
                same &= bool(np.median(error) < (0.13 if number.name == "Q4_0" else 0.1))
            tell(f"rows of {dim}, {kind}: {counts}: blocks as ggml's", same)


def sentencepiece_tokenizers(scratch):
    """A model of SentencePiece's, and tokenizer.json made of it in three ways: (folder, text to ids, skips a text)."""
    text = "\n".join(path.read_text() for path in sorted(pathlib.Path("docs").glob("*.md")))
    (scratch / "text").write_text(text)
    own = ["\n", "<|im_end|>"]
    sentencepiece.SentencePieceTrainer.train(
        input=str(scratch / "text"), model_prefix=str(scratch / "pieces"), vocab_size=1000, model_type="bpe", byte_fallback=True,
        normalization_rule_name="identity", remove_extra_whitespaces=False, user_defined_symbols=own, minloglevel=2,
        allow_whitespace_only_pieces=True)
    pieces = sentencepiece.SentencePieceProcessor(model_file=str(scratch / "pieces.model"))
    vocabulary = {pieces.id_to_piece(i): i for i in range(pieces.vocab_size())}
    merges = []
    for piece, i in vocabulary.items():
        if not (pieces.is_unknown(i) or pieces.is_control(i) or pieces.is_byte(i) or piece in own):
            merges += [(piece[:k], piece[k:], pieces.get_score(i)) for k in range(1, len(piece))
                       if piece[:k] in vocabulary and piece[k:] in vocabulary]
    merges = [merge[:2] for merge in sorted(merges, key=lambda merge: -merge[2])]
    folder = scratch / "tokenizer_model"
    folder.mkdir()
    (folder / "tokenizer.model").write_bytes((scratch / "pieces.model").read_bytes())
    # Behind a token of its own, llama.cpp puts a blank.
    yield folder, len(vocabulary), pieces.encode, lambda text: any(token in text for token in own)
    for way in ("prepend", "first", "never"):
        tokenizer = tokenizers.Tokenizer(models.BPE(vocabulary, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
        blanks = normalizers.Replace(" ", "▁")
        if way == "prepend":
            tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), blanks])
        elif way == "first":
            tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
        else:
            tokenizer.normalizer, tokenizer.pre_tokenizer = blanks, pre_tokenizers.Split(" ", "merged_with_previous")
        tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
        tokenizer.add_special_tokens([AddedToken(token, normalized=False) for token in ("<unk>", "<s>", "</s>")])
        tokenizer.add_tokens([AddedToken(token, normalized=False) for token in own])
        folder = scratch / f"tokenizer_json_{way}"
        folder.mkdir()
        tokenizer.save(str(folder / "tokenizer.json"))
        # Metaspace puts no blank before another, nor behind a token of its own.
        yield (folder, len(vocabulary), lambda text, t=tokenizer: t.encode(text, add_special_tokens=False).ids,
               lambda text, first=way == "first": first and (text.startswith(" ") or any(token in text for token in own)))


def compare_tokens(scratch):
    random.seed(0)
    lines = [line for path in sorted(pathlib.Path("docs").glob("*.md")) for line in path.read_text().splitlines() if line]
    cases = [random.choice(lines)[random.randrange(5):][:random.randrange(1, 200)] for _ in range(num_cases)]
    cases += [" a", "a  b\n\nc", "  two   blanks ", "日本語 x", "😀 ok", "tab\tx", "", "1234567", "<|im_end|>"]
    for folder, size, encode, skips in sentencepiece_tokenizers(scratch):
        shapes = {"model.embed_tokens": (size, 32), "model.norm": (32,), "lm_head": (size, 32)}
        for name, shape in (("input_layernorm", (32,)), ("post_attention_layernorm", (32,)), ("self_attn.q_proj", (32, 32)),
                            ("self_attn.k_proj", (32, 32)), ("self_attn.v_proj", (32, 32)), ("self_attn.o_proj", (32, 32)),
                            ("mlp.gate_proj", (64, 32)), ("mlp.up_proj", (64, 32)), ("mlp.down_proj", (32, 64))):
            shapes[f"model.layers.0.{name}"] = shape
        write_model(folder, dict(model_type="llama", vocab_size=size, hidden_size=32, intermediate_size=64, num_hidden_layers=1,
                                 num_attention_heads=4, max_position_embeddings=64, tie_word_embeddings=False, bos_token_id=1,
                                 eos_token_id=2), {f"{name}.weight": np.ones(shape, np.float32) for name, shape in shapes.items()})
        path = scratch / f"{folder.name}.gguf"
        done = export(folder, path)
        if done.returncode != 0:
            tell(f"{folder.name}: {done.stderr}", False)
            continue
        model = load(path)
        vocabulary, wrong, count = llama.llama_model_get_vocab(model), [], 0
        for text in cases:
            if skips(text):
                continue
            data = text.encode()
            ids = (ctypes.c_int32 * (len(data) + 16))()
            size = llama.llama_tokenize(vocabulary, data, len(data), ids, len(ids), False, True)
            count += 1
            if list(ids[:size]) != encode(text):
                wrong.append(text)
        llama.llama_model_free(model)
        tell(f"{folder.name}: {count} texts, {len(wrong)} with other tokens" + "".join(f"\n  {text!r}" for text in wrong[:5]), not wrong)


with tempfile.TemporaryDirectory() as scratch:
    for compare in (compare_logits, compare_greedy, compare_blocks, compare_tokens):
        compare(pathlib.Path(scratch))
sys.exit(failed)
