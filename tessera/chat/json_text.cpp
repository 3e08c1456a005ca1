// What transformers' tojson writes: json.dumps of Python.
#include <fmt/format.h>

#include <algorithm>

#include "tessera/chat/builtins.h"
#include "tessera/chat/characters.h"

namespace tessera::chat {
namespace {

class Writer {
 public:
  explicit Writer(const JsonOptions& options) : options_(options) {}

  void value(const Value& value, int level) {
    if (value.is_text()) return string(value.text(), value.text().source_at(0, value.source));
    if (value.is<ListPtr>()) return list(value, level);
    if (value.is<DictPtr>()) return dict(value, level);
    out.append(scalar(value), value.source);
  }

  Text out;

 private:
  static std::string scalar(const Value& value) {
    if (value.is_none()) return "null";
    if (value.is<bool>()) return value.as<bool>() ? "true" : "false";
    if (value.is<int64_t>()) return fmt::format("{}", value.as<int64_t>());
    if (!value.is<double>()) refuse(value, "a value that JSON has");
    const auto text = float_text(value.as<double>());
    return text == "nan" ? "NaN" : text == "inf" ? "Infinity" : text == "-inf" ? "-Infinity" : text;
  }

  void string(const Text& text, SourceId frame) {
    out.append("\"", frame);
    for (size_t at = 0; at < text.size();) {
      const auto [code, bytes] = character_at(text.view(), at);
      static constexpr std::string_view kSpecial = "\"\\\n\r\t\f\b", kLetters = "\"\\nrtfb";
      const size_t special =
          code < 0x80 ? kSpecial.find(static_cast<char>(code)) : std::string_view::npos;
      const auto source = text.source_at(at);
      if (special != std::string_view::npos) {
        out.append(fmt::format("\\{}", kLetters[special]), source);
      } else if (code < 0x20 || (options_.ascii && code > 0x7E)) {
        escape(code, source);
      } else {
        out.append(text.view().substr(at, bytes), source);
      }
      at += bytes;
    }
    out.append("\"", frame);
  }

  void escape(char32_t code, SourceId source) {
    auto value = static_cast<uint32_t>(code);
    if (value >= 0x10000) {
      value -= 0x10000;
      out.append(
          fmt::format("\\u{:04x}\\u{:04x}", 0xD800 + (value >> 10), 0xDC00 + (value & 0x3FF)),
          source);
    } else {
      out.append(fmt::format("\\u{:04x}", value), source);
    }
  }

  void separate(bool first, int level, SourceId source) {
    if (!first) {
      // Python writes no blank at the end of a line.
      const bool ends_line = options_.indent >= 0 && options_.item_separator == ", ";
      out.append(ends_line ? "," : options_.item_separator, source);
    }
    new_line(level, source);
  }

  void new_line(int level, SourceId source) {
    if (options_.indent < 0) return;
    out.append("\n" + std::string(static_cast<size_t>(level * options_.indent), ' '), source);
  }

  void list(const Value& value, int level) {
    const auto& items = value.list().items;
    out.append("[", value.source);
    for (size_t i = 0; i < items.size(); ++i) {
      separate(i == 0, level + 1, value.source);
      this->value(items[i], level + 1);
    }
    if (!items.empty()) new_line(level, value.source);
    out.append("]", value.source);
  }

  void dict(const Value& value, int level) {
    auto entries = value.dict().entries;
    if (options_.sort_keys) {
      std::stable_sort(entries.begin(), entries.end(),
                       [](const auto& a, const auto& b) { return compare(a.first, b.first) < 0; });
    }
    out.append("{", value.source);
    bool first = true;
    for (const auto& [key, entry] : entries) {
      separate(first, level + 1, value.source);
      first = false;
      if (key.is_text()) {
        string(key.text(), key.text().source_at(0, value.source));
      } else {
        out.append("\"" + scalar(key) + "\"", key.source);
      }
      out.append(options_.key_separator, value.source);
      this->value(entry, level + 1);
    }
    if (!entries.empty()) new_line(level, value.source);
    out.append("}", value.source);
  }

  const JsonOptions& options_;
};

}  // namespace

Text json_text(const Value& value, const JsonOptions& options) {
  Writer writer(options);
  writer.value(value, 0);
  return std::move(writer.out);
}

}  // namespace tessera::chat
