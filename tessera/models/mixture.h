// A feed-forward that is a mixture of experts, as families put it into their blocks (decoder.h).
#pragma once

#include <memory>

#include "tessera/models/decoder.h"
#include "tessera/models/mixture_spec.h"
#include "tessera/nn/experts.h"
#include "tessera/nn/router.h"

namespace tessera::models {

/// The options of a family's router as the shape has them; what only some have is left as it is.
nn::RouterOptions router_options(const ModelShape& shape);

/// A router, its experts, and the expert that every token takes besides, if there is one. `gated`: of
/// the experts that are chosen.
std::shared_ptr<FeedForwardImpl> make_mixture(const ModelShape& shape, const MixtureNames& names,
                                              const nn::RouterOptions& router,
                                              const torch::TensorOptions& options,
                                              const nn::GatedUnit& gated = kernels::swiglu);

/// How it is divided, and the feed-forward of layers without experts. Each expert is divided as a
/// feed-forward; what ranks make of a token is summed once, after its experts' results were
/// weighted. A router's gradient comes of the part that each rank has of them.
nn::TensorPlan mixture_plan(const ModelShape& shape, const MixtureNames& names);

}  // namespace tessera::models
