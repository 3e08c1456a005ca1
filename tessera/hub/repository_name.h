// Names of models and data sets on the Hugging Face Hub.
#pragma once

#include <optional>
#include <string>

namespace tessera::hub {

enum class RepositoryKind { model, dataset };

struct RepositoryName {
  std::string repository;         ///< "org/model"
  std::string revision = "main";  ///< branch, tag or commit
  RepositoryKind kind = RepositoryKind::model;

  std::string text() const;  ///< as the user writes it
  /// "model", "data set", as messages say.
  const char* noun() const { return kind == RepositoryKind::model ? "model" : "data set"; }
  /// "models", "datasets", as the Hub's addresses and the cache's folders have it.
  std::string kinds() const { return kind == RepositoryKind::model ? "models" : "datasets"; }
  /// "org/model", "datasets/org/data": its pages below the endpoint.
  std::string page() const {
    return kind == RepositoryKind::model ? repository : kinds() + "/" + repository;
  }
};

/// "org/model" or "org/model@revision"; none if the text has another form. What passes is safe as
/// part of a path: no "..", nothing absolute.
std::optional<RepositoryName> parse_repository_name(const std::string& text,
                                                    RepositoryKind kind = RepositoryKind::model);

bool is_commit(const std::string& revision);  ///< 40 lower-case hexadecimal digits

}  // namespace tessera::hub
