#include "tessera/train/open_data.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/data/dataset.h"
#include "tessera/data/mixed_rows.h"
#include "tessera/data/packed_rows.h"
#include "tessera/data/token_source.h"
#include "tessera/hub/resolve_data.h"
#include "tessera/text/tokenizer.h"

namespace tessera::train {
namespace {

using config::DataSection;

/// Rows of one source, or of all that are joined.
struct Source {
  std::shared_ptr<const data::Rows> train, validation;  ///< no validation: nullptr
  std::string note;
};

Source open_tokens(const DataSection& section, const std::vector<std::string>& paths,
                   int64_t vocab_size) {
  auto opened = data::open_datasets({.train = {.paths = paths,
                                               .format = section.format,
                                               .token_dtype = section.token_dtype,
                                               .extensions = section.extensions},
                                     .validation_paths = data_paths(section.validation),
                                     .validation_fraction = section.validation_fraction,
                                     .seq_len = section.seq_len,
                                     .vocab_size = vocab_size,
                                     .document_mask = section.document_mask,
                                     .document_end = section.document_end});
  Source result{.train = std::make_shared<data::Dataset>(std::move(opened.train)),
                .validation = nullptr,
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

/// Reads records as tokens.
class RecordSources {
 public:
  RecordSources(const config::RunConfig& config, int64_t vocab_size, int num_threads)
      : config_(config),
        section_(config.data),
        encoder_(make_encoder(config)),
        vocab_size_(vocab_size),
        num_threads_(num_threads) {}

  Source open(const std::vector<std::string>& paths) const {
    const auto documents = load(*encoder_, config_, paths, vocab_size_, num_threads_);
    const bool own_files = !section_.validation.empty();
    auto divided =
        data::divide_rows(documents->num_rows(), own_files ? 0 : section_.validation_fraction);
    if (divided.train.empty()) {
      user_error(
          "{}: {} row leaves none to train on after validation_fraction {}; set it to 0, or "
          "give validation files of its own",
          paths.front(), documents->num_rows(), section_.validation_fraction);
    }
    const auto name = section_.weights.empty() ? "train" : paths.front();
    const auto train = rows_of(documents, std::move(divided.train), name);
    Source source{.train = train, .validation = nullptr, .note = note_of(*documents, *train)};
    if (!divided.validation.empty()) {
      source.validation =
          rows_of(documents, std::move(divided.validation), name, /*held_out=*/true);
    }
    return source;
  }

  /// The rows of data.validation.
  std::shared_ptr<const data::Rows> open_validation() const {
    const auto others =
        load(*encoder_, config_, data_paths(section_.validation), vocab_size_, num_threads_);
    return rows_of(others, data::divide_rows(others->num_rows(), 0).train, "validation");
  }

  std::shared_ptr<const text::Tokenizer> tokenizer() const {
    return {encoder_, &encoder_->tokenizer()};
  }

 private:
  std::shared_ptr<const data::PackedRows> rows_of(const SharedDocuments& documents,
                                                  std::vector<uint32_t> chosen,
                                                  const std::string& name,
                                                  bool held_out = false) const {
    return std::make_shared<const data::PackedRows>(
        documents, std::move(chosen),
        data::PackedRowsOptions{.seq_len = section_.seq_len,
                                .packing = section_.packing,
                                .too_long = section_.too_long,
                                .name = name,
                                .held_out = held_out});
  }

  const config::RunConfig& config_;
  const DataSection& section_;
  std::shared_ptr<const documents::DocumentEncoder> encoder_;
  int64_t vocab_size_;
  int num_threads_;
};

/// Whoever names a tokenizer, or goes on with a model that has one, does not mean to learn bytes; and rows of data sets
/// beside other files would be read as text, braces and all. Chosen by format, text is what was meant.
void check_no_other_text(const config::RunConfig& config, const std::vector<std::string>& paths) {
  const auto& section = config.data;
  if (section.format != data::DataFormat::automatic) return;
  const auto is_rows = [](const std::string& path) { return documents::are_records({path}); };
  const auto rows = std::ranges::find_if(paths, is_rows);
  if (rows != paths.end()) {
    user_error(
        "{}: rows of a data set beside {}, which is none; rename that one as what it holds, or set "
        "format to text to read all as bytes",
        *rows, *std::ranges::find_if_not(paths, is_rows));
  }
  const bool goes_on = config.model.init == models::Init::pretrained;
  const bool named = !section.tokenizer.empty();
  if (!named && !(goes_on && text::has_tokenizer(config.model.path))) return;
  const auto text = std::ranges::find_if(paths, [](const std::string& path) {
    return data::TokenSource::open({.paths = {path}}).is_text();
  });
  if (text == paths.end()) return;
  user_error(
      "{}: text would be read as bytes, not by the tokenizer of {}; make tokens of it with "
      "`tessera "
      "tokenize --tokenizer`, or rows (.jsonl) with a text each, or set format to text",
      *text, named ? section.tokenizer : config.model.path);
}

/// What is read together: all of data.train, or each entry that has a weight of its own.
std::vector<std::vector<std::string>> groups_of(const DataSection& section) {
  if (section.weights.empty()) return {data_paths(section.train)};
  std::vector<std::vector<std::string>> groups;
  for (const auto& entry : section.train) groups.push_back(data_paths({entry}));
  return groups;
}

/// Sources as one; what each of them holds out is joined.
OpenedData join(std::vector<Source> sources, const DataSection& section) {
  const bool mixed = !section.weights.empty();
  OpenedData opened;
  std::vector<std::shared_ptr<const data::Rows>> train, validation;
  for (size_t i = 0; i < sources.size(); ++i) {
    auto& [rows, held_out, note] = sources[i];
    if (mixed && note.empty())
      note = fmt::format("{} tokens, {} rows", rows->num_tokens(), rows->size());
    if (!note.empty()) opened.notes.push_back(mixed ? section.train[i] + ": " + note : note);
    train.push_back(std::move(rows));
    if (held_out) validation.push_back(std::move(held_out));
  }
  if (!mixed) {
    opened.train = train.front();
    if (!validation.empty()) opened.validation = validation.front();
    return opened;
  }
  opened.train = std::make_shared<data::MixedRows>(std::move(train), section.weights);
  if (!validation.empty())
    opened.validation =
        std::make_shared<data::MixedRows>(std::move(validation), std::vector<double>());
  return opened;
}

}  // namespace

std::vector<std::string> data_paths(const std::vector<std::string>& entries) {
  std::vector<std::string> paths;
  for (const auto& entry : entries) {
    auto found = hub::resolve_data(entry, [] {
      hub::ResolveOptions options;
      options.settings.offline = true;
      return options;
    });
    paths.insert(paths.end(), found.paths.begin(), found.paths.end());
  }
  return paths;
}

OpenedData open_data(const config::RunConfig& config, int64_t vocab_size, int num_threads) {
  const auto& section = config.data;
  const auto groups = groups_of(section);
  const bool records = section.format == data::DataFormat::records ||
                       (section.format == data::DataFormat::automatic &&
                        documents::are_records(data_paths(section.train)));
  std::vector<Source> sources;
  if (!records) {
    check_no_other_text(config, data_paths(section.train));
    for (const auto& paths : groups) sources.push_back(open_tokens(section, paths, vocab_size));
    // Files of their own to validate with are the same beside each source.
    if (!section.validation.empty())
      for (size_t i = 1; i < sources.size(); ++i) sources[i].validation = nullptr;
    return join(std::move(sources), section);
  }
  if (section.document_mask) {
    user_error(
        "{}: document_mask has no effect on records, whose documents always see themselves alone; "
        "leave it out",
        section.train.front());
  }
  const RecordSources reader(config, vocab_size, num_threads);
  for (const auto& paths : groups) sources.push_back(reader.open(paths));
  auto opened = join(std::move(sources), section);
  if (!section.validation.empty()) opened.validation = reader.open_validation();
  opened.tokenizer = reader.tokenizer();
  return opened;
}

}  // namespace tessera::train
