#include "tessera/records/parquet/encodings.h"

#include <algorithm>
#include <array>
#include <utility>

namespace tessera::records::parquet {
namespace {

/// `width` bits from the bit `at`, the lowest first; they must be there.
uint64_t bits_at(std::string_view bytes, uint64_t at, int width) {
  if (width == 0) return 0;
  const auto rest = bytes.substr(at / 8);
  const int shift = static_cast<int>(at % 8);
  uint64_t value = 0;
  if (rest.size() >= sizeof(value)) {
    std::memcpy(&value, rest.data(), sizeof(value));
  } else {
    std::memcpy(&value, rest.data(), rest.size());
  }
  value >>= shift;
  if (shift + width > 64) value |= uint64_t{static_cast<uint8_t>(rest[8])} << (64 - shift);
  return width == 64 ? value : value & ((uint64_t{1} << width) - 1);
}

/// DELTA_BINARY_PACKED: blocks of differences, each block of smaller ones with their own width.
class DeltaReader {
 public:
  explicit DeltaReader(Bytes bytes) : bytes_(bytes) {
    const auto block = bytes_.varint();
    num_parts_ = bytes_.varint();
    left_ = bytes_.varint();
    value_ = static_cast<uint64_t>(bytes_.zigzag());
    constexpr uint64_t kLargest = 1 << 24;
    if (num_parts_ == 0 || block > kLargest || block % num_parts_ != 0 ||
        block / num_parts_ % 8 != 0 || block == 0)
      refuse_damaged(bytes_.file(), "differences in blocks of an impossible size");
    per_part_ = block / num_parts_;
    part_ = num_parts_;
  }

  int64_t next() {
    if (left_ == 0) refuse_damaged(bytes_.file(), "fewer values than it says");
    --left_;
    if (std::exchange(is_first_, false)) return static_cast<int64_t>(value_);
    if (left_in_part_ == 0) begin_part();
    value_ += least_ + bits_at(packed_, (per_part_ - left_in_part_--) * width_, width_);
    return static_cast<int64_t>(value_);
  }

  /// What follows all of the values.
  Bytes behind() const {
    auto reader = *this;
    for (auto left = reader.left_ - std::min<uint64_t>(reader.left_, 1); left > 0;) {
      reader.begin_part();
      left -= std::min(left, per_part_);
    }
    return reader.bytes_;
  }

 private:
  void begin_part() {
    if (part_ == num_parts_) {
      least_ = static_cast<uint64_t>(bytes_.zigzag());
      widths_ = bytes_.take(num_parts_);
      part_ = 0;
    }
    width_ = static_cast<uint8_t>(widths_[part_++]);
    if (width_ > 64) refuse_damaged(bytes_.file(), "differences of more than 64 bits");
    packed_ = bytes_.take(per_part_ / 8 * static_cast<uint64_t>(width_));
    left_in_part_ = per_part_;
  }

  Bytes bytes_;
  uint64_t num_parts_ = 0, per_part_ = 0, left_ = 0, part_ = 0, left_in_part_ = 0;
  uint64_t value_ = 0, least_ = 0;  // differences wrap around
  int width_ = 0;
  bool is_first_ = true;
  std::string_view widths_, packed_;
};

uint64_t length_of(DeltaReader& lengths) { return static_cast<uint64_t>(lengths.next()); }

std::string_view truth_value(uint64_t value) {
  static constexpr std::array<char, 2> kValues{0, 1};
  return {&kValues[value & 1], 1};
}

NextValue plain(const Node& leaf, Bytes bytes) {
  if (leaf.physical == Physical::boolean) {
    return [bytes, bit = uint64_t{0}]() mutable {
      if (bit / 8 >= bytes.size()) refuse_damaged(bytes.file(), "fewer values than it says");
      return truth_value(bits_at(bytes.left(), bit++, 1));
    };
  }
  if (const auto size = value_bytes(leaf); size > 0)
    return [bytes, size]() mutable { return bytes.take(size); };
  return [bytes]() mutable { return bytes.take(bytes.fixed<uint32_t>()); };
}

NextValue of_dictionary(Bytes bytes, const std::vector<std::string_view>& dictionary) {
  // A page of nulls alone may be empty.
  const int width = bytes.size() == 0 ? 0 : bytes.fixed<uint8_t>();
  if (width > 32) refuse_damaged(bytes.file(), "indices of more than 32 bits");
  return [&dictionary, &file = bytes.file(), indices = RunReader(bytes, width)]() mutable {
    const auto index = indices.next();
    if (index >= dictionary.size()) refuse_damaged(file, "an index beyond its dictionary");
    return dictionary[index];
  };
}

NextValue differences(const Node& leaf, Bytes bytes) {
  const auto size = value_bytes(leaf);
  return [size, reader = DeltaReader(bytes), value = int64_t{0}]() mutable {
    value = reader.next();  // little-endian: an int32 is the lower half
    return std::string_view(reinterpret_cast<const char*>(&value), size);
  };
}

NextValue behind_lengths(Bytes bytes) {
  DeltaReader lengths(bytes);
  return [lengths, texts = lengths.behind()]() mutable { return texts.take(length_of(lengths)); };
}

NextValue behind_prefixes(const Node& leaf, Bytes bytes) {
  DeltaReader prefixes(bytes);
  DeltaReader lengths(prefixes.behind());
  return [=, texts = lengths.behind(), text = std::string(), size = value_bytes(leaf)]() mutable {
    const auto prefix = static_cast<uint64_t>(prefixes.next());
    if (prefix > text.size()) refuse_damaged(texts.file(), "a prefix longer than a text");
    text.resize(prefix);
    text += texts.take(length_of(lengths));
    if (size > 0 && text.size() != size) refuse_damaged(texts.file(), "a value of another length");
    return std::string_view(text);
  };
}

/// The first bytes of all values, then the second ones ..
NextValue split_streams(const Node& leaf, Bytes bytes) {
  const auto count = bytes.size() / value_bytes(leaf);
  return [bytes, count, value = std::string(value_bytes(leaf), '\0'), at = size_t{0}]() mutable {
    if (at == count) refuse_damaged(bytes.file(), "fewer values than it says");
    for (size_t i = 0; i < value.size(); ++i) value[i] = bytes.left()[i * count + at];
    ++at;
    return std::string_view(value);
  };
}

}  // namespace

uint32_t RunReader::next() {
  while (left_ == 0) begin_run();
  --left_;
  if (!is_packed_) return value_;
  const auto end = bit_ + static_cast<uint64_t>(width_);
  if (end > packed_.size() * 8) refuse_damaged(bytes_.file(), "fewer values than it says");
  const auto value = bits_at(packed_, bit_, width_);
  bit_ = end;
  return static_cast<uint32_t>(value);
}

void RunReader::begin_run() {
  const auto head = bytes_.varint();
  is_packed_ = (head & 1) != 0;
  constexpr uint64_t kMost = uint64_t{1} << 40;
  if (head > kMost) refuse_damaged(bytes_.file(), "a run of too many values");
  if (is_packed_) {
    left_ = (head >> 1) * 8;
    // Some writers leave out what the last run has too much.
    packed_ =
        bytes_.take(std::min<uint64_t>((head >> 1) * static_cast<uint64_t>(width_), bytes_.size()));
    bit_ = 0;
  } else {
    left_ = head >> 1;
    value_ = 0;
    const auto value = bytes_.take(static_cast<uint64_t>(width_ + 7) / 8);
    std::memcpy(&value_, value.data(), value.size());
  }
}

size_t value_bytes(const Node& leaf) {
  switch (leaf.physical) {
    case Physical::int32:
    case Physical::float32:
      return 4;
    case Physical::int64:
    case Physical::float64:
      return 8;
    case Physical::int96:
      return 12;
    case Physical::fixed:
      return static_cast<size_t>(leaf.length);
    case Physical::boolean:
    case Physical::bytes:
      return 0;
  }
  return 0;
}

NextValue values_of(int64_t encoding, const Node& leaf, Bytes bytes,
                    const std::vector<std::string_view>& dictionary) {
  enum {
    kPlain,
    kPlainDictionary = 2,
    kRuns,
    kBitPacked,
    kDelta,
    kDeltaLength,
    kDeltaBytes,
    kDictionary,
    kStreamSplit
  };  // parquet.thrift
  const auto is = [&](auto... types) { return ((leaf.physical == types) || ...); };
  switch (encoding) {
    case kPlain:
      return plain(leaf, bytes);
    case kPlainDictionary:
    case kDictionary:
      return of_dictionary(bytes, dictionary);
    case kRuns:
      if (!is(Physical::boolean)) break;
      return [runs = RunReader(bytes.part(bytes.fixed<uint32_t>()), 1)]() mutable {
        return truth_value(runs.next());
      };
    case kDelta:
      if (!is(Physical::int32, Physical::int64)) break;
      return differences(leaf, bytes);
    case kDeltaLength:
      if (!is(Physical::bytes)) break;
      return behind_lengths(bytes);
    case kDeltaBytes:
      if (!is(Physical::bytes, Physical::fixed)) break;
      return behind_prefixes(leaf, bytes);
    case kStreamSplit:
      if (value_bytes(leaf) == 0) break;
      return split_streams(leaf, bytes);
    default:
      user_error("{}: expected an encoding that is known, got number {}; write it as PLAIN",
                 bytes.file(), encoding);
  }
  refuse_damaged(bytes.file(), "an encoding that does not fit its column");
}

}  // namespace tessera::records::parquet
