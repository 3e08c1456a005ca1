#include "tessera/estimate/module_tree.h"

#include <algorithm>
#include <cctype>

#include "tessera/base/error.h"
#include "tessera/base/widths.h"

namespace tessera::estimate {
namespace {

double sum_of_bytes(const Module& module) {
  auto bytes = static_cast<double>(module.bytes);
  for (const auto& part : module.parts) bytes += sum_of_bytes(part);
  return bytes * static_cast<double>(module.count);
}

void find_largest(const Module& module, const std::string& prefix, LargestLayer& largest) {
  const auto name = prefix + module.name + (module.count > 1 ? ".0" : "");
  if (!module.parts.empty() && !module.whole) {
    for (const auto& part : module.parts) find_largest(part, name + ".", largest);
    return;
  }
  auto one = module;
  one.count = 1;
  const int64_t bytes = total_bytes(one);
  if (bytes > largest.bytes) largest = {name, bytes};
}

bool is_number(const std::string& text) {
  return !text.empty() &&
         std::ranges::all_of(text, [](unsigned char letter) { return std::isdigit(letter) != 0; });
}

/// The part of that name, made if there is none yet.
Module& part_of(Module& module, const std::string& name) {
  const auto found = std::ranges::find(module.parts, name, &Module::name);
  if (found != module.parts.end()) return *found;
  module.parts.push_back({.name = name});
  return module.parts.back();
}

}  // namespace

int64_t total_bytes(const Module& model) {
  constexpr double kMost = 9007199254740992;  // up to here a double counts exactly
  const double bytes = sum_of_bytes(model);
  if (bytes > kMost)
    user_error("a model of {:.1e} bytes is larger than any machine; check its sizes", bytes);
  return static_cast<int64_t>(bytes);
}

LargestLayer largest_layer(const Module& model) {
  LargestLayer largest;
  for (const auto& part : model.parts) find_largest(part, "", largest);
  return largest;
}

Module linear(const std::string& name, int64_t inputs, int64_t outputs, bool bias) {
  return {.name = name, .bytes = kFloat * outputs * (inputs + (bias ? 1 : 0))};
}

Module embedding(const std::string& name, int64_t rows, int64_t width) {
  return {.name = name, .bytes = kFloat * rows * width};
}

Module norm(const std::string& name, int64_t width, int vectors) {
  return {.name = name, .bytes = kFloat * vectors * width};
}

Module modules_of_tensors(const std::vector<std::pair<std::string, int64_t>>& tensors) {
  Module model;
  for (const auto& [name, bytes] : tensors) {
    auto* module = &model;
    bool in_whole = false;
    size_t begin = 0;
    for (auto end = name.find('.'); end != std::string::npos; end = name.find('.', begin)) {
      const auto part = name.substr(begin, end - begin);
      module = &part_of(*module, part);
      module->whole = !in_whole && is_number(part);
      in_whole |= module->whole;
      begin = end + 1;
    }
    // A tensor of the model itself counts as a layer of its own.
    if (module == &model) module = &part_of(model, name);
    module->bytes += bytes;
  }
  return model;
}

}  // namespace tessera::estimate
