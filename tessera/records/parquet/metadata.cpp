#include "tessera/records/parquet/schema.h"

namespace tessera::records::parquet {
namespace {

ColumnChunk read_chunk(const Thrift& chunk, const Node& leaf, const InputFile& file) {
  // Fields of ColumnChunk and of its ColumnMetaData (parquet.thrift).
  enum { kPath = 1, kMeta = 3, kCrypto = 8 };
  enum { kType = 1, kCodec = 4, kNumValues, kSize = 7, kDataPage = 9, kDictionaryPage = 11 };
  const auto name = file.path().string();
  if (chunk[kPath].is_there)
    user_error("{}: expected all columns in this file, got some in another; write it anew", name);
  if (chunk[kCrypto].is_there || !chunk[kMeta].is_there)
    user_error("{}: expected a file that is not encrypted; decrypt it first", name);
  const auto& meta = chunk[kMeta];
  if (meta[kType].number != static_cast<int>(leaf.physical))
    refuse_damaged(name, "a column of two types");
  ColumnChunk result{.codec = meta[kCodec].number, .num_values = meta[kNumValues].number};
  int64_t begin = meta[kDataPage].number;
  const auto dictionary = meta[kDictionaryPage].number;
  if (dictionary > 0 && dictionary < begin) begin = dictionary;
  const auto size = meta[kSize].number;
  const auto file_size = static_cast<int64_t>(file.size());
  if (begin < 0 || size < 0 || begin > file_size || size > file_size - begin ||
      result.num_values < 0)
    refuse_damaged(name, "a column outside the file");
  result.begin = static_cast<uint64_t>(begin);
  result.end = static_cast<uint64_t>(begin + size);
  return result;
}

}  // namespace

Metadata read_metadata(const InputFile& file) {
  enum { kSchema = 2, kRowGroups = 4, kEncryption = 8 };  // of FileMetaData
  enum { kColumns = 1, kNumRows = 3 };                    // of RowGroup
  constexpr std::string_view kMagic = "PAR1", kEncrypted = "PARE";
  const auto name = file.path().string();
  std::string end(2 * kMagic.size(), '\0');
  if (file.size() < kMagic.size() + end.size())
    refuse_damaged(name, fmt::format("{} bytes", file.size()));
  file.read_at(file.size() - end.size(), end);
  Bytes tail(end, name);
  const auto length = tail.fixed<uint32_t>();
  if (tail.left() == kEncrypted)
    user_error("{}: expected a file that is not encrypted; decrypt it first", name);
  if (tail.left() != kMagic) refuse_damaged(name, "other bytes at its end");
  if (length > file.size() - end.size() - kMagic.size())
    refuse_damaged(name, "metadata longer than the file");
  std::string footer(length, '\0');
  file.read_at(file.size() - end.size() - length, footer);
  Bytes bytes(footer, name);
  const auto thrift = read_thrift(bytes);
  if (thrift[kEncryption].is_there)
    user_error("{}: expected a file that is not encrypted; decrypt it first", name);
  Metadata metadata;
  metadata.root = read_schema(thrift[kSchema], name);
  const auto leaves = leaves_of(metadata.root);
  for (const auto& group : thrift[kRowGroups].items) {
    const auto& chunks = group[kColumns].items;
    if (chunks.size() != leaves.size() || group[kNumRows].number < 0)
      refuse_damaged(name, "rows of other columns than it says");
    auto& result = metadata.row_groups.emplace_back();
    result.num_rows = group[kNumRows].number;
    for (size_t i = 0; i < chunks.size(); ++i)
      result.columns.push_back(read_chunk(chunks[i], *leaves[i], file));
  }
  return metadata;
}

}  // namespace tessera::records::parquet
