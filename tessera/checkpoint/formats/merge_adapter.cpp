#include "tessera/checkpoint/formats/merge_adapter.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/checkpoint/convert_dtype.h"
#include "tessera/checkpoint/formats/floats_of.h"
#include "tessera/checkpoint/formats/write_tensor.h"
#include "tessera/models/mixture_spec.h"

namespace tessera::checkpoint {
namespace {

using models::AdapterType;

/// [rows, columns] as [columns, rows].
std::vector<float> transposed(const std::vector<float>& matrix, int64_t columns) {
  const int64_t rows = std::ssize(matrix) / columns;
  std::vector<float> result(matrix.size());
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t j = 0; j < columns; ++j) {
      result[static_cast<size_t>(j * rows + i)] = matrix[static_cast<size_t>(i * columns + j)];
    }
  }
  return result;
}

void check_shape(const TensorSource& source, const std::string& name,
                 const std::vector<int64_t>& expected) {
  const auto& info = source.info(name);
  if (info.shape == expected && is_float(info.dtype)) return;
  user_error("{}: '{}': expected floats of shape [{}], which the adapter asks for, got {} [{}]",
             source.path().string(), name, fmt::join(expected, ", "), dtype_name(info.dtype),
             fmt::join(info.shape, ", "));
}

}  // namespace

MergedSource::MergedSource(const TensorSource& base, const TensorSource& trained,
                           const models::AdapterSpec& spec, const models::ModelShape& shape,
                           const MergeOptions& options)
    : TensorSource(base.path()),
      base_(base),
      trained_(trained),
      sign_(options.subtracts ? -1 : 1),
      unchanged_(base.path()),
      dora_(spec.type == AdapterType::dora) {
  if (options.subtracts && dora_) {
    user_error("{}: DoRA cannot be subtracted: its base's norms are not in it",
               trained.path().string());
  }
  for (const auto& [name, info] : base.tensors()) unchanged_.add(name, base, name);
  for (const auto& module : models::adapted_modules(spec, shape)) {
    if (module.embedding && shape.tie_embeddings && module.inputs == shape.vocab_size) {
      user_error(
          "{}: {} has an adapter, but the head is the same table, which merging would change, too; "
          "use the adapter unmerged",
          trained.path().string(), module.path);
    }
    add_module(module, spec.type);
  }
  for (const auto& parameter : models::trained_parameters(spec, shape)) {
    if (parameter.of_adapter) continue;
    check_shape(trained, parameter.name, parameter.shape);
    check_shape(base, parameter.name, parameter.shape);
    if (options.subtracts) {
      user_error("{}: '{}' was trained whole: what it was before is not in the adapter",
                 trained.path().string(), parameter.name);
    }
    unchanged_.add(parameter.name, trained, parameter.name,
                   options.dtype.value_or(base.info(parameter.name).dtype));
  }
  if (!options.subtracts) {  // a run that balanced its experts moved them
    for (const auto& [name, info] : trained.tensors()) {
      if (name.ends_with(models::kSelectionBias)) unchanged_.add(name, trained, name);
    }
  }
  tensors_ = unchanged_.tensors();
  if (!options.dtype) return;
  for (const auto& [weight, module] : modules_) tensors_[weight].dtype = *options.dtype;
}

void MergedSource::add_module(const models::AdaptedModule& module, AdapterType type) {
  const auto weight = module.path + ".weight";
  check_shape(base_, weight,
              module.inputs_first ? std::vector{module.inputs, module.outputs}
                                  : std::vector{module.outputs, module.inputs});
  for (const auto& p : models::parameters_of(module, type)) check_shape(trained_, p.name, p.shape);
  modules_.emplace(weight, module);
}

std::shared_ptr<const MergedSource::Product> MergedSource::product_of(
    const std::string& name) const {
  const std::lock_guard lock(mutex_);
  if (last_ && last_->name == name) return last_;
  const auto& module = modules_.at(name);
  const std::string infix = module.embedding ? ".lora_embedding_" : ".lora_";
  auto a = floats_of(trained_, module.path + infix + "A");  // [rank, inputs]
  auto b = floats_of(trained_, module.path + infix + "B");  // [outputs, rank]
  for (auto& value : b) value *= static_cast<float>(sign_ * module.scale);
  Product product{.name = name,
                  .rank = module.rank,
                  .columns = module.inputs_first ? module.outputs : module.inputs,
                  .outputs_are_columns = module.inputs_first};
  if (module.inputs_first) {
    product.left = transposed(a, module.inputs);
    product.right = transposed(b, module.rank);
  } else {
    product.left = std::move(b);
    product.right = std::move(a);
  }
  if (dora_) take_norms(product);
  last_ = std::make_shared<const Product>(std::move(product));
  return last_;
}

/// Takes the norms of DoRA's W + scale B A, by outputs.
void MergedSource::take_norms(Product& product) const {
  const auto elements = base_.info(product.name).num_elements();
  const auto outputs = product.outputs_are_columns ? product.columns : elements / product.columns;
  std::vector<double> squares(static_cast<size_t>(outputs), 0);
  for (int64_t begin = 0; begin < elements; begin += kBufferElements) {
    const int64_t count = std::min(kBufferElements, elements - begin);
    const auto values = merged(product, begin, count);
    for (int64_t i = 0; i < count; ++i) {
      const int64_t at = begin + i;
      const int64_t output =
          product.outputs_are_columns ? at % product.columns : at / product.columns;
      const double value = values[static_cast<size_t>(i)];
      squares[static_cast<size_t>(output)] += value * value;
    }
  }
  const auto module = modules_.at(product.name);
  auto magnitudes = floats_of(trained_, module.path + ".lora_magnitude_vector");
  for (size_t i = 0; i < magnitudes.size(); ++i) {
    magnitudes[i] = static_cast<float>(magnitudes[i] / std::sqrt(squares[i]));
  }
  product.magnitudes = std::move(magnitudes);
}

std::vector<float> MergedSource::merged(const Product& product, int64_t begin,
                                        int64_t count) const {
  auto values = floats_of(base_, product.name, begin, count);
  for (int64_t done = 0; done < count;) {
    const int64_t row = (begin + done) / product.columns, column = (begin + done) % product.columns;
    const int64_t width = std::min(product.columns - column, count - done);
    float* out = values.data() + done;
    for (int64_t k = 0; k < product.rank; ++k) {
      const float factor = product.left[static_cast<size_t>(row * product.rank + k)];
      const float* right = product.right.data() + k * product.columns + column;
      for (int64_t i = 0; i < width; ++i) out[i] += factor * right[i];
    }
    if (!product.magnitudes.empty()) {
      const auto* of_columns = product.magnitudes.data() + column;
      for (int64_t i = 0; i < width; ++i) {
        out[i] *= product.outputs_are_columns ? of_columns[i]
                                              : product.magnitudes[static_cast<size_t>(row)];
      }
    }
    done += width;
  }
  return values;
}

void MergedSource::read_part(const std::string& name, const TensorInfo& info, int64_t begin,
                             std::span<std::byte> destination) const {
  if (!modules_.contains(name)) return unchanged_.read(name, begin, destination);
  const auto product = product_of(name);
  const int64_t elements = std::ssize(destination) / dtype_bytes(info.dtype);
  for (int64_t done = 0; done < elements; done += kBufferElements) {
    const int64_t count = std::min(kBufferElements, elements - done);
    const auto values = merged(*product, begin + done, count);
    convert_tensor(name, std::as_bytes(std::span(values)), DType::f32,
                   destination.subspan(static_cast<size_t>(done * dtype_bytes(info.dtype)),
                                       static_cast<size_t>(count * dtype_bytes(info.dtype))),
                   info.dtype);
  }
}

std::shared_ptr<const TensorSource> merged(std::shared_ptr<const TensorSource> base,
                                           std::shared_ptr<const TensorSource> trained,
                                           const models::AdapterSpec& spec,
                                           const models::ModelShape& shape,
                                           const MergeOptions& options) {
  struct Held {
    std::shared_ptr<const TensorSource> base, trained;
    MergedSource source;
  };
  const auto held = std::shared_ptr<const Held>(
      new Held{base, trained, MergedSource(*base, *trained, spec, shape, options)});
  return {held, &held->source};
}

SourceView as_stored(const TensorSource& ours, const FamilyNames& family) {
  SourceView view(ours.path());
  for (const auto& [name, info] : ours.tensors()) add_stored(family, ours, name, view);
  return view;
}

}  // namespace tessera::checkpoint
