// Where an error may be caught: the rule of docs/architecture.md, kept by a list.
#include <gtest/gtest.h>

#include <filesystem>
#include <map>
#include <set>
#include <string>

#include "tessera/base/file.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

/// Files beside cli/ and tests, by what they catch for.
const std::map<std::string, std::set<std::string>> kCatches{
    {"another library's error is told in our words",
     {"base/list_files.cpp", "base/path_error.h", "checkpoint/folder.cpp",
      "checkpoint/formats/peft.cpp", "config/accelerate/deepspeed_json.cpp",
      "models/adapter_json.cpp", "models/adapter_match.cpp", "models/json_keys.cpp",
      "config/load.cpp", "config/stored_job.cpp", "config/yaml_document.cpp",
      "hub/dataset_files.cpp", "report/metrics.cpp", "train/accelerator_state.cpp",
      "train/resume.cpp", "train/save_state.cpp"}},
    {"an error gets what only the caller knows: rank, axis, unit, action, key",
     {"chat/template.cpp", "comm/exchange.cpp", "comm/gloo.cpp", "comm/secret.cpp",
      "comm/group.cpp", "comm/group_state.cpp", "comm/roll_call.cpp", "comm/store.cpp",
      "documents/choices.cpp", "plan/pipeline.cpp", "parallel/data/unit.cpp",
      "parallel/pipeline/pipeline.cpp", "train/out_of_memory.cpp"}},
    {"an error is carried to another thread, through C, or to the other ranks",
     {"checkpoint/run_on_all.cpp", "comm/queue.cpp", "documents/documents.cpp", "hub/http.cpp",
      "hub/in_threads.h", "offload/space.cpp"}},
    {"what was begun is ended, and the error goes on",
     {"comm/shared_memory.h", "launch/supervisor.cpp", "offload/scratch_file.cpp"}},
    {"the next of several is tried: an attempt, an older checkpoint, a smaller batch",
     {"chat/assistant.cpp", "hub/download.cpp", "hub/push.cpp", "hub/push_large_file.cpp",
      "hub/resolve_data.cpp", "hub/resolve.cpp", "hub/retries.h", "train/accelerator.cpp"}},
    {"it is told where it is due, or ends nothing: an unreadable object, a save, a destructor",
     {"checkpoint/formats/dcp.cpp", "checkpoint/saver.cpp", "inference/chat.cpp",
      "memory/pinned_store.cpp", "parallel/data/host_copies.cpp", "train/watch.cpp"}},
    {"a program of its own",
     {"comm/run_program.cpp", "launch/rank_probe.cpp", "text/text_probe.cpp", "chat/chat_probe.cpp",
      "records/records_probe.cpp"}}};

TEST(CatchTest, OnlyTheseFilesCatch) {
  std::set<std::string> allowed, found;
  for (const auto& [why, files] : kCatches) allowed.insert(files.begin(), files.end());
  for (const auto& entry : fs::recursive_directory_iterator("tessera")) {
    const auto& path = entry.path();
    const auto name = fs::relative(path, "tessera").string();
    const bool is_source = path.extension() == ".cpp" || path.extension() == ".h";
    const bool of_test = path.stem().string().ends_with("_test") || path.stem() == "testing";
    if (!is_source || of_test || name.starts_with("cli/")) continue;
    if (read_file(path).find("catch (") != std::string::npos) found.insert(name);
  }
  for (const auto& name : found) {
    EXPECT_TRUE(allowed.contains(name)) << name << ": let cli/ catch it, or say here what for";
  }
  for (const auto& name : allowed) EXPECT_TRUE(found.contains(name)) << name << " catches nothing";
}

}  // namespace
}  // namespace tessera
