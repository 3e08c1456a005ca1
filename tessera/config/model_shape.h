// The shape of a model: what its configuration says, before any tensor exists.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::config {

enum class ModelFamily { llama, gpt2 };

/// How rotary positions are stretched beyond the length of the first training (config.json:
/// rope_scaling, in transformers 5 rope_parameters; formulas in kernels/rotary.cpp).
enum class RopeScalingType { linear, dynamic, yarn, llama3 };

struct RopeScaling {
  RopeScalingType type = RopeScalingType::llama3;
  double factor = 8;
  int64_t original_max_seq_len = 8192;               ///< all but linear
  double low_freq_factor = 1, high_freq_factor = 4;  ///< llama3
  double beta_fast = 32, beta_slow = 1;              ///< yarn: turns within the original length
  bool truncate = true;                              ///< yarn: the two bounds to whole dimensions
  double attention_factor = 1;                       ///< yarn: of cosines and sines

  bool operator==(const RopeScaling&) const = default;
};

/// One implementation (`llama`) serves Llama 2 and 3, Mistral, Qwen2 and Qwen3: they differ in
/// the fields that say so.
struct ModelShape {
  ModelFamily family = ModelFamily::llama;
  int64_t vocab_size = 2048;
  int64_t dim = 256;  ///< width of the residual stream (hidden_size, n_embd)
  int64_t num_layers = 4;
  int64_t num_heads = 8;
  int64_t num_kv_heads = 4;  ///< num_heads is a multiple of it; gpt2: equal to num_heads
  int64_t head_dim = 32;
  int64_t ffn_dim = 688;      ///< intermediate_size; gpt2: 4 dim
  int64_t max_seq_len = 256;  ///< gpt2: rows of the position table
  double rope_theta = 10000;
  std::optional<RopeScaling> rope_scaling;
  bool qkv_bias = false;        ///< llama family: of q_proj, k_proj and v_proj
  bool out_bias = false;        ///< llama family: of o_proj
  bool mlp_bias = false;        ///< llama family
  bool qk_norm = false;         ///< llama family: RMSNorm of every query and key head
  int64_t sliding_window = 0;   ///< llama family: keys that a query sees, itself included; 0: all
  int64_t num_full_layers = 0;  ///< the first layers, which have no window
  double norm_eps = 1e-5;
  bool tie_embeddings = false;
  double dropout = 0;  ///< gpt2: of the embeddings and of each block's two results

  bool operator==(const ModelShape&) const = default;
};

/// A shape known by name: micro, tiny, small, gpt2 (124M), llama-3.2-1b, llama-3-8b, llama-3-70b,
/// llama-3.1-405b. UserError with the nearest name if unknown.
ModelShape model_preset(std::string_view name);
std::vector<std::string> model_preset_names();

/// Reads a Hugging Face config.json as transformers 4 or 5 writes it: model_type llama, mistral,
/// qwen2, qwen3 or gpt2. An absent key means what it means there. `expected_type`: what model_type
/// must be, unless "auto". UserError names file, key and what was expected, and refuses by name
/// what these families do not do here (other rotary scalings, other activations). Dropout is not
/// read: it is training's matter.
ModelShape read_model_shape(const std::filesystem::path& config_json,
                            const std::string& expected_type = "auto");

/// What is wrong with a shape: the first field at fault (a name as above) and what was expected of
/// it.
struct ShapeProblem {
  std::string field;
  std::string message;
};

/// Sizes within reason (so that no count overflows), heads that divide the width, groups that
/// divide the heads, an even head width where positions are rotated.
std::optional<ShapeProblem> shape_problem(const ModelShape& shape);

/// Why `tp` ranks cannot divide the model's matrices, if so: whole heads belong to a rank.
std::optional<std::string> division_problem(const ModelShape& shape, int64_t tp);

/// Number of parameters, a tied head counted once.
int64_t num_parameters(const ModelShape& shape);

/// Floating-point operations of forward and backward per token at sequence length `seq_len`: 6 per
/// parameter of every matrix product (head included, embedding look-up not, nor biases), and 12
/// layers heads head_dim for each key that a query sees: seq_len / 2 of them (causal), fewer with a
/// window.
double training_flops_per_token(const ModelShape& shape, int64_t seq_len);

}  // namespace tessera::config
