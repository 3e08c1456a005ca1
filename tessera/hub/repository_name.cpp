#include "tessera/hub/repository_name.h"

#include <algorithm>
#include <cctype>
#include <string_view>

namespace tessera::hub {
namespace {

constexpr size_t kMaxLength = 200;

/// Letters, digits, '-', '_' and '.', but neither a hidden file nor an option nor a way up.
bool is_plain(std::string_view part) {
  const auto is_allowed = [](unsigned char c) {
    return std::isalnum(c) != 0 || c == '-' || c == '_' || c == '.';
  };
  return !part.empty() && part.front() != '.' && part.front() != '-' &&
         std::ranges::all_of(part, is_allowed) && part.find("..") == std::string_view::npos &&
         part.find("--") == std::string_view::npos;
}

/// Plain parts between slashes: "main", "refs/pr/1".
bool is_revision(std::string_view text) {
  for (size_t slash = text.find('/'); slash != std::string_view::npos; slash = text.find('/')) {
    if (!is_plain(text.substr(0, slash))) return false;
    text.remove_prefix(slash + 1);
  }
  return is_plain(text);
}

}  // namespace

std::string RepositoryName::text() const {
  return revision == "main" ? repository : repository + "@" + revision;
}

std::optional<RepositoryName> parse_repository_name(const std::string& text, RepositoryKind kind) {
  RepositoryName name{.kind = kind};
  const auto at = text.find('@');
  name.repository = text.substr(0, at);
  if (at != std::string::npos) name.revision = text.substr(at + 1);
  const auto slash = name.repository.find('/');
  const bool is_good = text.size() <= kMaxLength && slash != std::string::npos &&
                       is_plain(name.repository.substr(0, slash)) &&
                       is_plain(name.repository.substr(slash + 1)) && is_revision(name.revision);
  return is_good ? std::optional(name) : std::nullopt;
}

bool is_commit(const std::string& revision) {
  return revision.size() == 40 &&
         revision.find_first_not_of("0123456789abcdef") == std::string::npos;
}

}  // namespace tessera::hub
