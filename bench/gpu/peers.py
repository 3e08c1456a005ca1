#!/usr/bin/env python3
"""The same Llama in PyTorch: blocks and loss compiled, fused AdamW with states in bfloat16, as torchtitan sets it up; or
LoRA by transformers and PEFT. Gives tokens a second (median) and the most memory.

    python3 bench/gpu/peers.py [--model 1b|8b] [--checkpointing none|full] [--lora] ..
"""
import argparse
import json
import statistics
import time

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

SHAPES = {  # dim, layers, heads, kv heads, ffn, tied
    "1b": (2048, 16, 32, 8, 8192, True),
    "8b": (4096, 32, 32, 8, 14336, False),
}
VOCABULARY = 128256


def rotate(x, cos, sin):
    half = x.shape[-1] // 2
    return x * cos + torch.cat((-x[..., half:], x[..., :half]), -1) * sin


class Block(nn.Module):
    def __init__(self, dim, heads, kv_heads, ffn):
        super().__init__()
        self.heads, self.kv_heads, self.head_dim = heads, kv_heads, dim // heads
        self.q, self.o = nn.Linear(dim, dim, bias=False), nn.Linear(dim, dim, bias=False)
        self.k = nn.Linear(dim, kv_heads * self.head_dim, bias=False)
        self.v = nn.Linear(dim, kv_heads * self.head_dim, bias=False)
        self.gate, self.up = nn.Linear(dim, ffn, bias=False), nn.Linear(dim, ffn, bias=False)
        self.down = nn.Linear(ffn, dim, bias=False)
        self.norm1, self.norm2 = nn.RMSNorm(dim, 1e-5), nn.RMSNorm(dim, 1e-5)

    def forward(self, x, cos, sin):
        batch, tokens, _ = x.shape
        h = self.norm1(x)
        q = self.q(h).view(batch, tokens, self.heads, self.head_dim).transpose(1, 2)
        k = self.k(h).view(batch, tokens, self.kv_heads, self.head_dim).transpose(1, 2)
        v = self.v(h).view(batch, tokens, self.kv_heads, self.head_dim).transpose(1, 2)
        h = F.scaled_dot_product_attention(rotate(q, cos, sin), rotate(k, cos, sin), v, is_causal=True, enable_gqa=True)
        x = x + self.o(h.transpose(1, 2).reshape(batch, tokens, -1))
        h = self.norm2(x)
        return x + self.down(F.silu(self.gate(h)) * self.up(h))


class Llama(nn.Module):
    def __init__(self, dim, layers, heads, kv_heads, ffn, tied):
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, dim)
        self.blocks = nn.ModuleList(Block(dim, heads, kv_heads, ffn) for _ in range(layers))
        self.norm, self.head = nn.RMSNorm(dim, 1e-5), nn.Linear(dim, VOCABULARY, bias=False)
        if tied:
            self.head.weight = self.embedding.weight
        self.head_dim = dim // heads

    def forward(self, ids, cos, sin, again):
        x = self.embedding(ids)
        for block in self.blocks:
            x = checkpoint(block, x, cos, sin, use_reentrant=False) if again else block(x, cos, sin)
        return self.head(self.norm(x))


def loss_of(logits, targets):
    return F.cross_entropy(logits.float().flatten(0, 1), targets.flatten(), reduction="sum")


def tables(tokens, head_dim):
    angles = torch.outer(torch.arange(tokens).float(), 500000.0 ** (-torch.arange(0, head_dim, 2).float() / head_dim))
    angles = torch.cat((angles, angles), -1).cuda()
    return angles.cos().bfloat16(), angles.sin().bfloat16()


def make_plain(arguments):
    shape = SHAPES[arguments.model]
    with torch.device("cuda"):
        torch.set_default_dtype(torch.bfloat16)
        model = Llama(*shape)
        torch.set_default_dtype(torch.float32)
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.02) if parameter.dim() > 1 else nn.init.ones_(parameter)
    loss = loss_of
    if not arguments.eager:
        for block in model.blocks:
            block.compile(fullgraph=True)
        loss = torch.compile(loss_of)
    cos, sin = tables(arguments.tokens, model.head_dim)
    return model, lambda ids, targets: loss(model(ids, cos, sin, arguments.checkpointing == "full"), targets)


def make_lora(arguments):
    import peft
    import transformers
    dim, layers, heads, kv_heads, ffn, tied = SHAPES[arguments.model]
    config = transformers.LlamaConfig(hidden_size=dim, num_hidden_layers=layers, num_attention_heads=heads,
                                      num_key_value_heads=kv_heads, intermediate_size=ffn, vocab_size=VOCABULARY,
                                      tie_word_embeddings=tied, use_cache=False, attn_implementation="sdpa",
                                      dtype=torch.bfloat16, max_position_embeddings=arguments.tokens)
    with torch.device("cuda"):
        torch.set_default_dtype(torch.bfloat16)
        model = transformers.LlamaForCausalLM(config)
        torch.set_default_dtype(torch.float32)
    model = peft.get_peft_model(model, peft.LoraConfig(r=16, lora_alpha=16, target_modules="all-linear"))
    return model, lambda ids, targets: loss_of(model(input_ids=ids).logits, targets)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", choices=SHAPES, default="1b")
    parser.add_argument("--checkpointing", choices=["none", "full"], default="none")
    parser.add_argument("--batch", type=int, default=4, help="sequences at a time")
    parser.add_argument("--accumulate", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=4096)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--lora", action="store_true")
    parser.add_argument("--eager", action="store_true")
    arguments = parser.parse_args()
    torch.manual_seed(1)
    start = time.time()
    model, loss_of_batch = (make_lora if arguments.lora else make_plain)(arguments)
    parameters = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(parameters, lr=3e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
    ids = torch.randint(0, 100000, (arguments.accumulate, arguments.batch, arguments.tokens + 1)).cuda()
    count = arguments.accumulate * arguments.batch * arguments.tokens
    seconds, first = [], None
    for _ in range(arguments.steps):
        begin = time.time()
        total = 0
        for part in ids:
            loss = loss_of_batch(part[:, :-1], part[:, 1:]) / count
            loss.backward()
            total = total + loss.detach()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0, foreach=True)
        optimizer.step()
        optimizer.zero_grad()
        total.item()
        seconds.append(time.time() - begin)
        first = first or time.time() - start
    name = f"{arguments.model} {'transformers + PEFT' if arguments.lora else 'eager' if arguments.eager else 'compiled'} {arguments.checkpointing}"
    print(json.dumps({"peer": name, "tokens_per_second": round(count / statistics.median(seconds[2:])),
                      "first_step_after_s": round(first, 1),
                      "peak_allocated_gb": round(torch.cuda.max_memory_allocated() / 1e9, 1),
                      "peak_reserved_gb": round(torch.cuda.max_memory_reserved() / 1e9, 1)}), flush=True)


if __name__ == "__main__":
    main()
