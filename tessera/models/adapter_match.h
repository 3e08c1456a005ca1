// Which parameters of a model PEFT's patterns speak of.
#pragma once

#include <cstdint>
#include <optional>
#include <regex>
#include <string>
#include <vector>

#include "tessera/models/adapter.h"
#include "tessera/models/shape.h"
#include "tessera/models/spec.h"

namespace tessera::models {

/// A parameter of the model, under its whole name.
struct Named {
  std::string path;    ///< of its module
  std::string stored;  ///< path of the module of which files have it; the same unless fused
  std::string kind;    ///< "weight", "bias"
  /// For an expert's matrix, the tensor in which transformers 5 has all experts of the layer
  /// ("model.layers.0.mlp.experts.gate_up_proj"); else empty.
  std::string in_tensor;
  std::vector<int64_t> shape;
  std::optional<int64_t> layer;
  bool embedding = false;
  Division division = Division::parts;
  bool of_expert = false, of_router = false;

  std::string name() const { return path + "." + kind; }
  /// Is it the matrix of a linear layer or an embedding? A mixture's router is neither.
  bool is_matrix() const { return kind == "weight" && shape.size() == 2 && !of_router; }
};

/// Every parameter, in the model's order.
std::vector<Named> parameters_by_path(const ModelShape& shape);

/// `text` as an expression. UserError: `entry` of AdapterSpec's `member` is none.
std::regex compiled(const std::string& member, const std::string& entry, const std::string& text);

/// An entry of targets or exclude.
class Entry {
 public:
  Entry(const std::string& member, const std::string& text);

  const std::string& text() const { return text_; }
  bool matches(const Named& parameter) const;
  /// Is it the parameter's whole path, or that of the tensor that it is in? PEFT asks for no block then.
  bool is_path_of(const Named& parameter) const;

 private:
  bool matches(const std::string& path) const;

  std::string text_;
  bool all_linear_ = false;
  std::optional<std::regex> pattern_;
};

template <typename T>
class PatternTable {
 public:
  PatternTable(const std::string& member, const Patterns<T>& patterns) {
    for (const auto& [text, value] : patterns) {
      entries_.push_back({text, compiled(member, text, "(.*\\.)?(" + text + ")"), value});
    }
  }

  T value_of(const Named& parameter, T otherwise) {
    for (auto& entry : entries_) {
      const auto matches = [&](const std::string& path) {
        return std::regex_match(path, entry.pattern);
      };
      // PEFT's target_parameters are known by the parameter's name.
      const bool in_tensor = !parameter.in_tensor.empty() && matches(parameter.in_tensor);
      if (!in_tensor && !matches(parameter.path) && !matches(parameter.stored) &&
          !matches(parameter.name())) {
        continue;
      }
      entry.used = true;
      return entry.value;
    }
    return otherwise;
  }

  /// Patterns that no module has taken a value of.
  std::vector<std::string> idle() const {
    std::vector<std::string> texts;
    for (const auto& entry : entries_) {
      if (!entry.used) texts.push_back(entry.text);
    }
    return texts;
  }

 private:
  struct Row {
    std::string text;
    std::regex pattern;
    T value;
    bool used = false;
  };
  std::vector<Row> entries_;
};

}  // namespace tessera::models
