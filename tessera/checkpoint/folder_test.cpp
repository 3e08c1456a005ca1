// Names, markers, what is left after a kill, which checkpoints stay, who may write.
#include "tessera/checkpoint/folder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cmath>

#include "tessera/base/file.h"
#include "tessera/data/testing.h"
#include "tests/support/temporary_folder.h"

namespace tessera::checkpoint {
namespace {

namespace fs = std::filesystem;
using data::testing::refusal;
using tessera::testing::TemporaryFolder;
using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::set<std::string> names_in(const fs::path& folder) {
  std::set<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) names.insert(entry.path().filename());
  return names;
}

/// A checkpoint without tensors.
fs::path save(const fs::path& directory, int64_t step, std::optional<double> loss = {}) {
  return finish_checkpoint(begin_checkpoint(directory, step), {.step = step}, loss);
}

std::vector<int64_t> steps_in(const fs::path& directory) {
  std::vector<int64_t> steps;
  for (const auto& folder : step_folders(directory)) steps.push_back(folder.step);
  return steps;
}

TEST(CheckpointFolder, IsNamedForItsStepAndCompleteAtTheEnd) {
  const TemporaryFolder folder;
  const auto partial = begin_checkpoint(folder.path(), 42);
  EXPECT_EQ(partial.filename(), "step_00000042.partial");
  EXPECT_THAT(step_folders(folder.path()), IsEmpty());
  const Index index{.step = 42};
  const auto path = finish_checkpoint(partial, index, 2.5);
  EXPECT_EQ(path, folder.path() / "step_00000042");
  EXPECT_THAT(names_in(folder.path()), ElementsAre("step_00000042"));
  EXPECT_THAT(names_in(path), ElementsAre(kMarkerFile, kIndexFile));
  const auto marker = read_marker(path);
  EXPECT_EQ(marker, (Marker{42, checksum(read_file(path / kIndexFile)), 2.5}));
  EXPECT_EQ(parse_index(path, read_file(path / kIndexFile)), index);
}

TEST(CheckpointFolder, StepsAreListedInOrderWhateverElseIsThere) {
  const TemporaryFolder folder;
  EXPECT_THAT(step_folders(folder.path() / "absent"), IsEmpty());
  for (const int64_t step : {300, 7, 123456789}) save(folder.path(), step);
  fs::create_directory(folder.path() / "step_5");  // not complete, and of another width
  begin_checkpoint(folder.path(), 8);
  for (const char* name : {"step_", "step_x", "step_1x", "step_-1", "steps",
                           "step_00000001.damaged", "step_99999999999999999999"}) {
    fs::create_directory(folder.path() / name);
  }
  folder.write("step_00000009", "a file");
  EXPECT_THAT(steps_in(folder.path()), ElementsAre(5, 7, 300, 123456789));
}

TEST(CheckpointFolder, AnotherSaveOfAStepReplacesIt) {
  const TemporaryFolder folder;
  save(folder.path(), 1, 5.0);
  folder.write("step_00000001.partial/rest", "of a killed run");
  const auto partial = begin_checkpoint(folder.path(), 1);
  EXPECT_THAT(names_in(partial), IsEmpty());
  EXPECT_EQ(read_marker(folder.path() / "step_00000001").validation_loss, 5.0);
  const auto path = finish_checkpoint(partial, {.step = 1}, 4.0);
  EXPECT_EQ(read_marker(path).validation_loss, 4.0);
  EXPECT_THAT(names_in(folder.path()), ElementsAre("step_00000001"));
}

TEST(CheckpointFolder, MarkersThatAreNoneAreRefused) {
  const TemporaryFolder folder;
  const auto reading = [&](const std::string& text) {
    folder.write("c/complete.json", text);
    return refusal([&] { read_marker(folder.path() / "c"); });
  };
  const auto good = format_marker({.step = 3, .index_checksum = 255});
  EXPECT_EQ(reading(good), "(accepted)");
  EXPECT_EQ(read_marker(folder.path() / "c"), (Marker{3, 255, std::nullopt}));
  for (const char* text :
       {"3", "[]", "{}", R"({"step": 3})", R"({"index_checksum": "00000000000000ff"})",
        R"({"step": -3, "index_checksum": "00000000000000ff"})",
        R"({"step": "3", "index_checksum": "00000000000000ff"})",
        R"({"step": 3, "index_checksum": 255})", R"({"step": 3, "index_checksum": ""})",
        R"({"step": 3, "index_checksum": "ff"})",
        R"({"step": 3, "index_checksum": "00000000000000ff00000000000000ff"})"}) {
    EXPECT_THAT(reading(text), HasSubstr("expected an object with step and index_checksum"));
  }
  for (size_t i = 0; i < good.size(); ++i) {
    auto flipped = good;
    flipped[i] ^= 1;
    EXPECT_THAT(reading(flipped), HasSubstr("complete.json: ")) << flipped;
  }
  EXPECT_THAT(reading(good.substr(0, 20)), HasSubstr("complete.json: expected JSON"));
  fs::remove(folder.path() / "c" / kMarkerFile);
  EXPECT_THAT(refusal([&] { read_marker(folder.path() / "c"); }),
              EndsWith("c: not complete: expected complete.json in it, found none"));
}

TEST(CheckpointFolder, RemovesInTwoSteps) {
  const TemporaryFolder folder;
  const auto path = save(folder.path(), 3);
  folder.write("step_00000003.deleting/rest", "of an earlier removal");
  remove_checkpoint(path);
  EXPECT_THAT(names_in(folder.path()), IsEmpty());
}

TEST(CheckpointFolder, CleaningUpAfterAKill) {
  const TemporaryFolder folder;
  save(folder.path(), 1);
  // Killed while it wrote, while it removed, between the marker and the name, and while it
  // replaced.
  fs::create_directory(folder.path() / "step_00000002.partial");
  folder.write("step_00000002.partial/shard_00000.safetensors", "half");
  fs::rename(save(folder.path(), 3), folder.path() / "step_00000003.deleting");
  fs::rename(save(folder.path(), 4, 1.5), folder.path() / "step_00000004.partial");
  save(folder.path(), 5, 9.0);
  fs::rename(folder.path() / "step_00000005", folder.path() / "step_00000005.deleting");
  fs::rename(save(folder.path(), 5, 2.5), folder.path() / "step_00000005.partial");
  folder.write("notes.partial", "the user's own");
  EXPECT_EQ(unfinished(folder.path()).size(), 5u);
  clean_up(folder.path());
  EXPECT_THAT(names_in(folder.path()),
              ElementsAre("notes.partial", "step_00000001", "step_00000004", "step_00000005"));
  EXPECT_EQ(read_marker(folder.path() / "step_00000004").validation_loss, 1.5);
  EXPECT_EQ(read_marker(folder.path() / "step_00000005").validation_loss, 2.5);
  EXPECT_THAT(unfinished(folder.path()), IsEmpty());
}

/// The validation loss of step i is losses[i]; below 0: none.
std::vector<int64_t> kept(int64_t num_steps, const Retention& retention,
                          const std::vector<double>& losses = {}) {
  std::vector<Marker> markers;
  for (int64_t step = 0; step < num_steps; ++step) {
    markers.push_back({.step = step});
    if (static_cast<size_t>(step) < losses.size() && losses[static_cast<size_t>(step)] >= 0) {
      markers.back().validation_loss = losses[static_cast<size_t>(step)];
    }
  }
  std::ranges::reverse(markers);
  const auto removed = superseded(markers, retention);
  std::vector<int64_t> steps;
  for (int64_t step = 0; step < num_steps; ++step) {
    if (!removed.contains(step)) steps.push_back(step);
  }
  return steps;
}

TEST(CheckpointFolder, Retention) {
  EXPECT_THAT(kept(4, {}), ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(kept(4, {.keep_every = 2, .keep_best = 1}), ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(kept(4, {.keep_last = 1}), ElementsAre(3));
  EXPECT_THAT(kept(4, {.keep_last = 2}), ElementsAre(2, 3));
  EXPECT_THAT(kept(4, {.keep_last = 9}), ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(kept(0, {.keep_last = 1}), IsEmpty());
  EXPECT_THAT(kept(8, {.keep_last = 1, .keep_every = 3}), ElementsAre(0, 3, 6, 7));
  const std::vector<double> losses{4, 1, -1, 2, 3, 5};
  EXPECT_THAT(kept(6, {.keep_last = 1, .keep_best = 2}, losses), ElementsAre(1, 3, 5));
  EXPECT_THAT(kept(6, {.keep_last = 2, .keep_every = 4, .keep_best = 1}, losses),
              ElementsAre(0, 1, 4, 5));
  EXPECT_THAT(kept(3, {.keep_last = 1, .keep_best = 9}, losses), ElementsAre(0, 1, 2));
}

/// A process that holds the lock until it is killed.
class Holder {
 public:
  explicit Holder(const fs::path& directory) {
    std::array<int, 2> ready{};
    if (::pipe(ready.data()) != 0) system_error("pipe");
    pid_ = ::fork();
    if (pid_ == 0) {
      const FolderLock lock(directory);
      if (::write(ready[1], "x", 1) == 1) ::pause();
      ::_exit(1);
    }
    ::close(ready[1]);
    char byte = 0;
    EXPECT_EQ(::read(ready[0], &byte, 1), 1);
    ::close(ready[0]);
  }
  ~Holder() { kill(); }

  pid_t pid() const { return pid_; }
  void kill() {
    if (pid_ <= 0) return;
    ::kill(pid_, SIGKILL);
    ::waitpid(std::exchange(pid_, 0), nullptr, 0);
  }

 private:
  pid_t pid_ = 0;
};

TEST(CheckpointFolder, OneRunWritesAndWhoeverIsKilledLosesTheLock) {
  const TemporaryFolder folder;
  const auto directory = folder.path() / "run/checkpoints";
  const auto locking = [&] { return refusal([&] { const FolderLock lock(directory); }); };
  EXPECT_EQ(locking(), "(accepted)");
  Holder holder(directory);
  std::array<char, 256> host{};
  ::gethostname(host.data(), host.size() - 1);
  EXPECT_EQ(locking(), directory.string() + ": another run writes here (host " + host.data() +
                           ", process " + std::to_string(holder.pid()) +
                           "); wait for its end, or choose another folder");
  holder.kill();
  FolderLock lock(directory);
  EXPECT_THAT(locking(), HasSubstr("process " + std::to_string(::getpid()) + ")"));
  {
    const FolderLock moved(std::move(lock));
    EXPECT_THAT(locking(), HasSubstr("another run writes here"));
  }
  EXPECT_EQ(locking(), "(accepted)");
}

TEST(CheckpointFolder, ALockThatCannotBeIsAFailure) {
  const TemporaryFolder folder;
  folder.write("file", "");
  EXPECT_THROW(FolderLock(folder.path() / "file"), SystemError);
  fs::create_symlink("file", folder.path() / "lock");
  EXPECT_THROW(FolderLock(folder.path()), SystemError);
  EXPECT_THROW(begin_checkpoint(folder.path() / "file", 1), SystemError);
}

/// A checkpoint of step 5 outside of the folder, to which `name` in the folder is a link.
fs::path linked(const TemporaryFolder& archive, const fs::path& directory, const char* name) {
  const auto kept = save(archive.path(), 5);
  fs::create_directories(directory);
  fs::create_directory_symlink(kept, directory / name);
  return kept;
}

TEST(CheckpointFolder, OfALinkTheLinkAloneIsRemoved) {
  for (const char* name : {"step_00000005", "step_00000005.partial", "step_00000005.deleting"}) {
    const TemporaryFolder archive, folder;
    const auto kept = linked(archive, folder.path(), name);
    if (std::string_view(name) == "step_00000005") {
      EXPECT_THAT(steps_in(folder.path()), ElementsAre(5));
      remove_checkpoint(folder.path() / name);
    } else {
      clean_up(folder.path());
    }
    EXPECT_THAT(names_in(folder.path()), IsEmpty()) << name;
    EXPECT_EQ(read_marker(kept).step, 5) << name;
  }
}

TEST(CheckpointFolder, ANewOneTakesTheNameOfALinkAndNotItsPlace) {
  const TemporaryFolder archive, folder;
  const auto kept = linked(archive, folder.path(), "step_00000005");
  const auto before = read_file(kept / kMarkerFile);
  save(folder.path(), 5, 1.5);
  EXPECT_EQ(read_file(kept / kMarkerFile), before);
  EXPECT_EQ(read_marker(folder.path() / "step_00000005").validation_loss, 1.5);
}

TEST(CheckpointFolder, ALossThatIsNoNumberIsLeftOut) {
  const TemporaryFolder folder;
  for (const double loss : {std::nan(""), static_cast<double>(INFINITY)}) {
    const auto path = save(folder.path(), 5, loss);
    EXPECT_EQ(read_marker(path).validation_loss, std::nullopt);
  }
  // As it was once written.
  const auto path = folder.path() / "step_00000005";
  auto marker = nlohmann::json::parse(read_file(path / kMarkerFile));
  marker.erase("checksum");
  marker["validation_loss"] = nullptr;
  marker["checksum"] = to_hex(checksum(marker.dump()));
  write_file(path / kMarkerFile, marker.dump() + "\n");
  EXPECT_EQ(read_marker(path).step, 5);
}

TEST(CheckpointFolder, AMarkerOfALaterVersionIsNoDamage) {
  const TemporaryFolder folder;
  const auto path = save(folder.path(), 5);
  auto marker = nlohmann::json::parse(read_file(path / kMarkerFile));
  marker["version"] = 7;
  write_file(path / kMarkerFile, marker.dump());
  try {
    read_marker(path);
    ADD_FAILURE() << "accepted";
  } catch (const DamagedCheckpoint& error) {
    ADD_FAILURE() << error.what();
  } catch (const UserError& error) {
    EXPECT_THAT(error.what(), EndsWith("version: expected 1, got 7; read it with the Tessera that "
                                       "wrote it"));
  }
}

TEST(CheckpointFolder, WhatIsSetAsideStays) {
  const TemporaryFolder folder;
  EXPECT_EQ(set_aside(save(folder.path(), 5, 1.0)).filename(), "step_00000005.damaged");
  EXPECT_EQ(set_aside(save(folder.path(), 5, 2.0)).filename(), "step_00000005.damaged.2");
  EXPECT_EQ(set_aside(save(folder.path(), 5, 3.0)).filename(), "step_00000005.damaged.3");
  EXPECT_EQ(read_marker(folder.path() / "step_00000005.damaged").validation_loss, 1.0);
  EXPECT_THAT(steps_in(folder.path()), IsEmpty());
}

TEST(CheckpointFolder, ANameThatSaysAnotherStepIsRefused) {
  EXPECT_THAT(refusal([] { check_name("run/checkpoints/step_00000009/", 5); }),
              EndsWith("step_00000009/: named for step 9, but it is a checkpoint of step 5; rename "
                       "it to step_00000005"));
  EXPECT_EQ(refusal([] { check_name("run/checkpoints/step_00000005", 5); }), "(accepted)");
  EXPECT_EQ(refusal([] { check_name("best", 5); }), "(accepted)");
}

TEST(CheckpointFolder, WhatCannotBeReadAgainIsNotCompleted) {
  const TemporaryFolder folder;
  nlohmann::json deep = 1;
  for (int i = 0; i < 70; ++i) deep = {{"a", deep}};
  const auto partial = begin_checkpoint(folder.path(), 5);
  EXPECT_THAT(refusal([&] { finish_checkpoint(partial, {.step = 5, .model = deep}, {}); }),
              EndsWith("nested too deep"));
  EXPECT_THAT(steps_in(folder.path()), IsEmpty());
}

}  // namespace
}  // namespace tessera::checkpoint
