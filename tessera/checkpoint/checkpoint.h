// A complete checkpoint, read: whatever ranks and placement it was written under.
#pragma once

#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <string_view>

#include "tessera/base/stripe.h"
#include "tessera/checkpoint/folder.h"
#include "tessera/checkpoint/index.h"
#include "tessera/checkpoint/tensor_source.h"

namespace tessera::checkpoint {

/// The prefix of the optimizer's tensors; what follows is the state's name, "/" and the
/// parameter's.
inline constexpr std::string_view kOptimizerPrefix = "optimizer/";

inline bool is_optimizer_state(std::string_view name) { return name.starts_with(kOptimizerPrefix); }

/// The state's name in that of one of the optimizer's tensors: "exp_avg".
inline std::string_view optimizer_state(std::string_view name) {
  name.remove_prefix(kOptimizerPrefix.size());
  return name.substr(0, name.find('/'));
}

class Checkpoint : public TensorSource {
 public:
  /// DamagedCheckpoint, one line: not complete, an index that is not the one it was completed with,
  /// files missing or of another size. UserError: an index of another version, or that breaks a
  /// rule. SystemError: no right to read, the disk.
  explicit Checkpoint(const std::filesystem::path& folder);

  const Index& index() const { return index_; }
  const Marker& marker() const { return marker_; }

  struct Request {
    std::string_view name;
    int64_t begin = 0;                 ///< first element, of those that the stripe takes
    std::span<std::byte> destination;  ///< in the stored dtype
    Stripe stripe;
  };

  /// Reads all requests at once, in the order of the files, each block that they touch read once
  /// and checked, whatever stripes are asked for and stored. UserError as for read_parts. Cost
  /// beside the bytes: of each pair of a request and a range of its tensor, the runs that they
  /// share.
  void read_all(std::span<const Request> requests) const;

  /// Reads everything. progress(bytes read) now and then. UserError: the first damage.
  void verify(const std::function<void(int64_t bytes)>& progress = {}) const;
  int64_t num_bytes() const;  ///< of all its files

 private:
  void read_part(const std::string& name, const TensorInfo& info, int64_t begin,
                 std::span<std::byte> destination) const override;

  Index index_;
  Marker marker_;
};

}  // namespace tessera::checkpoint
