// Structures of Thrift's compact protocol, as Parquet's metadata are.
#pragma once

#include <string_view>
#include <vector>

#include "tessera/records/parquet/bytes.h"

namespace tessera::records::parquet {

/// A value. What is not there reads as 0, "" and empty.
struct Thrift {
  int id = 0;  ///< of a field
  bool is_there = false;
  int64_t number = 0;         ///< of whole numbers and truth values
  std::string_view bytes;     ///< of texts
  std::vector<Thrift> items;  ///< of a list; of a structure its fields

  const Thrift& operator[](int field) const;
};

/// The structure that `bytes` begin with; they go on behind it. UserError: it is none, is nested
/// more than 32 deep, or has more than eight million values.
Thrift read_thrift(Bytes& bytes);

}  // namespace tessera::records::parquet
