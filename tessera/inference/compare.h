// A stored model beside an export of it: the same texts, what either makes of them.
#pragma once

#include <torch/types.h>

#include <string>

#include "tessera/inference/request.h"
#include "tessera/mesh/mesh.h"

namespace tessera::inference {

/// How logits [T, V] differ from those that they stand for.
struct LogitDifference {
  int64_t num_tokens = 0;
  double largest = 0;    ///< of two logits
  double magnitude = 0;  ///< the largest logit that is expected
  double divergence =
      0;  ///< Kullback-Leibler, of what is expected from what is there; nats, summed
  int64_t no_numbers = 0;  ///< tokens with NaN or infinity, which make the other figures useless
  int64_t same = 0;        ///< tokens whose likeliest follower is the same

  void add(const torch::Tensor& expected, const torch::Tensor& logits);
};

/// "compared on 3 prompts, 41 tokens: .."
std::string comparison_line(const LogitDifference& difference, int64_t num_prompts);

/// Computes three prompts with `request.model` and with `request.other`, one model after the other, and
/// writes the line. Prompts are texts where request or model has a tokenizer, else fixed tokens of its
/// vocabulary. A GGUF file is computed with our modules, as the model's config.json says. Collective.
/// UserError: what load_model refuses; logits that are NaN or infinity.
void compare(const Request& request, const mesh::DeviceMesh& mesh);

}  // namespace tessera::inference
