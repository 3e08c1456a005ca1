"""Compares tessera_text_probe with the `tokenizers` (and `sentencepiece`) packages on random and hostile strings.

usage: tokenizer_peers.py PROBE FOLDER [CASES [NAME]]; FOLDER holds a folder per tokenizer. Prints a line for each, ends with 1 at a difference and
with 77 where `tokenizers` is missing."""
import json
import pathlib
import random
import subprocess
import sys
import tempfile
import unicodedata

try:
    import tokenizers
    from tokenizers import decoders, models, normalizers, pre_tokenizers, processors
except ImportError:
    print("tokenizer_peers.py: skipped: no package `tokenizers`; pip install tokenizers sentencepiece")
    sys.exit(77)

WORDS = ["the", "The", "don't", "I'LL", "we\u2019ve", "foo_bar", "x1", "12345", "3.14", "\u00bd", "\u0663\u0664", "na\u00efve", "nai\u0308ve", "A\u030a", "\u212b", "\ufb01n", "\u1e9b\u0323",
         "\u4f60\u597d", "\u3053\u3093\u306b\u3061\u306f", "\u30ab\u30bf\u30ab\u30ca\u30fc", "\ud55c\uad6d\uc5b4", "\u1112\u1161\u11ab", "\u0645\u0631\u062d\u0628\u0627", "\u05e9\u05dc\u05d5\u05dd", "\u0939\u093f\u0928\u094d\u0926\u0940", "\u0e20\u0e32\u0e29\u0e32",
         "\U0001f600", "\U0001f468\u200d\U0001f469\u200d\U0001f467", "\U0001f1e9\U0001f1ea", "\U0001f44d\U0001f3fd", "\u2764\ufe0f", "a\u0301\u0323", "a\u0323\u0301", "\u0130", "\u0131", "\u1e9e", "\u03a3\u03a3", "\u01c5",
         "<s>", "</s>", "<unk>", "<|endoftext|>", "<|im_start|>", "<|im_end|>", "[MASK]", "[CLS]", "<0x41>", "##ing", "\u2581", "\u2581a", "\u0120", "\u0120the", "\u010a", "==", "!!!", "...", "-->", "://", "()", "\u201c\u201d", "\u00a7", "$5", "\u20ac"]
BLANKS = [" ", " ", " ", "  ", "   ", "\n", "\n\n", "\r\n", "\t", " \n", "\n ", "\u00a0", "\u3000", "\u2003", "\u2028", "\u0085", "\u180e", "\u200b", "\u1680", "\u000b", "\u000c", "\u001c", ""]
ODD = ["\u0000", "\u0001", "\u007f", "\u0080", "\u00ad", "\u200d", "\u200e", "\u202e", "\u2066", "\ufeff", "\ufffd", "\ufffe", "\ue000", "\U0010ffff", "\u0300", "\u0345", "\u0f71\u0f72", "\u1160", "\u20dd"]


def known(code):
    """Assigned in this Python's Unicode, so that newer tables do not differ."""
    return not 0xD800 <= code < 0xE000 and unicodedata.category(chr(code)) != "Cn"


def any_character(rng):
    while True:
        code = rng.choice([rng.randrange(0x80), rng.randrange(0x800), rng.randrange(0x3000), rng.randrange(0x10000), rng.randrange(0x20000)])
        if known(code):
            return chr(code)


def texts(count, seed, added):
    rng = random.Random(seed)
    fixed = ["", " ", "\n", "a" * 1000, " " * 500, "\n" * 99 + "x", "ab" * 400, "\u4f60" * 300, "".join(ODD), "e" + "\u0301\u0323" * 40]
    yield from fixed
    for _ in range(count - len(fixed)):
        kind = rng.random()
        parts = []
        for _ in range(rng.choice([1, 2, 4, 8, 16, 40])):
            pick = rng.random()
            if kind < 0.2:
                parts.append(any_character(rng))
            elif kind < 0.3:
                parts.append(rng.choice(ODD + BLANKS))
            elif kind < 0.4 and added:
                parts.append(rng.choice(added + BLANKS + WORDS))
            elif pick < 0.6:
                parts.append(rng.choice(WORDS) + rng.choice(BLANKS))
            elif pick < 0.9:
                parts.append("".join(rng.choice("etaoinshrdluETAOIN") for _ in range(rng.randint(1, 9))) + rng.choice(BLANKS))
            else:
                parts.append(any_character(rng))
        yield "".join(parts)


def hostile():
    """Too long or too odd to be drawn often: a megabyte without a blank, text that is no UTF-8, lone surrogates of JSON."""
    yield "a" * 1_000_000
    yield "\u4f60\u597d" * 100_000
    yield "0123456789" * 20_000
    rng = random.Random("bytes")
    for _ in range(500):
        yield bytes(rng.choice([rng.randrange(256), 0x20, 0x61, 0xC3, 0xE4, 0xBD, 0xF0, 0x9F]) for _ in range(rng.randint(1, 40)))
    for escaped in (r"\ud83d", r"\ude00 x", r"a\udc00\ud800b", r"\ud83d\ud83d\ude00"):
        yield json.loads(f'"{escaped}"').encode("utf-8", "surrogatepass")


def ask(probe, path, lines):
    done = subprocess.run([probe, str(path)], input="".join(json.dumps(line) + "\n" for line in lines), capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"tokenizer_peers.py: {path}: {done.stderr.strip() or done.returncode}")
    return [json.loads(line) for line in done.stdout.split("\n")[:-1]]


def compare(name, probe, path, reference, count, added=(), offsets=True, whole=False):
    lines = []
    for number, text in enumerate(texts(count, name, list(added))):
        lines.append({"text": text, "add_special_tokens": number % 2 == 0})
    for text in hostile() if whole else []:
        lines.append({"text": text} if isinstance(text, str) else {"text": text.decode("utf-8", "replace"), "bytes": text.hex()})
        lines[-1]["add_special_tokens"] = True
    rng = random.Random(name + "ids")
    lines += [{"ids": [rng.randrange(reference.size + 3) for _ in range(rng.randint(0, 12))]} for _ in range(count // 10)]
    different = 0
    for line, found in zip(lines, ask(probe, path, lines), strict=True):
        expected = reference(line)
        if "ids" in line:
            found.pop("streamed", None)  # bytes that are no UTF-8 change what was shown before them
        if not offsets:
            found.pop("offsets", None)
            expected.pop("offsets", None)
        if found != expected:
            different += 1
            if different <= 5:
                print(f"  {name}: {ascii(line)[:2000]}\n    expected {ascii(expected)[:2000]}\n    got      {ascii(found)[:2000]}")
    print(f"{name}: {len(lines)} cases, {different} differences")
    return different


class OfTokenizers:
    def __init__(self, tokenizer):
        self.tokenizer, self.size = tokenizer, tokenizer.get_vocab_size()

    def __call__(self, line):
        if "text" in line:
            encoding = self.tokenizer.encode(line["text"], add_special_tokens=line["add_special_tokens"])
            ids, result = encoding.ids, {"ids": encoding.ids}
            if ids:
                result["offsets"] = [list(pair) for pair in encoding.offsets]
        else:
            ids, result = line["ids"], {}
        return result | {"decoded": self.tokenizer.decode(ids, skip_special_tokens=False), "skipped": self.tokenizer.decode(ids, skip_special_tokens=True)}


def made():
    """Tokenizers that between them use every step, small, by name."""
    corpus = list(texts(3000, "corpus", []))
    bert = ["[UNK]", "[CLS]", "[SEP]"]

    def train(model, trainer, pre, normalizer=None):
        tokenizer = tokenizers.Tokenizer(model)
        tokenizer.pre_tokenizer = pre
        if normalizer:
            tokenizer.normalizer = normalizer
        tokenizer.train_from_iterator(corpus, trainer)
        return tokenizer

    def bpe(**options):
        return tokenizers.trainers.BpeTrainer(vocab_size=5000, show_progress=False, **options)

    pres = {
        "whitespace": pre_tokenizers.Whitespace(), "whitespace_split": pre_tokenizers.WhitespaceSplit(), "punctuation": pre_tokenizers.Punctuation("merged_with_previous"),
        "digits": pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=False), pre_tokenizers.Punctuation("contiguous")]), "single_digits": pre_tokenizers.Digits(individual_digits=True),
        "delimiter": pre_tokenizers.CharDelimiterSplit("t"), "scripts": pre_tokenizers.UnicodeScripts(),
        "metaspace": pre_tokenizers.Metaspace(), "metaspace_first": pre_tokenizers.Metaspace(prepend_scheme="first"), "metaspace_whole": pre_tokenizers.Metaspace(prepend_scheme="never", split=False),
        "byte_level_prefix": pre_tokenizers.ByteLevel(add_prefix_space=True),
        "byte_level_then": pre_tokenizers.Sequence([pre_tokenizers.ByteLevel(add_prefix_space=False), pre_tokenizers.Split("\u0120", "merged_with_next")]),
    }
    for behavior in ("removed", "isolated", "merged_with_previous", "merged_with_next", "contiguous"):
        for invert in (False, True):
            pres[f"split_{behavior}_{invert}"] = pre_tokenizers.Split(tokenizers.Regex(r"[aeiou\s]"), behavior, invert)
    pres["split_text"] = pre_tokenizers.Split("th", "isolated")
    pres["split_word"] = pre_tokenizers.Split(tokenizers.Regex(r"\w+|\d|\W"), "isolated")
    pres["split_lines"] = pre_tokenizers.Split(tokenizers.Regex(r"^.|\b[\p{Han}&&[^\u4f60]]|.$|\p{N}{1,3}+|[[a-e]\s]+"), "isolated")
    for name, pre in pres.items():
        yield f"pre_{name}", train(models.BPE(unk_token="[UNK]"), bpe(special_tokens=bert), pre)

    norms = {"nfc": normalizers.NFC(), "nfd": normalizers.NFD(), "nfkc": normalizers.NFKC(), "nfkd": normalizers.NFKD(), "lowercase": normalizers.Lowercase(),
             "strip": normalizers.Strip(), "lstrip": normalizers.Strip(left=True, right=False), "nmt": normalizers.Nmt(), "accents": normalizers.Sequence([normalizers.NFD(), normalizers.StripAccents()]),
             "replace": normalizers.Replace("th", "\u2581x"), "replace_expression": normalizers.Replace(tokenizers.Regex(r"\s+"), " "), "prepend": normalizers.Prepend("ab\u2581"),
             "bert": normalizers.BertNormalizer(), "bert_cased": normalizers.BertNormalizer(lowercase=False, strip_accents=True), "byte_level": normalizers.ByteLevel(),
             "sequence": normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase(), normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])}
    for name, normalizer in norms.items():
        tokenizer = train(models.BPE(unk_token="[UNK]", fuse_unk=name < "m"), bpe(special_tokens=bert), pre_tokenizers.WhitespaceSplit(), normalizer)
        tokenizer.add_tokens([tokenizers.AddedToken("THE", normalized=True), tokenizers.AddedToken("don", single_word=True, normalized=False)])
        yield f"norm_{name}", tokenizer

    suffix = train(models.BPE(unk_token="[UNK]", end_of_word_suffix="</w>"), bpe(special_tokens=bert, end_of_word_suffix="</w>"), pre_tokenizers.BertPreTokenizer())
    suffix.decoder = decoders.BPEDecoder()
    suffix.post_processor = processors.BertProcessing(("[SEP]", 2), ("[CLS]", 1))
    yield "bpe_suffix", suffix
    clip = train(models.BPE(end_of_word_suffix="</w>"), bpe(end_of_word_suffix="</w>", initial_alphabet=pre_tokenizers.ByteLevel.alphabet()), pre_tokenizers.ByteLevel(add_prefix_space=False), normalizers.Sequence([normalizers.NFC(), normalizers.Lowercase()]))
    yield "bpe_clip", clip
    prefix = train(models.BPE(unk_token="[UNK]", continuing_subword_prefix="##"), bpe(special_tokens=bert, continuing_subword_prefix="##"), pre_tokenizers.Whitespace())
    prefix.decoder = decoders.WordPiece()
    yield "bpe_prefix", prefix
    for fuse in (False, True):
        for fallback in (False, True):
            base = train(models.BPE(), bpe(special_tokens=["<unk>"] + [f"<0x{byte:02X}>" for byte in range(256)], limit_alphabet=60), pre_tokenizers.Metaspace())
            state = json.loads(base.to_str())
            state["model"] |= {"unk_token": "<unk>", "fuse_unk": fuse, "byte_fallback": fallback}
            state["added_tokens"] = [token for token in state["added_tokens"] if token["content"] == "<unk>"]
            state["pre_tokenizer"] = None
            llama = tokenizers.Tokenizer.from_str(json.dumps(state))
            llama.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
            llama.decoder = decoders.Sequence([decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
            yield f"bpe_llama_{fuse}_{fallback}", llama
    roberta = train(models.BPE(), bpe(special_tokens=["<s>", "</s>"], initial_alphabet=pre_tokenizers.ByteLevel.alphabet()), pre_tokenizers.ByteLevel(add_prefix_space=True))
    roberta.post_processor = processors.RobertaProcessing(("</s>", 1), ("<s>", 0))
    roberta.decoder = decoders.ByteLevel()
    roberta.add_special_tokens([tokenizers.AddedToken("<mask>", lstrip=True, rstrip=True)])
    yield "bpe_roberta", roberta

    for fallback in (False, True):
        unigram = train(models.Unigram(), tokenizers.trainers.UnigramTrainer(vocab_size=9000, show_progress=False, unk_token="<unk>", special_tokens=["<unk>", "</s>"] + ([f"<0x{byte:02X}>" for byte in range(256)] if fallback else [])),
                        pre_tokenizers.Metaspace(), normalizers.NFKC())
        state = json.loads(unigram.to_str())
        state["model"]["byte_fallback"] = fallback
        state["added_tokens"] = state["added_tokens"][:2]
        unigram = tokenizers.Tokenizer.from_str(json.dumps(state))
        unigram.decoder = decoders.Metaspace() if not fallback else decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace(), decoders.Fuse()])
        unigram.post_processor = processors.TemplateProcessing(single="$A </s>", pair="$A </s> $B:1 </s>:1", special_tokens=[("</s>", 1)])
        yield f"unigram_{fallback}", unigram
    piece = train(models.WordPiece(unk_token="[UNK]"), tokenizers.trainers.WordPieceTrainer(vocab_size=4000, show_progress=False, special_tokens=bert), pre_tokenizers.BertPreTokenizer(), normalizers.BertNormalizer(lowercase=False))
    piece.decoder = decoders.WordPiece(cleanup=False)
    yield "word_piece", piece
    level = train(models.WordLevel(unk_token="[UNK]"), tokenizers.trainers.WordLevelTrainer(vocab_size=300, show_progress=False, special_tokens=bert), pre_tokenizers.Whitespace())
    level.decoder = decoders.CTC(pad_token="the", word_delimiter_token="=")
    yield "word_level", level


def of_sentencepiece(folder, model, probe, count):
    try:
        import sentencepiece
    except ImportError:
        return 0
    processor = sentencepiece.SentencePieceProcessor(model_file=str(model))

    def reference(line):
        result = {}
        ids = line.get("ids")
        if ids is None:
            ids = processor.encode(line["text"], add_bos=line["add_special_tokens"])
            result["ids"] = ids
        ids = [each for each in ids if each < processor.get_piece_size()]
        return result | {"decoded": processor.decode(ids), "skipped": processor.decode(ids)}
    reference.size = processor.get_piece_size()
    return compare(folder, probe, model, reference, count, offsets=False, whole=True)


def main():
    probe, folder = sys.argv[1:3]
    count = int(sys.argv[3]) if len(sys.argv) > 3 else 20000
    different = 0
    for path in sorted(pathlib.Path(folder).iterdir()) if pathlib.Path(folder).exists() else []:
        if (path / "tokenizer.json").exists():
            tokenizer = tokenizers.Tokenizer.from_file(str(path / "tokenizer.json"))
            added = [token.content for token in tokenizer.get_added_tokens_decoder().values()]
            different += compare(path.name, probe, path, OfTokenizers(tokenizer), count, added, whole=True)
        elif (path / "tokenizer.model").exists():
            different += of_sentencepiece(path.name, path / "tokenizer.model", probe, count)
    only = sys.argv[4] if len(sys.argv) > 4 else ""
    with tempfile.TemporaryDirectory() as folder:
        for name, tokenizer in made():
            if only not in name:
                continue
            path = pathlib.Path(folder) / "tokenizer.json"
            tokenizer.save(str(path))
            different += compare(name, probe, path, OfTokenizers(tokenizers.Tokenizer.from_file(str(path))), max(count // 10, 500), list(tokenizer.get_vocab())[:40])
    sys.exit(1 if different else 0)


main()
