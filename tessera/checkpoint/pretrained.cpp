#include "tessera/checkpoint/pretrained.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <string>
#include <string_view>

#include "tessera/base/error.h"
#include "tessera/checkpoint/tensors.h"

namespace tessera::checkpoint {
namespace {

std::string stored_name(const Safetensors& stored, const std::string& name) {
  constexpr std::string_view kPrefix = "transformer.";
  if (!stored.contains(name) && name.starts_with(kPrefix)) return name.substr(kPrefix.size());
  return name;
}

}  // namespace

Pretrained::Pretrained(const torch::nn::Module& model, const std::filesystem::path& path)
    : stored_(path) {
  for (const auto& item : model.named_parameters()) {
    const auto name = stored_name(stored_, item.key());
    if (!stored_.contains(name)) {
      user_error("{}: expected a tensor '{}', found none", path.string(), item.key());
    }
    const auto& shape = stored_.info(name).shape;
    if (item.value().sizes() != torch::IntArrayRef(shape)) {
      user_error("{}: '{}': expected shape [{}], got [{}]", path.string(), name,
                 fmt::join(item.value().sizes(), ", "), fmt::join(shape, ", "));
    }
  }
}

void Pretrained::copy_part(const std::string& name, int64_t begin, const torch::Tensor& part,
                           const Stripe& stripe) const {
  read_into(stored_, stored_name(stored_, name), begin, part, stripe);
}

void load_pretrained(torch::nn::Module& model, const std::filesystem::path& path) {
  const torch::NoGradGuard no_grad;
  const Pretrained stored(model, path);
  for (auto& item : model.named_parameters()) {
    stored.copy_part(item.key(), 0, item.value().detach().view({-1}));
  }
}

}  // namespace tessera::checkpoint
