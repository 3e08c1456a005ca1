// What families have in common whose blocks are attention with separate projections and a gated
// feed-forward (decoder.h), as Llama's are.
#pragma once

#include <map>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "tessera/models/spec.h"

namespace tessera::models {

/// What config.json calls the sizes.
const std::map<std::string, std::string>& decoder_config_names();

/// Sizes, norm_eps, max_seq_len and the tied table of a config.json; heads are read by
/// read_decoder_heads. `absent_eps`: without rms_norm_eps.
ModelShape read_decoder(const JsonKeys& keys, ModelFamily family, double absent_eps = 1e-6,
                        bool tied_unless_said = false);

/// Key heads and the width of a head. UserError: the heads neither divide the width nor have one of
/// their own.
struct DecoderHeads {
  std::optional<int64_t> absent_kv_heads;  ///< without num_key_value_heads; none: one for each head
  std::optional<int64_t> absent_width;     ///< without head_dim; none: hidden_size / heads
};
void read_decoder_heads(const JsonKeys& keys, const DecoderHeads& heads, ModelShape& shape);

/// layer_types: true for each layer that is sliding_attention, false for full_attention. UserError
/// if they are not that, or not as many as layers.
std::vector<bool> read_sliding_layers(const JsonKeys& keys, int64_t num_layers);

/// The keys of read_decoder and read_decoder_heads, those of rotary positions, and the windows of
/// sliding_layers.
void write_decoder(const ModelShape& shape, const char* activation, nlohmann::ordered_json& config);

/// The parameters; `block_norms`: names of the block's norms of width dim. With `qk_norm` norms of
/// heads are among them.
ParameterSpecs decoder_parameters(const ModelShape& shape,
                                  const std::vector<std::string>& block_norms);

/// What QkNorms::all_heads adds: of all queries and of all keys together, whose sums of squares are those of
/// all ranks.
void add_norms_of_all_heads(const ModelShape& shape, ParameterSpecs& parameters);
void add_norms_of_all_heads(const ModelShape& part, ActivationNumbers& numbers);

/// Numbers that blocks keep that have two norms, before attention and before the feed-forward.
ActivationNumbers decoder_activations(const ModelShape& part, int64_t position_ranks);

/// sliding_window in the layers that have one.
std::optional<int64_t> window_of_sliding_layers(const ModelShape& shape, int64_t layer);

int64_t whole_head_rotary(const ModelShape& shape);  ///< one table as wide as a head

std::optional<ShapeProblem> no_problem(const ModelShape& shape);

}  // namespace tessera::models
