// Names of models on the Hugging Face Hub.
#pragma once

#include <optional>
#include <string>

namespace tessera::hub {

struct ModelName {
  std::string repository;         ///< "org/model"
  std::string revision = "main";  ///< branch, tag or commit

  std::string text() const;  ///< as the user writes it
};

/// "org/model" or "org/model@revision"; none if the text has another form. What passes is safe as
/// part of a path: no "..", nothing absolute.
std::optional<ModelName> parse_model_name(const std::string& text);

bool is_commit(const std::string& revision);  ///< 40 lower-case hexadecimal digits

}  // namespace tessera::hub
