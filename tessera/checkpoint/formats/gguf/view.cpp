#include "tessera/checkpoint/formats/gguf/view.h"

#include <algorithm>
#include <cstring>

#include "tessera/base/error.h"
#include "tessera/checkpoint/convert_dtype.h"
#include "tessera/checkpoint/formats/transpose.h"
#include "tessera/models/spec.h"

namespace tessera::checkpoint {
namespace {

/// Our parameters by their names.
std::map<std::string, models::ParameterSpec> parameters_of(const models::ModelShape& shape) {
  const auto specs = models::spec_of(shape.family).parameters(shape);
  std::map<std::string, models::ParameterSpec> result;
  for (const auto* part : {&specs.embedding, &specs.head}) {
    for (const auto& spec : *part) result[spec.name] = spec;
  }
  for (int64_t layer = 0; layer < shape.num_layers; ++layer) {
    for (const auto& spec : specs.block)
      result[fmt::format("{}{}.{}", specs.block_prefix, layer, spec.name)] = spec;
  }
  return result;
}

}  // namespace

void ChangedSource::add(const std::string& name, GgufChange change) {
  auto info = source_.info(name);
  if (change == GgufChange::transposed) std::ranges::reverse(info.shape);
  if (change == GgufChange::one_added) info.dtype = DType::f32;
  tensors_[name] = std::move(info);
  changes_[name] = change;
}

void ChangedSource::add(const GgufFactors& factors) {
  tensors_[factors.name] = {DType::f32, {std::ssize(factors.values)}};
  factors_[factors.name] = factors.values;
}

void ChangedSource::read_part(const std::string& name, const TensorInfo& info, int64_t begin,
                              std::span<std::byte> destination) const {
  if (const auto factors = factors_.find(name); factors != factors_.end()) {
    std::memcpy(destination.data(), factors->second.data() + begin, destination.size());
    return;
  }
  switch (changes_.at(name)) {
    case GgufChange::none:
      return source_.read(name, begin, destination);
    case GgufChange::interleaved:
      return read_rows(name, info, begin, destination);
    case GgufChange::transposed:
      return read_transposed(name, info, begin, destination);
    case GgufChange::one_added:
      return read_plus(way_ == Way::to_gguf ? 1 : -1, name, begin, destination);
  }
}

void ChangedSource::read_rows(const std::string& name, const TensorInfo& info, int64_t begin,
                              std::span<std::byte> destination) const {
  const int64_t columns = info.shape.size() > 1 ? info.shape[1] : 1, half = head_dim_ / 2;
  const int64_t bytes = dtype_bytes(info.dtype);
  const int64_t end = begin + std::ssize(destination) / bytes;
  for (int64_t at = begin; at < end;) {
    const int64_t row = at / columns, column = at % columns, inside = row % head_dim_;
    const int64_t from =
        way_ == Way::to_gguf ? inside % 2 * half + inside / 2 : inside % half * 2 + inside / half;
    const int64_t count = std::min(columns - column, end - at);
    source_.read(name, (row - inside + from) * columns + column,
                 destination.subspan(static_cast<size_t>((at - begin) * bytes),
                                     static_cast<size_t>(count * bytes)));
    at += count;
  }
}

void ChangedSource::read_transposed(const std::string& name, const TensorInfo& info, int64_t begin,
                                    std::span<std::byte> destination) const {
  const std::lock_guard lock(mutex_);
  const int64_t bytes = dtype_bytes(info.dtype);
  if (transposed_name_ != name) {
    std::vector<std::byte> stored(static_cast<size_t>(info.num_bytes()));
    source_.read(name, 0, stored);
    transposed_.resize(stored.size());
    transpose({stored.data(), info.shape[0]}, {transposed_.data(), info.shape[1]}, info.shape[0],
              info.shape[1], bytes);
    transposed_name_ = name;
  }
  std::memcpy(destination.data(), transposed_.data() + begin * bytes, destination.size());
}

void ChangedSource::read_plus(double added, const std::string& name, int64_t begin,
                              std::span<std::byte> destination) const {
  const auto dtype = source_.info(name).dtype;
  std::vector<float> values(destination.size() / sizeof(float));
  std::vector<std::byte> stored(values.size() * static_cast<size_t>(dtype_bytes(dtype)));
  source_.read(name, begin, stored);
  convert_values(stored, dtype, std::as_writable_bytes(std::span(values)), DType::f32);
  for (auto& value : values) value += static_cast<float>(added);
  std::memcpy(destination.data(), values.data(), destination.size());
}

GgufView::GgufView(const TensorSource& source, const LlamaCppModel& model)
    : joined_(source.path()), changed_(joined_, ChangedSource::Way::to_gguf, model.shape.head_dim) {
  const auto parameters = parameters_of(model.shape);
  for (const auto& entry : gguf_names(model)) {
    for (const auto& ours : entry.ours) {
      const auto& info = source.info(ours);
      if (info.shape != parameters.at(ours).shape || !is_float(info.dtype)) {
        user_error("{}: {}: expected floats in the shape that config.json says",
                   source.path().string(), ours);
      }
      joined_.append_rows(entry.name, source, ours);
    }
    changed_.add(entry.name, entry.change);
    order_.push_back(entry.name);
  }
  for (const auto& factors : gguf_factors(model.shape)) {
    changed_.add(factors);
    order_.push_back(factors.name);
  }
}

OursOfGguf::OursOfGguf(const std::filesystem::path& path, const LlamaCppModel& model)
    : TensorSource(path),
      file_(path),
      changed_(file_, ChangedSource::Way::to_ours, model.shape.head_dim),
      ours_(path) {
  const auto parameters = parameters_of(model.shape);
  for (const auto& entry : gguf_names(model)) {
    changed_.add(entry.name, entry.change);
    if (entry.ours.size() == 1) {
      ours_.add(entry.ours.front(), changed_, entry.name);
      continue;
    }
    int64_t row = 0;
    for (const auto& ours : entry.ours) {
      const int64_t rows = parameters.at(ours).shape.front();
      ours_.add_rows(ours, changed_, entry.name, {row, rows});
      row += rows;
    }
  }
  tensors_ = ours_.tensors();
}

void OursOfGguf::read_part(const std::string& name, const TensorInfo& /*info*/, int64_t begin,
                           std::span<std::byte> destination) const {
  ours_.read(name, begin, destination);
}

}  // namespace tessera::checkpoint
