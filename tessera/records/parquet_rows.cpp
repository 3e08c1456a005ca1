#include "tessera/records/parquet_rows.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "tessera/base/quoted.h"
#include "tessera/base/text.h"
#include "tessera/records/parquet/value.h"

namespace tessera::records {

using parquet::ColumnReader;
using parquet::Node;
using parquet::refuse_damaged;
using parquet::Shape;

ParquetRows::ParquetRows(const std::filesystem::path& path, Limits limits)
    : file_(path),
      name_(path.string()),
      limits_(limits),
      metadata_(parquet::read_metadata(file_)),
      leaves_(leaves_of(metadata_.root)) {}

NextRow ParquetRows::next() {
  while (left_ == 0) {
    if (!begin_row_group()) return std::nullopt;
  }
  --left_;
  ++row_;
  error_.clear();
  row_bytes_ = 0;
  auto value = read(metadata_.root, 0);
  if (!error_.empty()) return BadRow{fmt::format("{}: row {}: {}", name_, row_, error_)};
  return Row{std::move(value), row_};
}

/// False behind the last one.
bool ParquetRows::begin_row_group() {
  for (const auto& column : columns_) {
    if (!column->is_at_end()) refuse_damaged(name_, "a column of more values than rows");
  }
  columns_.clear();
  file_.check_unchanged();
  if (row_group_ == metadata_.row_groups.size()) return false;
  const auto& group = metadata_.row_groups[row_group_++];
  left_ = group.num_rows;
  for (size_t i = 0; i < leaves_.size(); ++i)
    columns_.push_back(
        std::make_unique<ColumnReader>(file_, *leaves_[i], group.columns[i], limits_.page_bytes));
  return true;
}

void ParquetRows::check_rep(const ColumnReader& column, int rep) const {
  if (column.is_at_end() || column.rep() != rep)
    refuse_damaged(name_, "columns of different numbers of rows or items");
}

/// Counts what a row takes; it is broken above the limit.
void ParquetRows::take(size_t bytes) {
  row_bytes_ += bytes;
  if (row_bytes_ > limits_.row_bytes && error_.empty())
    error_ = fmt::format("expected a row of at most {} bytes, got a larger one", limits_.row_bytes);
}

void ParquetRows::note_error(const Node& node, std::string_view error) {
  if (error_.empty()) error_ = fmt::format("column {}: {}", quoted(printable(node.name)), error);
}

/// What stands at the columns below `node`, the first of it at the repetition level `rep`.
Json ParquetRows::read(const Node& node, int rep) {
  if (node.shape == Shape::value) return read_value(node, rep);
  if (node.optional && first_column(node).def() < node.def) {
    skip_null(node, rep);
    return nullptr;
  }
  if (node.shape == Shape::list) return read_list(node, rep);
  if (node.shape == Shape::map) return read_map(node, rep);
  auto object = Json::object();
  auto& members = object.get_ref<Json::object_t&>();
  members.reserve(node.children.size());
  for (const auto& child : node.children) {
    take(sizeof(Json::object_t::value_type) + child.name.size());
    auto value = read(child, rep);
    if (error_.empty()) members.emplace_back(child.name, std::move(value));
  }
  return object;
}

Json ParquetRows::read_value(const Node& node, int rep) {
  auto& column = first_column(node);
  check_rep(column, rep);
  Json value;
  if (column.def() == node.def) {
    const auto bytes = column.value();
    take(bytes.size());
    std::string error;
    if (error_.empty()) value = value_as_json(node, bytes, error);
    if (!error.empty()) note_error(node, error);
  }
  column.advance();
  return value;
}

Json ParquetRows::read_list(const Node& node, int rep) {
  auto list = Json::array();
  if (first_column(node).def() < node.item_def) {
    skip_null(node, rep);
    return list;
  }
  do {
    take(sizeof(Json));
    auto item = read(node.children[0], rep);
    if (error_.empty()) list.push_back(std::move(item));
    rep = node.item_rep;
  } while (first_column(node).rep() == rep);
  return list;
}

Json ParquetRows::read_map(const Node& node, int rep) {
  auto object = Json::object();
  if (first_column(node).def() < node.item_def) {
    skip_null(node, rep);
    return object;
  }
  auto& members = object.get_ref<Json::object_t&>();
  do {
    take(sizeof(Json::object_t::value_type));
    auto key = read(node.children[0], rep);
    auto value = read(node.children[1], rep);
    // A key of another type is what JSON has for it, as a text.
    if (error_.empty())
      members.emplace_back(key.is_string() ? key.get<std::string>() : key.dump(), std::move(value));
    rep = node.item_rep;
  } while (first_column(node).rep() == rep);
  std::vector<std::string_view> keys;
  for (const auto& member : members) keys.push_back(member.first);
  std::ranges::sort(keys);
  const auto twice = std::ranges::adjacent_find(keys);
  if (twice != keys.end())
    note_error(node, fmt::format("the key {} stands twice in one map", quoted(printable(*twice))));
  return object;
}

/// A null or an empty list is one entry of each column below it.
void ParquetRows::skip_null(const Node& node, int rep) {
  if (node.shape == Shape::value) {
    auto& column = first_column(node);
    check_rep(column, rep);
    if (column.def() == node.def) refuse_damaged(name_, "a value within a null");
    column.advance();
  }
  for (const auto& child : node.children) skip_null(child, rep);
}

}  // namespace tessera::records
