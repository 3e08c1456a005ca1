// The field list: the one place where a key of the job file is written. Parsing, validation,
// --print-config, help and docs/config.md all derive from it.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "tessera/config/run_config.h"

namespace tessera::config {

/// An enum of any type behind its texts (base/texts.h).
class ChoiceSlot {
 public:
  template <HasTexts E>
  explicit ChoiceSlot(E* value)
      : value_(value),
        size_(sizeof(E)),
        text_([](const void* from) { return text_of(*static_cast<const E*>(from)); }),
        assign_([](std::string_view text, void* to) {
          const auto named = value_named<E>(text);
          if (named) *static_cast<E*>(to) = *named;
          return named.has_value();
        }) {}

  std::string_view text() const { return text_(value_); }
  bool assign(std::string_view text) const { return assign_(text, value_); }  ///< false: no such
  const void* address() const { return value_; }
  size_t size() const { return size_; }

 private:
  void* value_;
  size_t size_;
  std::string_view (*text_)(const void* from);
  bool (*assign_)(std::string_view text, void* to);
};

/// The place of one value inside a RunConfig. Its alternative is the type of the field.
using Slot =
    std::variant<int64_t*, double*, bool*, std::string*, std::vector<std::string>*,
                 std::vector<int64_t>*, std::vector<double>*, std::optional<int64_t>*,
                 std::optional<double>*, std::optional<bool>*, parallel::ReshardAfterForward*,
                 ChoiceSlot, models::Patterns<int64_t>*, models::Patterns<double>*>;

/// Allowed numbers: low <= x <= high, an end left out where it is open; `also` is allowed on top
/// (-1 for "automatic").
struct Range {
  double low = -std::numeric_limits<double>::infinity();
  double high = std::numeric_limits<double>::infinity();
  bool low_open = false, high_open = false;
  std::optional<int64_t> also;
};

struct FieldRule {
  Range range;  ///< of numbers, of each in a list or a mapping
  /// What a text may be; empty: anything. What an enum may be; empty: all of its values.
  std::vector<std::string> choices;
  std::vector<std::string> aliases;  ///< what other tools call it: leads "did you mean"
  /// Values that other tools have, and what is the same here.
  std::vector<std::pair<std::string, std::string>> others = {};
};

/// Something that a setting needs beside it to have an effect.
struct Need {
  const char* what;  ///< what the user sets, as an error says it: "optimizer.type adamw"
  bool (*met)(const RunConfig& config);
};

/// What one setting needs to have an effect; none: it always has one.
using Needs = std::vector<Need>;

struct Field {
  std::string key;      ///< dotted: "optimizer.learning_rate"
  std::string meaning;  ///< one line
  Needs needs;          ///< all of them; of a value that is not the default
  FieldRule rule;
  std::function<Slot(RunConfig&)> slot;

  std::string name() const { return key.substr(key.find('.') + 1); }  ///< "learning_rate"
};

struct Section {
  std::string name;     ///< "optimizer"
  std::string meaning;  ///< one line
  std::vector<Field> fields;
};

/// Every section and key, in the order in which they are printed. Built once.
const std::vector<Section>& sections();

/// The field of a dotted key; nullptr if there is none.
const Field* find_field(const std::string& key);

}  // namespace tessera::config
