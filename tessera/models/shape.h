// The shape of a model: what its configuration says, before any tensor exists.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <typeinfo>
#include <utility>
#include <vector>

namespace tessera::models {

enum class ModelFamily {
#define TESSERA_FAMILY(name) name,
#include "tessera/models/families.def"
#undef TESSERA_FAMILY
};

/// How rotary positions are stretched beyond the length of the first training (config.json:
/// rope_scaling, in transformers 5 rope_parameters; formulas in kernels/rotary.cpp).
enum class RopeScalingType { linear, dynamic, yarn, llama3, longrope };

struct RopeScaling {
  RopeScalingType type = RopeScalingType::llama3;
  double factor = 8;
  int64_t original_max_seq_len = 8192;               ///< all but linear
  double low_freq_factor = 1, high_freq_factor = 4;  ///< llama3
  double beta_fast = 32, beta_slow = 1;              ///< yarn: turns within the original length
  bool truncate = true;                              ///< yarn: the two bounds to whole dimensions
  double attention_factor = 1;                       ///< yarn, longrope: of cosines and sines
  std::vector<double> short_factors, long_factors;   ///< longrope: one for two rotated columns

  bool operator==(const RopeScaling&) const = default;
};

/// What only one family's shapes say: a value of a type of that family, which its folder declares.
class OwnFacts {
 public:
  OwnFacts() = default;
  template <typename Facts>
  OwnFacts(Facts facts) : held_(std::make_shared<Held<Facts>>(std::move(facts))) {}

  /// What the family itself keeps of the shape. A shape that another family made: an assertion.
  template <typename Facts>
  const Facts& as() const {
    const auto* held = dynamic_cast<const Held<Facts>*>(held_.get());
    if (held == nullptr) throw std::logic_error("a shape has facts of another family");
    return held->facts;
  }

  bool operator==(const OwnFacts& other) const {
    return held_ == other.held_ || (held_ && other.held_ && held_->equals(*other.held_));
  }

 private:
  struct Any {
    virtual ~Any() = default;
    virtual bool equals(const Any& other) const = 0;
  };
  template <typename Facts>
  struct Held : Any {
    explicit Held(Facts facts) : facts(std::move(facts)) {}
    bool equals(const Any& other) const override {
      const auto* same = dynamic_cast<const Held*>(&other);
      return same != nullptr && facts == same->facts;
    }
    Facts facts;
  };

  std::shared_ptr<const Any> held_;
};

/// Where the feed-forward of a block is a mixture of experts (nn/experts.h).
struct ExpertsShape {
  int64_t num = 0;               ///< of a block; 0: none, the feed-forward is one
  int64_t top_k = 0;             ///< that a token takes
  bool normalise = true;         ///< its weights for them have sum 1
  int64_t shared_ffn_dim = 0;    ///< of an expert that every token takes besides; 0: there is none
  int64_t groups = 1;            ///< of neighbours, of which a token looks at top_groups
  int64_t top_groups = 1;        ///< (nn::RouterOptions)
  bool selection_bias = false;   ///< experts are chosen by scores and a bias, which files have
  bool router_bias = false;      ///< of its logits, learned
  int64_t num_dense_layers = 0;  ///< the first layers, which have one feed-forward instead
  int64_t dense_ffn_dim = 0;     ///< of those; where there are none, what config.json says of them
  /// router_jitter_noise of config.json, written as it was read. It concerns training alone, where
  /// transformers multiplies what enters the whole mixture.
  double jitter_noise = 0;
  /// Not of the model: ranks that share out the tokens that they have alike (plan/rank_part.h).
  int64_t token_ranks = 1;

  bool operator==(const ExpertsShape&) const = default;
};

/// The sizes that every family has, choices that several have, and what only its own family says.
struct ModelShape {
  ModelFamily family = ModelFamily::llama;
  int64_t vocab_size = 2048;
  int64_t dim = 256;  ///< width of the residual stream (hidden_size, n_embd)
  int64_t num_layers = 4;
  int64_t num_heads = 8;
  int64_t num_kv_heads = 4;  ///< num_heads is a multiple of it; gpt2: equal to num_heads
  int64_t head_dim = 32;
  int64_t ffn_dim = 688;      ///< intermediate_size; gpt2: 4 dim; of a mixture: each expert's
  int64_t max_seq_len = 256;  ///< gpt2: rows of the position table
  double rope_theta = 10000;
  std::optional<RopeScaling> rope_scaling;
  bool qkv_bias = false;       ///< of q_proj, k_proj and v_proj
  bool out_bias = false;       ///< of o_proj
  bool mlp_bias = false;       ///< of the three matrices of a gated feed-forward, or of each expert
  bool qk_norm = false;        ///< RMSNorm of every query and key head
  int64_t sliding_window = 0;  ///< keys that a query sees, itself included; 0: all
  int64_t num_full_layers = 0;  ///< the first layers, which have no window
  /// Has a layer a window, for each, or more; empty: all but the first num_full_layers have.
  std::vector<bool> sliding_layers;
  double norm_eps = 1e-5;
  bool tie_embeddings = false;
  double dropout = 0;  ///< gpt2: of the embeddings and of each block's two results
  ExpertsShape experts;
  OwnFacts own;

  bool operator==(const ModelShape&) const = default;
};

/// Layers that are alike, one after the other.
struct AlikeLayers {
  ModelShape shape;  ///< of a model all of whose layers are like these
  int64_t count = 0;
};

/// All layers of a model, the first ones first.
std::vector<AlikeLayers> alike_layers(const ModelShape& shape);

/// The shape of a model (or of a rank's part of one) all of whose layers are like layer `layer` of the whole.
ModelShape shape_of_layer(const ModelShape& shape, int64_t layer);

/// A shape known by name, of any family: micro, tiny and small are ours, the others published.
/// UserError with the nearest name if unknown.
ModelShape model_preset(std::string_view name);
std::vector<std::string> model_preset_names();  ///< by number of parameters

/// What is wrong with a shape: the first field at fault (a name as above) and what was expected of
/// it.
struct ShapeProblem {
  std::string field;
  std::string message;
};

/// Sizes within reason, so that no count overflows.
std::optional<ShapeProblem> size_problem(const ModelShape& shape);

/// The same; groups that divide the heads, an even head width where positions are rotated, and what
/// the family asks for.
std::optional<ShapeProblem> shape_problem(const ModelShape& shape);

/// Why `tp` ranks cannot divide the model's matrices, if so: whole heads belong to a rank.
std::optional<std::string> division_problem(const ModelShape& shape, int64_t tp);

/// Rows of a mixture's experts that a rank has for each token, on average.
double expert_rows(const ModelShape& shape);

/// The longest sequence that the model takes, where it has a table of positions.
std::optional<int64_t> longest_sequence(const ModelShape& shape);

/// Number of parameters, a tied head counted once.
int64_t num_parameters(const ModelShape& shape);

/// Number of parameters that a token meets: of experts only those that it takes.
int64_t num_active_parameters(const ModelShape& shape);

/// Weights of all matrix products of a token: of the blocks and the head, without biases, of experts
/// only those that it takes.
int64_t matrix_weights(const ModelShape& shape);

/// Do blocks end by adding the result of a product to the residual? Then no gradient depends on that result's value. Results of
/// experts are weighted before they are added.
bool ends_with_product(const ModelShape& shape);

/// Floating-point operations of forward and backward per token at sequence length `seq_len`: 6 per
/// parameter of every matrix product (head included, embedding look-up not, nor biases), and 12
/// layers heads head_dim for each key that a query sees: seq_len / 2 of them (causal), fewer with a
/// window.
double training_flops_per_token(const ModelShape& shape, int64_t seq_len);
/// What is added to that where keys that a query does not see count as well, as torchtitan counts.
double masked_flops_per_token(const ModelShape& shape, int64_t seq_len);

}  // namespace tessera::models
