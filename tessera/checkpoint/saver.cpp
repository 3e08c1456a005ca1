#include "tessera/checkpoint/saver.h"

#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <system_error>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/base/file.h"
#include "tessera/checkpoint/run_on_all.h"
#include "tessera/checkpoint/write_checkpoint.h"

namespace tessera::checkpoint {
namespace fs = std::filesystem;
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

std::vector<TensorExtent> extents_of(const std::vector<HeldExtent>& held) {
  std::vector<TensorExtent> extents;
  for (const auto& part : held) extents.push_back(part.extent);
  return extents;
}

/// What this rank writes, as its file holds it.
std::vector<HeldExtent> own_in_file_order(const std::vector<HeldExtent>& held) {
  auto own = own_share(held);
  in_file_order(own, [](const HeldExtent& part) { return part.extent.info.dtype; });
  return own;
}

// A rank's shard as text, for rank 0.
std::string describe(const ShardLayout& layout) {
  auto extents = nlohmann::json::array();
  for (const auto& extent : layout.extents()) {
    const auto& [offset, run, stride] = extent.stripe;
    extents.push_back({extent.name, static_cast<int>(extent.info.dtype), extent.info.shape,
                       extent.begin, extent.length, offset, run, stride});
  }
  return extents.dump();
}

ShardLayout layout_of(const std::string& description) {
  std::vector<TensorExtent> extents;
  for (const auto& extent : nlohmann::json::parse(description)) {
    const Stripe stripe{.offset = extent[5], .run = extent[6], .stride = extent[7]};
    extents.push_back({{extent[3], extent[4], stripe},
                       extent[0],
                       {static_cast<DType>(extent[1].get<int>()), extent[2]}});
  }
  return ShardLayout(std::move(extents));
}

std::string to_text(const IndexedFile& file) {
  std::string text = fmt::format("{} ", file.num_bytes);
  for (const auto checksum : file.checksums) text += to_hex(checksum);
  return text;
}

IndexedFile file_of(std::string name, std::string_view text) {
  const auto space = text.find(' ');
  IndexedFile file{.name = std::move(name),
                   .num_bytes = std::stoll(std::string(text.substr(0, space)))};
  TORCH_INTERNAL_ASSERT(from_hex(text.substr(space + 1), file.checksums));
  return file;
}

void read_back(const fs::path& folder, const IndexedFile& file, Verify verify) {
  if (verify == Verify::off) return;
  if (verify == Verify::sizes) return check_size(folder, file);
  const BlockRange whole{0, file.num_bytes};
  read_parts(folder, file, {&whole, 1}, [](int64_t, std::span<const std::byte>) {});
}

}  // namespace

Saver::Saver(const mesh::Axis& axis, const std::vector<HeldExtent>& held, SaverOptions options)
    : axis_(axis),
      options_(std::move(options)),
      own_(own_in_file_order(held)),
      layout_(extents_of(own_)) {
  const auto is_stored = [](const auto& part) { return part.values.is_meta(); };
  if (std::ranges::any_of(own_, is_stored)) options_.async = false;
  const auto layouts = run_on_all(axis_, [&] {
    if (axis_.rank() == 0) {
      lock_.emplace(options_.directory);
      clean_up(options_.directory);
    }
    return describe(layout_);
  });
  if (axis_.rank() == 0) {
    Index index;
    size_t file = 0;
    for (const auto& text : layouts) {
      const auto layout = layout_of(text);
      if (!layout.extents().empty()) layout.add_to(index, file++);
    }
    check_complete(options_.directory, index);
    tensors_ = std::move(index.tensors);
  }
  if (!options_.async) return;
  image_ = PageBuffer(layout_.num_bytes());
  populating_ = std::async(std::launch::async, [this] { image_.populate(); });
}

Saver::~Saver() {
  if (under_way_.valid()) under_way_.wait();
}

void Saver::save(Snapshot snapshot) {
  const auto start = Clock::now();
  finish();
  if (populating_.valid()) populating_.get();
  const double waited = seconds_since(start);
  const auto copying = Clock::now();
  if (options_.async) fill(0, image_.bytes().first(static_cast<size_t>(layout_.num_bytes())));
  const double copied = seconds_since(copying);
  const auto run = [this, snapshot = std::move(snapshot), waited, copied, start] {
    auto report = write(snapshot);
    report.wait_seconds = waited;
    report.total_seconds = seconds_since(start);
    report.stall_seconds = options_.async ? copied : report.total_seconds - waited;
    return report;
  };
  under_way_ = std::async(options_.async ? std::launch::async : std::launch::deferred, run);
  if (!options_.async) finish();
}

void Saver::finish() {
  if (under_way_.valid()) reports_.push_back(under_way_.get());
}

std::vector<SaveReport> Saver::take_reports() {
  using namespace std::chrono_literals;
  if (under_way_.valid() && under_way_.wait_for(0s) == std::future_status::ready) finish();
  return std::exchange(reports_, {});
}

SaveReport Saver::write(const Snapshot& snapshot) {
  SaveReport report{.step = snapshot.step, .num_bytes = layout_.num_bytes()};
  try {
    write_all(snapshot, report);
  } catch (const SystemError& error) {
    report.error = error.what();
  } catch (const UserError& error) {  // what was read back is damaged
    report.error = error.what();
  }
  return report;
}

void Saver::write_all(const Snapshot& snapshot, SaveReport& report) {
  const bool first = axis_.rank() == 0;
  const auto partial = run_on_all(axis_, [&] {
    return first ? begin_checkpoint(options_.directory, snapshot.step).string() : "";
  })[0];
  try {
    const auto shards = run_on_all(
        axis_, [&] { return layout_.extents().empty() ? "" : to_text(write_shard(partial)); });
    run_on_all(axis_, [&] {
      if (!first) return "";
      std::vector<IndexedFile> files;
      for (size_t rank = 0; rank < shards.size(); ++rank) {
        if (!shards[rank].empty()) files.push_back(file_of(shard_name(rank), shards[rank]));
      }
      for (const auto& asset : options_.assets) {
        files.push_back(write_asset(asset, partial));
      }
      finish_checkpoint(partial, index_of(snapshot, std::move(files)), snapshot.validation_loss);
      remove_superseded(report);
      return "";
    });
  } catch (const std::runtime_error&) {
    try {
      if (first) discard_checkpoint(partial);
    } catch (const SystemError&) {  // the next start cleans up
    }
    throw;
  }
}

IndexedFile Saver::write_shard(const fs::path& partial) {
  IndexedFile file{.name = shard_name(static_cast<size_t>(axis_.rank())),
                   .num_bytes = layout_.num_bytes()};
  file.checksums =
      write_parts(partial / file.name, file.num_bytes,
                  [&](int64_t offset, std::span<std::byte> scratch) -> std::span<const std::byte> {
                    if (options_.async)
                      return image_.bytes().subspan(static_cast<size_t>(offset), scratch.size());
                    fill(offset, scratch);
                    return scratch;
                  });
  read_back(partial, file, options_.verify);
  return file;
}

/// The parts' bytes as they lie in the file.
void Saver::fill(int64_t offset, std::span<std::byte> destination) const {
  const torch::NoGradGuard no_grad;
  layout_.fill(offset, destination, [&](size_t piece, int64_t begin, std::span<std::byte> room) {
    const auto& values = own_[piece].values;
    if (values.is_meta()) {
      own_[piece].stored.read(begin_in_storage(values) + begin, room);
    } else if (values.is_cpu()) {
      std::memcpy(room.data(), static_cast<const std::byte*>(values.const_data_ptr()) + begin,
                  room.size());
    } else {
      const auto size = std::ssize(room);
      at::from_blob(room.data(), {size}, torch::kByte)
          .copy_(values.view(torch::kByte).narrow(0, begin, size));
    }
  });
}

Index Saver::index_of(const Snapshot& snapshot, std::vector<IndexedFile> files) const {
  return {.step = snapshot.step,
          .files = std::move(files),
          .tensors = tensors_,
          .layout = options_.layout,
          .state = snapshot.state,
          .model = options_.model,
          .config = options_.config};
}

void Saver::remove_superseded(SaveReport& report) const {
  std::vector<Marker> markers;
  std::map<int64_t, fs::path> paths;
  for (const auto& [path, marker] :
       complete_checkpoints(options_.directory)) {  // others are not ours to remove
    markers.push_back(marker);
    paths[marker.step] = path;
  }
  try {
    for (const int64_t step : superseded(markers, options_.retention)) {
      remove_checkpoint(paths.at(step));
      report.removed.push_back(step);
    }
  } catch (const SystemError& error) {  // the new one is complete all the same
    report.removal_error = error.what();
  }
}

}  // namespace tessera::checkpoint
