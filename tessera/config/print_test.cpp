#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <set>
#include <type_traits>

#include "tessera/base/file.h"
#include "tessera/config/fields.h"
#include "tessera/config/run_config.h"
#include "tessera/config/values.h"

namespace tessera::config {
namespace {

LoadedConfig load_text(const std::string& yaml) {
  const auto path = ::testing::TempDir() + "print_test_" + std::to_string(::getpid()) + ".yaml";
  write_file(path, yaml);
  auto loaded = load_run_config(path, {});
  std::filesystem::remove(path);
  return loaded;
}

/// Another allowed value, whatever the type.
void change(const Field& field, RunConfig& config) {
  const auto& rule = field.rule;
  const auto slot = field.slot(config);
  if (const auto* choice = std::get_if<ChoiceSlot>(&slot)) {
    EXPECT_TRUE(choice->assign(rule.choices.at(choice->text() == rule.choices[1] ? 0 : 1)));
    return;
  }
  std::visit(
      [&](auto value) {
        if constexpr (!std::is_same_v<decltype(value), ChoiceSlot>) {
          using T = std::decay_t<decltype(*value)>;
          if constexpr (std::is_same_v<T, parallel::ReshardAfterForward>) *value = 2;
          if constexpr (std::is_same_v<T, int64_t>) *value += 2;
          if constexpr (std::is_same_v<T, double>) *value = *value / 3 + 1e-9;
          if constexpr (std::is_same_v<T, bool>) *value = !*value;
          if constexpr (std::is_same_v<T, std::string>) {
            *value = rule.choices.empty() ? "a \"b\"\\ \n\t# c: 'd' \xc3\xa9 \x7f "
                                          : rule.choices.at(*value == rule.choices[1] ? 0 : 1);
          }
          if constexpr (std::is_same_v<T, std::vector<std::string>>) {
            *value = rule.choices.empty() ? T{"x, y", "null", "[z]"} : rule.choices;
          }
          if constexpr (std::is_same_v<T, std::vector<int64_t>>) *value = {3, 0};
          if constexpr (std::is_same_v<T, std::vector<double>>) *value = {0.1, 3};
          if constexpr (std::is_same_v<T, models::Patterns<int64_t>>) {
            *value = {{"x: \"y\", {z", 3}, {"null", 1}};
          }
          if constexpr (std::is_same_v<T, models::Patterns<double>>) *value = {{"a.*\\.b", 0.1}};
          if constexpr (std::is_same_v<T, std::optional<int64_t>>) *value = 24;
          if constexpr (std::is_same_v<T, std::optional<double>>) *value = 0.1;
          if constexpr (std::is_same_v<T, std::optional<bool>>) *value = true;
        }
      },
      slot);
}

TEST(PrintTest, YamlReadsBackToTheSameValues) {
  EXPECT_EQ(load_text(to_yaml(RunConfig{})).config, RunConfig{});
  RunConfig changed;
  for (const auto& section : sections()) {
    for (const auto& field : section.fields) {
      if (field.key == "precision.preset") continue;  // the other keys follow from it
      const auto before = changed;
      change(field, changed);
      EXPECT_NE(changed, before) << field.key;
      EXPECT_EQ(load_text(to_yaml(changed)).config, changed) << field.key;
    }
  }
}

TEST(PrintTest, APresetReadsBackWithWhatItStandsFor) {
  const auto config =
      load_run_config("", {{.key = "precision.preset", .value = "msamp_o3"}}).config;
  EXPECT_EQ(config.precision.weights, WeightStorage::fp8);
  EXPECT_EQ(load_text(to_yaml(config)).config, config);
}

TEST(PrintTest, EveryMemberHasOneFieldWithItsOwnDefaultAllowed) {
  RunConfig config;
  std::vector<std::pair<const char*, size_t>> slots;
  std::set<std::string> keys;
  for (const auto& section : sections()) {
    for (const auto& field : section.fields) {
      EXPECT_TRUE(keys.insert(field.key).second) << field.key;
      std::visit(
          [&](auto value) {
            if constexpr (std::is_same_v<decltype(value), ChoiceSlot>) {
              slots.emplace_back(static_cast<const char*>(value.address()), value.size());
            } else {
              slots.emplace_back(reinterpret_cast<const char*>(value), sizeof(*value));
            }
          },
          field.slot(config));
    }
  }
  std::sort(slots.begin(), slots.end());
  const auto* end = reinterpret_cast<const char*>(&config);
  for (const auto& [begin, size] : slots) {
    EXPECT_GE(begin, end) << "two fields share a member";
    EXPECT_LT(begin - end, 8) << "a member without a field ends at byte "
                              << begin - reinterpret_cast<const char*>(&config);
    end = begin + size;
  }
  EXPECT_LT(reinterpret_cast<const char*>(&config + 1) - end, 8);
}

TEST(PrintTest, PrintedConfigurationShowsOriginsInOneColumnAndIsAJobItself) {
  RunConfig config;
  config.train.steps = 7;
  config.data.train = {"a/very/long/path/to/a/file/of/training/data.bin", "another/one.bin"};
  const auto text =
      print_config({config, {{"train.steps", "job.yaml:12"}, {"optimizer.eps", "command line"}}});
  EXPECT_THAT(text,
              ::testing::HasSubstr("optimizer:\n  type: adamw                      # default\n"));
  EXPECT_THAT(text, ::testing::HasSubstr("  steps: 7                         # job.yaml:12\n"));
  EXPECT_THAT(text, ::testing::HasSubstr("  eps: 1e-08                       # command line\n"));
  EXPECT_THAT(text, ::testing::HasSubstr("another/one.bin\"]  # default\n"));
  EXPECT_EQ(load_text(text).config, config);
}

TEST(PrintTest, HelpAndDocsNameEveryKey) {
  const auto help = config_help(), markdown = config_markdown();
  for (const auto& section : sections()) {
    for (const auto& field : section.fields) {
      EXPECT_THAT(help, ::testing::HasSubstr("--" + field.key + " "));
      EXPECT_THAT(markdown, ::testing::HasSubstr("| `" + field.key + "` |"));
      EXPECT_EQ(field.meaning.find('|'), std::string::npos) << field.key;
    }
  }
  EXPECT_THAT(help,
              ::testing::HasSubstr("(number in [0, 1); default 0.95; needs optimizer.type adamw, "
                                   "adamw8bit, lion or muon)"));
  EXPECT_THAT(help,
              ::testing::HasSubstr("(one of adamw, adamw8bit, sgd, lion, muon; default adamw)"));
}

TEST(PrintTest, TheDocsPageIsTheFieldListOfToday) {
  EXPECT_EQ(read_file("docs/config.md"), config_markdown())
      << "make it again: tessera config docs > docs/config.md";
}

}  // namespace
}  // namespace tessera::config
