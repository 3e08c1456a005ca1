#include "tessera/checkpoint/checkpoint.h"

#include <algorithm>
#include <cstring>
#include <tuple>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/base/file.h"
#include "tessera/checkpoint/block_file.h"

namespace tessera::checkpoint {
namespace {

/// Bytes of a file that go to one place.
struct Segment {
  size_t file = 0;
  int64_t offset = 0;
  std::span<std::byte> destination;

  int64_t end() const { return offset + std::ssize(destination); }
};

std::vector<Segment> segments_of(const Index& index,
                                 std::span<const Checkpoint::Request> requests) {
  std::vector<Segment> segments;
  for (const auto& request : requests) {
    if (request.destination.empty()) continue;
    const auto& tensor = index.tensors.find(request.name)->second;
    const int64_t element = dtype_bytes(tensor.info.dtype);
    int64_t begin = request.begin;
    auto rest = request.destination;
    auto range = std::ranges::upper_bound(tensor.ranges, begin, {}, &Range::begin);
    // Before the first range that begins later; it has elements, because `rest` has.
    for (--range; !rest.empty(); ++range) {
      const int64_t inside = begin - range->begin;
      const auto bytes = std::min<int64_t>((range->length - inside) * element, std::ssize(rest));
      if (bytes > 0) {
        segments.push_back({range->file, range->offset + inside * element,
                            rest.first(static_cast<size_t>(bytes))});
      }
      rest = rest.subspan(static_cast<size_t>(bytes));
      begin += bytes / element;
    }
  }
  std::ranges::sort(segments, {}, [](const Segment& s) { return std::tuple(s.file, s.offset); });
  return segments;
}

/// The blocks that segments of one file touch, each once.
std::vector<BlockRange> blocks_of(std::span<const Segment> segments, int64_t file_bytes) {
  std::vector<BlockRange> ranges;
  for (const auto& segment : segments) {
    const int64_t begin = segment.offset / kBlockBytes * kBlockBytes;
    const int64_t end = std::min(num_blocks(segment.end()) * kBlockBytes, file_bytes);
    if (!ranges.empty() && begin <= ranges.back().end) {
      ranges.back().end = std::max(ranges.back().end, end);
    } else {
      ranges.push_back({begin, end});
    }
  }
  return ranges;
}

}  // namespace

Checkpoint::Checkpoint(const std::filesystem::path& folder)
    : TensorSource(folder), marker_(read_marker(folder)) {
  const auto path = folder / kIndexFile;
  const auto text = read_file(path);
  if (checksum(text) != marker_.index_checksum) {
    user_error("{}: damaged: expected the checksum in {}", path.string(), kMarkerFile);
  }
  index_ = parse_index(path, text);
  if (index_.step != marker_.step) {
    user_error("{}: damaged: expected step {} as in {}, got {}", (folder / kMarkerFile).string(),
               index_.step, kIndexFile, marker_.step);
  }
  for (const auto& file : index_.files) check_size(folder, file);
  for (const auto& [name, tensor] : index_.tensors) tensors_.emplace(name, tensor.info);
}

void Checkpoint::read_all(std::span<const Request> requests) const {
  const auto segments = segments_of(index_, requests);
  for (auto first = segments.begin(); first != segments.end();) {
    const auto& file = index_.files[first->file];
    const auto last =
        std::find_if(first, segments.end(), [&](const auto& s) { return s.file != first->file; });
    // Several requests may want the same bytes, so segments stay until a part lies beyond them.
    auto next = first;
    read_parts(path(), file, blocks_of({first, last}, file.num_bytes),
               [&](int64_t offset, std::span<const std::byte> bytes) {
                 const int64_t end = offset + std::ssize(bytes);
                 while (next != last && next->end() <= offset) ++next;
                 for (auto it = next; it != last && it->offset < end; ++it) {
                   const int64_t from = std::max(it->offset, offset), to = std::min(it->end(), end);
                   if (from >= to) continue;
                   std::memcpy(it->destination.data() + (from - it->offset),
                               bytes.data() + (from - offset), static_cast<size_t>(to - from));
                 }
               });
    first = last;
  }
}

void Checkpoint::read_part(const std::string& name, const TensorInfo&, int64_t begin,
                           std::span<std::byte> destination) const {
  const Request request{name, begin, destination};
  read_all({&request, 1});
}

void Checkpoint::verify(const std::function<void(int64_t)>& progress) const {
  for (const auto& file : index_.files) {
    const BlockRange whole{0, file.num_bytes};
    read_parts(path(), file, {&whole, 1}, [&](int64_t, std::span<const std::byte> bytes) {
      if (progress) progress(std::ssize(bytes));
    });
  }
}

int64_t Checkpoint::num_bytes() const {
  int64_t bytes = 0;
  for (const auto& file : index_.files) bytes += file.num_bytes;
  return bytes;
}

}  // namespace tessera::checkpoint
