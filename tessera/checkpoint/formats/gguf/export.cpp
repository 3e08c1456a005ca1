#include "tessera/checkpoint/formats/gguf/export.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "tessera/checkpoint/convert_dtype.h"
#include "tessera/checkpoint/formats/gguf/view.h"

namespace tessera::checkpoint {
namespace {

GgufMetadata model_metadata(const LlamaCppModel& model, const GgufExportOptions& options) {
  GgufMetadata result{{"general.architecture", gguf_string(std::string(model.kind.architecture))},
                      {"general.type", gguf_string("model")},
                      {"general.name", gguf_string(options.name)},
                      {"general.file_type", gguf_u32(static_cast<uint32_t>(options.type))},
                      {"general.quantization_version", gguf_u32(2)}};
  const auto add = [&](const GgufMetadata& more) {
    result.insert(result.end(), more.begin(), more.end());
  };
  add(architecture_metadata(model));
  add(gguf_tokenizer(options.assets, model.shape.vocab_size, options.config));
  if (!options.chat_template.empty()) {
    std::erase_if(result, [](const auto& entry) { return entry.first == kGgufChatTemplate; });
    result.emplace_back(kGgufChatTemplate, gguf_string(options.chat_template));
  }
  return result;
}

/// |a - b| / |a|, a part at a time. Infinity: b has none where a has a number.
double relative_error(const TensorSource& a, const TensorSource& b, const std::string& name) {
  constexpr int64_t kPart = int64_t{1} << 19;
  double difference = 0, norm = 0;
  for (int64_t begin = 0, end = a.info(name).num_elements(); begin < end; begin += kPart) {
    const auto read = [&](const TensorSource& source) {
      const auto dtype = source.info(name).dtype;
      const auto count = static_cast<size_t>(std::min(kPart, end - begin));
      std::vector<std::byte> stored(count * static_cast<size_t>(dtype_bytes(dtype)));
      std::vector<float> values(count);
      source.read(name, begin, stored);
      convert_values(stored, dtype, std::as_writable_bytes(std::span(values)), DType::f32);
      return values;
    };
    const auto first = read(a), second = read(b);
    for (size_t i = 0; i < first.size(); ++i) {
      const double x = first[i], y = second[i];
      if (std::isfinite(x) && !std::isfinite(y)) return std::numeric_limits<double>::infinity();
      difference += (x - y) * (x - y);
      norm += x * x;
    }
  }
  return norm == 0 ? std::sqrt(difference) : std::sqrt(difference / norm);
}

GgufMix mix_of(const LlamaCppModel& model, GgufFileType file) {
  const auto& shape = model.shape;
  const bool few_values =
      model.kind.architecture == "qwen2" ||
      (model.kind.architecture == "llama" && shape.num_kv_heads < shape.num_heads);
  return {.file = file,
          .num_layers = shape.num_layers,
          .tied = shape.tie_embeddings,
          .few_values = shape.num_layers == 80 && few_values};
}

}  // namespace

GgufExported export_gguf(const TensorSource& source, const std::filesystem::path& path,
                         const GgufExportOptions& options) {
  const auto model = llama_cpp_model(options.config, source.path().string());
  const GgufView view(source, model);
  const auto mix = mix_of(model, options.type);
  GgufExported result{.num_tensors = view.order().size()};
  std::vector<GgufTensor> tensors;
  for (const auto& name : view.order()) {
    const auto& info = view.tensors().info(name);
    tensors.push_back({name, gguf_type(name, info, mix)});
    result.num_fallbacks += is_fallback(tensors.back().type, info, mix) ? 1 : 0;
  }
  write_gguf(view.tensors(), model_metadata(model, options), tensors, path);

  const GgufSource written(path);
  for (const auto& tensor : tensors) {
    const double error = relative_error(view.tensors(), written, tensor.name);
    if (std::isinf(error)) {  // a block's scale is beyond f16
      std::filesystem::remove(path);
      user_error("{}: has numbers that this type cannot hold; choose bf16 or f32", tensor.name);
    }
    if (error > result.error || std::isnan(error)) result.error = error, result.worst = tensor.name;
  }
  return result;
}

}  // namespace tessera::checkpoint
