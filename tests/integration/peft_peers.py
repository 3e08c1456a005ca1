"""Adapters that PEFT makes, merged by `tessera merge-adapter` beside PEFT's own merge_and_unload, in float32, and back by --unmerge; and how
many parameters `tessera estimate-memory` says a job with the same settings trains. Mixtures: adapters of all experts of a layer
(target_parameters), merged and exported, by the logits of models with them.

usage: peft_peers.py TESSERA   (the command; needs torch, transformers, peft)
Prints what differs, and ends with 1 if anything does, with 77 where PEFT is not installed."""
import json
import pathlib
import subprocess
import sys
import tempfile
import warnings

try:
    import peft
    import torch
    import transformers
    from safetensors.torch import load_file
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)

tessera = sys.argv[1]
SIZES = dict(vocab_size=97, hidden_size=64, intermediate_size=96, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2,
             max_position_embeddings=64, tie_word_embeddings=False, bos_token_id=1, eos_token_id=2)
MODELS = {
    "llama": (transformers.LlamaConfig(**SIZES), transformers.LlamaForCausalLM),
    "qwen2": (transformers.Qwen2Config(**SIZES), transformers.Qwen2ForCausalLM),
    "phi3": (transformers.Phi3Config(**SIZES, pad_token_id=0), transformers.Phi3ForCausalLM),
    "gpt2": (transformers.GPT2Config(vocab_size=97, n_embd=64, n_layer=2, n_head=4, n_positions=64, bos_token_id=1, eos_token_id=2),
             transformers.GPT2LMHeadModel),
}
# What PEFT is told, and the same as keys of a job file where `estimate-memory` is asked, too.
CASES = [
    ("llama", dict(r=8, lora_alpha=16, target_modules=["q_proj", "v_proj"]),
     {"rank": 8, "alpha": 16, "targets": ["q_proj", "v_proj"]}),
    ("llama", dict(r=4, target_modules="all-linear", use_rslora=True), {"rank": 4, "targets": ["all-linear"], "rslora": True}),
    ("llama", dict(r=4, target_modules="all-linear", use_dora=True), {"type": "dora", "rank": 4, "targets": ["all-linear"]}),
    ("llama", dict(r=4, target_modules=r".*layers\.[02]\..*(q|down)_proj"),
     {"rank": 4, "targets": [r".*layers\.[02]\..*(q|down)_proj"]}),
    ("llama", dict(r=4, target_modules=["k_proj", "up_proj"], rank_pattern={"layers.1.*": 2, "up_proj": 6}, alpha_pattern={"k_proj": 3}),
     {"rank": 4, "targets": ["k_proj", "up_proj"], "rank_pattern": {"layers.1.*": 2, "up_proj": 6}, "alpha_pattern": {"k_proj": 3}}),
    ("llama", dict(r=4, target_modules=["embed_tokens", "q_proj"]), {"rank": 4, "targets": ["embed_tokens", "q_proj"]}),
    ("llama", dict(r=4, target_modules=["embed_tokens", "lm_head"], use_dora=True),
     {"type": "dora", "rank": 4, "targets": ["embed_tokens", "lm_head"]}),
    ("llama", dict(r=4, target_modules=["o_proj"], modules_to_save=["lm_head", "norm"]),
     {"rank": 4, "targets": ["o_proj"], "modules_to_save": ["lm_head", "norm"]}),
    ("qwen2", dict(r=4, target_modules=["q_proj"], bias="all"), {"rank": 4, "targets": ["q_proj"], "bias": "all"}),
    ("qwen2", dict(r=4, target_modules=["q_proj", "o_proj"], bias="lora_only", layers_to_transform=[1]),
     {"rank": 4, "targets": ["q_proj", "o_proj"], "bias": "lora_only", "layers": [1]}),
    ("phi3", dict(r=4, target_modules=["qkv_proj", "down_proj"]), None),
    ("phi3", dict(r=4, target_modules="all-linear", use_dora=True), None),
    ("gpt2", dict(r=4, target_modules=["c_attn", "mlp.c_proj"]), {"rank": 4, "targets": ["c_attn", "mlp.c_proj"]}),
    ("gpt2", dict(r=4, target_modules="all-linear", use_dora=True, use_rslora=True),
     {"type": "dora", "rank": 4, "targets": ["all-linear"], "rslora": True}),
]


def run(*arguments):
    return subprocess.run([tessera, *map(str, arguments)], check=True, capture_output=True, text=True).stdout


def worst(ours, theirs):
    """Largest difference of two folders' tensors; theirs may have more (tied heads)."""
    ours, theirs = load_file(ours / "model.safetensors"), load_file(theirs / "model.safetensors")
    missing = [name for name in theirs if name not in ours]
    assert not missing and ours, missing
    return max((ours[name] - theirs[name]).abs().max().item() for name in theirs)


def trained_by_job(base, settings, folder):
    job = {"model": {"path": str(base)}, "adapter": {"type": "lora", **settings}, "data": {"train": ["any"], "seq_len": 32}}
    (folder / "job.yaml").write_text(json.dumps(job))
    return json.loads(run("estimate-memory", "--job", folder / "job.yaml", "--json"))["rank"]["trained_parameters"]


def check(number, name, settings, keys, folder):
    torch.manual_seed(number)
    config, kind = MODELS[name]
    base = folder / "base"
    model = kind(config)
    for parameter in model.parameters():  # norms and biases, too
        torch.nn.init.normal_(parameter, std=0.1)
    model.save_pretrained(base)
    adapted = peft.get_peft_model(model, peft.LoraConfig(task_type="CAUSAL_LM", **settings))
    adapted.peft_config["default"].base_model_name_or_path = str(base)
    trained, _ = adapted.get_nb_trainable_parameters()
    for parameter in adapted.parameters():
        if parameter.requires_grad:
            parameter.data += 0.1 * torch.randn_like(parameter)
    adapted.save_pretrained(folder / "adapter")
    adapted.merge_and_unload().save_pretrained(folder / "theirs")
    run("merge-adapter", folder / "adapter", "-o", folder / "ours")
    found = {"merged": worst(folder / "ours", folder / "theirs")}
    plain_lora = not settings.get("use_dora") and "modules_to_save" not in settings and settings.get("bias", "none") == "none"
    if plain_lora:
        run("merge-adapter", folder / "adapter", "--base", folder / "ours", "--unmerge", "-o", folder / "back")
        found["unmerged"] = worst(folder / "back", base)
    ok = all(value < 1e-6 for value in found.values())
    if keys is not None:
        count = trained_by_job(base, keys, folder)
        found["trained"] = f"{count} of {trained}"
        ok = ok and count == trained
    transformers.AutoModelForCausalLM.from_pretrained(folder / "ours")
    print("ok  " if ok else "FAIL", name, settings, found)
    return ok


# Keys of a run; "below": upon an adapter that PEFT made.
RUNS = [
    {"init": "pissa"},
    {"init": "pissa", "pissa_iterations": 4, "rslora": True},
    {"init": "pissa", "type": "dora"},
    {"init": "orthogonal"},
    {"below": True},
    {"below": True, "init": "pissa"},
]


def logits_of(model):
    with torch.no_grad():
        return model.eval()(torch.arange(30).view(1, 30)).logits


def train(base, adapter, folder):
    """A run of a few steps in folder / "run"."""
    (folder / "tokens.bin").write_bytes(bytes(i * 7 % 97 if j == 0 else 0 for i in range(4000) for j in (0, 1)))
    job = {"model": {"path": str(base), "init": "pretrained"}, "adapter": adapter,
           "data": {"train": [str(folder / "tokens.bin")], "seq_len": 32, "validation_fraction": 0}, "optimizer": {"learning_rate": 0.01},
           "train": {"steps": 5, "global_batch": 4, "run_dir": str(folder / "run")}, "logging": {"progress": "none"}}
    (folder / "job.yaml").write_text(json.dumps(job))
    run("train", folder / "job.yaml")


def check_run(keys, folder):
    """A run's adapter in PEFT beside the stored model, and the run merged: one function, which is not the base's."""
    torch.manual_seed(5)
    config, kind = MODELS["llama"]
    base = folder / "base"
    kind(config).save_pretrained(base)
    adapter = {"type": "lora", "rank": 4, "targets": ["q_proj", "down_proj"], **{k: v for k, v in keys.items() if k != "below"}}
    if keys.get("below"):
        below = peft.get_peft_model(kind.from_pretrained(base), peft.LoraConfig(task_type="CAUSAL_LM", r=4, target_modules=["q_proj", "up_proj"]))
        for parameter in below.parameters():
            parameter.data += 0.1 * torch.randn_like(parameter) if parameter.requires_grad else 0
        below.save_pretrained(folder / "below")
        adapter["base"] = [str(folder / "below")]
    train(base, adapter, folder)
    run("export", folder / "run", folder / "adapter", "--to", "peft")
    run("merge-adapter", folder / "run", "-o", folder / "merged")
    before = logits_of(kind.from_pretrained(base))
    theirs = logits_of(peft.PeftModel.from_pretrained(kind.from_pretrained(base), folder / "adapter"))
    merged = logits_of(kind.from_pretrained(folder / "merged"))
    differ, moved = (theirs - merged).abs().max().item(), (theirs - before).abs().max().item()
    ok = differ < 1e-4 * moved
    print("ok  " if ok else "FAIL", "run", keys, {"differ": differ, "moved": moved})
    return ok


FAMILIES = pathlib.Path(__file__).parents[1] / "fixtures" / "families"
LINEAR = ["q_proj", "k_proj", "v_proj", "o_proj"]
# Of each family a model like the fixture's; what PEFT is told.
THEIRS = [
    dict(r=3, lora_alpha=6, target_modules=[], target_parameters=["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]),
    dict(r=3, target_modules=["o_proj"], target_parameters=["experts.down_proj"], use_rslora=True),
    dict(r=2, lora_alpha=5, target_modules=["o_proj"], target_parameters=["model.layers.1.mlp.experts.gate_up_proj", "experts.down_proj"],
         rank_pattern={"experts.down_proj": 4}, alpha_pattern={r".*\.gate_up_proj": 3}, layers_to_transform=[0]),
]
# Of a run, and the families that it leaves out: PEFT has none of gpt-oss's experts by themselves, and takes qwen2_moe's shared expert for
# them; deepseek_v3 has other linear layers.
OURS = [
    ({"targets": ["all-linear"]}, {}),
    ({"targets": ["all-linear"], "rslora": True, "rank_pattern": {"up_proj|w3": 2}}, {}),
    ({"targets": [r".*experts\..*\.(up_proj|w3|down_proj|w2)"], "layers": [1]}, {}),
    ({"targets": [r".*experts\..*", *LINEAR], "init": "pissa"}, {"deepseek_v3"}),
    ({"targets": [r".*experts\..*", *LINEAR], "expert_format": "per_expert"}, {"gpt_oss", "deepseek_v3", "qwen2_moe"}),
]
MIXTURES = ["mixtral", "qwen3_moe", "gpt_oss", "qwen2_moe", "olmoe", "deepseek_v3"]


def mixture(name, folder):
    config = transformers.AutoConfig.from_pretrained(FAMILIES / name)
    config.pad_token_id = 0
    model = transformers.AutoModelForCausalLM.from_config(config)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.1)
    model.save_pretrained(folder)


def load(folder):
    return transformers.AutoModelForCausalLM.from_pretrained(folder)


def same(what, theirs, merged, before):
    differ, moved = (theirs - merged).abs().max().item(), (theirs - before).abs().max().item()
    ok = differ < 1e-5 and differ < 1e-3 * moved
    print("ok  " if ok else "FAIL", what, {"differ": differ, "moved": moved})
    return ok


def check_their_experts(name, settings, folder):
    """An adapter that PEFT made, merged by tessera."""
    torch.manual_seed(7)
    mixture(name, folder / "base")
    adapted = peft.get_peft_model(load(folder / "base"), peft.LoraConfig(task_type="CAUSAL_LM", **settings))
    adapted.peft_config["default"].base_model_name_or_path = str(folder / "base")
    for parameter in adapted.parameters():
        parameter.data += 0.3 * torch.randn_like(parameter) if parameter.requires_grad else 0
    adapted.save_pretrained(folder / "adapter")
    run("merge-adapter", folder / "adapter", "-o", folder / "merged")
    return same(f"{name} {settings}", logits_of(adapted), logits_of(load(folder / "merged")), logits_of(load(folder / "base")))


def check_our_experts(name, keys, folder):
    """A run's adapter in PEFT, and the run merged."""
    torch.manual_seed(8)
    mixture(name, folder / "base")
    train(folder / "base", {"type": "lora", "rank": 3, "alpha": 7, **keys}, folder)
    run("export", folder / "run", folder / "adapter", "--to", "peft")
    run("merge-adapter", folder / "run", "-o", folder / "merged")
    run("merge-adapter", folder / "adapter", "--base", folder / "base", "-o", folder / "again")
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        theirs = logits_of(peft.PeftModel.from_pretrained(load(folder / "base"), folder / "adapter"))
    told = [str(warning.message)[:90] for warning in told if "adapter keys" in str(warning.message)]
    before = logits_of(load(folder / "base"))
    ok = same(f"run of {name} {keys} {told or ''}", theirs, logits_of(load(folder / "merged")), before)
    return same("  read again", theirs, logits_of(load(folder / "again")), before) and ok and not told


def check_mixtures():
    checks = [(check_their_experts, name, settings) for name in MIXTURES for settings in THEIRS]
    checks += [(check_our_experts, name, keys) for name in MIXTURES for keys, without in OURS if name not in without]
    good = True
    for check_one, name, settings in checks:
        with tempfile.TemporaryDirectory() as folder:
            good = check_one(name, settings, pathlib.Path(folder)) and good
    return good


def main():
    torch.set_num_threads(1)
    good = True
    for keys in RUNS:
        with tempfile.TemporaryDirectory() as folder:
            good = check_run(keys, pathlib.Path(folder)) and good
    for number, (name, settings, keys) in enumerate(CASES):
        with tempfile.TemporaryDirectory() as folder:
            good = check(number, name, settings, keys, pathlib.Path(folder)) and good
    good = check_mixtures() and good
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
