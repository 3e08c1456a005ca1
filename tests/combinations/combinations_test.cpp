#include <gtest/gtest.h>

#include "tessera/config/run_config.h"
#include "tessera/config/values.h"
#include "tests/combinations/draw.h"
#include "tests/combinations/reduce.h"
#include "tests/combinations/values.h"

namespace tessera::combinations {
namespace {

// A new key of the job file needs an entry that says what is worth trying, or why nothing is.
TEST(Combinations, EachKeyHasAnEntryWithValuesThatItTakes) {
  size_t num_fields = 0;
  for (const auto& section : config::sections()) {
    for (const auto& field : section.fields) {
      ++num_fields;
      const auto found = tried().find(field.key);
      ASSERT_NE(found, tried().end())
          << field.key << ": say in values.cpp what is worth trying, or why nothing is";
      EXPECT_NE(found->second.why.empty(), values_of(field).empty()) << field.key;
      for (const auto& value : values_of(field)) {
        EXPECT_NO_THROW(config::load_run_config("", {{field.key, value}})) << field.key;
      }
    }
  }
  EXPECT_EQ(tried().size(), num_fields) << "an entry is of no key";
}

TEST(Combinations, ASeedDrawsTheSameTrialsAndPairsAddUp) {
  Draw one(5), other(5);
  for (int i = 0; i < 10; ++i) {
    const auto a = one.next(), b = other.next();
    EXPECT_EQ(a.function, b.function);
    EXPECT_EQ(a.layout, b.layout);
    EXPECT_EQ(a.accelerate, b.accelerate);
    EXPECT_FALSE(refusal(a, a.layout).has_value());
  }
  EXPECT_GT(one.num_pairs(), 500u);
}

TEST(Combinations, AFailureIsToldWithTheFewestSettings) {
  Draw draw(1);
  auto trial = draw.next();
  while (!trial.accelerate.empty()) trial = draw.next();
  trial.layout["memory.checkpointing"] = "full";
  trial.function["optimizer.beta1"] = "0.8";
  const auto smallest = reduced(trial, [](const Trial& other) {
    return other.layout.contains("memory.checkpointing") &&
           other.function.contains("optimizer.beta1");
  });
  EXPECT_EQ(smallest.layout, (Settings{{"memory.checkpointing", "full"}}));
  EXPECT_EQ(smallest.function, (Settings{{"optimizer.beta1", "0.8"}}));
  EXPECT_FALSE(smallest.resumed.has_value());
}

}  // namespace
}  // namespace tessera::combinations
