#include "tessera/config/accelerate/shown_value.h"

#include <gtest/gtest.h>

namespace tessera::config::accelerate {
namespace {

TEST(ShownValueTest, NamesOfSecretsHideTheirValues) {
  for (const char* name : {"HF_TOKEN", "comet.api_key", "AWS_SECRET_ACCESS_KEY", "db_password",
                           "MYTOKEN", "KEY_OF_MINE"}) {
    EXPECT_EQ(shown_value(name, "s3cr3t"), "(hidden)") << name;
  }
  for (const char* name : {"max_out_tokens", "FSDP_VERSION", "monkeys", "keyboard"}) {
    EXPECT_EQ(shown_value(name, "512"), "512") << name;
  }
  EXPECT_EQ(shown_value("HF_TOKEN", ""), "");  // nothing is no secret
}

TEST(ShownValueTest, SecretsWithinAValueAreHidden) {
  EXPECT_EQ(shown_value("tpu_env", "[A=1, WANDB_API_KEY=abc, HF_TOKEN=x=y]"),
            "[A=1, WANDB_API_KEY=(hidden), HF_TOKEN=(hidden)]");
  EXPECT_EQ(shown_value("commands", "[export HF_TOKEN=abc; ls]"), "[export HF_TOKEN=(hidden); ls]");
  EXPECT_EQ(shown_value("x", "http://me:pass@a/b@c http://d"), "http://(hidden)@a/b@c http://d");
  EXPECT_EQ(shown_value("x", "me@host, a=b"), "me@host, a=b");
}

}  // namespace
}  // namespace tessera::config::accelerate
