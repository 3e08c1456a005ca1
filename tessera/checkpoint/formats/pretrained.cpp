#include "tessera/checkpoint/formats/pretrained.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/checkpoint/convert_dtype.h"
#include "tessera/checkpoint/formats/bitsandbytes.h"
#include "tessera/checkpoint/formats/family_names.h"
#include "tessera/checkpoint/source_view.h"
#include "tessera/checkpoint/tensors.h"
#include "tessera/models/mixture_spec.h"

namespace tessera::checkpoint {
namespace {

std::string stored_name(const TensorSource& stored, const std::string& name) {
  constexpr std::string_view kPrefix = "transformer.";
  if (!stored.contains(name) && name.starts_with(kPrefix)) return name.substr(kPrefix.size());
  return name;
}

/// Stored tensors, and each of those that a family stores together by itself.
struct TakenApart {
  std::unique_ptr<TensorSource> stored;
  SourceView apart;

  explicit TakenApart(const std::filesystem::path& path)
      : stored(open_safetensors(path)), apart(path) {}
};

/// Does it hold floats? Those of 8 bits, too, where no scale lies beside them.
bool is_number(DType dtype) {
  return is_float(dtype) || dtype == DType::f8_e4m3 || dtype == DType::f8_e5m2;
}

/// What the folder's config.json says of the tensors' names; nothing of a file alone.
nlohmann::json config_beside(const std::filesystem::path& path) {
  const auto config = path / "config.json";
  if (!std::filesystem::is_directory(path) || !std::filesystem::exists(config)) return {};
  return models::read_json_object(config, "model_type");
}

std::shared_ptr<const TensorSource> open_apart(const std::filesystem::path& path,
                                               const nlohmann::json& said,
                                               const FamilyNames& family) {
  auto both = std::make_shared<TakenApart>(path);
  check_tied_head(said, *both->stored);
  if (!family.takes_apart()) return {both, both->stored.get()};
  for (const auto& [name, info] : both->stored->tensors()) {
    for (const auto& ours : family.ours(name)) {
      if (ours.part) {
        both->apart.add_part(ours.name, *both->stored, name, *ours.part);
      } else {
        both->apart.add(ours.name, *both->stored, name);
      }
    }
  }
  return {both, &both->apart};
}

}  // namespace

Pretrained::Pretrained(const torch::nn::Module& model, const std::filesystem::path& path) {
  const auto said = config_beside(path);
  const FamilyNames family(said, (path / "config.json").string());
  *this = Pretrained(model, open_apart(path, said, family));
  std::erase_if(unread_, [&](const auto& name) { return family.ours(name).empty(); });
}

Pretrained::Pretrained(const torch::nn::Module& model, std::shared_ptr<const TensorSource> stored)
    : stored_(std::move(stored)) {
  std::set<std::string> taken;
  for (const auto& item : model.named_parameters()) {
    expect(item.key(), item.value().sizes());
    taken.insert(stored_name(*stored_, item.key()));
  }
  for (const auto& [name, _] : stored_->tensors()) {
    if (!taken.contains(name) && !name.ends_with(models::kSelectionBias)) unread_.push_back(name);
  }
}

std::string Pretrained::note_of_unread() const {
  if (unread_.empty()) return "";
  constexpr size_t kNamed = 3;
  const auto named = std::span(unread_).first(std::min(unread_.size(), kNamed));
  return fmt::format("{}: not read, as the model has no place for it: {}{} ({} of {} tensors)",
                     stored_->path().string(), fmt::join(named, ", "),
                     unread_.size() > kNamed ? ", .." : "", unread_.size(),
                     stored_->tensors().size());
}

void Pretrained::expect(const std::string& name, torch::IntArrayRef shape) const {
  const auto path = stored_->path().string(), stored = stored_name(*stored_, name);
  if (!stored_->contains(stored)) {
    user_error("{}: expected a tensor '{}', found none", path, name);
  }
  const auto& [dtype, found] = stored_->info(stored);
  if (!is_number(dtype)) {
    user_error("{}: '{}': expected floats, or codes with scales that are known here, got {} alone",
               path, stored, dtype_name(dtype));
  }
  if (shape != torch::IntArrayRef(found)) {
    user_error("{}: '{}': expected shape [{}], got [{}]", path, stored, fmt::join(shape, ", "),
               fmt::join(found, ", "));
  }
}

bool Pretrained::contains(const std::string& name) const {
  return stored_->contains(stored_name(*stored_, name));
}

void Pretrained::copy_part(const std::string& name, int64_t begin, const torch::Tensor& part,
                           const Stripe& stripe) const {
  read_into(*stored_, stored_name(*stored_, name), begin, part, stripe);
}

void load_pretrained(torch::nn::Module& model, const std::filesystem::path& path) {
  const torch::NoGradGuard no_grad;
  const Pretrained stored(model, path);
  for (auto& item : model.named_parameters()) {
    stored.copy_part(item.key(), 0, item.value().detach().view({-1}));
  }
}

}  // namespace tessera::checkpoint
