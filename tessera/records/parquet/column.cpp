#include "tessera/records/parquet/column.h"

#include <zlib.h>

#include <algorithm>
#include <bit>

#include "tessera/records/parquet/codec.h"

namespace tessera::records::parquet {
namespace {

// Fields and values of a PageHeader (parquet.thrift).
enum { kType = 1, kPlainBytes, kPackedBytes, kChecksum, kDataV1, kDictionaryHeader = 7, kDataV2 };
enum { kData, kIndex, kDictionaryPage, kDataPageV2 };
enum { kNumValues = 1 };
constexpr int kPlainEncoding = 0, kPlainDictionaryEncoding = 2, kRunEncoding = 3;

int width_of(int most) { return std::bit_width(static_cast<unsigned>(most)); }

}  // namespace

ColumnReader::ColumnReader(const InputFile& file, const Node& leaf, const ColumnChunk& chunk,
                           size_t max_page_bytes)
    : file_(file),
      name_(file.path().string()),
      leaf_(leaf),
      codec_(chunk.codec),
      max_page_bytes_(max_page_bytes),
      at_(chunk.begin),
      end_(chunk.end),
      left_in_chunk_(chunk.num_values) {
  if (left_in_chunk_ > 0) read_levels();
}

void ColumnReader::advance() {
  --left_in_chunk_;
  --left_in_page_;
  rep_ = def_ = 0;
  if (left_in_chunk_ > 0) read_levels();
}

void ColumnReader::read_levels() {
  while (left_in_page_ == 0) {
    if (!read_page()) refuse_damaged(name_, "a column of fewer values than it says");
  }
  rep_ = leaf_.rep == 0 ? 0 : static_cast<int>(reps_.next());
  def_ = leaf_.def == 0 ? 0 : static_cast<int>(defs_.next());
  if (rep_ > leaf_.rep || def_ > leaf_.def || rep_ < 0 || def_ < 0)
    refuse_damaged(name_, "a level above the highest of its column");
}

/// Makes `bytes` of what comes next be in memory, or all that there is.
std::string_view ColumnReader::reach(size_t bytes) {
  const auto has = window_.size() - window_at_;
  if (has < bytes && at_ < end_) {
    window_.erase(0, window_at_);
    window_at_ = 0;
    const auto more = std::min<uint64_t>(bytes - has, end_ - at_);
    window_.resize(has + more);
    file_.read_at(at_, std::span(window_).subspan(has));
    at_ += more;
  }
  return std::string_view(window_).substr(window_at_);
}

/// False if there is no more page.
bool ColumnReader::read_page() {
  constexpr size_t kMostOfHeader = 64 << 10;
  const auto ahead = reach(kMostOfHeader);
  if (ahead.empty()) return false;
  Bytes bytes(ahead, name_);
  const auto header = read_thrift(bytes);
  window_at_ += ahead.size() - bytes.size();
  const auto packed_bytes = header[kPackedBytes].number, plain_bytes = header[kPlainBytes].number;
  if (packed_bytes < 0 || plain_bytes < 0) refuse_damaged(name_, "a page of an impossible size");
  if (static_cast<size_t>(std::max(packed_bytes, plain_bytes)) > max_page_bytes_)
    user_error("{}: expected pages of at most {} bytes, got one of {}; write it with smaller pages",
               name_, max_page_bytes_, std::max(packed_bytes, plain_bytes));
  const auto size = static_cast<size_t>(packed_bytes);
  auto packed = Bytes(reach(size), name_).take(size);
  window_at_ += size;
  if (header[kChecksum].is_there &&
      static_cast<uint32_t>(header[kChecksum].number) !=
          crc32(0, reinterpret_cast<const Bytef*>(packed.data()), static_cast<uInt>(size)))
    refuse_damaged(name_, "a page with a wrong checksum");
  const auto plain_size = static_cast<size_t>(plain_bytes);
  switch (header[kType].number) {
    case kData:
      begin_page(header[kDataV1], packed, plain_size);
      break;
    case kDataPageV2:
      begin_page_v2(header[kDataV2], packed, plain_size);
      break;
    case kDictionaryPage:
      read_dictionary(header[kDictionaryHeader], packed, plain_size);
      break;
    case kIndex:
      break;
    default:
      refuse_damaged(name_, "a page of an unknown type");
  }
  if (left_in_page_ < 0 || left_in_page_ > left_in_chunk_)
    refuse_damaged(name_, "a page of more values than its column");
  return true;
}

std::string_view ColumnReader::plain(std::string_view packed, size_t bytes,
                                     std::string& storage) const {
  if (codec_ == kUncompressed) return packed;
  storage = decompress(codec_, packed, bytes, name_);
  return storage;
}

void ColumnReader::read_dictionary(const Thrift& header, std::string_view packed, size_t bytes) {
  enum { kEncoding = 2 };
  const auto encoding = header[kEncoding].number;
  if (has_dictionary_ || leaf_.physical == Physical::boolean ||
      (encoding != kPlainEncoding && encoding != kPlainDictionaryEncoding))
    refuse_damaged(name_, "a dictionary that its column cannot have");
  has_dictionary_ = true;
  dictionary_text_ =
      codec_ == kUncompressed ? std::string(packed) : decompress(codec_, packed, bytes, name_);
  const auto next = values_of(kPlainEncoding, leaf_, Bytes(dictionary_text_, name_), dictionary_);
  for (int64_t i = 0; i < header[kNumValues].number; ++i) dictionary_.push_back(next());
}

void ColumnReader::begin_page(const Thrift& header, std::string_view packed, size_t bytes) {
  enum { kEncoding = 2, kDefEncoding, kRepEncoding };
  Bytes rest(plain(packed, bytes, page_), name_);
  const auto levels = [&](int most, int encoding) -> RunReader {
    if (most == 0) return {};
    if (header[encoding].number != kRunEncoding)
      user_error("{}: expected levels in runs, got the outdated BIT_PACKED; write it anew", name_);
    return {rest.part(rest.fixed<uint32_t>()), width_of(most)};
  };
  reps_ = levels(leaf_.rep, kRepEncoding);
  defs_ = levels(leaf_.def, kDefEncoding);
  left_in_page_ = header[kNumValues].number;
  if (left_in_page_ > 0) values_ = values_of(header[kEncoding].number, leaf_, rest, dictionary_);
}

void ColumnReader::begin_page_v2(const Thrift& header, std::string_view packed, size_t bytes) {
  enum { kNumNulls = 2, kEncoding = 4, kDefBytes, kRepBytes, kIsPacked };
  Bytes rest(packed, name_);
  const auto levels = [&](int most, int field) -> RunReader {
    return {rest.part(static_cast<uint64_t>(header[field].number)), width_of(most)};
  };
  reps_ = levels(leaf_.rep, kRepBytes);
  defs_ = levels(leaf_.def, kDefBytes);
  left_in_page_ = header[kNumValues].number;
  const auto of_levels = packed.size() - rest.size();
  if (of_levels > bytes) refuse_damaged(name_, "a page of an impossible size");
  const bool is_packed = !header[kIsPacked].is_there || header[kIsPacked].number != 0;
  // A page of nulls alone may have nothing to decompress.
  auto values = rest.left();
  if (is_packed && !values.empty()) values = plain(values, bytes - of_levels, page_);
  const bool has_values = left_in_page_ > header[kNumNulls].number;
  values_ =
      has_values
          ? values_of(header[kEncoding].number, leaf_, Bytes(values, name_), dictionary_)
          : [this]() -> std::string_view { refuse_damaged(name_, "a value in a page of nulls"); };
}

}  // namespace tessera::records::parquet
