#include "tessera/checkpoint/formats/pretrained.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <string>
#include <string_view>

#include "tessera/base/error.h"
#include "tessera/checkpoint/formats/family_names.h"
#include "tessera/checkpoint/tensors.h"

namespace tessera::checkpoint {
namespace {

std::string stored_name(const TensorSource& stored, const std::string& name) {
  constexpr std::string_view kPrefix = "transformer.";
  if (!stored.contains(name) && name.starts_with(kPrefix)) return name.substr(kPrefix.size());
  return name;
}

/// The parameters of a family that stores some together, each by itself; null for others.
std::shared_ptr<const SourceView> taken_apart(const Safetensors& stored,
                                              const std::filesystem::path& path) {
  const auto config = path / "config.json";
  if (!std::filesystem::is_directory(path) || !std::filesystem::exists(config)) return nullptr;
  const FamilyNames family(models::read_json_object(config, "model_type"), config.string());
  if (!family.any_together()) return nullptr;
  auto view = std::make_shared<SourceView>(path);
  for (const auto& [name, info] : stored.tensors()) {
    for (const auto& ours : family.ours(name)) {
      if (ours.rows == 0) {
        view->add(ours.name, stored, name);
      } else {
        view->add_rows(ours.name, stored, name, {ours.first_row, ours.rows});
      }
    }
  }
  return view;
}

}  // namespace

Pretrained::Pretrained(const torch::nn::Module& model, const std::filesystem::path& path)
    : stored_(std::make_shared<Safetensors>(path)), apart_(taken_apart(*stored_, path)) {
  for (const auto& item : model.named_parameters()) {
    const auto name = stored_name(source(), item.key());
    if (!source().contains(name)) {
      user_error("{}: expected a tensor '{}', found none", path.string(), item.key());
    }
    const auto& shape = source().info(name).shape;
    if (item.value().sizes() != torch::IntArrayRef(shape)) {
      user_error("{}: '{}': expected shape [{}], got [{}]", path.string(), name,
                 fmt::join(item.value().sizes(), ", "), fmt::join(shape, ", "));
    }
  }
}

const TensorSource& Pretrained::source() const {
  if (apart_) return *apart_;
  return *stored_;
}

void Pretrained::copy_part(const std::string& name, int64_t begin, const torch::Tensor& part,
                           const Stripe& stripe) const {
  read_into(source(), stored_name(source(), name), begin, part, stripe);
}

void load_pretrained(torch::nn::Module& model, const std::filesystem::path& path) {
  const torch::NoGradGuard no_grad;
  const Pretrained stored(model, path);
  for (auto& item : model.named_parameters()) {
    stored.copy_part(item.key(), 0, item.value().detach().view({-1}));
  }
}

}  // namespace tessera::checkpoint
