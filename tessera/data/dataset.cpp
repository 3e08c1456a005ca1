#include "tessera/data/dataset.h"

#include <algorithm>
#include <cassert>
#include <cmath>
#include <utility>

#include "tessera/base/error.h"

namespace tessera::data {
namespace {

/// The paths as an error line names them.
std::string describe(const TokenSourceOptions& options) {
  const auto more = options.paths.size() - 1;
  return more == 0 ? options.paths.front()
                   : fmt::format("{} and {} more", options.paths.front(), more);
}

Dataset open_dataset(const TokenSourceOptions& paths, const DatasetsOptions& options) {
  auto source = std::make_shared<TokenSource>(TokenSource::open(paths));
  if (source->size() <= options.seq_len) {
    user_error(
        "{}: too short for one sample: expected at least {} tokens (data.seq_len + 1), got {}",
        describe(paths), options.seq_len + 1, source->size());
  }
  if (options.vocab_size > 0) source->check_vocabulary(options.vocab_size);
  return Dataset(std::move(source), options.seq_len);
}

}  // namespace

Dataset::Dataset(std::shared_ptr<const TokenSource> source, int64_t seq_len)
    : source_(std::move(source)), seq_len_(seq_len) {
  if (seq_len < 1) user_error("data.seq_len: expected at least 1, got {}", seq_len);
  end_ = std::max<int64_t>(source_->size() - 1, 0) / seq_len;
  if (end_ == 0) {
    user_error(
        "data: too short for one sample: expected at least {} tokens (data.seq_len + 1), got {}",
        seq_len + 1, source_->size());
  }
}

void Dataset::read(int64_t sample, std::span<int64_t> tokens) const {
  assert(sample >= 0 && sample < size() && static_cast<int64_t>(tokens.size()) == seq_len_ + 1);
  source_->read((begin_ + sample) * seq_len_, tokens);
}

Dataset Dataset::slice(int64_t begin, int64_t end) const {
  assert(0 <= begin && begin < end && end <= size());
  Dataset part = *this;
  part.begin_ = begin_ + begin;
  part.end_ = begin_ + end;
  return part;
}

Datasets open_datasets(const DatasetsOptions& options) {
  if (options.seq_len < 1) user_error("data.seq_len: expected at least 1, got {}", options.seq_len);
  const double fraction = options.validation_fraction;
  if (!(fraction >= 0 && fraction < 1)) {
    user_error("data.validation_fraction: expected 0 or more and below 1, got {}", fraction);
  }
  Dataset all = open_dataset(options.train, options);
  if (!options.validation_paths.empty()) {
    TokenSourceOptions validation = options.train;
    validation.paths = options.validation_paths;
    return {all, open_dataset(validation, options)};
  }
  if (fraction == 0) return {all, std::nullopt};
  const auto rounded =
      static_cast<int64_t>(std::llround(fraction * static_cast<double>(all.size())));
  const int64_t held_out = std::max<int64_t>(1, rounded);
  const int64_t kept = all.size() - held_out;
  if (kept < 1) {
    user_error(
        "{}: {} samples of {} tokens leave none to train on after data.validation_fraction {}; set "
        "it to 0, or "
        "give data.validation files of its own",
        describe(options.train), all.size(), options.seq_len, fraction);
  }
  return {all.slice(0, kept), all.slice(kept, all.size())};
}

}  // namespace tessera::data
