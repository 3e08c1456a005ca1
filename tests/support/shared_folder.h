// A folder that all ranks of a test share.
#pragma once

#include <cstdlib>
#include <filesystem>
#include <optional>

#include "tessera/data/testing.h"
#include "tests/support/temporary_folder.h"

namespace tessera {

/// Made by the parent and removed with it; ranks, which it starts (ranks.h), find the same one.
class SharedFolder {
 public:
  SharedFolder() {
    if (const char* path = std::getenv(kVariable)) {
      path_ = path;
      return;
    }
    own_.emplace();
    path_ = own_->path();
    ::setenv(kVariable, path_.c_str(), 1);
  }
  ~SharedFolder() {
    if (own_) ::unsetenv(kVariable);
  }
  SharedFolder(const SharedFolder&) = delete;
  SharedFolder& operator=(const SharedFolder&) = delete;

  const std::filesystem::path& path() const { return path_; }

 private:
  static constexpr const char* kVariable = "TESSERA_TEST_FOLDER";
  std::optional<testing::TemporaryFolder> own_;
  std::filesystem::path path_;
};

}  // namespace tessera
