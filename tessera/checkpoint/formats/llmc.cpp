#include "tessera/checkpoint/formats/llmc.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/checkpoint/convert_dtype.h"
#include "tessera/checkpoint/formats/transpose.h"
#include "tessera/checkpoint/formats/write_tensor.h"

namespace tessera::checkpoint {
namespace fs = std::filesystem;
namespace {

constexpr int32_t kMagic = 20240326, kVersionF32 = 3, kVersionBF16 = 5;
constexpr int64_t kVocabMultiple = 128;

using Header = std::array<int32_t, 256>;

int64_t padded(int64_t vocab_size) {
  return (vocab_size + kVocabMultiple - 1) / kVocabMultiple * kVocabMultiple;
}

/// One of the tensors, in the order of the file.
struct Slot {
  std::string name;            ///< Hugging Face's, with "transformer."
  std::vector<int64_t> shape;  ///< Hugging Face's
  bool is_transposed = false;
  int64_t num_padding = 0;  ///< elements that follow
};

std::vector<Slot> slots_of(const Gpt2Shape& shape, int64_t padded_vocab_size) {
  const int64_t c = shape.dim;
  std::vector<Slot> slots = {{.name = "transformer.wte.weight",
                              .shape = {shape.vocab_size, c},
                              .num_padding = (padded_vocab_size - shape.vocab_size) * c},
                             {.name = "transformer.wpe.weight", .shape = {shape.max_seq_len, c}}};
  const auto add = [&](const char* name, std::vector<int64_t> tensor_shape) {
    const bool is_matrix = tensor_shape.size() == 2;
    for (int64_t layer = 0; layer < shape.num_layers; ++layer) {
      slots.push_back({fmt::format("transformer.h.{}.{}", layer, name), tensor_shape, is_matrix});
    }
  };
  add("ln_1.weight", {c});
  add("ln_1.bias", {c});
  add("attn.c_attn.weight", {c, 3 * c});
  add("attn.c_attn.bias", {3 * c});
  add("attn.c_proj.weight", {c, c});
  add("attn.c_proj.bias", {c});
  add("ln_2.weight", {c});
  add("ln_2.bias", {c});
  add("mlp.c_fc.weight", {c, 4 * c});
  add("mlp.c_fc.bias", {4 * c});
  add("mlp.c_proj.weight", {4 * c, c});
  add("mlp.c_proj.bias", {c});
  slots.push_back({.name = "transformer.ln_f.weight", .shape = {c}});
  slots.push_back({.name = "transformer.ln_f.bias", .shape = {c}});
  return slots;
}

Header read_header(const MappedFile& file) {
  Header header{};
  if (file.bytes().size() >= sizeof(header)) {
    std::memcpy(header.data(), file.bytes().data(), sizeof(header));
  }
  if (header[0] != kMagic) {
    user_error("{}: expected an llm.c checkpoint, which begins with {}, got {}",
               file.path().string(), kMagic, header[0]);
  }
  if (header[1] != kVersionF32 && header[1] != kVersionBF16) {
    user_error("{}: expected version {} (fp32) or {} (bf16) of llm.c's checkpoints, got {}",
               file.path().string(), kVersionF32, kVersionBF16, header[1]);
  }
  return header;
}

/// Sizes within reason, so that no product of them overflows.
Gpt2Shape shape_in(const fs::path& path, const Header& header) {
  const auto size = [&](size_t index, const char* name, int64_t max) {
    if (header[index] < 1 || header[index] > max) {
      user_error("{}: {}: expected a size from 1 to {}, got {}", path.string(), name, max,
                 header[index]);
    }
    return int64_t{header[index]};
  };
  const Gpt2Shape shape{.max_seq_len = size(2, "max_seq_len", 1 << 26),
                        .vocab_size = size(3, "vocab_size", 1 << 26),
                        .num_layers = size(4, "num_layers", 1 << 12),
                        .num_heads = size(5, "num_heads", 1 << 17),
                        .dim = size(6, "channels", 1 << 17)};
  if (shape.dim % shape.num_heads != 0) {
    user_error("{}: expected num_heads {} to divide channels {}", path.string(), shape.num_heads,
               shape.dim);
  }
  size(7, "padded_vocab_size", 1 << 27);
  if (header[7] < shape.vocab_size) {
    user_error("{}: padded_vocab_size: expected at least vocab_size {}, got {}", path.string(),
               shape.vocab_size, header[7]);
  }
  return shape;
}

/// The name under which `source` has a tensor: GPT-2 on the Hub lacks the prefix.
std::string name_in(const TensorSource& source, const std::string& name) {
  const auto bare = name.substr(std::strlen("transformer."));
  return !source.contains(name) && source.contains(bare) ? bare : name;
}

void check_tensor(const TensorSource& source, const std::string& name, const Slot& slot) {
  const auto& info = source.info(name);
  if (info.shape == slot.shape && is_float(info.dtype)) return;
  user_error("{}: '{}': expected floats of shape [{}], got {} of shape [{}]",
             source.path().string(), name, fmt::join(slot.shape, ", "), dtype_name(info.dtype),
             fmt::join(info.shape, ", "));
}

/// Writes a tensor [in, out] as [out, in]: as many rows of the file at a time as fit, gathered from
/// a part of every row of the source. All of GPT-2's matrices fit whole: a source that checks what
/// it reads block by block would read a block for every row.
void write_transposed(const TensorSource& source, const std::string& name, DType dtype,
                      AtomicFile& file) {
  const auto& info = source.info(name);
  const int64_t in = info.shape[0], out = info.shape[1], width = dtype_bytes(info.dtype);
  constexpr int64_t kMaxElements = int64_t{1} << 24;
  const int64_t step = std::clamp(kMaxElements / in, int64_t{1}, out);
  std::vector<std::byte> gathered, turned;
  for (int64_t first = 0; first < out; first += step) {
    const int64_t count = std::min(step, out - first);
    gathered.resize(static_cast<size_t>(in * count * width));
    turned.resize(gathered.size());
    const auto row_bytes = static_cast<size_t>(count * width);
    if (count == out) source.read(name, 0, gathered);
    for (int64_t row = 0; row < in && count < out; ++row) {
      const auto begin = static_cast<size_t>(row) * row_bytes;
      source.read(name, row * out + first, std::span(gathered).subspan(begin, row_bytes));
    }
    transpose({gathered.data(), count}, {turned.data(), in}, count, in, width);
    write_values(name, turned, info.dtype, dtype, file);
  }
}

void write_slot(const TensorSource& source, const Slot& slot, DType dtype, AtomicFile& file) {
  const auto name = name_in(source, slot.name);
  check_tensor(source, name, slot);
  (slot.is_transposed ? write_transposed : write_tensor)(source, name, dtype, file);
  file.write(std::string(static_cast<size_t>(slot.num_padding * dtype_bytes(dtype)), '\0'));
}

}  // namespace

nlohmann::json gpt2_config(const Gpt2Shape& shape) {
  // The last token ends a text in GPT-2's vocabulary.
  return {{"architectures", {"GPT2LMHeadModel"}},
          {"model_type", "gpt2"},
          {"vocab_size", shape.vocab_size},
          {"n_positions", shape.max_seq_len},
          {"n_embd", shape.dim},
          {"n_layer", shape.num_layers},
          {"n_head", shape.num_heads},
          {"activation_function", "gelu_new"},
          {"layer_norm_epsilon", 1e-5},
          {"tie_word_embeddings", true},
          {"bos_token_id", shape.vocab_size - 1},
          {"eos_token_id", shape.vocab_size - 1}};
}

LlmcSource::LlmcSource(const fs::path& path)
    : TensorSource(path), file_(std::make_shared<MappedFile>(path)) {
  const auto header = read_header(*file_);
  shape_ = shape_in(path, header);
  const auto dtype = header[1] == kVersionF32 ? DType::f32 : DType::bf16;
  int64_t offset = sizeof(Header);
  for (auto& slot : slots_of(shape_, header[7])) {
    stored_[slot.name] = {offset, slot.is_transposed};
    const TensorInfo info{dtype, std::move(slot.shape)};
    offset += info.num_bytes() + slot.num_padding * dtype_bytes(dtype);
    tensors_[slot.name] = info;
  }
  const auto found = static_cast<int64_t>(file_->bytes().size());
  if (offset != found) {
    user_error("{}: expected {} bytes for the sizes in its header, got {}: {}", path.string(),
               offset, found, found < offset ? "truncated" : "too long");
  }
}

void LlmcSource::read_part(const std::string& name, const TensorInfo& info, int64_t begin,
                           std::span<std::byte> destination) const {
  const auto& stored = stored_.at(name);
  const auto* data = file_->bytes().data() + stored.offset;
  const int64_t width = dtype_bytes(info.dtype);
  if (!stored.is_transposed) {
    std::memcpy(destination.data(), data + begin * width, destination.size());
    return;
  }
  // The end of a row, whole rows, the begin of a row: each a rectangle, and none of them must be
  // there.
  const int64_t in = info.shape[0], out = info.shape[1];
  const int64_t end = begin + static_cast<int64_t>(destination.size()) / width;
  for (int64_t at = begin; at < end;) {
    const int64_t row = at / out, column = at % out;
    const int64_t rows = column == 0 ? std::max((end - at) / out, int64_t{1}) : 1;
    const int64_t columns = rows > 1 ? out : std::min(out - column, end - at);
    transpose({data + (column * in + row) * width, in},
              {destination.data() + (at - begin) * width, out}, rows, columns, width);
    at += rows > 1 ? rows * out : columns;
  }
}

bool is_llmc(const fs::path& path) {
  if (!fs::is_regular_file(path) || fs::file_size(path) < sizeof(Header)) return false;
  int32_t magic = 0;
  std::memcpy(&magic, MappedFile(path).bytes().data(), sizeof(magic));
  return magic == kMagic;
}

void export_llmc(const TensorSource& source, const Gpt2Shape& shape, const fs::path& path,
                 DType dtype) {
  if (dtype != DType::f32 && dtype != DType::bf16) {
    user_error("{}: llm.c's checkpoints hold F32 or BF16, got {}", path.string(),
               dtype_name(dtype));
  }
  Header header{kMagic, dtype == DType::f32 ? kVersionF32 : kVersionBF16};
  const std::array sizes{shape.max_seq_len, shape.vocab_size, shape.num_layers,
                         shape.num_heads,   shape.dim,        padded(shape.vocab_size)};
  std::ranges::transform(sizes, header.begin() + 2,
                         [](int64_t size) { return static_cast<int32_t>(size); });
  const auto slots = slots_of(shape, padded(shape.vocab_size));
  AtomicFile file(path);
  file.write({reinterpret_cast<const char*>(header.data()), sizeof(header)});
  for (const auto& slot : slots) write_slot(source, slot, dtype, file);
  file.commit();
}

}  // namespace tessera::checkpoint
