// Every key of Accelerate's configuration file: the one table from which reading, the ledger, the
// questionnaire, the options of `tessera launch` and the ranks' environment derive.
#pragma once

#include <string>
#include <vector>

#include "tessera/config/fields.h"

namespace tessera::config::accelerate {

enum class KeyType { boolean, integer, number, text, list };

struct Key {
  std::string section;  ///< "fsdp_config", ..; "" at the top
  std::string name;     ///< with its prefix: "fsdp_version"
  KeyType type = KeyType::text;
  std::string default_value;         ///< as YAML; "": none
  std::vector<std::string> choices;  ///< compared without case; empty: anything of the type
  std::string meaning;               ///< one line
  std::string option;    ///< of `accelerate launch`, underscored: "--fsdp_version"; "": none
  std::string variable;  ///< in the ranks' environment: "FSDP_VERSION"; "": none
  Range range = {};      ///< of numbers

  std::string dotted() const;  ///< "fsdp_config.fsdp_version"
};

/// Keys of Amazon SageMaker's class of configurations: they are read, and such a job is refused.
inline constexpr const char* kSageMakerKeys[] = {"ec2_instance_type",
                                                 "iam_role_name",
                                                 "image_uri",
                                                 "profile",
                                                 "region",
                                                 "base_job_name",
                                                 "py_version",
                                                 "pytorch_version",
                                                 "sagemaker_inputs_file",
                                                 "sagemaker_metrics_file",
                                                 "transformers_version",
                                                 "additional_args"};

/// A key may be written with or without its section's prefix: "fsdp_" of fsdp_config.
std::string section_prefix(const std::string& section);

/// Every key, in the order in which the questionnaire and `config show` print them. Built once.
const std::vector<Key>& keys();

/// The key of that dotted name, with or without the section's prefix ("fsdp_config.version"), old
/// names included; nullptr if there is none.
const Key* find_key(const std::string& dotted);

}  // namespace tessera::config::accelerate
