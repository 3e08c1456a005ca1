// What a family of models says of itself without a tensor: how it reads and writes config.json, which parameters it has, what they
// cost, and how files name them. Each folder has one (families.def); nobody else asks which family a shape is of.
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tessera/models/json_keys.h"
#include "tessera/models/shape.h"

namespace tessera::models {

/// What ranks of tensor parallelism have of a parameter, as nn/tensor_plan.h tells its module.
enum class Division {
  parts,         ///< each its part
  key_heads,     ///< each its key heads; with fewer heads than ranks, several have the same one
  per_position,  ///< all of it; gradients are summed where positions are divided
  per_head       ///< all of it; gradients are summed
};

struct ParameterSpec {
  std::string name;  ///< Hugging Face's; of a block: within it
  std::vector<int64_t> shape;
  Division division = Division::parts;
  bool of_expert = false;  ///< of one of a mixture's, which ranks of ep share out
  bool of_router = false;  ///< of a mixture's router, which is no linear layer

  int64_t num_elements() const;
};

/// The parameters of a model. `block`: of layers with experts, where some are without (shape.h,
/// shape_of_layer). The head's own table is there unless it is tied.
struct ParameterSpecs {
  std::vector<ParameterSpec> embedding, block, head;
  std::string block_prefix;  ///< "model.layers.": block i's names begin with that, i and a point
};

/// Numbers per token: those in the dtype of computation, and those always in float32.
struct Numbers {
  double values = 0, floats = 0;
};

/// What a block keeps for each token; by a rank of tensor parallelism, of which the sizes are.
struct ActivationNumbers {
  Numbers kept;  ///< by autograd, without checkpointing, but for what enters
  Numbers
      to_attention;  ///< inputs, results of products up to that behind attention, output and log-sum-exp of that
  Numbers selective;    ///< those, and the other products' results
  Numbers recomputed;   ///< from those, by the backward of a selective block, but for what enters
  double products = 0;  ///< that what enters the feed-forward goes into
  bool sums_in_norms =
      false;  ///< a norm's gradient and that of what goes on beside it are added as they are made
  double deferred = 0;   ///< inputs of products, gradients of their results; but for what enters
  double summed = 0;     ///< float32 numbers that ranks of tensor parallelism sum in a forward
  double of_logits = 0;  ///< float32 numbers beside each logit of the head
};

/// A model_type of config.json that a family reads.
struct HfType {
  std::string name, architecture;
  bool layers_had_rotary_tables = false;  ///< as buffers, in transformers up to 4.40
};

/// A stored tensor whose rows are those of several of our parameters, one after the other. Names
/// are what follows a block's prefix.
struct FusedRows {
  std::string stored;
  std::vector<std::string> parts;
};

/// What a family's files call the parts of a mixture, within a block.
struct MixtureNames {
  std::string mixture = "mlp", router = "gate";
  std::string gate = "gate_proj", up = "up_proj", down = "down_proj";  ///< of an expert
  std::string shared;       ///< the expert that every token takes besides
  std::string shared_gate;  ///< of one number, how far it opens; empty: there is none
  /// The matrix that gives a token two numbers, whose softmax weighs its experts and the shared one (Rajbhandari et al.,
  /// DeepSpeed-MoE, ICML 2022, section 4.1); empty: there is none.
  std::string coefficient;
  /// Files have all experts of a layer in one tensor for gate and up, whose columns alternate, and one
  /// for down, each [E, in, out], and their biases (gpt-oss); else each expert by itself.
  bool alternating = false;
};

struct FamilySpec {
  std::string name;
  std::vector<HfType> types;  ///< each read by `read`; what `type_of` gives is one of them

  ModelShape (*read)(const JsonKeys& keys, const HfType& type);
  std::string (*type_of)(
      const ModelShape& shape);  ///< the model_type by which transformers builds it
  /// config.json but for what all families write (hf_config.cpp).
  void (*write)(const ModelShape& shape, nlohmann::ordered_json& config);
  std::map<std::string, std::string> config_names;  ///< of fields of ModelShape that differ there

  std::optional<ShapeProblem> (*problem)(const ModelShape& shape);  ///< beyond shape_problem's own
  ParameterSpecs (*parameters)(const ModelShape& shape);
  ActivationNumbers (*activations)(const ModelShape& part, int64_t position_ranks);
  /// Keys that a query of the layer sees, itself included; none: all.
  std::optional<int64_t> (*window)(const ModelShape& shape, int64_t layer);
  int64_t (*rotary_width)(const ModelShape& shape);  ///< columns of all rotary tables; 0: none

  /// Where blocks may have experts; null: none has.
  const MixtureNames& (*mixture)(const ModelShape& shape) = nullptr;
  /// The mixture whose every layer has `experts` copies of the dense shape's feed-forward, of which a
  /// token takes `top_k`, if it is of this family. null: none is.
  std::optional<ModelShape> (*upcycled)(const ModelShape& dense, int64_t experts,
                                        int64_t top_k) = nullptr;

  bool learned_positions = false;  ///< a table of them, of max_seq_len rows
  bool drops = false;              ///< takes ModelShape::dropout
  bool ffn_follows_width = false;  ///< an ffn_dim of 4 dim stays that when dim is changed
  bool tied_unless_said = false;   ///< what an absent tie_word_embeddings means
  bool inputs_first = false;       ///< matrices of blocks are [inputs, outputs] (Conv1D)
  bool norms_results = false;      ///< a block ends by adding a norm's result, not a product's
  bool predicts_further = false;   ///< files may have blocks behind the last, which are left out
  std::string optional_prefix;     ///< that stored names may lack ("transformer.")
  std::vector<FusedRows> fused;    ///< stored tensors that are several parameters of a block
  std::vector<std::string> adapter_targets;  ///< without targets of its own, as PEFT has them
  std::vector<std::pair<std::string, ModelShape>> presets;
};

const FamilySpec& spec_of(ModelFamily family);

/// The family that reads this model_type; null if none does.
const FamilySpec* find_spec(std::string_view model_type);

/// Every model_type that is read, in the order of registration.
std::vector<std::string> model_types();

/// "a, b or c"
std::string either_of(const std::vector<std::string>& names);

}  // namespace tessera::models
