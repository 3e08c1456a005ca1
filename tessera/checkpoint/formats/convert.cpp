#include "tessera/checkpoint/formats/convert.h"

#include <algorithm>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/checkpoint/formats/hf_export.h"
#include "tessera/checkpoint/formats/llmc.h"
#include "tessera/checkpoint/pending_folder.h"
#include "tessera/checkpoint/write_checkpoint.h"

namespace tessera::checkpoint {
namespace {

using nlohmann::json;

const json& config_of(const TrainingSource& training) {
  const auto& config = training.about.model;
  if (!config.is_object()) {
    user_error(
        "{}: its model is unknown, as no config.json is with it; put one beside it, or "
        "give it to tessera checkpoint convert with --config",
        training.tensors.path().string());
  }
  return config;
}

/// A GPT-2's sizes in its config.json.
Gpt2Shape gpt2_shape(const TrainingSource& training) {
  const auto& config = config_of(training);
  const auto where = training.tensors.path().string();
  if (!config.contains("model_type") || config["model_type"] != "gpt2") {
    user_error("{}: expected a gpt2, which is all that llm.c's checkpoints hold, got model_type {}",
               where, config.value("model_type", json()).dump());
  }
  const auto size = [&](const char* key) {
    const auto found = config.find(key);
    constexpr int64_t kMost = int64_t{1} << 26;
    if (found == config.end() || !found->is_number_unsigned() || *found < 1 || *found > kMost) {
      user_error("{}: config.json: {}: expected 1 to {}, got {}", where, key, kMost,
                 found == config.end() ? "nothing" : found->dump());
    }
    return found->get<int64_t>();
  };
  return {.max_seq_len = size("n_positions"),
          .vocab_size = size("vocab_size"),
          .num_layers = size("n_layer"),
          .num_heads = size("n_head"),
          .dim = size("n_embd")};
}

/// bf16 if that is what most of the model is stored as.
DType llmc_dtype(const TrainingSource& training) {
  int64_t bf16 = 0, others = 0;
  for (const auto& [name, info] : training.tensors.tensors()) {
    (info.dtype == DType::bf16 ? bf16 : others) += info.num_elements();
  }
  return bf16 > others ? DType::bf16 : DType::f32;
}

void write_tessera(const TrainingSource& training, const ConvertOptions& options) {
  const int64_t num_files =
      (total_bytes(training.tensors) + options.max_file_bytes - 1) / options.max_file_bytes;
  write_checkpoint(training.tensors, options.destination,
                   {.about = training.about,
                    .validation_loss = training.validation_loss,
                    .assets = training.assets,
                    .num_files = std::max<int64_t>(num_files, 1)});
}

}  // namespace

void convert(ConvertOptions options) {
  refuse_existing(options.destination);  // before a long look at the source
  options.from.with_optimizer = options.to == Target::tessera && !options.upcycle;
  options.from.our_names =
      options.to == Target::tessera || options.to == Target::gguf || options.upcycle;
  auto training = open_training(options.from);
  if (options.upcycle) training = upcycled(std::move(training), *options.upcycle);
  training.tensors.report_reads(options.progress);
  const auto assets = options.assets.empty() ? training.assets_folder : options.assets;
  switch (options.to) {
    case Target::huggingface:
      return export_hf(training.tensors, options.destination,
                       {.config = config_of(training),
                        .carry_from = assets,
                        .chat_template = options.chat_template,
                        .model_card = options.model_card,
                        .max_shard_bytes = options.max_file_bytes});
    case Target::tessera:
      return write_tessera(training, options);
    case Target::llmc:
      return export_llmc(training.tensors, gpt2_shape(training), options.destination,
                         options.from.dtype.value_or(llmc_dtype(training)));
    case Target::gguf: {
      const auto done = export_gguf(training.tensors, options.destination,
                                    {.config = config_of(training),
                                     .assets = assets,
                                     .chat_template = options.chat_template,
                                     .type = options.type,
                                     .name = options.destination.stem().string()});
      if (options.on_gguf) options.on_gguf(done);
    }
  }
}

}  // namespace tessera::checkpoint
