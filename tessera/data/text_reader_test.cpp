#include "tessera/data/text_reader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/data/testing.h"
#include "tests/support/temporary_folder.h"

namespace tessera::data {
namespace {

using ::tessera::data::testing::refusal;
using tessera::testing::TemporaryFolder;
using ::testing::HasSubstr;

const char* const kTokenizer = "tests/fixtures/tokenizers/llama3_style";

std::string lines_of_text(int count) {
  std::string text;
  for (int i = 0; i < count; ++i) text += "line " + std::to_string(i) + " of a text.\n";
  return text;
}

TEST(TextReader, PartsAreTheTexts) {
  const TemporaryFolder folder;
  const std::vector<std::string> texts{lines_of_text(500), "x", std::string(5000, 'a')};
  std::vector<TextFile> files;
  for (size_t i = 0; i < texts.size(); ++i)
    files.push_back(
        {folder.write(std::to_string(i), texts[i]), static_cast<int64_t>(texts[i].size())});
  const auto tokenizer = text::load_tokenizer(kTokenizer);
  for (const auto* cuts_by : {&tokenizer, static_cast<const text::Tokenizer*>(nullptr)}) {
    TextReader reader(files, cuts_by, {}, 1000);
    std::vector<TextPart> parts;
    std::string whole;
    while (auto part = reader.next()) {
      whole += part->text;
      parts.push_back(std::move(*part));
    }
    EXPECT_EQ(whole, texts[0] + texts[1] + texts[2]);
    EXPECT_GT(parts.size(), texts[0].size() / 1200);
    // What has no blank is one part where tokens matter.
    EXPECT_EQ(parts.back().text.size(), cuts_by == nullptr ? 1000U : 5000U);
    // From each place on it reads what is left.
    for (size_t i = 0; i + 1 < parts.size(); ++i) {
      TextReader again(files, cuts_by, parts[i].next, 1000);
      const auto part = again.next();
      ASSERT_TRUE(part);
      EXPECT_EQ(part->text, parts[i + 1].text);
      EXPECT_EQ(part->continues, parts[i + 1].continues);
      EXPECT_EQ(part->ends, parts[i + 1].ends);
    }
  }
}

TEST(TextReader, NamesAFileThatChanged) {
  const TemporaryFolder folder;
  const auto path = folder.write("a", "some text");
  for (const int64_t size : {8, 10}) {
    TextReader reader({{path, size}}, nullptr, {});
    EXPECT_THAT(refusal([&] { reader.next(); }), HasSubstr("did it change meanwhile?"));
  }
  TextReader reader({{folder.path() / "none", 1}}, nullptr, {});
  EXPECT_THAT(refusal([&] { reader.next(); }), HasSubstr("none: cannot be opened"));
}

}  // namespace
}  // namespace tessera::data
