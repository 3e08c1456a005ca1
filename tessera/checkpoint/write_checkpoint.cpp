#include "tessera/checkpoint/write_checkpoint.h"

#include <algorithm>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/base/file.h"
#include "tessera/checkpoint/block_file.h"
#include "tessera/checkpoint/pending_folder.h"
#include "tessera/checkpoint/shard.h"
#include "tessera/checkpoint/source_view.h"

namespace tessera::checkpoint {
namespace fs = std::filesystem;
namespace {

void check_num_files(const TensorSource& source, int64_t num_files) {
  const int64_t most = std::max<int64_t>(total_bytes(source) / kPageBytes, 1);
  if (num_files >= 1 && num_files <= most) return;
  user_error("{}: expected 1 to {} files (a page of {} bytes each), got {}", source.path().string(),
             most, kPageBytes, num_files);
}

/// All tensors one after the other, cut into as many equal runs of bytes as there are files.
std::vector<std::vector<TensorExtent>> cut_evenly(const TensorSource& source, int64_t num_files) {
  const int64_t all = total_bytes(source);
  std::vector<std::vector<TensorExtent>> files(static_cast<size_t>(num_files));
  int64_t begin = 0;  // of the tensor, in bytes
  for (const auto& [name, info] : source.tensors()) {
    const int64_t count = info.num_elements();
    if (count == 0) files.front().push_back({{}, name, info});
    for (int64_t file = 0; file < num_files; ++file) {
      const int64_t element = dtype_bytes(info.dtype);
      const int64_t from = even_cut(all, num_files, file, begin, element, count);
      const int64_t to = even_cut(all, num_files, file + 1, begin, element, count);
      if (from == to) continue;
      files[static_cast<size_t>(file)].push_back({{from, to - from}, name, info});
    }
    begin += info.num_bytes();
  }
  return files;
}

IndexedFile write_shard(const TensorSource& source, const ShardLayout& layout,
                        const fs::path& path) {
  // A part begins at a multiple of every element's size, so it holds whole elements.
  const auto copy = [&](size_t i, int64_t begin, std::span<std::byte> destination) {
    const auto& extent = layout.extents()[i];
    source.read(extent.name, extent.begin + begin / dtype_bytes(extent.info.dtype), destination);
  };
  const auto part = [&](int64_t offset,
                        std::span<std::byte> scratch) -> std::span<const std::byte> {
    layout.fill(offset, scratch, copy);
    return scratch;
  };
  return {path.filename(), layout.num_bytes(), write_parts(path, layout.num_bytes(), part)};
}

}  // namespace

IndexedFile write_asset(const fs::path& asset, const fs::path& folder) {
  const MappedFile content(asset);
  write_file(folder / asset.filename(), content.text());
  IndexedFile file{.name = asset.filename(), .num_bytes = std::ssize(content.bytes())};
  append_checksums(content.bytes(), file.checksums);
  return file;
}

void write_checkpoint(const TensorSource& source, const fs::path& destination,
                      WriteOptions options) {
  check_num_files(source, options.num_files);
  PendingFolder folder(destination);
  Index index = std::move(options.about);
  for (auto& extents : cut_evenly(source, options.num_files)) {
    const ShardLayout layout(std::move(extents));
    const size_t number = index.files.size();
    layout.add_to(index, number);
    index.files.push_back(write_shard(source, layout, folder.path() / shard_name(number)));
  }
  for (const auto& asset : options.assets) {
    index.files.push_back(write_asset(asset, folder.path()));
  }
  complete(folder.path(), index, options.validation_loss);
  folder.commit();
}

std::vector<fs::path> checked_assets(const Checkpoint& checkpoint) {
  std::vector<fs::path> assets;
  for (const auto& file : checkpoint.index().files) {
    if (is_shard_name(file.name)) continue;
    const BlockRange whole{0, file.num_bytes};
    read_parts(checkpoint.path(), file, {&whole, 1}, [](int64_t, std::span<const std::byte>) {});
    assets.push_back(checkpoint.path() / file.name);
  }
  return assets;
}

Index about(const Checkpoint& checkpoint) {
  Index index = checkpoint.index();
  index.files.clear();
  index.tensors.clear();
  return index;
}

}  // namespace tessera::checkpoint
