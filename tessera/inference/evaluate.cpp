#include "tessera/inference/evaluate.h"

#include <ATen/Parallel.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <numbers>
#include <optional>

#include "tessera/base/error.h"
#include "tessera/base/file.h"
#include "tessera/data/token_source.h"
#include "tessera/documents/choices.h"
#include "tessera/documents/documents.h"
#include "tessera/inference/console.h"
#include "tessera/inference/scores.h"
#include "tessera/inference/session.h"
#include "tessera/records/reader.h"
#include "tessera/report/amount_progress.h"

namespace tessera::inference {
namespace {

using json = nlohmann::ordered_json;

/// What came of one file.
struct Evaluated {
  std::string file;
  json figures;
  std::string line;  ///< for people
};

/// Lengths and windows of a model.
struct Limits {
  int64_t seq_len = 0, stride = 0, vocab_size = 0;
};

Limits limits_of(const Request& request, const models::ModelShape& shape) {
  const int64_t most = shape.max_seq_len;
  if (request.seq_len > most) {
    user_error("--seq-len: expected at most the model's {} positions, got {}", most,
               request.seq_len);
  }
  const int64_t seq_len = request.seq_len > 0 ? request.seq_len : most;
  if (request.stride > seq_len) {
    user_error("--stride: expected at most the {} tokens of a window, got {}", seq_len,
               request.stride);
  }
  const int64_t stride = request.stride > 0 ? request.stride : std::max<int64_t>(1, seq_len / 2);
  return {.seq_len = seq_len, .stride = stride, .vocab_size = shape.vocab_size};
}

void check_tokens(const std::string& file, std::span<const int64_t> tokens, const Limits& limits) {
  if (tokens.empty()) return;
  const auto largest = std::ranges::max(tokens);
  if (largest < limits.vocab_size) return;
  user_error("{}: token {}, but the model has {} rows in its vocabulary: of another model?", file,
             largest, limits.vocab_size);
}

std::vector<Score> scored(Session& session, const std::string& file,
                          const std::vector<Passage>& passages) {
  report::AmountProgress progress(file, 0, report::Amount::tokens);
  return scores_of(session.model(), passages,
                   [&](int64_t done, int64_t total) { progress.show(done, total); });
}

Score sum_of(const std::vector<Score>& scores) {
  Score sum;
  for (const auto& score : scores) {
    sum.log_probability += score.log_probability;
    sum.num_tokens += score.num_tokens;
  }
  return sum;
}

/// `num_bytes`: of the text; 0: not known.
Evaluated told(const std::string& file, const Score& score, const std::string& what,
               int64_t num_bytes) {
  if (score.num_tokens == 0) user_error("{}: has nothing to predict", file);
  const double loss = -score.log_probability / static_cast<double>(score.num_tokens);
  Evaluated result{
      .file = file,
      .figures = {{"tokens", score.num_tokens}, {"loss", loss}, {"perplexity", std::exp(loss)}},
      .line = fmt::format("{}, {} tokens predicted: loss {:.4f}, perplexity {:.4g}", what,
                          score.num_tokens, loss, std::exp(loss))};
  if (num_bytes > 0) {
    const double bits = -score.log_probability / std::numbers::ln2 / static_cast<double>(num_bytes);
    result.figures["bits_per_byte"] = bits;
    result.line += fmt::format(", {:.4f} bits a byte", bits);
  }
  return result;
}

/// Broken rows that were left out, and why the first was.
void tell_skipped(Evaluated& evaluated, int64_t rows, const std::string& first) {
  if (rows == 0) return;
  evaluated.figures["skipped"] = rows;
  evaluated.line += fmt::format("; {} rows skipped, the first: {}", rows, first);
}

Passage passage_of(std::span<const documents::MarkedToken> document) {
  Passage passage;
  for (const auto token : document) {
    passage.tokens.push_back(documents::id_of(token));
    passage.scored.push_back(documents::is_learned(token));
  }
  return passage;
}

/// Text, or a token file, from its beginning to its end.
Evaluated evaluate_stream(Session& session, const std::string& file, const Limits& limits) {
  const auto extension = std::filesystem::path(file).extension();
  std::vector<int64_t> tokens;
  int64_t num_bytes = 0;
  if (extension == ".bin" || extension == ".idx") {
    const auto source = data::TokenSource::open({.paths = {file}});
    tokens.resize(static_cast<size_t>(source.size()));
    source.read(0, tokens);
  } else {
    const auto text = read_file(file);
    if (text.empty()) user_error("{}: the file is empty", file);
    num_bytes = std::ssize(text);
    tokens = session.tokens_of(text);
  }
  check_tokens(file, tokens, limits);
  const std::vector<bool> all(tokens.size(), true);
  const auto passages = windows(tokens, all, limits.seq_len, limits.stride);
  return told(file, sum_of(scored(session, file, passages)), num_bytes > 0 ? "text" : "tokens",
              num_bytes);
}

Evaluated evaluate_documents(Session& session, const Request& request, const std::string& file,
                             const Limits& limits) {
  const auto documents =
      documents::load_documents(session.encoder(), {.paths = {file},
                                                    .shape = request.shape,
                                                    .skip_bad_lines = request.skip_bad_lines,
                                                    .max_documents = request.max_rows,
                                                    .num_threads = at::get_num_threads()});
  if (documents.counts().documents_per_row > 1) {
    user_error("{}: its rows are pairs of answers, which are not evaluated; give --shape", file);
  }
  std::vector<Passage> passages;
  for (size_t i = 0; i < documents.size(); ++i) {
    const auto [tokens, learned] = passage_of(documents[i]);
    check_tokens(file, tokens, limits);
    std::ranges::move(windows(tokens, learned, limits.seq_len, limits.stride),
                      std::back_inserter(passages));
  }
  auto result = told(file, sum_of(scored(session, file, passages)),
                     fmt::format("{} documents", documents.size()), 0);
  const auto& counts = documents.counts();
  tell_skipped(result, counts.bad_rows, counts.first_bad);
  return result;
}

Evaluated evaluate_choices(Session& session, const Request& request, const std::string& file,
                           const Limits& limits) {
  const auto found = documents::load_choices(
      {.paths = {file}, .skip_bad_lines = request.skip_bad_lines, .max_rows = request.max_rows});
  const documents::TextEncoding encoding{
      .whole = [&](const std::string& text) { return session.tokens_of(text); },
      .plain = [&](const std::string& text) { return session.plain_tokens_of(text); }};
  std::vector<Passage> passages;
  for (const auto& row : found.rows) {
    for (const auto& choice : documents::encode_choices(row, encoding, limits.seq_len)) {
      passages.push_back(passage_of(choice));
      check_tokens(file, passages.back().tokens, limits);
    }
  }
  std::vector<double> log_probabilities;
  for (const auto& score : scored(session, file, passages))
    log_probabilities.push_back(score.log_probability);
  const auto figures = documents::choice_figures(found.rows, log_probabilities);
  Evaluated result{
      .file = file,
      .figures = {{"rows", found.rows.size()},
                  {"acc", figures.acc},
                  {"acc_stderr", figures.acc_stderr},
                  {"acc_norm", figures.acc_norm},
                  {"acc_norm_stderr", figures.acc_norm_stderr}},
      .line = fmt::format("{} questions: acc {:.4f} +- {:.4f}, acc_norm {:.4f} +- {:.4f}",
                          found.rows.size(), figures.acc, figures.acc_stderr, figures.acc_norm,
                          figures.acc_norm_stderr)};
  tell_skipped(result, found.skipped, found.first_skipped);
  return result;
}

bool is_of_choices(const Request& request, const std::string& file) {
  records::RecordReader reader({.paths = {file}, .skip_bad_lines = request.skip_bad_lines});
  const auto first = reader.next();
  return first && documents::has_choices(first->value);
}

}  // namespace

void evaluate(const Request& request, const mesh::DeviceMesh& mesh) {
  Session session(request, mesh);
  const auto limits = limits_of(request, session.model().shape());
  auto all = json::object();
  for (const auto& file : request.files) {
    Evaluated found;
    if (!documents::are_records({file})) {
      found = evaluate_stream(session, file, limits);
    } else if (is_of_choices(request, file)) {
      found = evaluate_choices(session, request, file, limits);
    } else {
      found = evaluate_documents(session, request, file, limits);
    }
    all[found.file] = found.figures;
    if (!request.json) write_out(mesh, found.file + ": " + found.line + "\n");
  }
  const auto object = all.dump(2, ' ', false, json::error_handler_t::replace) + "\n";
  if (request.json) write_out(mesh, object);
  if (request.output.empty() || mesh.rank() != 0) return;
  const std::filesystem::path output(request.output);
  if (output.has_parent_path()) make_folder(output.parent_path());
  write_file(output, object);
}

}  // namespace tessera::inference
