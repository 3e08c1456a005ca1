#include "tessera/chat/template.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>

#include "tessera/base/file.h"
#include "tessera/base/testing.h"
#include "tessera/chat/load.h"

namespace tessera::chat {
namespace {

namespace fs = std::filesystem;
using tessera::testing::message_of;
using ::testing::HasSubstr;

const fs::path kFixtures = "tests/fixtures";

std::vector<Json> lines(const fs::path& path) {
  std::ifstream file(path);
  std::vector<Json> all;
  for (std::string line; std::getline(file, line);) all.push_back(Json::parse(line));
  return all;
}

Inputs inputs_of(const Json& line, const Json& variables) {
  return {.messages = line["messages"],
          .tools = line.value("tools", Json()),
          .documents = nullptr,
          .add_generation_prompt = line["add_generation_prompt"].get<bool>(),
          .variables = variables};
}

std::string rendered(const std::string& source, const Inputs& inputs = {},
                     const RenderOptions& options = {}) {
  return ChatTemplate("t", source).render(inputs, options).text;
}
std::string refusal(const std::string& source, const Inputs& inputs = {},
                    const RenderOptions& options = {}) {
  return message_of([&] { rendered(source, inputs, options); });
}

class TokenizersTemplate : public ::testing::TestWithParam<std::string> {};

TEST_P(TokenizersTemplate, RendersAsTransformersDoes) {
  const auto model = load_templates(kFixtures / "tokenizers" / GetParam());
  size_t num_refused = 0;
  const auto all = lines(kFixtures / "chat" / (GetParam() + ".jsonl"));
  ASSERT_GT(all.size(), 30);
  for (const auto& line : all) {
    SCOPED_TRACE(line["name"].get<std::string>());
    const auto inputs = inputs_of(line, model.variables);
    if (line.contains("error")) {
      EXPECT_THAT(message_of([&] { model.choose().render(inputs); }),
                  HasSubstr(line["error"].get<std::string>()));
      ++num_refused;
    } else {
      EXPECT_EQ(model.choose().render(inputs).text, line["rendered"]);
    }
  }
  EXPECT_EQ(num_refused, GetParam() == "llama3_style" ? 1 : 0);
}
INSTANTIATE_TEST_SUITE_P(Styles, TokenizersTemplate,
                         ::testing::Values("llama3_style", "qwen2_style"));

TEST(ChatTemplate, RendersAsJinjaRecordedIt) {
  setenv("TZ", "UTC", 1);
  std::map<std::string, int> num_rendered;
  for (const auto& line : lines(kFixtures / "chat/expected.jsonl")) {
    const auto name = line["template"].get<std::string>();
    SCOPED_TRACE(name + ": " + line["messages"].dump());
    const ChatTemplate chat_template(name, read_file(kFixtures / "chat/templates" / name));
    const RenderOptions options{.now = line["now"].get<std::time_t>()};
    const auto inputs = inputs_of(line, line["variables"]);
    if (line.contains("error")) {
      EXPECT_THAT(message_of([&] { chat_template.render(inputs, options); }),
                  HasSubstr(name + ": line "));
      continue;
    }
    const auto result = chat_template.render(inputs, options);
    EXPECT_EQ(result.text, line["rendered"]);
    Json generated = Json::array();
    for (const auto& span : result.generated) generated.push_back({span.begin, span.end});
    EXPECT_EQ(generated, line["generated"]);
    ++num_rendered[name];
  }
  EXPECT_EQ(num_rendered.size(), 9);
}

TEST(ChatTemplate, NumbersBeyondADoubleAreInfiniteOrZero) {
  const auto result = ChatTemplate("t",
                                   "{{ 1e999 }} {{ -1e999 }} {{ 1e-999 }} {{ 1e999 - 1e999 }} "
                                   "{{ 1e999 | tojson }} {{ 1e999 | round(2) }}")
                          .render({});
  EXPECT_EQ(result.text, "inf -inf 0.0 nan Infinity inf");
}

// What Jinja2 makes item by item is true, and of what is false it makes nothing.
TEST(ChatTemplate, FiltersMakeGenerators) {
  const auto result =
      ChatTemplate("t",
                   "{{ none | selectattr('a') | list | length }} {{ 0 | map('upper') | list }} "
                   "{% for empty in [[] | select, [] | map('upper'), [] | reverse, [] | unique, "
                   "[] | reject | list] %}{{ 'yes' if empty else 'no' }} {% endfor %}")
          .render({});
  EXPECT_EQ(result.text, "0 [] yes yes yes yes no ");
}

TEST(ChatTemplate, EveryByteKnowsItsSource) {
  const Inputs inputs{.messages = Json::parse(R"([{"role":"user","content":"  Hi there "},
      {"role":"assistant","content":"<think>hm</think>Yes","tool_calls":[{"name":"f","arguments":{"a":[1,"x"]}}]}])"),
                      .variables = {{"eos_token", "</s>"}}};
  const auto result =
      ChatTemplate("t",
                   "{% for m in messages %}[{{ m.content | trim | replace('there', 'all') }}|"
                   "{{ m.content.split('</think>')[-1][::-1] ~ eos_token }}]{% if m.tool_calls "
                   "%}{{ m.tool_calls | tojson }}{% endif %}{% endfor %}")
          .render({.messages = inputs.messages, .variables = inputs.variables});
  std::string told;
  for (const auto& run : result.runs) {
    const auto& source = result.sources[run.source];
    told += "(" + (source.message < 0 ? std::string() : std::to_string(source.message)) +
            source.field + ":" + result.text.substr(run.begin, run.end - run.begin) + ")";
  }
  EXPECT_EQ(told.substr(0, told.find("(1")),
            "(:[)(0content:Hi )(:all|)(0content: ereht iH  )(eos_token:</s>)(:])(:[)");
  EXPECT_THAT(told, HasSubstr("(1content:seY)(eos_token:</s>)(:])(1tool_calls:[{\"name\": \"f\", "
                              "\"arguments\": {\"a\": [1, \"x\"]}}])"));
}

TEST(ChatTemplate, ErrorsNameTheLine) {
  EXPECT_EQ(refusal("a\n{{ x.y }}"),
            "t: line 2 of the template: 'x' is undefined, expected a value with 'y'");
  EXPECT_EQ(refusal("\n\n{% if x %}"),
            "t: line 3 of the template: expected {% endif %}, got the end of the template");
  EXPECT_EQ(refusal("{{ 1 | nope }}"),
            "t: line 1 of the template: expected a filter that is known, got 'nope'");
  EXPECT_EQ(refusal("{{ raise_exception('a\nb') }}"),
            "t: line 1 of the template refuses the conversation: a\\x0ab");
  EXPECT_THAT(refusal("{{ [1].append(2) }}"), HasSubstr("changes no list or dict in place"));
  EXPECT_THAT(refusal("{{ '\xFF' }}"), HasSubstr("UTF-8"));
  EXPECT_THAT(refusal("{{ messages }}", {.messages = Json::parse("[1]")}),
              HasSubstr("message 0 to be an object"));
}

TEST(ChatTemplate, HostileTemplatesEnd) {
  EXPECT_THAT(refusal("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}"),
              HasSubstr("within one another"));
  EXPECT_THAT(
      refusal("{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}", {},
              {.limits = {.steps = 200'000}}),
      HasSubstr("limit of steps"));
  EXPECT_THAT(refusal("{{ 'x' * 999999999999 }}"), HasSubstr("limit of steps"));
  EXPECT_THAT(refusal("{% set n = namespace(x=[]) %}{% for a in range(999) %}{% set n.x = [n.x, "
                      "n.x] %}{% endfor %}"),
              HasSubstr("too large"));
  EXPECT_THAT(refusal("{% set n = namespace(x=[]) %}{% for a in range(999) %}{% set n.x = [n.x] "
                      "%}{% endfor %}"),
              HasSubstr("deep"));
  EXPECT_THAT(refusal("{{ " + std::string(5000, '(') + "1" + std::string(5000, ')') + " }}"),
              HasSubstr("within one another"));
  EXPECT_THAT(refusal("{{ 'abc' * 100 }}", {}, {.limits = {.output_bytes = 200}}),
              HasSubstr("at most 200 bytes"));
}

}  // namespace
}  // namespace tessera::chat
