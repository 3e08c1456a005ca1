#include "tessera/train/best_validation.h"

#include <gtest/gtest.h>

#include <cmath>

namespace tessera::train {
namespace {

TEST(BestValidation, ASmallGainIsTheBestButEndsNoWaiting) {
  BestValidation best;
  best.add(10, 3.0, 0.1);
  EXPECT_EQ(best.since, 0);
  best.add(20, 2.95, 0.1);
  EXPECT_EQ(best.loss, 2.95);
  EXPECT_EQ(best.step, 20);
  EXPECT_EQ(best.since, 1);
  EXPECT_FALSE(best.is_over(2));
  EXPECT_FALSE(best.is_over(0)) << "no patience asked for";
  best.add(30, 2.91, 0.1);
  EXPECT_TRUE(best.is_over(2));
  best.add(40, 2.89, 0.1);  // 0.11 below the one that counted
  EXPECT_EQ(best.since, 0);
}

TEST(BestValidation, WhatIsNoNumberIsNeverBetter) {
  BestValidation best;
  best.add(1, NAN, 0);
  best.add(2, INFINITY, 0);
  EXPECT_FALSE(best.loss);
  EXPECT_TRUE(best.is_over(2));
  best.add(3, 5, 0);
  best.add(4, NAN, 0);
  EXPECT_EQ(best.step, 3);
  EXPECT_EQ(best.since, 1);
}

TEST(BestValidation, IsReadBackAsItWasWritten) {
  BestValidation best;
  for (const double found : {double{NAN}, 2.5, 2.6, 2.49}) {
    best.add(7, found, 0.1);
    const auto json = to_json(best);
    EXPECT_EQ(to_json(best_validation_of(nlohmann::json::parse(json.dump()))), json);
  }
}

}  // namespace
}  // namespace tessera::train
