// The zip layer of torch_archive.h. Format: APPNOTE.TXT of PKWARE, sections 4.3 and 4.5.3.
#include <algorithm>
#include <cstring>
#include <limits>
#include <tuple>

#include "tessera/base/error.h"
#include "tessera/checkpoint/formats/torch_archive.h"

namespace tessera::checkpoint {
namespace {

constexpr size_t kEndBytes = 22, kLocatorBytes = 20, kEnd64Bytes = 56, kLocalBytes = 30,
                 kCentralBytes = 46;
constexpr uint32_t kIsIn64 = 0xffffffff;  ///< the true number stands in a field of 64 bits

/// Numbers and texts from a part of the file, one after the other.
class Fields {
 public:
  Fields(const std::string& where, std::string_view bytes) : where_(where), bytes_(bytes) {}

  template <typename T>
  T number() {
    T value;
    std::memcpy(&value, text(sizeof(T)).data(), sizeof(T));
    return value;
  }

  std::string_view text(size_t count) {
    if (count > bytes_.size()) user_error("{}: a damaged zip file: truncated", where_);
    const auto taken = bytes_.substr(0, count);
    bytes_.remove_prefix(count);
    return taken;
  }

  void signature(std::string_view expected) {
    if (text(4) != expected) user_error("{}: a damaged zip file: unknown record", where_);
  }

  bool empty() const { return bytes_.empty(); }
  size_t size() const { return bytes_.size(); }

 private:
  const std::string& where_;
  std::string_view bytes_;
};

struct Entry {
  std::string_view name;
  uint64_t bytes = 0;
  uint64_t header = 0;  ///< where its local header stands
};

struct Directory {
  uint64_t num_entries = 0, bytes = 0, begin = 0;
  uint64_t end = 0;  ///< where the records of the end begin
};

/// The end of the archive, whose numbers are repeated in 64 bits by all of torch's writers.
Directory read_end(const std::string& where, std::string_view file) {
  if (file.size() < kEndBytes || !file.substr(file.size() - kEndBytes).starts_with("PK\5\6"))
    user_error("{}: expected a zip file as torch.save writes it", where);
  const size_t end = file.size() - kEndBytes;
  Fields fields(where, file.substr(end));
  fields.text(8);  // signature, numbers of parts
  fields.number<uint16_t>();
  Directory directory{.num_entries = fields.number<uint16_t>(),
                      .bytes = fields.number<uint32_t>(),
                      .begin = fields.number<uint32_t>(),
                      .end = end};
  if (end < kLocatorBytes || !file.substr(end - kLocatorBytes).starts_with("PK\6\7"))
    return directory;
  Fields locator(where, file.substr(end - kLocatorBytes, kLocatorBytes));
  locator.text(8);
  const auto end64 = locator.number<uint64_t>();
  if (end64 > end || end - end64 != kEnd64Bytes + kLocatorBytes)
    user_error("{}: a damaged zip file: its end in 64 bits is not where it should be", where);
  Fields fields64(where, file.substr(end64, kEnd64Bytes));
  fields64.signature("PK\6\6");
  fields64.text(28);  // sizes, versions, numbers of parts
  directory.num_entries = fields64.number<uint64_t>();
  directory.bytes = fields64.number<uint64_t>();
  directory.begin = fields64.number<uint64_t>();
  directory.end = end64;
  return directory;
}

/// The fields of an entry that do not fit 32 bits, in the extra field with number 1.
void read_extra(const std::string& where, std::string_view extra, uint64_t& raw, uint64_t& packed,
                uint64_t& header) {
  Fields fields(where, extra);
  while (fields.size() >= 4) {
    const auto id = fields.number<uint16_t>();
    const size_t length = fields.number<uint16_t>();
    Fields content(where, fields.text(length));
    if (id != 1) continue;
    for (uint64_t* field : {&raw, &packed, &header}) {
      if (*field == kIsIn64 && content.size() >= 8) *field = content.number<uint64_t>();
    }
  }
}

Entry read_entry(const std::string& where, Fields& directory) {
  directory.signature(std::string_view("PK\1\2"));
  directory.text(4);  // versions
  const auto flags = directory.number<uint16_t>();
  const auto method = directory.number<uint16_t>();
  directory.text(8);  // time, checksum
  uint64_t packed = directory.number<uint32_t>();
  uint64_t raw = directory.number<uint32_t>();
  const size_t name_bytes = directory.number<uint16_t>();
  const size_t extra_bytes = directory.number<uint16_t>();
  const size_t comment_bytes = directory.number<uint16_t>();
  directory.text(8);  // part, attributes
  uint64_t header = directory.number<uint32_t>();
  const auto name = directory.text(name_bytes);
  read_extra(where, directory.text(extra_bytes), raw, packed, header);
  directory.text(comment_bytes);
  constexpr uint16_t kEncrypted = 1;
  if (method != 0 || raw != packed || (flags & kEncrypted) != 0)
    user_error("{}: expected a zip file whose entries are stored as they are, got a packed one",
               where);
  return {name, raw, header};
}

/// The bytes of an entry, which follow its local header; `end`: of what entries may take.
std::string_view content(const std::string& where, std::string_view file, const Entry& entry,
                         uint64_t end) {
  if (entry.header > end || end - entry.header < kLocalBytes)
    user_error("{}: a damaged zip file: an entry lies outside", where);
  Fields local(where, file.substr(entry.header, end - entry.header));
  local.signature("PK\3\4");
  local.text(22);
  const size_t name_bytes = local.number<uint16_t>();
  const size_t extra_bytes = local.number<uint16_t>();
  if (local.text(name_bytes) != entry.name)
    user_error("{}: a damaged zip file: an entry has two names", where);
  local.text(extra_bytes);
  return local.text(entry.bytes);
}

}  // namespace

std::map<std::string, std::string_view, std::less<>> stored_zip_entries(const std::string& where,
                                                                        std::string_view file) {
  const auto end = read_end(where, file);
  if (end.begin > end.end || end.end - end.begin != end.bytes ||
      end.num_entries > end.bytes / kCentralBytes)
    user_error("{}: a damaged zip file: its directory is not where it should be", where);
  Fields directory(where, file.substr(end.begin, end.bytes));
  std::vector<Entry> entries;
  for (uint64_t i = 0; i < end.num_entries; ++i) entries.push_back(read_entry(where, directory));
  if (!directory.empty()) user_error("{}: a damaged zip file: its directory is too long", where);
  std::ranges::sort(entries, {}, &Entry::header);

  std::map<std::string, std::string_view, std::less<>> result;
  for (size_t i = 0; i < entries.size(); ++i) {
    const bool is_last = i + 1 == entries.size();
    const uint64_t limit = is_last ? end.begin : std::min(entries[i + 1].header, end.begin);
    const auto bytes = content(where, file, entries[i], limit);
    if (!result.emplace(entries[i].name, bytes).second)
      user_error("{}: a damaged zip file: a name stands twice in it", where);
  }
  return result;
}

}  // namespace tessera::checkpoint
