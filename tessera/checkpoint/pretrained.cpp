#include "tessera/checkpoint/pretrained.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <string>
#include <string_view>

#include "tessera/base/error.h"
#include "tessera/checkpoint/safetensors.h"

namespace tessera::checkpoint {
namespace {

std::string stored_name(const Safetensors& stored, const std::string& name) {
  constexpr std::string_view kPrefix = "transformer.";
  if (!stored.contains(name) && name.starts_with(kPrefix)) return name.substr(kPrefix.size());
  return name;
}

}  // namespace

void load_pretrained(torch::nn::Module& model, const std::filesystem::path& path) {
  const torch::NoGradGuard no_grad;
  const auto stored = open_checkpoint(path);
  for (auto& item : model.named_parameters()) {
    const auto name = stored_name(stored, item.key());
    if (!stored.contains(name))
      user_error("{}: expected a tensor '{}', found none", path.string(), item.key());
    const auto tensor = stored.tensor(name);
    if (tensor.sizes() != item.value().sizes()) {
      user_error("{}: '{}': expected shape [{}], got [{}]", path.string(), name,
                 fmt::join(item.value().sizes(), ", "), fmt::join(tensor.sizes(), ", "));
    }
    item.value().copy_(tensor);
  }
}

}  // namespace tessera::checkpoint
