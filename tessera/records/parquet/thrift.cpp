#include "tessera/records/parquet/thrift.h"

#include <utility>

namespace tessera::records::parquet {
namespace {

class ThriftReader {
 public:
  explicit ThriftReader(Bytes& bytes) : bytes_(bytes) {}

  Thrift structure(int depth) {
    Thrift value = make(depth);
    for (int id = 0;;) {
      const auto head = bytes_.fixed<uint8_t>();
      const int type = head & 15;
      if (type == kStop) return value;
      const int step = head >> 4;
      id = step != 0 ? id + step : static_cast<int16_t>(bytes_.zigzag());
      auto field = type == kTrue || type == kFalse ? make(depth) : of_type(type, depth + 1);
      if (type == kTrue) field.number = 1;
      field.id = id;
      value.items.push_back(std::move(field));
    }
  }

 private:
  enum {
    kStop,
    kTrue,
    kFalse,
    kByte,
    kI16,
    kI32,
    kI64,
    kDouble,
    kText,
    kList,
    kSet,
    kMap,
    kStruct
  };

  Thrift make(int depth) {
    constexpr int kMostValues = 8'000'000, kDeepest = 32;
    if (++num_values_ > kMostValues || depth > kDeepest)
      refuse_damaged(bytes_.file(), "metadata of too many parts");
    Thrift value;
    value.is_there = true;
    return value;
  }

  Thrift of_type(int type, int depth) {
    if (type == kStruct) return structure(depth);
    if (type == kList || type == kSet) return list(depth);
    auto value = make(depth);
    if (type == kTrue || type == kFalse) {  // in a list; a field's type is its value
      value.number = bytes_.fixed<uint8_t>() == kTrue;
    } else if (type == kByte) {
      value.number = bytes_.fixed<int8_t>();
    } else if (type == kI16 || type == kI32 || type == kI64) {
      value.number = bytes_.zigzag();
    } else if (type == kDouble) {
      bytes_.take(sizeof(double));
    } else if (type == kText) {
      value.bytes = bytes_.take(bytes_.varint());
    } else {  // Parquet has no maps
      refuse_damaged(bytes_.file(), "metadata of an unknown type");
    }
    return value;
  }

  Thrift list(int depth) {
    auto value = make(depth);
    const auto head = bytes_.fixed<uint8_t>();
    const uint64_t count = head >> 4 == 15 ? bytes_.varint() : head >> 4;
    if (count > bytes_.size()) refuse_damaged(bytes_.file(), "a list longer than the file");
    for (uint64_t i = 0; i < count; ++i) value.items.push_back(of_type(head & 15, depth + 1));
    return value;
  }

  Bytes& bytes_;
  int num_values_ = 0;
};

}  // namespace

const Thrift& Thrift::operator[](int field) const {
  static const Thrift kNone;
  for (const auto& item : items) {
    if (item.id == field) return item;
  }
  return kNone;
}

Thrift read_thrift(Bytes& bytes) { return ThriftReader(bytes).structure(0); }

}  // namespace tessera::records::parquet
