#include "tests/combinations/accelerate_changes.h"

#include <algorithm>
#include <filesystem>
#include <regex>
#include <string>
#include <vector>

#include "tessera/base/file.h"

namespace tessera::combinations {
namespace {

struct Change {
  std::string section, key;  ///< section "": of the file itself
  std::vector<std::string> values;
};

const std::vector<Change>& changes() {
  static const std::vector<Change> list{
      {"", "mixed_precision", {"'no'", "bf16", "fp16"}},
      {"fsdp_config", "fsdp_version", {"1", "2"}},
      {"fsdp_config", "fsdp_activation_checkpointing", {"true", "false"}},
      {"fsdp_config",
       "fsdp_auto_wrap_policy",
       {"TRANSFORMER_BASED_WRAP", "SIZE_BASED_WRAP", "NO_WRAP"}},
      {"fsdp_config", "fsdp_min_num_params", {"1000", "10000"}},
      {"fsdp_config",
       "fsdp_sharding_strategy",
       {"FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD", "HYBRID_SHARD"}},
      {"fsdp_config", "fsdp_reshard_after_forward", {"true", "false"}},
      {"fsdp_config", "fsdp_backward_prefetch", {"BACKWARD_PRE", "BACKWARD_POST", "NO_PREFETCH"}},
      {"fsdp_config", "fsdp_forward_prefetch", {"true", "false"}},
      {"fsdp_config", "fsdp_offload_params", {"true", "false"}},
      {"deepspeed_config", "zero_stage", {"0", "1", "2", "3"}},
      {"deepspeed_config", "gradient_clipping", {"0.3", "1.0"}},
      {"deepspeed_config", "gradient_accumulation_steps", {"1", "2"}},
      {"deepspeed_config", "offload_optimizer_device", {"none", "cpu"}},
      {"deepspeed_config", "offload_param_device", {"none", "cpu"}},
  };
  return list;
}

/// Accelerate's own but for those that are refused as they are, one for each of DeepSpeed's, and
/// two with nothing in them yet.
std::vector<std::string> files() {
  std::vector<std::string> texts{
      "distributed_type: FSDP\nfsdp_config:\n",
      "distributed_type: DEEPSPEED\ndeepspeed_config:\n  zero_stage: 2\n"};
  for (const auto& entry : std::filesystem::recursive_directory_iterator(
           std::filesystem::path("tests") / "fixtures" / "accelerate_configs")) {
    const auto path = std::filesystem::absolute(entry.path());
    if (path.extension() == ".yaml") texts.push_back(read_file(path));
    if (path.extension() == ".json") {
      texts.push_back(
          "distributed_type: DEEPSPEED\nnum_processes: 2\ndeepspeed_config:\n"
          "  deepspeed_config_file: " +
          path.string() + "\n");
    }
  }
  std::erase_if(texts, [](const auto& text) {
    return (text.find("SAGEMAKER") != std::string::npos) ||
           (text.find("invalid_key") != std::string::npos) ||
           (text.find("fp8") != std::string::npos);
  });
  std::ranges::sort(texts);
  return texts;
}

/// `text` with key: value in its section; nothing is changed where the section is not there.
std::string with(const std::string& text, const Change& change, const std::string& value) {
  // What is in the file cannot be said beside it.
  const bool in_file = change.section == "deepspeed_config" &&
                       text.find("deepspeed_config_file") != std::string::npos;
  if (in_file) return text;
  const std::regex line("(^|\n)( *)" + change.key + ": [^\n]*");
  if (std::regex_search(text, line)) {
    return std::regex_replace(text, line, "$1$2" + change.key + ": " + value);
  }
  if (change.section.empty()) return text + "\n" + change.key + ": " + value + "\n";
  const auto section = text.find(change.section + ":\n");
  if (section == std::string::npos) return text;
  return text.substr(0, section) + change.section + ":\n  " + change.key + ": " + value + "\n" +
         text.substr(section + change.section.size() + 2);
}

}  // namespace

std::string draw_accelerate_file(std::mt19937_64& random) {
  static const auto texts = files();
  const auto below = [&](size_t n) {
    return std::uniform_int_distribution<size_t>(0, n - 1)(random);
  };
  auto text = texts[below(texts.size())];
  for (const auto& change : changes()) {
    if (below(3) == 0) text = with(text, change, change.values[below(change.values.size())]);
  }
  return text;
}

}  // namespace tessera::combinations
