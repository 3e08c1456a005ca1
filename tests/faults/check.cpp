#include "tests/faults/check.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "tessera/base/error.h"
#include "tessera/checkpoint/checkpoint.h"
#include "tests/faults/content.h"

namespace tessera::faults {
namespace {

using checkpoint::Checkpoint;

/// Checks all tensors, read at once as a run reads them.
void check_content(const Checkpoint& stored, int64_t step) {
  const auto expected = tensors();
  ASSERT_EQ(stored.tensors().size(), expected.size());
  EXPECT_EQ(stored.index().step, step);
  EXPECT_EQ(stored.index().state["tokens"], step);
  std::vector<std::vector<std::byte>> values;
  std::vector<Checkpoint::Request> requests;
  for (const auto& [name, info] : expected) {
    ASSERT_EQ(stored.info(name), info) << name;
    requests.push_back({name, 0, values.emplace_back(static_cast<size_t>(info.num_bytes()))});
  }
  stored.read_all(requests);
  for (size_t i = 0; i < expected.size(); ++i) {
    std::vector<std::byte> wanted(values[i].size());
    fill(i, step, 0, wanted);
    EXPECT_TRUE(values[i] == wanted) << expected[i].name << " of step " << step;
  }
}

}  // namespace

Found newest_whole(const std::filesystem::path& folder) {
  Found found;
  auto folders = checkpoint::step_folders(folder);
  std::ranges::reverse(folders);
  for (const auto& [step, path] : folders) {
    try {
      Checkpoint(path).verify();
      found.newest = step;
      return found;
    } catch (const UserError& error) {
      found.refused.emplace_back(error.what());
    }
  }
  return found;
}

std::vector<int64_t> check_all(const std::filesystem::path& folder) {
  std::vector<int64_t> steps;
  for (const auto& [step, path] : checkpoint::step_folders(folder)) {
    steps.push_back(step);
    try {
      check_content(Checkpoint(path), step);
    } catch (const UserError& error) {
      ADD_FAILURE() << "counts as complete: " << error.what();
    }
  }
  return steps;
}

void check_no_leftovers(const std::filesystem::path& folder, const std::vector<int64_t>& steps) {
  std::set<std::string> allowed{"lock"}, present;
  for (const auto& [step, path] : checkpoint::step_folders(folder)) {
    if (std::ranges::find(steps, step) != steps.end()) allowed.insert(path.filename());
    std::set<std::string> files{checkpoint::kIndexFile, checkpoint::kMarkerFile}, there;
    const Checkpoint stored(path);
    for (const auto& file : stored.index().files) files.insert(file.name);
    for (const auto& entry : std::filesystem::directory_iterator(path)) {
      there.insert(entry.path().filename());
    }
    EXPECT_THAT(there, ::testing::ElementsAreArray(files)) << path;
  }
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    present.insert(entry.path().filename());
  }
  present.insert("lock");
  EXPECT_THAT(present, ::testing::ElementsAreArray(allowed));
}

}  // namespace tessera::faults
