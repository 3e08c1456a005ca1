// How files of Hugging Face's name a family's parameters, and which tensors hold several of them.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "tessera/models/spec.h"

namespace tessera::checkpoint {

/// Made of a config.json. Where that is none, or of a model_type that no family reads, every stored
/// tensor is a parameter of that name.
class FamilyNames {
 public:
  /// `where`: for messages. UserError as models/hf_config.h, where names alone do not tell what a
  /// family's tensors hold.
  FamilyNames(const nlohmann::json& config, const std::string& where);

  /// A parameter in a stored tensor.
  struct Ours {
    std::string name;
    int64_t first_row = 0;
    int64_t rows = 0;      ///< 0: the whole tensor
    int64_t all_rows = 0;  ///< of that, where `rows` are some of them
  };
  /// The parameters that a stored tensor holds; none for buffers, tied heads and blocks behind the
  /// last, which predict further tokens (FamilySpec::predicts_further).
  std::vector<Ours> ours(const std::string& stored) const;

  /// The stored tensor that holds a parameter, and the parameters that it is made of, in order: one
  /// unless they are stored together.
  struct Stored {
    std::string name;
    std::vector<std::string> parts;
  };
  Stored stored(const std::string& parameter) const;

  /// Do files of the family store several parameters together?
  bool any_together() const { return family_ != nullptr && !family_->fused.empty(); }
  /// May some file's tensors be parts, or have other names? Of mixtures, some hold all of a layer's
  /// experts as transformers 5 has them in memory: experts.gate_up_proj [E, 2 F, D], down_proj [E, D, F].
  bool takes_apart() const { return any_together() || mixture_; }

 private:
  std::string our_name(const std::string& stored) const;
  bool is_behind_last(const std::string& stored) const;
  std::vector<Ours> of_experts(const std::string& name) const;

  const models::FamilySpec* family_ = nullptr;
  bool tied_ = false;
  std::optional<models::ModelShape> shape_;   ///< where names alone do not tell
  std::vector<models::ParameterSpec> block_;  ///< where some are stored together
  std::string block_prefix_;
  const models::MixtureNames* mixture_ = nullptr;
};

}  // namespace tessera::checkpoint
