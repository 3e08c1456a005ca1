#include "tessera/documents/documents.h"

#include <algorithm>
#include <exception>
#include <optional>
#include <thread>

#include "tessera/base/digest.h"
#include "tessera/base/error.h"
#include "tessera/base/list_files.h"
#include "tessera/records/reader.h"

namespace tessera::documents {
namespace {

constexpr size_t kRowsAtOnce = 1024;

/// A row on its way: what it became, or why it did not.
struct Work {
  records::Record record;
  std::vector<std::vector<MarkedToken>> documents;
  std::string refusal;         ///< of the user's row
  std::exception_ptr failure;  ///< of anything else
};

void encode(const DocumentEncoder& encoder, data::RowShape shape, Work& work) {
  const auto& row = work.record.value;
  try {
    if (shape == data::RowShape::preference) {
      const auto [chosen, rejected] = read_pair(row, encoder.learn());
      work.documents = {encoder.encode(chosen), encoder.encode(rejected)};
    } else {
      work.documents = {encoder.encode(read_example(row, shape, encoder.learn()))};
    }
  } catch (const UserError& error) {
    work.refusal = error.what();
  } catch (...) {
    work.failure = std::current_exception();
  }
}

void encode_all(const DocumentEncoder& encoder, int num_threads, data::RowShape shape,
                std::span<Work> rows) {
  const auto count = static_cast<size_t>(std::max(1, num_threads));
  std::vector<std::jthread> threads;
  for (size_t thread = 0; thread < count; ++thread) {
    threads.emplace_back([&, thread] {
      for (size_t i = thread; i < rows.size(); i += count) encode(encoder, shape, rows[i]);
    });
  }
}

data::RowShape shape_of_first(const records::RecordReader& reader, const records::Record& first) {
  try {
    return shape_of(first.value);
  } catch (const UserError& error) {
    user_error("{}: {}; set shape", reader.place(first), error.what());
  }
}

bool has_learned(std::span<const MarkedToken> tokens) {
  // The first token is never predicted.
  return tokens.size() > 1 && std::ranges::any_of(tokens.subspan(1), is_learned);
}

}  // namespace

std::span<const MarkedToken> Documents::operator[](size_t document) const {
  const size_t begin = document == 0 ? 0 : ends_[document - 1];
  return std::span(tokens_).subspan(begin, ends_[document] - begin);
}

std::vector<std::span<const MarkedToken>> Documents::of_row(size_t row) const {
  std::vector<std::span<const MarkedToken>> documents;
  const auto count = static_cast<size_t>(counts_.documents_per_row);
  for (size_t i = 0; i < count; ++i) documents.push_back((*this)[row * count + i]);
  return documents;
}

void Documents::append(const std::vector<MarkedToken>& tokens) {
  tokens_.insert(tokens_.end(), tokens.begin(), tokens.end());
  ends_.push_back(tokens_.size());
  for (const auto token : tokens) largest_id_ = std::max(largest_id_, id_of(token));
  counts_.tokens += static_cast<int64_t>(tokens.size());
  counts_.learned += std::ranges::count_if(tokens, is_learned);
}

Documents load_documents(const DocumentEncoder& encoder, const DocumentsOptions& options) {
  records::RecordReader reader({.paths = options.paths, .skip_bad_lines = options.skip_bad_lines});
  Documents documents;
  auto& counts = documents.counts_;
  auto shape = options.shape;
  const auto is_full = [&] {
    return options.max_documents > 0 && counts.rows >= options.max_documents;
  };
  for (bool more = true; more && !is_full();) {
    std::vector<Work> rows;
    while (rows.size() < kRowsAtOnce) {
      auto record = reader.next();
      if (!(more = record.has_value())) break;
      rows.push_back({.record = std::move(*record), .documents = {}, .refusal = {}, .failure = {}});
    }
    if (rows.empty()) break;
    if (shape == data::RowShape::automatic) shape = shape_of_first(reader, rows.front().record);
    if (shape == data::RowShape::preference) counts.documents_per_row = 2;
    if (is_conversation(rows.front().record.value, shape)) encoder.check_template();
    encode_all(encoder, options.num_threads, shape, rows);
    for (const auto& row : rows) {
      if (is_full()) break;
      if (row.failure) std::rethrow_exception(row.failure);
      if (!row.refusal.empty()) {
        const auto line = fmt::format("{}: {}", reader.place(row.record), row.refusal);
        if (!options.skip_bad_lines)
          user_error("{}; set skip_bad_lines to leave such rows out", line);
        if (counts.bad_rows++ == 0) counts.first_bad = line;
      } else if (!std::ranges::all_of(row.documents, has_learned)) {
        ++counts.no_answer;
      } else {
        for (const auto& tokens : row.documents) documents.append(tokens);
        ++counts.rows;
      }
    }
  }
  counts.bad_rows += reader.num_skipped();
  if (counts.first_bad.empty()) counts.first_bad = reader.first_skipped();
  if (counts.rows == 0)
    user_error("{}: no row to learn from: {}", options.paths.front(), summary(counts));
  documents.digest_ = sha256(std::as_bytes(std::span(documents.tokens_)));
  return documents;
}

Documents make_documents(std::span<const std::vector<MarkedToken>> documents) {
  Documents made;
  for (const auto& tokens : documents) made.append(tokens);
  made.counts_.rows = std::ssize(documents);
  made.digest_ = sha256(std::as_bytes(std::span(made.tokens_)));
  return made;
}

std::vector<int64_t> inputs_within(int64_t seq_len,
                                   std::span<const std::span<const MarkedToken>> documents) {
  std::vector<int64_t> inputs;
  for (const auto document : documents) inputs.push_back(std::ssize(document) - 1);
  // Shared evenly, but what shorter ones leave goes to the others.
  auto ascending = inputs;
  std::ranges::sort(ascending);
  int64_t most = seq_len, room = seq_len, left = std::ssize(ascending);
  for (const auto length : ascending) {
    most = room / left--;
    if (length > most) break;
    room -= length;
  }
  const bool all_fit = ascending.empty() || ascending.back() <= most;
  if (!all_fit) {
    for (auto& length : inputs) length = std::min(length, most);
  }
  return inputs;
}

bool are_records(const std::vector<std::string>& paths) {
  namespace fs = std::filesystem;
  const auto is_record = [](const fs::path& path) {
    return records::type_by_name(path).has_value();
  };
  return std::ranges::all_of(paths, [&](const std::string& path) {
    if (!fs::is_directory(path)) {
      return is_record(path) ||
             (!fs::exists(path) && path.find_first_of("*?[") != std::string::npos);
    }
    const auto files = list_files(path, [](const fs::path&) { return true; });
    return !files.empty() && std::ranges::all_of(files, is_record);
  });
}

std::string summary(const Counts& counts) {
  auto text = fmt::format("{} {}, {} tokens, {:.1f} % of them learned", counts.rows,
                          counts.documents_per_row == 2 ? "pairs" : "documents", counts.tokens,
                          100.0 * static_cast<double>(counts.learned) /
                              static_cast<double>(std::max<int64_t>(1, counts.tokens)));
  if (counts.no_answer > 0) {
    text += fmt::format("; {} rows left out: nothing in them is learned", counts.no_answer);
  }
  if (counts.bad_rows > 0) {
    text += fmt::format("; {} rows skipped, the first: {}", counts.bad_rows, counts.first_bad);
  }
  return text;
}

}  // namespace tessera::documents
