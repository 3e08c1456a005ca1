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
#include "tessera/base/utf8.h"
#include "tessera/data/token_source.h"
#include "tessera/documents/documents.h"
#include "tessera/inference/choices.h"
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

/// Broken rows that were left out.
struct Skipped {
  int64_t rows = 0;
  std::string first;  ///< why
};

void tell_skipped(Evaluated& evaluated, const Skipped& skipped) {
  if (skipped.rows == 0) return;
  evaluated.figures["skipped"] = skipped.rows;
  evaluated.line += fmt::format("; {} rows skipped, the first: {}", skipped.rows, skipped.first);
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
    std::vector<int64_t> tokens;
    std::vector<bool> learned;
    for (const auto token : documents[i]) {
      tokens.push_back(documents::id_of(token));
      learned.push_back(documents::is_learned(token));
    }
    check_tokens(file, tokens, limits);
    std::ranges::move(windows(tokens, learned, limits.seq_len, limits.stride),
                      std::back_inserter(passages));
  }
  auto result = told(file, sum_of(scored(session, file, passages)),
                     fmt::format("{} documents", documents.size()), 0);
  const auto& counts = documents.counts();
  tell_skipped(result, {.rows = counts.bad_rows, .first = counts.first_bad});
  return result;
}

/// With what the tokenizer puts around a text, but a text that begins so already gets it once.
std::vector<int64_t> begun_once(const Session& session, const std::string& text) {
  auto tokens = session.tokens_of(text);
  if (tokens.size() < 2 || tokens[0] != tokens[1]) return tokens;
  auto plain = session.plain_tokens_of(text);
  return plain.size() < tokens.size() ? plain : tokens;
}

/// A row's choices, each behind the question.
std::vector<Passage> passages_of(const Session& session, const ChoiceRow& row, int64_t seq_len) {
  auto context = row.context;
  const auto last = context.find_last_not_of(" \t\n\r");
  context.resize(last == std::string::npos ? 0 : last + 1);
  const auto blanks =
      context.size() < row.context.size() ? row.context.substr(context.size()) : " ";
  const auto beginning =
      context.empty() ? session.tokens_of(context) : begun_once(session, context);
  std::vector<Passage> passages;
  for (const auto& choice : row.choices) {
    std::vector<int64_t> tokens;
    if (context.empty()) {
      const auto plain = session.plain_tokens_of(blanks + choice);
      tokens = beginning;
      tokens.insert(tokens.end(), plain.begin(), plain.end());
    } else {
      tokens = begun_once(session, context + blanks + choice);
    }
    const auto before = std::min(std::ssize(beginning), std::ssize(tokens) - 1);
    const auto cut = std::max<int64_t>(0, std::ssize(tokens) - (seq_len + 1));
    Passage& passage = passages.emplace_back();
    passage.tokens.assign(tokens.begin() + cut, tokens.end());
    for (auto i = cut; i < std::ssize(tokens); ++i) passage.scored.push_back(i >= before);
  }
  return passages;
}

double standard_error(double share, size_t count) {
  return count < 2 ? 0 : std::sqrt(share * (1 - share) / static_cast<double>(count - 1));
}

struct ChoiceRows {
  std::vector<ChoiceRow> rows;
  Skipped skipped;
};

ChoiceRows read_choices(const Request& request, const std::string& file) {
  records::RecordReader reader({.paths = {file}, .skip_bad_lines = request.skip_bad_lines});
  ChoiceRows found;
  auto& [rows, skipped] = found;
  while (auto record = reader.next()) {
    if (request.max_rows > 0 && std::ssize(rows) == request.max_rows) break;
    try {
      rows.push_back(read_choice_row(record->value));
    } catch (const UserError& error) {  // where it stands
      const auto line = fmt::format("{}: {}", reader.place(*record), error.what());
      if (!request.skip_bad_lines)
        user_error("{}; set skip_bad_lines to leave such rows out", line);
      if (skipped.rows++ == 0) skipped.first = line;
    }
  }
  skipped.rows += reader.num_skipped();
  if (skipped.first.empty()) skipped.first = reader.first_skipped();
  if (rows.empty())
    user_error("{}: no question that can be answered; the first: {}", file, skipped.first);
  return found;
}

Evaluated evaluate_choices(Session& session, const Request& request, const std::string& file,
                           const Limits& limits) {
  const auto [rows, skipped] = read_choices(request, file);
  std::vector<Passage> passages;
  for (const auto& row : rows) {
    for (auto& passage : passages_of(session, row, limits.seq_len)) {
      check_tokens(file, passage.tokens, limits);
      passages.push_back(std::move(passage));
    }
  }
  const auto scores = scored(session, file, passages);
  size_t right = 0, right_by_length = 0, at = 0;
  for (const auto& row : rows) {
    std::vector<double> sums, by_length;
    for (const auto& choice : row.choices) {
      sums.push_back(scores[at++].log_probability);
      by_length.push_back(sums.back() / static_cast<double>(num_characters(choice)));
    }
    const auto best = [](const std::vector<double>& values) {
      return static_cast<size_t>(std::ranges::max_element(values) - values.begin());
    };
    right += best(sums) == row.answer ? 1 : 0;
    right_by_length += best(by_length) == row.answer ? 1 : 0;
  }
  const auto share = [&](size_t count) {
    return static_cast<double>(count) / static_cast<double>(rows.size());
  };
  const double acc = share(right), acc_norm = share(right_by_length);
  const double acc_error = standard_error(acc, rows.size());
  const double norm_error = standard_error(acc_norm, rows.size());
  Evaluated result{
      .file = file,
      .figures = {{"rows", rows.size()},
                  {"acc", acc},
                  {"acc_stderr", acc_error},
                  {"acc_norm", acc_norm},
                  {"acc_norm_stderr", norm_error}},
      .line = fmt::format("{} questions: acc {:.4f} +- {:.4f}, acc_norm {:.4f} +- {:.4f}",
                          rows.size(), acc, acc_error, acc_norm, norm_error)};
  tell_skipped(result, skipped);
  return result;
}

bool is_of_choices(const Request& request, const std::string& file) {
  records::RecordReader reader({.paths = {file}, .skip_bad_lines = request.skip_bad_lines});
  const auto first = reader.next();
  return first && has_choices(first->value);
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
