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
    user_error("{}: too short for one sample: expected at least {} tokens (seq_len + 1), got {}",
               describe(paths), options.seq_len + 1, source->size());
  }
  if (options.vocab_size > 0) source->check_vocabulary(options.vocab_size);
  if (!options.document_mask) return Dataset(std::move(source), options.seq_len);
  if (!options.document_end && !source->is_text()) {
    user_error("{}: document_mask: its tokens do not say where a document ends; set document_end",
               describe(paths));
  }
  const int64_t end = options.document_end.value_or(0);
  return Dataset(std::move(source), options.seq_len).with_documents(end);
}

/// The stretches that are held out of `all`, or nothing if they leave none to train on.
struct Division {
  Stretches train, validation;
};
std::optional<Division> divide(const Dataset& all, double fraction) {
  // At least so many samples from stretch to stretch, and to train on between them.
  constexpr int64_t kMostStretches = 64, kFewestSamples = 16, kFewestBetween = 2;
  const int64_t length = all.seq_len();
  const auto rounded =
      static_cast<int64_t>(std::llround(fraction * static_cast<double>(all.size())));
  const int64_t held_out = std::max<int64_t>(1, rounded);
  const int64_t room =
      std::min(all.size() / kFewestSamples, (all.size() - held_out) / kFewestBetween);
  const int64_t most = std::clamp<int64_t>(room, 1, kMostStretches);
  const int64_t each = (held_out + most - 1) / most;
  const int64_t count = held_out / each, stride = all.num_tokens() / count;
  // The last target of a sample is the first input of the next, but not across this border.
  const int64_t tokens_before = stride - (each * length + 1);
  if (tokens_before <= length) return {};
  return Division{
      .train = {.count = count, .stride = stride, .num_samples = (tokens_before - 1) / length},
      .validation = {
          .count = count, .first_token = tokens_before, .stride = stride, .num_samples = each}};
}

}  // namespace

Dataset::Dataset(std::shared_ptr<const TokenSource> source, int64_t seq_len)
    : source_(std::move(source)), seq_len_(seq_len) {
  if (seq_len < 1) user_error("seq_len: expected at least 1, got {}", seq_len);
  stretches_.num_samples = std::max<int64_t>(source_->size() - 1, 0) / seq_len;
  if (stretches_.num_samples == 0) {
    user_error("data: too short for one sample: expected at least {} tokens (seq_len + 1), got {}",
               seq_len + 1, source_->size());
  }
}

void Dataset::read(int64_t sample, std::span<int64_t> tokens) const {
  assert(sample >= 0 && sample < size() && static_cast<int64_t>(tokens.size()) == seq_len_ + 1);
  const int64_t stretch = sample / stretches_.num_samples;
  const int64_t within = sample % stretches_.num_samples;
  source_->read(stretches_.first_token + stretch * stretches_.stride + within * seq_len_, tokens);
}

void Dataset::read(int64_t row, std::span<int64_t> inputs, std::span<int64_t> targets,
                   std::vector<DocumentRange>& documents) const {
  std::vector<int64_t> tokens(static_cast<size_t>(seq_len_) + 1);
  read(row, tokens);
  std::copy_n(tokens.begin(), seq_len_, inputs.begin());
  std::copy_n(tokens.begin() + 1, seq_len_, targets.begin());
  if (!document_end_) return;
  int64_t begin = 0;
  for (int64_t i = 0; i < seq_len_; ++i) {
    const auto place = static_cast<size_t>(i);
    const bool ends = inputs[place] == *document_end_;
    if (ends) targets[place] = kIgnoredTarget;
    if (!ends && i + 1 < seq_len_) continue;
    documents.push_back({begin, i + 1});
    begin = i + 1;
  }
}

Dataset Dataset::with_documents(int64_t end) const {
  Dataset same = *this;
  same.document_end_ = end;
  return same;
}

Dataset Dataset::within(const Stretches& stretches) const {
  assert(stretches.count > 0 && stretches.num_samples > 0 && stretches.first_token >= 0 &&
         stretches.first_token + (stretches.count - 1) * stretches.stride +
                 stretches.num_samples * seq_len_ <
             num_tokens());
  Dataset part = *this;
  part.stretches_ = stretches;
  return part;
}

Datasets open_datasets(const DatasetsOptions& options) {
  if (options.seq_len < 1) user_error("seq_len: expected at least 1, got {}", options.seq_len);
  const double fraction = options.validation_fraction;
  if (!(fraction >= 0 && fraction < 1)) {
    user_error("validation_fraction: expected 0 or more and below 1, got {}", fraction);
  }
  Dataset all = open_dataset(options.train, options);
  if (!options.validation_paths.empty()) {
    TokenSourceOptions validation = options.train;
    validation.name = "validation";
    validation.paths = options.validation_paths;
    return {all, open_dataset(validation, options)};
  }
  if (fraction == 0) return {all, std::nullopt};
  const auto division = divide(all, fraction);
  if (!division) {
    user_error(
        "{}: {} samples of {} tokens leave none to train on after validation_fraction {} and the "
        "borders; set it to 0, or give validation files of its own",
        describe(options.train), all.size(), options.seq_len, fraction);
  }
  return {all.within(division->train), all.within(division->validation)};
}

}  // namespace tessera::data
