#include "tessera/cli/checkpoint_text.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "tessera/base/text.h"
#include "tessera/base/units.h"

namespace tessera::cli {
namespace {

using nlohmann::ordered_json;

/// {"a": 1, "b": "x"} as "a 1, b x".
std::string plain(const ordered_json& value) {
  if (value.is_string()) return printable(value.get<std::string>());
  if (!value.is_object()) return value.dump();
  std::string text;
  for (const auto& [key, item] : value.items()) {
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", printable(key),
                        item.is_object() ? fmt::format("({})", plain(item)) : plain(item));
  }
  return text;
}

std::string line(const char* label, const std::string& value) {
  return fmt::format("  {:<17}{}\n", label, value);
}

/// "F32 [256, 64], 64.0 KiB"
std::string tensor_text(const ordered_json& tensor) {
  return fmt::format("{} [{}], {}", tensor["dtype"].get<std::string>(),
                     fmt::join(tensor["shape"].get<std::vector<int64_t>>(), ", "),
                     format_bytes(tensor["bytes"].get<int64_t>()));
}

std::string ranges_text(const ordered_json& tensor) {
  if (!tensor.contains("ranges")) return "";
  std::string text;
  for (const auto& range : tensor["ranges"]) {
    const auto begin = range["begin"].get<int64_t>();
    text += fmt::format("{} elements {} to {}", text.empty() ? ":" : ",", begin,
                        begin + range["length"].get<int64_t>() - 1);
    if (const auto found = range.find("stripe"); found != range.end()) {
      text += fmt::format(" of {} in each {} from {}", found->at("run").get<int64_t>(),
                          found->at("stride").get<int64_t>(), found->at("offset").get<int64_t>());
    }
    text += fmt::format(" in {} from byte {}", printable(range["file"].get<std::string>()),
                        range["offset"].get<int64_t>());
  }
  return text;
}

std::string model_text(const ordered_json& model) {
  if (!model.is_object()) return "unknown";
  return model.contains("model_type") ? plain(model["model_type"]) : "config.json without a type";
}

std::string files_text(const ordered_json& files) {
  std::string text;
  for (const auto& file : files) {
    text += fmt::format("  {}  {}\n", printable(file["name"].get<std::string>()),
                        format_bytes(file["bytes"].get<int64_t>()));
  }
  return text;
}

std::string info_text(const checkpoint::TensorInfo& info) {
  return fmt::format("{} [{}]", checkpoint::dtype_name(info.dtype), fmt::join(info.shape, ", "));
}

std::string difference_text(const checkpoint::TensorDifference& tensor) {
  std::string text = printable(tensor.name) + ": ";
  if (tensor.a != tensor.b) text += info_text(tensor.a) + " and " + info_text(tensor.b);
  if (tensor.num_different > 0) {
    text += fmt::format("{}{} of {} elements differ", tensor.a != tensor.b ? ", " : "",
                        tensor.num_different, tensor.a.num_elements());
    if (!std::isnan(tensor.max_difference))
      text += fmt::format(", by at most {:.6g}", tensor.max_difference);
  }
  return text;
}

}  // namespace

std::string inspection_text(const ordered_json& about) {
  std::string text =
      fmt::format("{}: {}\n", plain(about["path"]), about["format"].get<std::string>());
  if (about.contains("step")) text += line("step", about["step"].dump());
  if (about.contains("validation_loss"))
    text += line("validation loss", about["validation_loss"].dump());
  text += line("tensors",
               fmt::format("{} ({}), {}", about["num_tensors"].dump(), plain(about["dtypes"]),
                           format_bytes(about["num_bytes"].get<int64_t>())));
  if (about.contains("step")) {
    const auto& optimizer = about["optimizer"];
    text += line("parameters", format_count(about["num_parameters"].get<double>()));
    text += line("optimizer", optimizer.empty() ? "none" : plain(optimizer));
    text += line("written by", plain(about["layout"]));
    text += line("state", plain(about["state"]));
    text += line("model", model_text(about["model"]));
    text += "files:\n" + files_text(about["files"]);
  }
  if (!about.contains("tensors")) return text;
  text += "tensors:\n";
  for (const auto& [name, tensor] : about["tensors"].items()) {
    text += fmt::format("  {}: {}{}\n", printable(name), tensor_text(tensor), ranges_text(tensor));
  }
  return text;
}

std::string differences_text(const checkpoint::Differences& differences, const std::string& a,
                             const std::string& b) {
  std::string text;
  for (const auto& name : differences.only_a)
    text += fmt::format("{}: only in {}\n", printable(name), printable(a));
  for (const auto& name : differences.only_b)
    text += fmt::format("{}: only in {}\n", printable(name), printable(b));
  double largest = 0;
  for (const auto& tensor : differences.tensors) {
    text += difference_text(tensor) + "\n";
    if (!std::isnan(tensor.max_difference)) largest = std::max(largest, tensor.max_difference);
  }
  if (!differences.any()) {
    return fmt::format("equal: {} tensors\n", differences.num_equal);
  }
  return text + fmt::format(
                    "different: {} tensors differ (by at most {:.6g}), {} and {} stand in "
                    "one alone, {} are equal\n",
                    differences.tensors.size(), largest, differences.only_a.size(),
                    differences.only_b.size(), differences.num_equal);
}

}  // namespace tessera::cli
