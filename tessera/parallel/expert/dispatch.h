// Expert parallelism: tokens' rows go to the ranks that have their experts, and the results back.
#pragma once

#include <torch/types.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "tessera/mesh/mesh.h"
#include "tessera/nn/experts.h"

namespace tessera::parallel {

/// How many rows each rank of an axis of N sends each: counts[s * N + d] from rank s to rank d.
using RowCounts = std::vector<int64_t>;

/// The counts of the way back.
RowCounts reversed(const RowCounts& counts);

/// rows [R, D], in the order of the ranks that they go to -> [R', D], in the order of the ranks that
/// they come from. The gradient takes the way back. One collective each way, even if nobody has a
/// row. Both ways overlap with what the caller computes between making it and `arrived`: the way there
/// with that, the gradient's way back with its backward.
class RowExchange {
 public:
  RowExchange(const torch::Tensor& rows, const RowCounts& counts, const mesh::Axis& axis);
  torch::Tensor arrived() const;  ///< waits

 private:
  struct Journey;
  std::shared_ptr<Journey> journey_;
  torch::Tensor rows_;  // which are being written
};

/// Which of tokens that `parts` ranks have alike a rank takes to their experts: of N those from
/// N index / parts on, up to the next rank's first.
struct TokenPart {
  int64_t index = 0, parts = 1;

  int64_t begin(int64_t tokens) const { return tokens * index / parts; }
  int64_t size(int64_t tokens) const { return tokens * (index + 1) / parts - begin(tokens); }
};

/// A rank's summand of [tokens, D] where each rank takes its part of the tokens: `dispatched` is called with
/// the rows and the routing of these and gives their results; zeros elsewhere. Differentiable: x and the
/// routing's weights have gradients of the part's tokens, zeros elsewhere.
torch::Tensor of_part(const torch::Tensor& x, const nn::Routing& routing, const TokenPart& part,
                      const std::function<torch::Tensor(const torch::Tensor& x,
                                                        const nn::Routing& routing)>& dispatched);

struct Overlap {
  /// Parts of the tokens: one's rows travel while another's are computed (Hwang et al., Tutel, MLSys 2023,
  /// section 3.3). Products are smaller; what is sent is the same.
  int64_t degree = 1;
  std::function<void()> meanwhile = [] {};  ///< called once, while the first rows travel
};

/// An nn::ExpertDispatch of E experts, of which rank r of `axis` has [r E/N, (r+1) E/N): x [tokens, D] ->
/// [tokens, D]. `products` is called once for each part of the tokens, with whatever rows there are, be it none. Each rank
/// has tokens of its own, any number of them. Choices that the routing dropped are not sent. Collective: a
/// gather of N E counts of each part and two exchanges of its rows, whatever the choice, and two in the
/// backward; a rank sends D elements of each choice that stays each time on average over the ranks (K
/// choices of a token), less those of its own experts.
/// Without a collective where N is 1. Throws c10::ValueError if N does not divide E.
torch::Tensor over_ranks(const torch::Tensor& x, const nn::Routing& routing, int64_t num_experts,
                         const nn::ExpertProducts& products, const mesh::Axis& axis,
                         const Overlap& overlap = {});

}  // namespace tessera::parallel
