// What a Parquet file says of itself: columns and where their pages are.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tessera/base/input_file.h"
#include "tessera/records/parquet/thrift.h"

namespace tessera::records::parquet {

enum class Physical { boolean, int32, int64, int96, float32, float64, bytes, fixed };
enum class Logical { none, text, decimal, date, time, timestamp, unsigned_int, float16, uuid };
enum class Shape { value, structure, list, map };

/// A column, or what holds some. Levels are those of Dremel (Melnik et al., 2010), by which a column
/// says how much of the way to its value is there, and which list goes on.
struct Node {
  std::string name;
  Shape shape = Shape::value;
  bool optional = false;
  int def = 0;                     ///< definition level from which on it is no null
  int item_def = 0, item_rep = 0;  ///< of a list or map: levels of an item
  std::vector<Node> children;      ///< of a list the item, of a map key and value
  size_t column = 0;               ///< the first below it
  Physical physical = Physical::boolean;
  Logical logical = Logical::none;
  int rep = 0;             ///< of a value: its highest repetition level
  int length = 0;          ///< bytes of `fixed`
  int scale = 0;           ///< digits of a decimal behind its point
  int64_t per_second = 1;  ///< unit of times and timestamps
  bool utc = false;        ///< of a timestamp
};

/// The nodes made of the file's list of schema elements. UserError: damaged, or what is not read.
Node read_schema(const Thrift& elements, const std::string& file);

struct ColumnChunk {
  int64_t codec = 0, num_values = 0;
  uint64_t begin = 0, end = 0;  ///< of its pages, in the file
};

struct RowGroup {
  int64_t num_rows = 0;
  std::vector<ColumnChunk> columns;
};

struct Metadata {
  Node root;
  std::vector<RowGroup> row_groups;
};

/// The values below `node`, in the order of the file's columns.
std::vector<const Node*> leaves_of(const Node& node);

/// UserError: it is no Parquet file, damaged, encrypted, or has what is not read.
Metadata read_metadata(const InputFile& file);

}  // namespace tessera::records::parquet
