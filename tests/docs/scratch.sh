# scratch.sh BUILD FOLDER: what the pages of docs/ speak of, small: programs, recipes and examples as in a checkout, a model at a Hub that
# is a cache, conversations, pairs, questions and texts, a job file, runs.
set -eu
build=$1 folder=$2 checkout=$PWD
mkdir -p "$folder/build/release" "$folder/home" && cd "$folder"
export PATH="$build/bin:$PATH" HF_HOME="$folder/hub" HF_HUB_OFFLINE=1 HOME="$folder/home" OMP_NUM_THREADS=1
ln -s "$build/bin" build/release/bin
ln -s "$checkout/examples" "$checkout/tests" "$checkout/docs" .
cp "$checkout/README.md" .
cp -r "$checkout/recipes" .
# The recipes' minutes as seconds: a smaller shape, two steps, few short rows.
sed -i -E 's/preset: tiny/preset: micro/; s/steps: (100|300)/steps: 2/; s/warmup_steps: .*/warmup_steps: 0/; s/seq_len: (256|1024|2048)/seq_len: 128/;
  s/num_ranks: -1 /num_ranks: 1 /; s/global_batch: 16/global_batch: 8/; s/validate_every: 25/validate_every: 1/' recipes/*.yaml
cp -r "$checkout/tests/fixtures/tokenizers/qwen2_style" tokenizer
awk -f "$checkout/examples/fine_tuning/words.awk"
mkdir -p books src models more shards/a FOLDER output/checkpoint_0 && cp "$checkout/docs/architecture.md" books/architecture.txt
cp "$checkout/tessera/base/"*.h src
cp "$checkout/tessera/base/"*.h FOLDER
head -c 3000 books/architecture.txt >notes.txt
printf '#!/bin/sh\necho "rank $RANK of $WORLD_SIZE: $*"\n' >my_program && chmod +x my_program
cp -r "$checkout/tests/fixtures/dcp_micro/pytorch_model_fsdp_0" "$checkout/tests/fixtures/dcp_micro/optimizer_0" .
cp -r pytorch_model_fsdp_0 output/checkpoint_0
cp chats.jsonl more/more.jsonl
head -n 40 texts.jsonl >code.jsonl
mkdir fsdp_run && cp -r "$checkout/tests/fixtures/dcp_micro" fsdp_run/checkpoint_5
cp -r "$checkout/tests/fixtures/dcp_mixed" fsdp_checkpoint
cp -r "$checkout/tests/fixtures/llama_micro" model_folder
head -n 40 chats.jsonl >some && mv some chats.jsonl
head -n 8 held_out.jsonl >some && mv some held_out.jsonl
sed -E 's/.*"content": "(In Tiku[^"]*)".*"content": "([^"]*)".*/{"prompt": "\1", "chosen": "\2", "rejected": "\2 \2"}/' chats.jsonl >pairs.jsonl
sed -E 's/.*"content": "(In Tiku[^"]*)".*"content": "([^"]*)".*/{"question": "\1", "choices": ["\2", "no"], "answer": 0}/' held_out.jsonl >questions.jsonl

# published NAME FOLDER: as org/NAME in the cache of the Hub.
published() {
  commit=0123456789abcdef0123456789abcdef01234567
  mkdir -p "hub/hub/models--org--$1/refs" "hub/hub/models--org--$1/snapshots/$commit"
  printf %s $commit >"hub/hub/models--org--$1/refs/main"
  cp "$2"/* "hub/hub/models--org--$1/snapshots/$commit"
}

cat >base.yaml <<'END'
model: {preset: micro, vocab_size: 5000}
data: {train: [texts.jsonl], tokenizer: tokenizer, seq_len: 128}
train: {steps: 1, global_batch: 2, run_dir: runs/base, sample_tokens: 0}
END
cat >JOB.yaml <<'END'
model: {preset: micro, vocab_size: 256}
data: {train: [notes.txt], format: text, seq_len: 64}
checkpoint: {every: 2, overwrite: true}
train: {steps: 4, global_batch: 4, run_dir: runs/tiny_llama, sample_tokens: 0}
END
{
  tessera train base.yaml
  tessera export runs/base model --to huggingface --no-compare
  published model model
  ln -s ../model models/Qwen2.5-0.5B
  ln -s ../model models/Qwen2.5-0.5B-Instruct
  tessera train JOB.yaml
  tessera train JOB.yaml --train.run_dir=run --train.steps=100 --checkpoint.every=100 --data.seq_len=8 --train.global_batch=1
  tessera train recipes/chat.yaml --model.path=org/model --data.train=[chats.jsonl] --train.run_dir=runs/x
  tessera train recipes/chat.yaml --model.path=org/model --data.train=[chats.jsonl] --train.run_dir=runs/lora --adapter.type=lora
  tessera export runs/lora sft_adapter --to peft --no-compare
  published adapter sft_adapter
} >log 2>&1 || { cat log >&2; exit 1; }
tessera checkpoint convert run/checkpoints/step_00000100 -o exported --to huggingface >/dev/null
rm -r base.yaml runs/base
cat >fsdp.yaml <<'END'
compute_environment: LOCAL_MACHINE
distributed_type: FSDP
use_cpu: true
fsdp_config: {fsdp_version: 1, fsdp_sharding_strategy: FULL_SHARD}
mixed_precision: 'no'
num_processes: 2
END
mkdir -p home/.cache/huggingface/accelerate && cp fsdp.yaml home/.cache/huggingface/accelerate/default_config.yaml
cp fsdp.yaml accelerate.yaml && cp fsdp.yaml old.yaml && cp fsdp.yaml default_config.yaml
