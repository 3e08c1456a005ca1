// A model's parameters as llama.cpp's tensors, and a GGUF file's tensors as our parameters.
#pragma once

#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "tessera/checkpoint/formats/gguf/architecture.h"
#include "tessera/checkpoint/source_view.h"

namespace tessera::checkpoint {

/// Tensors of a source, of which some are changed as llama.cpp has them, or back.
class ChangedSource : public TensorSource {
 public:
  enum class Way { to_gguf, to_ours };
  /// `source` outlives this.
  ChangedSource(const TensorSource& source, Way way, int64_t head_dim)
      : TensorSource(source.path()), source_(source), way_(way), head_dim_(head_dim) {}

  void add(const std::string& name, GgufChange change);
  void add(const GgufFactors& factors);  ///< a tensor that the source lacks

 private:
  void read_part(const std::string& name, const TensorInfo& info, int64_t begin,
                 std::span<std::byte> destination) const override;
  void read_rows(const std::string& name, const TensorInfo& info, int64_t begin,
                 std::span<std::byte> destination) const;
  void read_transposed(const std::string& name, const TensorInfo& info, int64_t begin,
                       std::span<std::byte> destination) const;
  void read_plus(double added, const std::string& name, int64_t begin,
                 std::span<std::byte> destination) const;

  const TensorSource& source_;
  Way way_;
  int64_t head_dim_;
  std::map<std::string, GgufChange> changes_;
  std::map<std::string, std::vector<float>> factors_;
  mutable std::mutex mutex_;  // of the last matrix that was transposed, which is read in parts
  mutable std::string transposed_name_;
  mutable std::vector<std::byte> transposed_;
};

/// Parameters of `source` under llama.cpp's names. UserError: one is missing, or is not floats in the
/// shape that the model says. Memory: a matrix where it is transposed.
class GgufView {
 public:
  GgufView(const TensorSource& source, const LlamaCppModel& model);

  const TensorSource& tensors() const { return changed_; }
  const std::vector<std::string>& order() const { return order_; }

 private:
  SourceView joined_;
  ChangedSource changed_;
  std::vector<std::string> order_;
};

/// The parameters that a GGUF file of the model holds, under our names.
class OursOfGguf : public TensorSource {
 public:
  /// UserError: what GgufSource refuses, a tensor that the model needs is missing.
  OursOfGguf(const std::filesystem::path& path, const LlamaCppModel& model);

 private:
  void read_part(const std::string& name, const TensorInfo& info, int64_t begin,
                 std::span<std::byte> destination) const override;

  GgufSource file_;
  ChangedSource changed_;
  SourceView ours_;
};

}  // namespace tessera::checkpoint
