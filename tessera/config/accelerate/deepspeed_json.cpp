#include "tessera/config/accelerate/deepspeed_json.h"

#include <algorithm>
#include <cctype>
#include <map>
#include <sstream>

#include "tessera/base/error.h"
#include "tessera/base/file.h"
#include "tessera/config/values.h"

namespace tessera::config::accelerate {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kMaxDepth = 64;  // what walks the result goes into itself

/// Parses, and notes on the way on which line each key of an object stands: a stream says how far
/// it was read, which the parsed values do not.
class LineReader {
 public:
  LineReader(std::string file, const std::string& text)
      : file_(std::move(file)), text_(text), stream_(text) {}

  Json parse() {
    // The parser would take a NUL for the end of the text.
    if (text_.find('\0') != std::string::npos) user_error("{}: a NUL byte in its JSON", file_);
    try {
      return Json::parse(stream_, [this](int depth, Json::parse_event_t event, Json& parsed) {
        if (static_cast<size_t>(depth) > kMaxDepth)
          user_error("{}:{}: nested too deep", file_, line());
        if (event == Json::parse_event_t::key)
          note(static_cast<size_t>(depth), parsed.get<std::string>());
        if (event == Json::parse_event_t::array_start) ++open_lists_;
        if (event == Json::parse_event_t::array_end) --open_lists_;
        return true;
      });
    } catch (const Json::parse_error& error) {
      refuse(error);
    } catch (const Json::out_of_range&) {
      user_error("{}:{}: a number is too large", file_, line());
    }
  }

  int line_of(const std::string& key) const { return lines_.at(key); }

 private:
  /// Notes the line of a key of the object at `depth`, counted from 1. What lies in lists is one
  /// value.
  void note(size_t depth, const std::string& name) {
    if (open_lists_ > 0) return;
    if (std::ranges::any_of(name, [](unsigned char c) { return std::iscntrl(c) != 0; })) {
      user_error("{}:{}: expected a name on one line, got {}", file_, line(), quoted(name));
    }
    path_.resize(depth - 1);
    const auto key = path_.empty() ? name : path_.back() + "." + name;
    path_.push_back(key);
    const auto [first, is_new] = lines_.try_emplace(key, line());
    if (!is_new) {
      user_error("{}:{}: {} stands twice, first in line {}; keep one of them", file_, line(),
                 quoted(key), first->second);
    }
  }

  int line() {
    const auto position = static_cast<size_t>(std::max<std::streamoff>(0, stream_.tellg()));
    for (; counted_ < position; ++counted_) line_ += text_[counted_] == '\n';
    return line_;
  }

  [[noreturn]] void refuse(const Json::parse_error& error) const {
    const auto read = std::min(error.byte > 0 ? error.byte - 1 : 0, text_.size());
    const auto begin = text_.begin(), at = begin + static_cast<std::ptrdiff_t>(read);
    const auto line = 1 + std::count(begin, at, '\n');
    const auto start = read == 0 ? std::string::npos : text_.rfind('\n', read - 1);
    const auto column = start == std::string::npos ? read + 1 : read - start;
    // "..: syntax error while parsing object - unexpected '}'; last read: ..; expected .."
    const std::string what = error.what(), mark = "syntax error ";
    const auto reason = what.find(mark);
    user_error(
        "{}:{}: expected JSON, got an error in column {}{}", file_, line, column,
        reason == std::string::npos ? "" : ": " + reason_of(what.substr(reason + mark.size())));
  }

  /// `reason` without what was read last, which may be anything.
  static std::string reason_of(std::string reason) {
    const auto read = reason.find("; last read:"), wanted = reason.rfind("; expected");
    if (read == std::string::npos) return reason;
    const bool says_more = wanted != std::string::npos && wanted > read;
    return reason.substr(0, read) + (says_more ? reason.substr(wanted) : "");
  }

  std::string file_;
  const std::string& text_;
  std::istringstream stream_;
  std::vector<std::string> path_;  // dotted keys of the objects that are open
  std::map<std::string, int> lines_;
  int open_lists_ = 0;
  size_t counted_ = 0;
  int line_ = 1;
};

void flatten(const Json& object, const std::string& prefix, const LineReader& reader,
             std::vector<JsonLine>& lines) {
  for (const auto& [name, value] : object.items()) {
    if (value.is_object() && !value.empty()) {
      flatten(value, prefix + name + ".", reader, lines);
    } else {
      lines.push_back({prefix + name, value, reader.line_of(prefix + name)});
    }
  }
}

}  // namespace

std::vector<JsonLine> read_json_lines(const std::filesystem::path& file) {
  const auto text = read_file(file);
  LineReader reader(file.string(), text);
  const auto json = reader.parse();
  if (!json.is_object()) {
    user_error("{}: expected a JSON object with keys such as \"zero_optimization\", got {}",
               file.string(), quoted(json.dump(-1, ' ', false, Json::error_handler_t::replace)));
  }
  std::vector<JsonLine> lines;
  flatten(json, "", reader, lines);
  return lines;
}

}  // namespace tessera::config::accelerate
