// How Parquet writes numbers and values (its Encodings.md). All is decoded one by one: a few bytes
// can stand for billions of values.
#pragma once

#include <cstdint>
#include <functional>
#include <string_view>
#include <vector>

#include "tessera/records/parquet/bytes.h"
#include "tessera/records/parquet/schema.h"

namespace tessera::records::parquet {

/// Runs of one number, and numbers packed into `width` bits: levels, indices, truth values.
class RunReader {
 public:
  RunReader() = default;
  /// `width`: at most 32.
  RunReader(Bytes bytes, int width) : bytes_(bytes), width_(width) {}

  uint32_t next();

 private:
  void begin_run();

  Bytes bytes_;
  int width_ = 0;
  uint64_t left_ = 0;  ///< of the run
  bool is_packed_ = false;
  uint32_t value_ = 0;
  std::string_view packed_;
  uint64_t bit_ = 0;
};

/// The next value as PLAIN would have it, bytes without their length; a truth value is a byte. It
/// stays until the next call. UserError: there are no more, or the page is damaged.
using NextValue = std::function<std::string_view()>;

/// The values of a data page. `dictionary` must outlive what is returned.
NextValue values_of(int64_t encoding, const Node& leaf, Bytes bytes,
                    const std::vector<std::string_view>& dictionary);

/// Bytes of a value of fixed size; 0: it has a length of its own, or is a truth value.
size_t value_bytes(const Node& leaf);

}  // namespace tessera::records::parquet
