#include "tessera/records/parquet/schema.h"

#include <algorithm>
#include <array>

#include "tessera/base/quoted.h"
#include "tessera/base/text.h"
#include "tessera/base/utf8.h"

namespace tessera::records::parquet {
namespace {

/// Levels of what holds an element.
struct Levels {
  int def = 0, rep = 0;
};

class SchemaReader {
 public:
  SchemaReader(const Thrift& elements, const std::string& file)
      : elements_(elements.items), file_(file) {}

  Node root() {
    Node node;
    node.shape = Shape::structure;
    add_children(next(), node, {}, 0);
    if (at_ != elements_.size()) refuse_damaged(file_, "columns that belong to nothing");
    return node;
  }

 private:
  // Fields of a SchemaElement, and the values of three of them (parquet.thrift).
  enum Field { kType = 1, kLength, kRepetition, kName, kChildren, kConverted, kScale };
  enum { kLogicalType = 10 };
  enum Repetition { kRequired, kOptional, kRepeated };
  enum LogicalField {
    kString = 1,
    kMap,
    kList,
    kEnum,
    kDecimal,
    kDate,
    kTime,
    kTimestamp,
    kInteger = 10,
    kJson = 12,
    kUuid = 14,
    kFloat16 = 15,
    kVariant = 16
  };
  enum Converted {
    kUtf8,
    kOldMap,
    kOldMapKeyValue,
    kOldList,
    kOldEnum,
    kOldDecimal,
    kOldDate,
    kTimeMillis,
    kTimeMicros,
    kTimestampMillis,
    kTimestampMicros,
    kUint8,
    kUint64 = kUint8 + 3,
    kOldJson = 19,
    kInterval = 21
  };

  const Thrift& next() {
    if (at_ == elements_.size()) refuse_damaged(file_, "fewer columns than it says");
    return elements_[at_++];
  }

  static bool is_converted(const Thrift& element, int64_t type) {
    return element[kConverted].is_there && element[kConverted].number == type;
  }

  /// What `element` is below something of these levels, its repetition included.
  Node node(const Thrift& element, Levels levels, int depth) {
    if (element[kRepetition].number != kRepeated) return single(element, levels, depth);
    // A repeated field that no list holds is a list of what is there (parquet's LogicalTypes.md).
    Node list;
    list.shape = Shape::list;
    list.name = name_of(element);
    list.column = num_columns_;
    list.def = levels.def;
    add_items(list, levels);
    list.children.push_back(single(element, {list.item_def, list.item_rep}, depth));
    return list;
  }

  static void add_items(Node& list, Levels levels) {
    list.item_def = levels.def + 1;
    list.item_rep = levels.rep + 1;
  }

  /// Without its repetition.
  Node single(const Thrift& element, Levels levels, int depth) {
    constexpr int kDeepest = 64;
    if (depth > kDeepest) refuse_damaged(file_, "columns that are nested more than 64 deep");
    Node result;
    result.name = name_of(element);
    result.optional = element[kRepetition].number == kOptional;
    result.def = levels.def + (result.optional ? 1 : 0);
    result.column = num_columns_;
    levels.def = result.def;
    if (element[kChildren].number == 0) {
      set_type(element, result);
      result.rep = levels.rep;
      ++num_columns_;
      return result;
    }
    const auto& logical = element[kLogicalType];
    if (logical[kVariant].is_there) refuse(result.name, "of type VARIANT");
    if (logical[kMap].is_there || is_converted(element, kOldMap) ||
        is_converted(element, kOldMapKeyValue)) {
      add_map(element, result, levels, depth);
    } else if (logical[kList].is_there || is_converted(element, kOldList)) {
      add_list(element, result, levels, depth);
    } else {
      result.shape = Shape::structure;
      add_children(element, result, levels, depth);
    }
    return result;
  }

  void add_children(const Thrift& element, Node& to, Levels levels, int depth) {
    const auto count = element[kChildren].number;
    if (count < 1) refuse_damaged(file_, "a group without columns");
    for (int64_t i = 0; i < count; ++i) to.children.push_back(node(next(), levels, depth + 1));
    std::vector<std::string_view> names;
    for (const auto& child : to.children) names.push_back(child.name);
    std::ranges::sort(names);
    const auto twice = std::ranges::adjacent_find(names);
    if (twice != names.end())
      user_error("{}: expected columns of different names, got two named {}", file_,
                 quoted(printable(*twice)));
  }

  const Thrift& items_of(const Thrift& element, const char* kind) {
    if (element[kChildren].number != 1) refuse_damaged(file_, kind);
    const auto& items = next();
    if (items[kRepetition].number != kRepeated) refuse_damaged(file_, kind);
    return items;
  }

  void add_list(const Thrift& element, Node& list, Levels levels, int depth) {
    list.shape = Shape::list;
    add_items(list, levels);
    levels = {list.item_def, list.item_rep};
    const auto& items = items_of(element, "a list of none or several parts");
    // Lists of two levels, as old writers made them: the repeated field is the item.
    const auto name = items[kName].bytes;
    const bool is_item = items[kChildren].number != 1 || name == "array" ||
                         name == list.name + "_tuple" || repeats_next();
    if (is_item) {
      list.children.push_back(single(items, levels, depth + 1));
    } else {
      list.children.push_back(node(next(), levels, depth + 1));
    }
  }

  bool repeats_next() const {
    return at_ < elements_.size() && elements_[at_][kRepetition].number == kRepeated;
  }

  void add_map(const Thrift& element, Node& map, Levels levels, int depth) {
    map.shape = Shape::map;
    add_items(map, levels);
    levels = {map.item_def, map.item_rep};
    const auto& items = items_of(element, "a map of none or several parts");
    if (items[kChildren].number != 2) refuse_damaged(file_, "a map without keys or values");
    for (int i = 0; i < 2; ++i) map.children.push_back(node(next(), levels, depth + 1));
    if (map.children[0].shape != Shape::value) refuse(map.name, "with keys that are no values");
  }

  std::string name_of(const Thrift& element) const {
    const auto name = element[kName].bytes;
    if (!is_utf8(name)) refuse_damaged(file_, "a column's name that is no UTF-8");
    return std::string(name);
  }

  [[noreturn]] void refuse(const std::string& column, const char* what) const {
    user_error("{}: column {}: expected one that can be read, got one {}; write it as another type",
               file_, quoted(printable(column)), what);
  }

  void set_type(const Thrift& element, Node& node) const {
    constexpr int kNumTypes = 8;
    const auto type = element[kType].number;
    if (!element[kType].is_there || type < 0 || type >= kNumTypes)
      refuse_damaged(file_, "a column of no known type");
    node.physical = static_cast<Physical>(type);
    if (node.physical == Physical::fixed) {
      constexpr int64_t kLongest = 1 << 20;
      const auto length = element[kLength].number;
      if (length < 1 || length > kLongest) refuse_damaged(file_, "values of an impossible length");
      node.length = static_cast<int>(length);
    }
    set_logical(element, node);
    check_logical(node);
  }

  void set_logical(const Thrift& element, Node& node) const {
    const auto& logical = element[kLogicalType];
    const auto& converted = element[kConverted];
    const auto is = [&](int field, int64_t old) {
      return logical[field].is_there || is_converted(element, old);
    };
    constexpr int kNoOldType = -1;
    if (is_converted(element, kInterval)) refuse(node.name, "of type INTERVAL");
    if (is(kString, kUtf8) || is(kEnum, kOldEnum) || is(kJson, kOldJson)) {
      node.logical = Logical::text;
    } else if (is(kDecimal, kOldDecimal)) {
      node.logical = Logical::decimal;
      const auto& of_type = logical[kDecimal].is_there ? logical[kDecimal][1] : element[kScale];
      constexpr int64_t kMostDigits = 100;
      if (of_type.number < 0 || of_type.number > kMostDigits)
        refuse_damaged(file_, "a decimal of an impossible scale");
      node.scale = static_cast<int>(of_type.number);
    } else if (is(kDate, kOldDate)) {
      node.logical = Logical::date;
    } else if (is(kTime, kTimeMillis) || is_converted(element, kTimeMicros)) {
      node.logical = Logical::time;
      set_unit(logical[kTime], is_converted(element, kTimeMicros), node);
    } else if (is(kTimestamp, kTimestampMillis) || is_converted(element, kTimestampMicros)) {
      node.logical = Logical::timestamp;
      set_unit(logical[kTimestamp], is_converted(element, kTimestampMicros), node);
    } else if (logical[kInteger].is_there) {
      if (logical[kInteger][2].number == 0) node.logical = Logical::unsigned_int;
    } else if (converted.is_there && converted.number >= kUint8 && converted.number <= kUint64) {
      node.logical = Logical::unsigned_int;
    } else if (is(kUuid, kNoOldType)) {
      node.logical = Logical::uuid;
    } else if (is(kFloat16, kNoOldType)) {
      node.logical = Logical::float16;
    }
    if (node.physical == Physical::int96) node.logical = Logical::timestamp;
  }

  static void set_unit(const Thrift& type, bool micros, Node& node) {
    enum { kIsUtc = 1, kUnit };
    enum { kMillis = 1, kMicros, kNanos };
    node.per_second = 1000;
    if (type.is_there ? type[kUnit][kMicros].is_there : micros) node.per_second = 1'000'000;
    if (type[kUnit][kNanos].is_there) node.per_second = 1'000'000'000;
    node.utc = type.is_there ? type[kIsUtc].number != 0 : true;  // the older types are in UTC
  }

  /// A logical type stands for certain physical ones only.
  void check_logical(const Node& node) const {
    const auto is = [&](auto... types) { return ((node.physical == types) || ...); };
    bool fits = true;
    switch (node.logical) {
      case Logical::none:
        break;
      case Logical::text:
        fits = is(Physical::bytes, Physical::fixed);
        break;
      case Logical::decimal:
        fits = is(Physical::int32, Physical::int64, Physical::bytes, Physical::fixed);
        break;
      case Logical::date:
        fits = is(Physical::int32);
        break;
      case Logical::time:
      case Logical::unsigned_int:
        fits = is(Physical::int32, Physical::int64);
        break;
      case Logical::timestamp:
        fits = is(Physical::int64, Physical::int96);
        break;
      case Logical::float16:
        fits = is(Physical::fixed) && node.length == 2;
        break;
      case Logical::uuid:
        fits = is(Physical::fixed) && node.length == 16;
        break;
    }
    if (!fits) refuse_damaged(file_, "a column whose two types do not fit each other");
  }

  const std::vector<Thrift>& elements_;
  const std::string& file_;
  size_t at_ = 0, num_columns_ = 0;
};

void add_leaves(const Node& node, std::vector<const Node*>& leaves) {
  if (node.shape == Shape::value) leaves.push_back(&node);
  for (const auto& child : node.children) add_leaves(child, leaves);
}

}  // namespace

Node read_schema(const Thrift& elements, const std::string& file) {
  return SchemaReader(elements, file).root();
}

std::vector<const Node*> leaves_of(const Node& node) {
  std::vector<const Node*> leaves;
  add_leaves(node, leaves);
  return leaves;
}

}  // namespace tessera::records::parquet
