#include "tessera/checkpoint/strided.h"

#include <algorithm>
#include <cassert>
#include <cstring>

namespace tessera::checkpoint {
namespace {

using Loop = Walk::Loop;

constexpr int64_t kElementsAtOnce = int64_t{1} << 19;
/// A read costs about as much as copying so many elements that nobody wants.
constexpr int64_t kElementsOfACall = 512;
constexpr int64_t kFewRows = 32;
constexpr int64_t kMostKept = int64_t{1} << 26;

/// Loops become two: the step of one that is all of the next makes one of both.
Walk walk_of(int64_t from, int64_t to, std::vector<Loop> loops) {
  std::erase_if(loops, [](const Loop& loop) { return loop.count == 1; });
  std::ranges::sort(loops, std::greater<>(), &Loop::to);
  std::vector<Loop> joined;
  for (const auto& loop : loops) {
    const int64_t count = loop.count;
    if (!joined.empty() && joined.back().from == count * loop.from &&
        joined.back().to == count * loop.to) {
      joined.back() = {joined.back().count * count, loop.from, loop.to};
    } else {
      joined.push_back(loop);
    }
  }
  assert(joined.size() <= 2);
  Walk walk{.from = from, .to = to, .rows = {}, .columns = {}};
  if (!joined.empty()) walk.columns = joined.back();
  const auto& columns = walk.columns;
  walk.rows = joined.size() == 2
                  ? joined.front()
                  : Loop{1, columns.count * columns.from, columns.count * columns.to};
  return walk;
}

std::vector<int64_t> row_major(const std::vector<int64_t>& shape) {
  std::vector<int64_t> strides(shape.size(), 1);
  for (size_t i = shape.size(); i-- > 1;) strides[i - 1] = strides[i] * shape[i];
  return strides;
}

std::vector<Loop> loops_of(const std::vector<int64_t>& shape, const std::vector<int64_t>& from,
                           const std::vector<int64_t>& to) {
  std::vector<Loop> loops;
  for (size_t i = 0; i < shape.size(); ++i) loops.push_back({shape[i], from[i], to[i]});
  return loops;
}

/// Is the walk's next row nearer in the stored tensor than its next column?
bool along_rows(const Walk& walk) { return walk.rows.from < walk.columns.from; }

/// Elements with one step between them.
struct Line {
  int64_t from, to, count;
};

/// visit(line) for elements [first, last), in lines along the loop whose elements lie nearer.
template <typename Visit>
void for_each_line(const Walk& walk, int64_t first, int64_t last, const Visit& visit) {
  const int64_t width = walk.columns.count;
  const auto line = [&](int64_t row, int64_t column, int64_t count) {
    visit(Line{walk.from + row * walk.rows.from + column * walk.columns.from,
               walk.to + row * walk.rows.to + column * walk.columns.to, count});
  };
  if (along_rows(walk)) {
    const auto row_at = [&](int64_t element, int64_t column) {  // the first not before `element`
      return (std::max<int64_t>(element - column, 0) + width - 1) / width;
    };
    for (int64_t column = 0; column < width; ++column) {
      const int64_t begin = row_at(first, column), end = row_at(last, column);
      if (begin < end) line(begin, column, end - begin);
    }
    return;
  }
  for (int64_t row = first / width; row * width < last; ++row) {
    const int64_t begin = std::max<int64_t>(first - row * width, 0);
    line(row, begin, std::min(last - row * width, width) - begin);
  }
}

template <typename Element>
void copy_elements(const std::byte* from, int64_t from_step, std::byte* to, int64_t to_step,
                   int64_t count) {
  constexpr auto kBytes = static_cast<int64_t>(sizeof(Element));
  for (int64_t i = 0; i < count; ++i) {
    std::memcpy(to + i * to_step * kBytes, from + i * from_step * kBytes, sizeof(Element));
  }
}

void copy_line(const std::byte* from, int64_t from_step, std::byte* to, int64_t to_step,
               int64_t count, int64_t element_bytes) {
  if (from_step == 1 && to_step == 1) {
    std::memcpy(to, from, static_cast<size_t>(count * element_bytes));
    return;
  }
  assert(element_bytes == 1 || element_bytes == 2 || element_bytes == 4 || element_bytes == 8);
  const auto run = element_bytes == 1   ? copy_elements<uint8_t>
                   : element_bytes == 2 ? copy_elements<uint16_t>
                   : element_bytes == 4 ? copy_elements<uint32_t>
                                        : copy_elements<uint64_t>;
  run(from, from_step, to, to_step, count);
}

/// Reads lines, several at once where little lies between them.
class LineReader {
 public:
  LineReader(const TensorSource& source, const std::string& name, const Loop& step,
             const WalkPart& part)
      : source_(source), name_(name), step_(step), part_(part), bytes_(part.element_bytes) {}

  void add(Line line) {
    if (step_.from == 1 && step_.to == 1 && line.count >= kElementsOfACall) {
      source_.read(name_, line.from, {at(line), static_cast<size_t>(line.count * bytes_)});
      return;
    }
    const int64_t most = std::max<int64_t>(kElementsAtOnce / step_.from, 1);
    while (line.count > 0) {
      const int64_t count = std::min(line.count, most);
      put({line.from, line.to, count});
      line = {line.from + count * step_.from, line.to + count * step_.to, line.count - count};
    }
  }

  void finish() {
    if (lines_.empty()) return;
    values_.resize(static_cast<size_t>((end_ - begin_) * bytes_));
    source_.read(name_, begin_, values_);
    for (const auto& line : lines_) {
      copy_line(values_.data() + (line.from - begin_) * bytes_, step_.from, at(line), step_.to,
                line.count, bytes_);
    }
    lines_.clear();
  }

 private:
  std::byte* at(const Line& line) const {
    return part_.destination.data() + (line.to - part_.begin) * bytes_;
  }

  void put(const Line& line) {
    const int64_t end = line.from + (line.count - 1) * step_.from + 1;
    const int64_t wanted = std::max(end - line.from, kElementsOfACall);
    const bool near = line.from >= begin_ && line.from - end_ < wanted;
    if (!lines_.empty() && (!near || end - begin_ > kElementsAtOnce)) finish();
    if (lines_.empty()) begin_ = line.from, end_ = end;
    lines_.push_back(line);
    end_ = std::max(end_, end);
  }

  const TensorSource& source_;
  const std::string& name_;
  Loop step_;
  WalkPart part_;
  int64_t bytes_;                // of an element
  std::vector<Line> lines_;      // to be read with elements ..
  int64_t begin_ = 0, end_ = 0;  // .. of these, in the stored tensor
  std::vector<std::byte> values_;
};

}  // namespace

int64_t Walk::before(int64_t place) const {
  if (place <= to || count() == 0) return 0;
  const int64_t row = (place - to) / rows.to, rest = (place - to) % rows.to;
  if (row >= rows.count) return count();
  return row * columns.count + std::min((rest + columns.to - 1) / columns.to, columns.count);
}

bool Walk::dense() const {
  return columns.to == 1 && (rows.count == 1 || rows.to == columns.count);
}

Walk straight(int64_t from, int64_t to, int64_t count) {
  return walk_of(from, to, {{count, 1, 1}});
}

Walk out_of(const Strided& part) {
  return walk_of(part.offset, 0, loops_of(part.shape, part.strides, row_major(part.shape)));
}

Walk into(const Strided& part) {
  return walk_of(0, part.offset, loops_of(part.shape, row_major(part.shape), part.strides));
}

void read_walk(const TensorSource& source, const std::string& name, const Walk& walk,
               const WalkPart& part) {
  if (part.first >= part.last) return;
  const auto& [width, step, place] = walk.columns;
  if (step == 1 && place == 1 && part.first / width == (part.last - 1) / width) {
    const int64_t row = part.first / width, column = part.first % width;
    const int64_t to = walk.to + row * walk.rows.to + column - part.begin;
    const auto count = static_cast<size_t>((part.last - part.first) * part.element_bytes);
    source.read(name, walk.from + row * walk.rows.from + column,
                {part.destination.data() + to * part.element_bytes, count});
    return;
  }
  LineReader reader(source, name, along_rows(walk) ? walk.rows : walk.columns, part);
  for_each_line(walk, part.first, part.last, [&](const Line& line) { reader.add(line); });
  reader.finish();
}

void copy_walk(std::span<const std::byte> values, const Walk& walk, const WalkPart& part) {
  const int64_t width = walk.columns.count, bytes = part.element_bytes;
  for (int64_t element = part.first; element < part.last;) {
    const int64_t row = element / width, column = element % width;
    const int64_t count = std::min(width - column, part.last - element);
    const int64_t place = walk.to + row * walk.rows.to + column * walk.columns.to;
    copy_line(values.data() + element * bytes, 1,
              part.destination.data() + (place - part.begin) * bytes, walk.columns.to, count,
              bytes);
    element += count;
  }
}

bool worth_keeping(const Walk& walk, const WalkPart& part) {
  const bool whole = part.first == 0 && part.last == walk.count();
  if (whole || part.first >= part.last || !along_rows(walk) || walk.count() > kMostKept) {
    return false;
  }
  if (!walk.dense()) return true;  // of a checkpoint, each small read is one of a block
  const int64_t width = walk.columns.count;
  return (part.last - 1) / width - part.first / width + 1 < std::min(kFewRows, walk.rows.count);
}

KeptWalks::Values KeptWalks::get(const Walk& walk,
                                 const std::function<std::vector<std::byte>()>& read) {
  constexpr size_t kMost = 2;
  const std::lock_guard lock(mutex_);
  const auto found = std::ranges::find(kept_, &walk, &std::pair<const Walk*, Values>::first);
  if (found != kept_.end()) {
    kept_.splice(kept_.begin(), kept_, found);
  } else {
    if (kept_.size() == kMost) kept_.pop_back();
    kept_.emplace_front(&walk, std::make_shared<const std::vector<std::byte>>(read()));
  }
  return kept_.front().second;
}

void KeptWalks::clear() {
  const std::lock_guard lock(mutex_);
  kept_.clear();
}

}  // namespace tessera::checkpoint
