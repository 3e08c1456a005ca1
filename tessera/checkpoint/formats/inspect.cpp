#include "tessera/checkpoint/formats/inspect.h"

#include <map>

#include "tessera/checkpoint/checkpoint.h"
#include "tessera/checkpoint/source_view.h"

namespace tessera::checkpoint {
namespace {

using nlohmann::ordered_json;

ordered_json ranges_of(const Index& index, const IndexedTensor& tensor) {
  auto ranges = ordered_json::array();
  for (const auto& range : tensor.ranges) {
    ranges.push_back({{"begin", range.begin},
                      {"length", range.length},
                      {"file", index.files[range.file].name},
                      {"offset", range.offset}});
    const auto& [offset, run, stride] = range.stripe;
    if (range.stripe.whole()) continue;
    ranges.back()["stripe"] = {{"offset", offset}, {"run", run}, {"stride", stride}};
  }
  return ranges;
}

/// Adds what only a checkpoint of ours knows.
void add_checkpoint(const Checkpoint& checkpoint, ordered_json& about) {
  const auto& index = checkpoint.index();
  int64_t num_parameters = 0;
  auto states = ordered_json::object();
  for (const auto& [name, tensor] : index.tensors) {
    if (!is_optimizer_state(name)) {
      num_parameters += tensor.info.num_elements();
      continue;
    }
    auto& count = states[std::string(optimizer_state(name))];
    count = count.is_null() ? 1 : count.get<int64_t>() + 1;
  }
  about["step"] = index.step;
  if (checkpoint.marker().validation_loss) {
    about["validation_loss"] = *checkpoint.marker().validation_loss;
  }
  about["num_parameters"] = num_parameters;
  about["optimizer"] = std::move(states);
  about["layout"] = index.layout;
  about["state"] = index.state;
  about["model"] = index.model;
  about["files"] = ordered_json::array();
  for (const auto& file : index.files) {
    about["files"].push_back({{"name", file.name}, {"bytes", file.num_bytes}});
  }
}

}  // namespace

ordered_json inspect(const OpenedSource& opened, bool with_tensors) {
  const auto& source = *opened.tensors;
  const auto* checkpoint = dynamic_cast<const Checkpoint*>(&source);
  std::map<std::string_view, int64_t> dtypes;
  auto tensors = ordered_json::object();
  for (const auto& [name, info] : source.tensors()) {
    ++dtypes[dtype_name(info.dtype)];
    if (!with_tensors) continue;
    auto& tensor = tensors[name];
    tensor = {
        {"dtype", dtype_name(info.dtype)}, {"shape", info.shape}, {"bytes", info.num_bytes()}};
    if (checkpoint == nullptr) continue;
    tensor["ranges"] = ranges_of(checkpoint->index(), checkpoint->index().tensors.at(name));
  }
  ordered_json about{{"path", source.path().string()},
                     {"format", format_name(opened.format)},
                     {"num_tensors", source.tensors().size()},
                     {"num_bytes", total_bytes(source)}};
  about["dtypes"] = ordered_json::object();
  for (const auto& [dtype, count] : dtypes) about["dtypes"][std::string(dtype)] = count;
  if (checkpoint != nullptr) add_checkpoint(*checkpoint, about);
  if (with_tensors) about["tensors"] = std::move(tensors);
  return about;
}

}  // namespace tessera::checkpoint
