#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/file.h"
#include "tessera/base/testing.h"
#include "tessera/chat/load.h"

namespace tessera::chat {
namespace {

namespace fs = std::filesystem;
using tessera::testing::message_of;
using ::testing::HasSubstr;

class LoadTemplates : public ::testing::Test {
 protected:
  void SetUp() override { folder_ = make_temporary_folder(fs::temp_directory_path() / "chat"); }
  void TearDown() override { fs::remove_all(folder_); }

  void put(const std::string& name, const std::string& content) {
    make_folder((folder_ / name).parent_path());
    write_file(folder_ / name, content);
  }
  std::string text(const ChatTemplate& chat_template) { return chat_template.render({}).text; }

  fs::path folder_;
};

TEST_F(LoadTemplates, AStringAListAndFilesOfTheirOwn) {
  EXPECT_TRUE(load_templates(folder_).by_name.empty());
  EXPECT_THAT(message_of([&] { load_templates(folder_).choose(); }), HasSubstr("none"));
  put("tokenizer_config.json",
      R"({"chat_template": "one", "bos_token": "<s>", "eos_token": {"content": "</s>", "special": true}, "pad_token": null})");
  auto model = load_templates(folder_);
  EXPECT_EQ(text(model.choose()), "one");
  EXPECT_EQ(model.variables.dump(), R"({"bos_token":"<s>","eos_token":"</s>"})");

  put("tokenizer_config.json",
      R"({"chat_template": [{"name": "default", "template": "d"}, {"name": "tool_use", "template": "t"}]})");
  model = load_templates(folder_);
  EXPECT_EQ(text(model.choose()), "d");
  EXPECT_EQ(text(model.choose({}, true)), "t");
  EXPECT_EQ(text(model.choose("tool_use")), "t");
  EXPECT_THAT(message_of([&] { model.choose("rag"); }),
              HasSubstr("rag: expected one of those that the model has: default, tool_use"));

  put("chat_template.jinja", "file");
  put("additional_chat_templates/rag.jinja", "r");
  model = load_templates(folder_);
  EXPECT_EQ(text(model.choose()), "file");
  EXPECT_EQ(text(model.choose("rag")), "r");
}

TEST_F(LoadTemplates, WhatIsNoTemplateIsNamed) {
  put("tokenizer_config.json", R"({"chat_template": 5})");
  EXPECT_THAT(message_of([&] { load_templates(folder_); }),
              HasSubstr("tokenizer_config.json: chat_template: expected a string, or a list"));
  put("tokenizer_config.json", R"({"chat_template": "a\n{{ b"})");
  EXPECT_THAT(message_of([&] { load_templates(folder_); }),
              HasSubstr("chat_template: line 2 of the template: expected }} at the end"));
  put("tokenizer_config.json", R"({"bos_token": {"text": "x"}})");
  EXPECT_THAT(message_of([&] { load_templates(folder_); }),
              HasSubstr("bos_token: expected a string"));
}

}  // namespace
}  // namespace tessera::chat
