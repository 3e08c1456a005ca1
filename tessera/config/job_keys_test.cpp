#include "tessera/config/job_keys.h"

#include <gtest/gtest.h>

#include <cctype>
#include <filesystem>

#include "tessera/base/file.h"
#include "tessera/config/fields.h"

namespace tessera::config {
namespace {

namespace fs = std::filesystem;

TEST(JobKeysTest, OptionsGetTheirSection) {
  EXPECT_EQ(with_job_keys("a.txt: too short: expected at least 257 tokens (seq_len + 1), got 5"),
            "a.txt: too short: expected at least 257 tokens (data.seq_len + 1), got 5");
  EXPECT_EQ(with_job_keys("a.bin: truncated; make it again, or set token_dtype or format"),
            "a.bin: truncated; make it again, or set data.token_dtype or data.format");
  EXPECT_EQ(with_job_keys("train: fewer samples than global_batch; set shuffle to false"),
            "data.train: fewer samples than train.global_batch; set data.shuffle to false");
  EXPECT_EQ(with_job_keys("start 1 for GPUs, or set backend to nccl where every process sees one"),
            "start 1 for GPUs, or set parallel.backend to nccl where every process sees one");
  EXPECT_EQ(with_job_keys("expected a tensor 'x', found none; set strict to false."),
            "expected a tensor 'x', found none; set checkpoint.strict to false.");
}

TEST(JobKeysTest, OtherWordsStay) {
  for (const auto* message :
       {"data.seq_len: expected at least 1, got 0; set data.seq_len",
        "seq_len/train.txt: unknown format: expected text, got 'seq_len'",
        "runs/global_batch.bin: strict, format and train are words",
        "expected every rank; set seed, every or type",  // keys of several sections
        "unit layers: call set_is_last_backward(false); then seq_length follows"}) {
    EXPECT_EQ(with_job_keys(message), message);
  }
}

bool names(const std::string& text, const std::string& key) {
  const auto of_name = [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) || c == '_';
  };
  for (auto at = text.find(key); at != std::string::npos; at = text.find(key, at + 1)) {
    const char before = at > 0 ? text[at - 1] : ' ';
    const char after = at + key.size() < text.size() ? text[at + key.size()] : ' ';
    const bool is_code = of_name(before) || before == '.' || of_name(after) || after == '(';
    if (!is_code) return true;
  }
  return false;
}

/// Who calls the library has no job file. But what an adapter is belongs to the planner's words, too, before there are ranks.
TEST(JobKeysTest, TheLibraryNamesNoKeyOfAJobFile) {
  for (const auto* folder : {"checkpoint", "comm", "data", "hub", "kernels", "memory", "mesh",
                             "models", "nn", "optim", "parallel", "precision"}) {
    for (const auto& entry : fs::recursive_directory_iterator(fs::path("tessera") / folder)) {
      const auto& path = entry.path();
      const bool is_source = path.extension() == ".cpp" || path.extension() == ".h";
      if (!is_source || path.stem().string().ends_with("_test")) continue;
      if (path.parent_path() == "tessera/models" && path.stem().string().starts_with("adapter"))
        continue;
      const auto text = read_file(path);
      for (const auto& section : sections()) {
        for (const auto& field : section.fields) {
          EXPECT_FALSE(names(text, field.key)) << path << " names " << field.key;
        }
      }
    }
  }
}

}  // namespace
}  // namespace tessera::config
