// How files of Hugging Face's name a family's parameters, and which tensors hold several of them.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "tessera/checkpoint/source_view.h"
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
    std::optional<Strided> part;  ///< none: the whole tensor
  };
  /// The parameters that a stored tensor holds; none for buffers, tied heads and blocks behind the
  /// last, which predict further tokens (FamilySpec::predicts_further).
  std::vector<Ours> ours(const std::string& stored) const;

  /// The tensor of the family's files that holds a parameter: itself, unless ours() of that has more.
  std::string stored(const std::string& parameter) const;

  /// Do files of the family store several parameters together?
  bool any_together() const {
    return family_ != nullptr &&
           (!family_->fused.empty() || (mixture_ != nullptr && mixture_->alternating));
  }
  /// May some file's tensors be parts, or have other names? Of mixtures, some hold all of a layer's
  /// experts in one tensor.
  bool takes_apart() const { return any_together() || mixture_ != nullptr; }

 private:
  std::string our_name(const std::string& stored) const;
  bool is_behind_last(const std::string& stored) const;
  std::vector<Ours> of_mixture(const std::string& name) const;

  /// A tensor of all experts of a layer, ".experts.NAME", and what the first of them has of it.
  struct OfExperts {
    std::string name;
    std::vector<Ours> parts;  ///< by the names that they have within an expert
  };
  static std::vector<OfExperts> tensors_of_experts(const models::MixtureNames& names,
                                                   const models::ModelShape& shape);

  const models::FamilySpec* family_ = nullptr;
  bool tied_ = false;
  std::optional<models::ModelShape> shape_;   ///< where names alone do not tell
  std::vector<models::ParameterSpec> block_;  ///< where some are stored together
  std::string block_prefix_;
  const models::MixtureNames* mixture_ = nullptr;
  std::vector<OfExperts> of_experts_;
};

/// UserError: by the config.json the embedding is the head, too, but the tensors have another one. Reads both, if they do.
void check_tied_head(const nlohmann::json& config, const TensorSource& tensors);

struct AddStoredOptions {
  std::string prefix;  ///< of every name in `ours` and in the view
  std::optional<DType> dtype;
};

/// Adds the tensor of the family's files that holds a parameter, with all that it holds, unless the
/// view has it. UserError: `ours` lacks one of them, or has it in another shape or dtype.
void add_stored(const FamilyNames& family, const TensorSource& ours, const std::string& parameter,
                SourceView& view, const AddStoredOptions& options = {});

}  // namespace tessera::checkpoint
