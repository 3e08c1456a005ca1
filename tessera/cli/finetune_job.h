// The job that `tessera finetune` makes of a model, its data and a machine.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "tessera/base/choices.h"
#include "tessera/config/run_config.h"
#include "tessera/models/shape.h"
#include "tessera/predict/step_memory.h"

namespace tessera::cli {

/// What is trained: adapters beside a frozen model in 16 bits (LoRA) or in 4 (QLoRA), or all of it.
enum class Method { lora, qlora, full };
const char* name_of(Method method);

/// What the data's first rows tell.
struct DataFacts {
  data::RowShape shape = data::RowShape::automatic;
  std::vector<int64_t> lengths;  ///< of rows as documents, tokens
  bool all_rows = true;          ///< false: there are more
};

struct FinetuneRequest {
  std::string model;                    ///< a folder
  std::vector<std::string> data;        ///< as given
  std::vector<std::string> validation;  ///< none: a part of `data` is held out
  std::vector<Method> methods;          ///< that may be taken, the first that fits
  int64_t num_ranks = 1;
  double memory_bytes = 0;  ///< a rank may take
  predict::Device device;
  int64_t seq_len = 0;  ///< 0: chosen
  double epochs = 0;    ///< likewise
  std::string run_dir;
  std::vector<config::Override> overrides;  ///< the user's own keys, which count
};

/// What one method would take.
struct MethodMemory {
  Method method = Method::lora;
  double bytes = 0;  ///< of a rank, at the job's seq_len, with as few activations kept as can be
  int64_t longest_row = 0;  ///< the longest seq_len that fits; 0: none does
};

struct FinetuneJob {
  Method method = Method::lora;
  config::RunConfig config;
  std::vector<std::pair<std::string, std::string>>
      keys;                          ///< that it sets, and why; "": no need to say
  std::vector<MethodMemory> memory;  ///< of every method
};

/// UserError: none of the methods fits the memory (with what would).
FinetuneJob make_finetune_job(const FinetuneRequest& request, const models::ModelShape& shape,
                              const DataFacts& facts);

/// The job file, with the reasons as comments.
std::string job_yaml(const FinetuneJob& job);

}  // namespace tessera::cli
