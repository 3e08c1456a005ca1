#include "tessera/train/open_data.h"

#include <fmt/format.h>

#include <utility>

#include "tessera/base/error.h"
#include "tessera/data/dataset.h"
#include "tessera/data/packed_rows.h"

namespace tessera::train {
namespace {

using config::DataSection;

OpenedData open_tokens(const DataSection& section, int64_t vocab_size) {
  auto opened = data::open_datasets({.train = {.paths = section.train,
                                               .format = section.format,
                                               .token_dtype = section.token_dtype,
                                               .extensions = section.extensions},
                                     .validation_paths = section.validation,
                                     .validation_fraction = section.validation_fraction,
                                     .seq_len = section.seq_len,
                                     .vocab_size = vocab_size,
                                     .document_mask = section.document_mask,
                                     .document_end = section.document_end});
  OpenedData result{.train = std::make_shared<data::Dataset>(std::move(opened.train)),
                    .validation = nullptr,
                    .tokenizer = nullptr,
                    .note = ""};
  if (opened.validation) {
    result.validation = std::make_shared<data::Dataset>(std::move(*opened.validation));
  }
  return result;
}

using SharedDocuments = std::shared_ptr<const documents::Documents>;

std::shared_ptr<const documents::DocumentEncoder> make_encoder(const config::RunConfig& config) {
  const auto& section = config.data;
  const auto& tokenizer = section.tokenizer.empty() ? config.model.path : section.tokenizer;
  if (tokenizer.empty()) {
    user_error(
        "tokenizer: expected a model's folder or a tokenizer's file, which records need, got none; "
        "set tokenizer, or model.path");
  }
  return std::make_shared<const documents::DocumentEncoder>(documents::EncoderOptions{
      .tokenizer = tokenizer, .chat_template = section.chat_template, .learn = section.learn});
}

SharedDocuments load(const documents::DocumentEncoder& encoder, const config::RunConfig& config,
                     const std::vector<std::string>& paths, int64_t vocab_size, int num_threads) {
  const auto& section = config.data;
  const bool wants_pairs = config.preference.loss != PreferenceLoss::none;
  const auto shape = wants_pairs ? data::RowShape::preference : section.shape;
  auto loaded = documents::load_documents(encoder, {.paths = paths,
                                                    .shape = shape,
                                                    .skip_bad_lines = section.skip_bad_lines,
                                                    .max_documents = section.max_documents,
                                                    .num_threads = num_threads});
  if (loaded.counts().documents_per_row == 2 && !wants_pairs) {
    user_error(
        "{}: its rows are pairs of a chosen and a rejected answer, which preference.loss none does "
        "not learn; set it to sigmoid, ipo or orpo, or shape to another",
        paths.front());
  }
  if (loaded.largest_id() >= vocab_size) {
    user_error("{}: token {} in {}, but the model has {} rows in its vocabulary: of another model?",
               encoder.tokenizer_path(), loaded.largest_id(), paths.front(), vocab_size);
  }
  return std::make_shared<const documents::Documents>(std::move(loaded));
}

std::string note_of(const documents::Documents& documents, const data::PackedRows& rows) {
  const auto& counts = rows.counts();
  auto note =
      fmt::format("{}; {} rows, {:.1f} % full", documents::summary(documents.counts()), counts.rows,
                  100.0 * static_cast<double>(counts.tokens) /
                      static_cast<double>(counts.rows * rows.seq_len()));
  if (counts.cut > 0) note += fmt::format("; {} cut to seq_len", counts.cut);
  if (counts.dropped > 0) {
    note +=
        fmt::format("; {} dropped: too long, or nothing to learn within seq_len", counts.dropped);
  }
  return note;
}

OpenedData open_records(const config::RunConfig& config, int64_t vocab_size, int num_threads) {
  const auto& section = config.data;
  const data::PackedRowsOptions options{
      .seq_len = section.seq_len, .packing = section.packing, .too_long = section.too_long};
  const auto rows_of = [&](const SharedDocuments& documents, std::vector<uint32_t> chosen) {
    return std::make_shared<const data::PackedRows>(documents, std::move(chosen), options);
  };
  const auto encoder = make_encoder(config);
  const auto documents = load(*encoder, config, section.train, vocab_size, num_threads);
  const bool own_files = !section.validation.empty();
  auto divided =
      data::divide_rows(documents->num_rows(), own_files ? 0 : section.validation_fraction);
  if (divided.train.empty()) {
    user_error(
        "{}: {} row leaves none to train on after validation_fraction {}; set it to 0, or "
        "give validation files of its own",
        section.train.front(), documents->num_rows(), section.validation_fraction);
  }
  OpenedData opened;
  opened.tokenizer = {encoder, &encoder->tokenizer()};
  const auto train = rows_of(documents, std::move(divided.train));
  opened.note = note_of(*documents, *train);
  opened.train = train;
  if (own_files) {
    const auto others = load(*encoder, config, section.validation, vocab_size, num_threads);
    opened.validation = rows_of(others, data::divide_rows(others->num_rows(), 0).train);
  } else if (!divided.validation.empty()) {
    opened.validation = rows_of(documents, std::move(divided.validation));
  }
  return opened;
}

}  // namespace

OpenedData open_data(const config::RunConfig& config, int64_t vocab_size, int num_threads) {
  const auto& section = config.data;
  const bool records =
      section.format == data::DataFormat::records ||
      (section.format == data::DataFormat::automatic && documents::are_records(section.train));
  if (!records) return open_tokens(section, vocab_size);
  if (section.document_mask) {
    user_error(
        "{}: document_mask has no effect on records, whose documents always see themselves alone; "
        "leave it out",
        section.train.front());
  }
  return open_records(config, vocab_size, num_threads);
}

}  // namespace tessera::train
