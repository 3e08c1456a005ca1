// What happens when somebody cuts a file that is mapped: the kernel sends SIGBUS to whoever reads
// what is no longer there.
#pragma once

#include <cstddef>
#include <filesystem>
#include <string>

namespace tessera {

enum class WhenCut {
  end,   ///< one line that names the file, exit code 2
  note,  ///< what was cut reads as zeros, and lost_file() names the file
};

/// From now on reading a MappedFile beyond its end does as `when_cut` says; a SIGBUS of another
/// origin ends the process as ever. For the whole process; call it before threads start.
void watch_mapped_files(WhenCut when_cut);

/// A mapped file of which a part was gone when it was read (WhenCut::note); "": none.
std::string lost_file();

/// UserError if a mapped file was cut while it was read.
void check_mapped_files();

namespace mapped_files {

struct Entry;  ///< one mapping that is watched

Entry* add(const std::filesystem::path& path, const std::byte* begin, size_t size);
void remove(Entry* entry);

}  // namespace mapped_files
}  // namespace tessera
