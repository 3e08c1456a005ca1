#include "tessera/config/accelerate/shown_value.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>

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

TEST(ShownValue, HidesByTheLookOfTheValue) {
  for (const char* name : {"HF_PASSWD", "HF_PASSPHRASE", "HF_TOKENS", "AWS_CREDENTIALS",
                           "NCCL_AUTH", "GOOGLE_APPLICATION_CREDENTIALS", "hf_secrets"}) {
    EXPECT_EQ(shown_value(name, "s3cr3t"), "(hidden)") << name;
  }
  const std::pair<const char*, const char*> shown[] = {
      {"Authorization: Bearer s3cr3t", "Authorization: (hidden) (hidden)"},
      {"curl -H 'authorization: basic s3cr3t' x", "curl -H 'authorization: (hidden) (hidden) x"},
      {R"x({"token": "s3cr3t", "a": 1})x", R"x({"token": "(hidden)", "a": 1})x"},
      {R"x({"api_key":"s3cr3t"})x", R"x({"api_key":"(hidden)"})x"},
      {"run --token s3cr3t --steps 3", "run --token (hidden) --steps 3"},
      {"run --api-key=s3cr3t", "run --api-key=(hidden)"},
      {"[A=1, HF_PASSWD=s3cr3t, B=2]", "[A=1, HF_PASSWD=(hidden), B=2]"},
      {"password: 's3cr3t x', b", "password: '(hidden)', b"},
      {"export X=hf_abcdefghijklmnopqrst1", "export X=(hidden)"},
      {"https://h/f?X-Amz-Signature=s3cr3t&b=1 and", "https://h/f?(hidden) and"},
  };
  for (const auto& [value, expected] : shown) {
    const auto got = shown_value("tpu_env", value);
    EXPECT_EQ(got.find("s3cr3t"), std::string::npos) << got;
    EXPECT_EQ(got, expected);
  }
  for (const char* plain : {"4", "full_shard", "a: b", "http://host:80/x", "key", "sk-1",
                            "basically", "/home/me/token/x", "1,2,3"}) {
    EXPECT_EQ(shown_value("x", plain), plain);
  }
  EXPECT_EQ(shown_value("max_tokens", "512"), "512");
}

}  // namespace
}  // namespace tessera::config::accelerate
