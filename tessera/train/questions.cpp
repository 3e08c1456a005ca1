#include "tessera/train/questions.h"

#include <utility>

#include "tessera/base/error.h"
#include "tessera/data/packed_rows.h"
#include "tessera/data/token_source.h"
#include "tessera/documents/documents.h"
#include "tessera/generate/codec.h"
#include "tessera/train/assemble.h"
#include "tessera/train/document_scores.h"
#include "tessera/train/open_data.h"

namespace tessera::train {
namespace {

/// nullptr: bytes.
std::shared_ptr<const text::Tokenizer> tokenizer_of(const config::RunConfig& config) {
  const auto& section = config.data;
  if (!section.tokenizer.empty())
    return std::make_shared<const text::Tokenizer>(text::load_tokenizer(section.tokenizer));
  if (!config.model.path.empty() && text::has_tokenizer(config.model.path))
    return std::make_shared<const text::Tokenizer>(text::load_tokenizer(config.model.path));
  if (data::TokenSource::open({.paths = data_paths(section.train)}).is_text()) return nullptr;
  user_error(
      "choices: {} are tokens, but not said of which tokenizer, which questions need; set "
      "tokenizer",
      section.train.front());
}

}  // namespace

std::optional<Questions> open_questions(const config::RunConfig& config,
                                        std::shared_ptr<const text::Tokenizer> tokenizer,
                                        int64_t vocab_size, const data::LoaderOptions& loading) {
  const auto& section = config.data;
  if (section.choices.empty()) return {};
  if (tokenizer == nullptr) tokenizer = tokenizer_of(config);
  const generate::Codec codec(std::move(tokenizer), vocab_size);
  const documents::TextEncoding encoding{
      .whole = [&](const std::string& text) { return codec.encode(text); },
      .plain = [&](const std::string& text) { return codec.encode_plain(text); }};
  auto loaded = documents::load_choices(
      {.paths = data_paths(section.choices), .skip_bad_lines = section.skip_bad_lines});
  std::vector<std::vector<documents::MarkedToken>> choices;
  for (const auto& row : loaded.rows) {
    for (auto& choice : documents::encode_choices(row, encoding, section.seq_len))
      choices.push_back(std::move(choice));
  }
  auto documents = documents::make_documents(choices);
  if (documents.largest_id() >= vocab_size) {
    user_error("{}: token {}, but the model has {} rows in its vocabulary: of another model?",
               section.choices.front(), documents.largest_id(), vocab_size);
  }
  auto all = data::divide_rows(documents.num_rows(), 0).train;
  const auto rows = std::make_shared<const data::PackedRows>(
      std::make_shared<const documents::Documents>(std::move(documents)), std::move(all),
      data::PackedRowsOptions{
          .seq_len = section.seq_len, .too_long = data::TooLong::error, .name = "choices"});
  return Questions{.rows = std::move(loaded.rows), .choices = data::Loader(rows, loading)};
}

std::vector<report::Figure> answer_questions(Run& run) {
  if (!run.questions) return {};
  const auto figures =
      documents::choice_figures(run.questions->rows, document_scores(run, run.questions->choices));
  return {{"choices/acc", figures.acc, "acc"}, {"choices/acc_norm", figures.acc_norm, "acc_norm"}};
}

}  // namespace tessera::train
