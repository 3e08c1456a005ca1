#include "tessera/chat/template.h"

#include <limits>

#include "tessera/base/text.h"
#include "tessera/base/utf8.h"
#include "tessera/chat/parser.h"
#include "tessera/chat/tokens.h"

namespace tessera::chat {
namespace {

/// The inputs as values that know where they are from.
class Reader {
 public:
  explicit Reader(Sources& sources) : sources_(sources) {}

  uint64_t bytes = 0;  ///< of what was read, about

  Value variable(const std::string& name, const Json& json) {
    return value(json, sources_.id({.message = -1, .field = name}));
  }

  Value messages(const Json& json) {
    if (!json.is_array()) throw Failure("expected messages to be a list");
    std::vector<Value> list;
    for (const auto& message : json) {
      const int index = static_cast<int>(list.size());
      if (!message.is_object())
        throw Failure(fmt::format("expected message {} to be an object", index));
      const auto whole = sources_.id({.message = index, .field = {}});
      std::vector<std::pair<Value, Value>> entries;
      for (const auto& [key, part] : message.items()) {
        entries.emplace_back(text_value(Text(checked(key), whole)),
                             value(part, sources_.id({.message = index, .field = key})));
      }
      list.push_back(dict_value(std::move(entries), whole, index));
    }
    return list_value(std::move(list));
  }

 private:
  Value value(const Json& json, SourceId source, int depth = 0) {
    static constexpr int kMaxDepth = 64;
    if (depth > kMaxDepth)
      throw Failure(fmt::format("expected messages nested at most {} deep", kMaxDepth));
    ++bytes;
    switch (json.type()) {
      case Json::value_t::null:
        return {None{}, source};
      case Json::value_t::boolean:
        return {json.get<bool>(), source};
      case Json::value_t::number_integer:
        return {json.get<int64_t>(), source};
      case Json::value_t::number_unsigned:
        if (json.get<uint64_t>() > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
          throw Failure(fmt::format("expected whole numbers of at most 64 bits, got {}",
                                    json.get<uint64_t>()));
        }
        return {json.get<int64_t>(), source};
      case Json::value_t::number_float:
        return {json.get<double>(), source};
      case Json::value_t::string:
        return string(json.get_ref<const std::string&>(), source);
      case Json::value_t::array:
        return list(json, source, depth);
      case Json::value_t::object:
        return dict(json, source, depth);
      default:
        throw Failure("expected a value that JSON has");
    }
  }

  Value string(const std::string& text, SourceId source) {
    auto made = text_value(Text(checked(text), source));
    made.source = source;
    return made;
  }

  Value list(const Json& json, SourceId source, int depth) {
    std::vector<Value> items;
    for (const auto& part : json) items.push_back(value(part, source, depth + 1));
    return list_value(std::move(items), source);
  }

  Value dict(const Json& json, SourceId source, int depth) {
    std::vector<std::pair<Value, Value>> entries;
    for (const auto& [key, part] : json.items()) {
      entries.emplace_back(string(key, source), value(part, source, depth + 1));
    }
    return dict_value(std::move(entries), source);
  }

  const std::string& checked(const std::string& text) {
    if (!is_utf8(text)) throw Failure("expected strings of UTF-8");
    bytes += text.size();
    return text;
  }

  Sources& sources_;
};

Rendered finished(Text text, const Sources& sources) {
  Rendered rendered;
  size_t begin = 0;
  for (const auto& [end, source] : text.runs()) {
    rendered.runs.push_back({begin, end, source});
    if (sources[source].generated) {
      auto& spans = rendered.generated;
      if (!spans.empty() && spans.back().end == begin) {
        spans.back().end = end;
      } else {
        spans.push_back({begin, end});
      }
    }
    begin = end;
  }
  rendered.text = text.bytes();
  rendered.sources = sources.all();
  return rendered;
}

}  // namespace

ChatTemplate::ChatTemplate(std::string name, std::string_view source) : name_(std::move(name)) {
  if (!is_utf8(source)) user_error("{}: expected a chat template in UTF-8", name_);
  int line = 1;
  try {
    Parser parser(tokenize(source, line), line);
    statements_ = std::make_shared<const Block>(parser.parse());
    has_generation_ = parser.has_generation();
  } catch (const Failure& failure) {
    user_error("{}: line {} of the template: {}", name_, line, printable(failure.what()));
  }
}

Rendered ChatTemplate::render(const Inputs& inputs, const RenderOptions& options) const {
  Sources sources;
  Reader reader(sources);
  int line = 0;
  try {
    std::map<std::string, Value, std::less<>> variables;
    variables.emplace("messages", reader.messages(inputs.messages));
    variables.emplace("tools", reader.variable("tools", inputs.tools));
    variables.emplace("documents", reader.variable("documents", inputs.documents));
    variables.emplace("add_generation_prompt", Value{inputs.add_generation_prompt});
    for (const auto& [name, json] : inputs.variables.items()) {
      variables.insert_or_assign(name, reader.variable(name, json));
    }
    const auto steps = options.limits.steps + options.limits.steps_per_input_byte * reader.bytes;
    Interpreter interpreter(sources, options.limits, steps,
                            options.now.value_or(std::time(nullptr)));
    try {
      return finished(interpreter.run(*statements_, std::move(variables)), sources);
    } catch (const Failure&) {
      line = interpreter.line();
      throw;
    }
  } catch (const Refusal& refusal) {
    throw TemplateRefusal(fmt::format("{}: line {} of the template refuses the conversation: {}",
                                      name_, line, refusal.what()),
                          refusal.what());
  } catch (const Failure& failure) {
    if (line == 0) user_error("{}: {}", name_, printable(failure.what()));
    user_error("{}: line {} of the template: {}", name_, line, printable(failure.what()));
  }
}

}  // namespace tessera::chat
