// What of a folder goes to the Hub.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace tessera::hub {

struct PushFile {
  std::filesystem::path path;
  std::string name;  ///< in the repository: below the folder, with '/'
};

struct PushFiles {
  std::vector<PushFile> files;        ///< sorted by the bytes of their names
  std::vector<std::string> left_out;  ///< names: hidden files and folders, locks, what is half
                                      ///< written, links that lead out of the folder
};

/// UserError: no such folder, nothing to send in it, a name that is not UTF-8.
PushFiles files_to_push(const std::filesystem::path& folder);

}  // namespace tessera::hub
