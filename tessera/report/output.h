// Bytes to files.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

namespace tessera::report {

/// Writes all of `bytes`, going on after interruptions and short writes. Returns false on an error,
/// with errno set.
bool write_all(int fd, std::string_view bytes);

/// Appends `text` to a file, which is made if it is missing. Throws SystemError.
void append_to_file(const std::filesystem::path& path, std::string_view text);

/// Calls use(line) for each whole line of `text`, its line end included; one that was cut short is
/// left out.
template <typename Use>
void for_each_line(std::string_view text, const Use& use) {
  for (size_t end = 0; (end = text.find('\n')) != std::string_view::npos;
       text.remove_prefix(end + 1)) {
    use(text.substr(0, end + 1));
  }
}

/// `text` between two of `quote`, inside of which each is doubled (CSV, YAML's single quotes).
std::string in_quotes(const std::string& text, char quote);

}  // namespace tessera::report
