#include "tessera/checkpoint/formats/gguf/export.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <numbers>

#include "tessera/base/error.h"
#include "tessera/checkpoint/convert_dtype.h"
#include "tessera/models/hf_config.h"
#include "tessera/models/smollm3/shape.h"
#include "tessera/models/spec.h"

namespace tessera::checkpoint {
namespace {

using models::ModelShape;
using models::RopeScalingType;

/// What llama.cpp makes of a model_type.
struct LlamaCppType {
  std::string_view model_type, architecture;
  bool interleaved = false;    ///< rotates neighbouring columns: rows of q and k change places
  bool norms_results = false;  ///< OLMo 2's place of the norms
};
constexpr std::array kLlamaCppTypes{
    LlamaCppType{"llama", "llama", true},     LlamaCppType{"mistral", "llama", true},
    LlamaCppType{"smollm3", "smollm3", true}, LlamaCppType{"qwen2", "qwen2"},
    LlamaCppType{"qwen3", "qwen3"},           LlamaCppType{"olmo2", "olmo2", false, true}};

const LlamaCppType& llama_cpp_type(const nlohmann::json& config, const std::string& where) {
  const auto type = config.value("model_type", nlohmann::json());
  const auto* found = std::ranges::find_if(
      kLlamaCppTypes, [&](const auto& known) { return type == known.model_type; });
  if (found != kLlamaCppTypes.end()) return *found;
  user_error("{}: GGUF is written of llama, mistral, qwen2, qwen3, olmo2 and smollm3, got {}",
             where, type.dump());
}

/// What would compute something else there.
void refuse_what_llama_cpp_lacks(const ModelShape& shape, const LlamaCppType& type,
                                 const std::string& where) {
  if (shape.sliding_window != 0 && shape.sliding_window < shape.max_seq_len) {
    user_error("{}: sliding_window: llama.cpp's {} sees all keys, got {} of {}", where,
               type.architecture, shape.sliding_window, shape.max_seq_len);
  }
  if (shape.rope_scaling) {
    const auto scaling = shape.rope_scaling->type;
    const bool known = scaling == RopeScalingType::linear || scaling == RopeScalingType::yarn ||
                       (scaling == RopeScalingType::llama3 && type.interleaved);
    if (!known) {
      user_error("{}: rope_scaling: llama.cpp's {} has {} alone", where, type.architecture,
                 type.interleaved ? "linear, yarn and llama3" : "linear and yarn");
    }
  }
  if (shape.family != models::ModelFamily::smollm3) return;
  const auto& rotates = shape.own.as<models::smollm3::Facts>().rotates;
  for (int64_t i = 0; i < shape.num_layers; ++i) {
    if (rotates[static_cast<size_t>(i)] == ((i + 1) % 4 != 0)) continue;
    user_error("{}: no_rope_layers: llama.cpp's smollm3 has each fourth layer without positions",
               where);
  }
}

std::string block_tensor(std::string_view name, const LlamaCppType& type) {
  static const std::map<std::string_view, std::string_view> names = {
      {"self_attn.q_proj", "attn_q"},
      {"self_attn.k_proj", "attn_k"},
      {"self_attn.v_proj", "attn_v"},
      {"self_attn.o_proj", "attn_output"},
      {"self_attn.q_norm", "attn_q_norm"},
      {"self_attn.k_norm", "attn_k_norm"},
      {"mlp.gate_proj", "ffn_gate"},
      {"mlp.up_proj", "ffn_up"},
      {"mlp.down_proj", "ffn_down"},
      {"input_layernorm", "attn_norm"},
      {"post_feedforward_layernorm", "post_ffw_norm"}};
  const auto point = name.rfind('.');
  const auto module = name.substr(0, point);
  const auto end = std::string(name.substr(point));
  if (module == "post_attention_layernorm")
    return (type.norms_results ? "post_attention_norm" : "ffn_norm") + end;
  return std::string(names.at(module)) + end;
}

/// The factors by which llama3's scaling divides each frequency (kernels/rotary.cpp has the formula).
std::vector<float> llama3_factors(const ModelShape& shape) {
  const auto& scaling = *shape.rope_scaling;
  const auto original = static_cast<float>(scaling.original_max_seq_len);
  const auto low = static_cast<float>(scaling.low_freq_factor);
  const auto high = static_cast<float>(scaling.high_freq_factor);
  const auto factor = static_cast<float>(scaling.factor);
  std::vector<float> factors;
  for (int64_t i = 0; i < shape.head_dim; i += 2) {
    const float turn = static_cast<float>(i) / static_cast<float>(shape.head_dim);
    const float frequency = 1 / std::pow(static_cast<float>(shape.rope_theta), turn);
    const float length = 2 * std::numbers::pi_v<float> / frequency;
    if (length < original / high) {
      factors.push_back(1);
    } else if (length > original / low) {
      factors.push_back(factor);
    } else {
      const float smooth = (original / length - low) / (high - low);
      factors.push_back(1 / ((1 - smooth) / factor + smooth));
    }
  }
  return factors;
}

/// A model's tensors under llama.cpp's names.
class GgufView : public TensorSource {
 public:
  GgufView(const TensorSource& source, const ModelShape& shape, const LlamaCppType& type)
      : TensorSource(source.path()), source_(source), head_dim_(shape.head_dim) {
    const auto specs = models::spec_of(shape.family).parameters(shape);
    for (const auto* part : {&specs.embedding, &specs.head}) {
      for (const auto& spec : *part) {
        add(spec.name == "lm_head.weight"      ? "output.weight"
            : spec.name == "model.norm.weight" ? "output_norm.weight"
                                               : "token_embd.weight",
            spec.name, spec, false);
      }
    }
    if (shape.rope_scaling && shape.rope_scaling->type == RopeScalingType::llama3) {
      factors_ = llama3_factors(shape);
      order_.emplace_back(kFactors);
      tensors_[kFactors] = {DType::f32, {std::ssize(factors_)}};
    }
    for (int64_t layer = 0; layer < shape.num_layers; ++layer) {
      for (const auto& spec : specs.block) {
        const bool turned = type.interleaved && (spec.name.starts_with("self_attn.q_proj.") ||
                                                 spec.name.starts_with("self_attn.k_proj."));
        add(fmt::format("blk.{}.{}", layer, block_tensor(spec.name, type)),
            fmt::format("{}{}.{}", specs.block_prefix, layer, spec.name), spec, turned);
      }
    }
  }

  const std::vector<std::string>& order() const { return order_; }

 private:
  static constexpr const char* kFactors = "rope_freqs.weight";
  struct From {
    std::string name;
    bool turned = false;
  };

  void add(const std::string& name, const std::string& stored, const models::ParameterSpec& spec,
           bool turned) {
    const auto& info = source_.info(stored);
    if (info.shape != spec.shape || !is_float(info.dtype))
      user_error("{}: {}: expected floats in the shape that config.json says", path_.string(),
                 stored);
    tensors_[name] = info;
    from_[name] = {.name = stored, .turned = turned};
    order_.push_back(name);
  }

  void read_part(const std::string& name, const TensorInfo& info, int64_t begin,
                 std::span<std::byte> destination) const override {
    if (name == kFactors) {
      std::memcpy(destination.data(), factors_.data() + begin, destination.size());
      return;
    }
    const auto& from = from_.at(name);
    if (!from.turned) return source_.read(from.name, begin, destination);
    // Row 2 i + h of a head is row i of its half h.
    const int64_t columns = info.shape.size() > 1 ? info.shape[1] : 1;
    const int64_t bytes = dtype_bytes(info.dtype);
    const int64_t end = begin + static_cast<int64_t>(destination.size()) / bytes;
    for (int64_t at = begin; at < end;) {
      const int64_t row = at / columns, column = at % columns, inside = row % head_dim_;
      const int64_t stored = row - inside + inside % 2 * (head_dim_ / 2) + inside / 2;
      const int64_t count = std::min(columns - column, end - at);
      source_.read(from.name, stored * columns + column,
                   destination.subspan(static_cast<size_t>((at - begin) * bytes),
                                       static_cast<size_t>(count * bytes)));
      at += count;
    }
  }

  const TensorSource& source_;
  int64_t head_dim_;
  std::map<std::string, From> from_;
  std::vector<float> factors_;
  std::vector<std::string> order_;
};

/// llama.cpp's number for what most of a file is.
uint64_t file_type(GgmlType type) {
  switch (type) {
    case GgmlType::f32:
      return 0;
    case GgmlType::q4_0:
      return 2;
    case GgmlType::q8_0:
      return 7;
    case GgmlType::bf16:
      return 32;
    default:
      return 1;
  }
}

GgufMetadata model_metadata(const ModelShape& shape, const LlamaCppType& type,
                            const GgufExportOptions& options) {
  const std::string arch(type.architecture);
  const auto count = [](int64_t value) { return gguf_u32(static_cast<uint64_t>(value)); };
  GgufMetadata result{{"general.architecture", gguf_string(arch)},
                      {"general.type", gguf_string("model")},
                      {"general.name", gguf_string(options.name)},
                      {arch + ".block_count", count(shape.num_layers)},
                      {arch + ".context_length", count(shape.max_seq_len)},
                      {arch + ".embedding_length", count(shape.dim)},
                      {arch + ".feed_forward_length", count(shape.ffn_dim)},
                      {arch + ".attention.head_count", count(shape.num_heads)},
                      {arch + ".attention.head_count_kv", count(shape.num_kv_heads)},
                      {arch + ".attention.key_length", count(shape.head_dim)},
                      {arch + ".attention.value_length", count(shape.head_dim)},
                      {arch + ".attention.layer_norm_rms_epsilon", gguf_f32(shape.norm_eps)},
                      {arch + ".rope.freq_base", gguf_f32(shape.rope_theta)},
                      {arch + ".rope.dimension_count", count(shape.head_dim)},
                      {arch + ".vocab_size", count(shape.vocab_size)},
                      {"general.file_type", gguf_u32(file_type(options.type))},
                      {"general.quantization_version", gguf_u32(2)}};
  if (shape.rope_scaling && shape.rope_scaling->type != RopeScalingType::llama3) {
    const auto& scaling = *shape.rope_scaling;
    const bool yarn = scaling.type == RopeScalingType::yarn;
    result.emplace_back(arch + ".rope.scaling.type", gguf_string(yarn ? "yarn" : "linear"));
    result.emplace_back(arch + ".rope.scaling.factor", gguf_f32(scaling.factor));
    if (yarn) {
      result.emplace_back(arch + ".rope.scaling.original_context_length",
                          count(scaling.original_max_seq_len));
      result.emplace_back(arch + ".rope.scaling.yarn_beta_fast", gguf_f32(scaling.beta_fast));
      result.emplace_back(arch + ".rope.scaling.yarn_beta_slow", gguf_f32(scaling.beta_slow));
    }
  }
  return result;
}

GgmlType stored_type(const std::string& name, const TensorInfo& info, GgmlType asked) {
  const bool matrix = info.shape.size() > 1 && name.ends_with(".weight");
  if (!matrix) return GgmlType::f32;
  if (asked == GgmlType::q4_0 && name == "output.weight") asked = GgmlType::q8_0;
  return info.shape.back() % ggml_type_info(asked).block_values == 0 ? asked : GgmlType::f16;
}

/// |a - b| / |a|, a part at a time.
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
      difference += (x - y) * (x - y);
      norm += x * x;
    }
  }
  return norm == 0 ? std::sqrt(difference) : std::sqrt(difference / norm);
}

}  // namespace

GgufExported export_gguf(const TensorSource& source, const std::filesystem::path& path,
                         const GgufExportOptions& options) {
  const auto where = source.path().string();
  const auto& type = llama_cpp_type(options.config, where);
  const auto shape = models::model_shape_of(options.config, where);
  refuse_what_llama_cpp_lacks(shape, type, where);
  const GgufView view(source, shape, type);
  auto metadata = model_metadata(shape, type, options);
  const auto tokenizer = gguf_tokenizer(options.assets, shape.vocab_size, options.config);
  metadata.insert(metadata.end(), tokenizer.begin(), tokenizer.end());
  std::vector<GgufTensor> tensors;
  for (const auto& name : view.order())
    tensors.push_back({name, stored_type(name, view.info(name), options.type)});
  write_gguf(view, metadata, tensors, path);

  const GgufSource written(path);
  GgufExported result{.num_tensors = tensors.size()};
  for (const auto& tensor : tensors) {
    const double error = relative_error(view, written, tensor.name);
    if (error > result.error || std::isnan(error)) result.error = error, result.worst = tensor.name;
  }
  return result;
}

}  // namespace tessera::checkpoint
