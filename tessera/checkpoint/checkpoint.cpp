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

/// What a request takes of a range. All is counted in bytes, so that nothing need be aligned.
struct Segment {
  size_t file = 0;
  int64_t offset = 0, end = 0;       ///< of the file: what lies between the first and last wanted
  Stripe stored, wanted;             ///< of the tensor
  int64_t stored_begin = 0;          ///< of those that `stored` takes, the one at `offset` ..
  int64_t wanted_begin = 0;          ///< .. and of those that `wanted` does, that for ..
  std::span<std::byte> destination;  ///< .. this place

  /// visit(offset, destination) for each stretch of bytes [from, to) of the file, inside the
  /// segment, that is wanted, in order. A step leads behind a run of one of both stripes.
  template <typename Visit>
  void for_each_stretch(int64_t from, int64_t to, const Visit& visit) const {
    const int64_t first = stored_begin - offset;  // of the file's first byte
    for (int64_t k = first + from; k < first + to;) {
      const int64_t position = stored.position(k), i = wanted.taken_before(position);
      const int64_t next = wanted.position(i);
      if (next > position) {
        k = stored.taken_before(next);
        continue;
      }
      const int64_t bytes = std::min({first + to - k, stored.stretch(k), wanted.stretch(i)});
      visit(k - first,
            destination.subspan(static_cast<size_t>(i - wanted_begin), static_cast<size_t>(bytes)));
      k += bytes;
    }
  }
};

Stripe in_bytes(const Stripe& stripe, int64_t element_bytes) {
  return {stripe.offset * element_bytes, stripe.run * element_bytes, stripe.stride * element_bytes};
}

/// Do both stripes take columns of the same rows, and none in common?
bool apart(const Stripe& a, const Stripe& b) {
  return !a.whole() && !b.whole() && a.stride == b.stride &&
         (a.offset + a.run <= b.offset || b.offset + b.run <= a.offset);
}

std::vector<Segment> segments_of(const Index& index,
                                 std::span<const Checkpoint::Request> requests) {
  std::vector<Segment> segments;
  for (const auto& request : requests) {
    if (request.destination.empty()) continue;
    const auto& tensor = index.tensors.find(request.name)->second;
    const int64_t element = dtype_bytes(tensor.info.dtype);
    const auto wanted = in_bytes(request.stripe, element);
    const int64_t begin = request.begin * element;
    const int64_t first = wanted.position(begin);
    const int64_t last = wanted.position(begin + std::ssize(request.destination) - 1);
    for (const auto& range : tensor.ranges) {
      const auto stored = in_bytes(range.stripe, element);
      if (apart(stored, wanted)) continue;
      const int64_t start = range.begin * element, end = start + range.length * element;
      const int64_t from = std::max(start, stored.taken_before(first));
      const int64_t to = std::min(end, stored.taken_before(last + 1));
      if (from >= to) continue;
      segments.push_back({.file = range.file,
                          .offset = range.offset + from - start,
                          .end = range.offset + to - start,
                          .stored = stored,
                          .wanted = wanted,
                          .stored_begin = from,
                          .wanted_begin = begin,
                          .destination = request.destination});
    }
  }
  std::ranges::sort(segments, {}, [](const Segment& s) { return std::tuple(s.file, s.offset); });
  return segments;
}

/// The blocks that segments of one file touch, each once.
std::vector<BlockRange> blocks_of(std::span<const Segment> segments, int64_t file_bytes) {
  std::vector<bool> touched(static_cast<size_t>(num_blocks(file_bytes)));
  for (const auto& segment : segments) {
    segment.for_each_stretch(
        segment.offset, segment.end, [&](int64_t offset, std::span<std::byte> bytes) {
          std::fill(touched.begin() + offset / kBlockBytes,
                    touched.begin() + num_blocks(offset + std::ssize(bytes)), true);
        });
  }
  std::vector<BlockRange> ranges;
  for (int64_t block = 0; block < std::ssize(touched); ++block) {
    if (!touched[static_cast<size_t>(block)]) continue;
    const int64_t begin = block * kBlockBytes, end = std::min(begin + kBlockBytes, file_bytes);
    if (!ranges.empty() && ranges.back().end == begin) {
      ranges.back().end = end;
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
  if (!is_there(path)) damaged("{}: cannot be opened: it is missing", path.string());
  const auto text = read_file(path);
  if (checksum(text) != marker_.index_checksum) {
    damaged("{}: damaged: expected the checksum in {}", path.string(), kMarkerFile);
  }
  index_ = parse_index(path, text);
  if (index_.step != marker_.step) {
    damaged("{}: damaged: expected step {} as in {}, got {}", (folder / kMarkerFile).string(),
            index_.step, kIndexFile, marker_.step);
  }
  for (const auto& file : index_.files) check_size(folder, file);
  for (const auto& [name, tensor] : index_.tensors) tensors_.emplace(name, tensor.info);
}

void Checkpoint::read_all(std::span<const Request> requests) const {
  const auto segments = segments_of(index_, requests);
  for (auto first = segments.begin(), last = first; first != segments.end(); first = last) {
    const auto& file = index_.files[first->file];
    last =
        std::find_if(first, segments.end(), [&](const auto& s) { return s.file != first->file; });
    const auto blocks = blocks_of({first, last}, file.num_bytes);
    if (blocks.empty()) continue;  // stripes without a run in common
    // Several requests may want the same bytes, so segments stay until a part lies beyond them.
    auto next = first;
    read_parts(path(), file, blocks, [&](int64_t offset, std::span<const std::byte> bytes) {
      const int64_t end = offset + std::ssize(bytes);
      while (next != last && next->end <= offset) ++next;
      for (auto it = next; it != last && it->offset < end; ++it) {
        it->for_each_stretch(std::max(it->offset, offset), std::min(it->end, end),
                             [&](int64_t at, std::span<std::byte> destination) {
                               std::memcpy(destination.data(), bytes.data() + (at - offset),
                                           destination.size());
                             });
      }
    });
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
