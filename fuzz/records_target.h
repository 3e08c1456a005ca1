// What the targets that read rows of data sets share.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <string>
#include <string_view>
#include <variant>

#include "tessera/records/row.h"

namespace tessera::fuzz {

/// A file of these bytes in memory: rows are read from files.
class MemoryFile {
 public:
  explicit MemoryFile(std::string_view bytes) : descriptor_(::memfd_create("rows", MFD_CLOEXEC)) {
    if (descriptor_ < 0 ||
        ::write(descriptor_, bytes.data(), bytes.size()) != static_cast<ssize_t>(bytes.size()))
      std::abort();
  }
  ~MemoryFile() { ::close(descriptor_); }
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;

  std::filesystem::path path() const { return "/proc/self/fd/" + std::to_string(descriptor_); }

 private:
  int descriptor_;
};

/// Reads the first rows, of which each is an object that a JSON line can hold, or broken for a
/// reason of one line.
template <typename Rows>
void read_rows(Rows& rows) {
  constexpr int kMost = 1000;  // a few bytes of Parquet can stand for billions
  for (int i = 0; i < kMost; ++i) {
    const auto next = rows.next();
    if (!next) return;
    if (const auto* bad = std::get_if<records::BadRow>(&*next)) {
      if (bad->message.find('\n') != bad->message.npos) std::abort();
      continue;
    }
    const auto& value = std::get<records::Row>(*next).value;
    if (!value.is_object() || records::parse_row_json(value.dump()).value != value) std::abort();
  }
}

}  // namespace tessera::fuzz
