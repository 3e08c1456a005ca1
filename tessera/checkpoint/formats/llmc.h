// GPT-2 checkpoints of llm.c, read and written.
//
//   256 int32: 20240326, version (3: fp32, 5: bf16), max_seq_len T, vocab_size V, num_layers L,
//     num_heads, dim C, padded vocab_size Vp, zeros
//   tensors, one after the other: wte [Vp, C], wpe [T, C], then of all layers together ln_1, qkv,
//     attention projection, ln_2, both linears of the MLP (each a weight and a bias), last ln_f.
//
// The weight of a linear is [out, in] there and [in, out] in Hugging Face's GPT-2.
// Format: https://github.com/karpathy/llm.c (train_gpt2.py, write_model; train_gpt2.c,
// gpt2_build_from_checkpoint).
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "tessera/base/file.h"
#include "tessera/checkpoint/tensor_source.h"

namespace tessera::checkpoint {

struct Gpt2Shape {
  int64_t max_seq_len = 0, vocab_size = 0, num_layers = 0, num_heads = 0, dim = 0;

  bool operator==(const Gpt2Shape&) const = default;
};

/// config.json of the GPT2LMHeadModel of this shape.
nlohmann::json gpt2_config(const Gpt2Shape& shape);

/// One .bin file, mapped, under the names and shapes of Hugging Face's GPT-2
/// ("transformer.h.0.attn.c_attn.weight" [C, 3C], ..), without the rows that pad the vocabulary.
/// Linear weights are transposed as they are read: cheapest in parts of many whole rows.
class LlmcSource : public TensorSource {
 public:
  /// UserError: no llm.c checkpoint, an unknown version, sizes that contradict each other or the
  /// file's length.
  explicit LlmcSource(const std::filesystem::path& path);

  const Gpt2Shape& shape() const { return shape_; }

 private:
  struct Stored {
    int64_t offset = 0;  ///< of its first byte in the file
    bool is_transposed = false;
  };

  void read_part(const std::string& name, const TensorInfo& info, int64_t begin,
                 std::span<std::byte> destination) const override;

  std::shared_ptr<const MappedFile> file_;
  Gpt2Shape shape_;
  std::map<std::string, Stored> stored_;
};

/// Does the file begin as such a checkpoint does?
bool is_llmc(const std::filesystem::path& path);

/// Writes GPT-2 weights under Hugging Face's names (with or without "transformer.") as `path`,
/// which appears when complete; `dtype` is f32 or bf16. Other tensors of `source` (a tied head) are
/// left out. Memory: a matrix two or three times, at most 200 MB. UserError: a tensor that is
/// missing, of another shape or no float, another dtype. SystemError: disk full.
void export_llmc(const TensorSource& source, const Gpt2Shape& shape,
                 const std::filesystem::path& path, DType dtype);

}  // namespace tessera::checkpoint
