"""Trains the vocabularies that tokenizer_speed.py measures: byte-level BPE of GPT-2's and Llama 3's size and expression.

usage: peers/tokenizer_vocabulary.py OUT_FOLDER FILE..; writes OUT_FOLDER/gpt2/tokenizer.json (50,257 tokens) and
OUT_FOLDER/llama3/tokenizer.json (128,256: 128,000 and 256 special ones; `ignore_merges`, and a merge for each way to divide a token, as vocabularies
that come from tiktoken have them)."""
import json
import pathlib
import sys

import tokenizers
from tokenizers import decoders, models, pre_tokenizers, trainers

LLAMA3 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"


def train(files, size, pre_tokenizer):
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=size, show_progress=False, initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train_from_iterator((line for file in files for line in open(file, errors="replace", newline="")), trainer)
    if tokenizer.get_vocab_size() != size:
        sys.exit(f"tokenizer_vocabulary.py: expected text for {size} tokens, got {tokenizer.get_vocab_size()}; give more files")
    return tokenizer


def all_merges(vocabulary):
    """Each way to divide a token, in the order of the tokens' ids."""
    for token in sorted(vocabulary, key=vocabulary.get):
        cuts = [(token[:i], token[i:]) for i in range(1, len(token))]
        yield from sorted(((a, b) for a, b in cuts if a in vocabulary and b in vocabulary), key=lambda cut: (vocabulary[cut[0]], vocabulary[cut[1]]))


def main():
    out, files = pathlib.Path(sys.argv[1]), sys.argv[2:]
    gpt2 = train(files, 50256, pre_tokenizers.ByteLevel(add_prefix_space=False))
    gpt2.add_special_tokens(["<|endoftext|>"])
    split = pre_tokenizers.Split(tokenizers.Regex(LLAMA3), "isolated")
    llama3 = train(files, 128000, pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]))
    state = json.loads(llama3.to_str())
    state["model"] |= {"ignore_merges": True, "merges": [list(pair) for pair in all_merges(llama3.get_vocab())]}
    llama3 = tokenizers.Tokenizer.from_str(json.dumps(state))
    llama3.add_special_tokens(["<|begin_of_text|>", "<|end_of_text|>"] + [f"<|reserved_special_token_{i}|>" for i in range(254)])
    for name, tokenizer in (("gpt2", gpt2), ("llama3", llama3)):
        (out / name).mkdir(parents=True, exist_ok=True)
        tokenizer.save(str(out / name / "tokenizer.json"))


main()
