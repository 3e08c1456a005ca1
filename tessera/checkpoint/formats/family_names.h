// How files of Hugging Face's name a family's parameters, and which tensors hold several of them.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tessera/models/spec.h"

namespace tessera::checkpoint {

/// Made of a config.json. Where that is none, or of a model_type that no family reads, every stored
/// tensor is a parameter of that name.
class FamilyNames {
 public:
  /// `where`: for messages. UserError as models/hf_config.h, where a family's tensors hold several
  /// parameters, whose sizes config.json says.
  FamilyNames(const nlohmann::json& config, const std::string& where);

  /// A parameter in a stored tensor.
  struct Ours {
    std::string name;
    int64_t first_row = 0;
    int64_t rows = 0;  ///< 0: the whole tensor
  };
  /// The parameters that a stored tensor holds; none for buffers and tied heads.
  std::vector<Ours> ours(const std::string& stored) const;

  /// The stored tensor that holds a parameter, and the parameters that it is made of, in order: one
  /// unless they are stored together.
  struct Stored {
    std::string name;
    std::vector<std::string> parts;
  };
  Stored stored(const std::string& parameter) const;

  bool any_together() const { return family_ != nullptr && !family_->fused.empty(); }

 private:
  std::string our_name(const std::string& stored) const;

  const models::FamilySpec* family_ = nullptr;
  bool tied_ = false;
  std::vector<models::ParameterSpec> block_;  ///< where some are stored together
};

}  // namespace tessera::checkpoint
