// tessera data show: what a run would learn from a data set.
#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdlib>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/base/machine.h"
#include "tessera/base/text.h"
#include "tessera/base/texts.h"
#include "tessera/cli/commands.h"
#include "tessera/cli/option_words.h"
#include "tessera/cli/output_file.h"
#include "tessera/cli/ranges.h"
#include "tessera/cli/stored_model.h"
#include "tessera/documents/documents.h"
#include "tessera/records/reader.h"
#include "tessera/report/histogram.h"
#include "tessera/report/terminal.h"

namespace tessera::cli {
namespace {

using documents::Documents;
using documents::MarkedToken;

struct ShowArguments {
  documents::DocumentsOptions documents;
  documents::EncoderOptions encoder;
  std::string model, shape = "auto", learn = "assistant", svg;
  int64_t seq_len = 0;  ///< 0: nothing is cut
  int64_t num_shown = 2;
  bool tokens = false;
};

/// What becomes of a token.
enum class Part { given, learned, cut };

/// How tokens are marked: by colours, or as git marks words.
struct Marks {
  bool colours = false;
  bool tokens = false;  ///< where one ends and the next begins

  std::string begin(Part part) const {
    if (colours) return part == Part::learned ? "\x1b[32m" : part == Part::cut ? "\x1b[31;9m" : "";
    return part == Part::learned ? "{+" : part == Part::cut ? "[-" : "";
  }
  std::string end(Part part) const {
    if (part == Part::given) return "";
    return colours ? "\x1b[0m" : part == Part::learned ? "+}" : "-]";
  }
};

/// The first `length` tokens are inputs, the one behind them the last that is predicted; 0: nothing is cut.
std::string shown(std::span<const MarkedToken> document, const text::Tokenizer& tokenizer,
                  int64_t length, const Marks& marks) {
  std::string out;
  text::StreamDecoder decoder(tokenizer);
  auto part = Part::given;
  for (size_t i = 0; i < document.size(); ++i) {
    const bool is_cut = length > 0 && static_cast<int64_t>(i) > length;
    const auto now = is_cut                               ? Part::cut
                     : documents::is_learned(document[i]) ? Part::learned
                                                          : Part::given;
    if (now != part) out += marks.end(part) + marks.begin(now);
    if (now == part && marks.tokens && i > 0) out += '|';
    part = now;
    out += printable(decoder.push(static_cast<uint32_t>(documents::id_of(document[i]))),
                     LineBreaks::kept);
  }
  return out + printable(decoder.finish(), LineBreaks::kept) + marks.end(part);
}

std::vector<int64_t> lengths_of(const Documents& documents) {
  std::vector<int64_t> lengths;
  for (size_t row = 0; row < documents.num_rows(); ++row) {
    lengths.push_back(0);
    for (const auto document : documents.of_row(row)) lengths.back() += std::ssize(document);
  }
  return lengths;
}

/// Keys of the first row, and the shape for which they are taken.
std::string shape_line(const documents::DocumentsOptions& options) {
  records::RecordReader reader({.paths = options.paths, .skip_bad_lines = options.skip_bad_lines});
  const auto first = reader.next();
  if (!first) user_error("{}: no rows", options.paths.front());
  const bool by_keys = options.shape == data::RowShape::automatic;
  const auto shape = by_keys ? documents::shape_of(first->value) : options.shape;
  std::string keys;
  for (const auto& item : first->value.items()) keys += (keys.empty() ? "" : ", ") + item.key();
  return fmt::format("keys of the first row: {}; shape: {}{}", printable(keys), text_of(shape),
                     by_keys ? " (by these keys; --shape takes another)" : "");
}

std::string lengths_line(std::vector<int64_t> lengths, const Documents& documents,
                         int64_t seq_len) {
  std::ranges::sort(lengths);
  auto line = fmt::format("tokens of a row: {} to {}, half of them at most {}", lengths.front(),
                          lengths.back(), lengths[(lengths.size() - 1) / 2]);
  const auto most = seq_len + documents.counts().documents_per_row;  // the last of each is no input
  const auto longer = std::ranges::count_if(lengths, [&](int64_t length) { return length > most; });
  if (seq_len > 0) line += fmt::format("; {} are longer than --seq-len {}", longer, seq_len);
  return line;
}

/// A document, or the two answers of a pair.
void show_row(size_t row, const std::vector<std::span<const MarkedToken>>& documents,
              const text::Tokenizer& tokenizer, int64_t seq_len, const Marks& marks) {
  const auto inputs = documents::inputs_within(seq_len, documents);
  for (size_t i = 0; i < documents.size(); ++i) {
    const auto* part = documents.size() == 1 ? "" : i == 0 ? ", chosen" : ", rejected";
    fmt::print("\n-- row {}{}, {} tokens: {}learned{}, {}cut off{} --\n", row + 1, part,
               documents[i].size(), marks.begin(Part::learned), marks.end(Part::learned),
               marks.begin(Part::cut), marks.end(Part::cut));
    fmt::print("{}\n", shown(documents[i], tokenizer, seq_len == 0 ? 0 : inputs[i], marks));
  }
}

void show(ShowArguments& arguments) {
  auto& options = arguments.documents;
  std::vector<std::string> files;
  for (const auto& path : options.paths) {
    for (auto& file : data_files(path).paths) files.push_back(std::move(file));
  }
  const auto title = "Lengths of " + options.paths.front();
  options.paths = std::move(files);
  options.shape = value_named<data::RowShape>(arguments.shape).value();
  options.num_threads = static_cast<int>(this_machine().num_cores);
  arguments.encoder.tokenizer = model_folder(arguments.model, /*weights=*/false);
  arguments.encoder.learn = value_named<data::Learn>(arguments.learn).value();
  if (!arguments.svg.empty()) check_output(arguments.svg, "set --svg");
  const documents::DocumentEncoder encoder(arguments.encoder);
  const auto documents = documents::load_documents(encoder, options);
  fmt::print("{}\n{}\n", shape_line(options), documents::summary(documents.counts()));
  const auto lengths = lengths_of(documents);
  const auto spread = lengths_line(lengths, documents, arguments.seq_len);
  fmt::print("{}\n", spread);
  constexpr int64_t kBins = 16, kBars = 60;
  fmt::print("{}", report::histogram_text(report::histogram_of(lengths, kBins),
                                          report::terminal_columns(STDOUT_FILENO)));
  const Marks marks{.colours = report::is_capable_terminal(STDOUT_FILENO) &&
                               report::environment("NO_COLOR").empty(),
                    .tokens = arguments.tokens};
  const auto count = std::min(static_cast<size_t>(arguments.num_shown), documents.num_rows());
  for (size_t row = 0; row < count; ++row) {
    show_row(row, documents.of_row(row), encoder.tokenizer(), arguments.seq_len, marks);
  }
  if (arguments.svg.empty()) return;
  write_output(arguments.svg, report::histogram_svg(report::histogram_of(lengths, kBars), title,
                                                    spread, "tokens"));
  fmt::print("\nwrote {}\n", printable(arguments.svg));
}

}  // namespace

void add_data(CLI::App& app, int& exit_code) {
  auto* data = app.add_subcommand("data", "Look at data sets");
  data->require_subcommand(1);
  auto arguments = std::make_shared<ShowArguments>();
  auto* command = data->add_subcommand("show", "Show what a run would learn from rows");
  command
      ->add_option("FILE", arguments->documents.paths,
                   "Files of rows, folders, patterns, or org/data:split on the Hub "
                   "(docs/data_files.md)")
      ->required();
  command
      ->add_option(
          "--model", arguments->model,
          "Folder with tokenizer and chat template, a tokenizer's file, or a name on the Hub")
      ->required();
  command->add_option("--chat-template", arguments->encoder.chat_template,
                      "A file, or one of the model's by name");
  command->add_option("--shape", arguments->shape, "What a row is")
      ->capture_default_str()
      ->check(CLI::IsMember(texts_of<data::RowShape>()));
  command->add_option("--learn", arguments->learn, "What is learned of a conversation")
      ->capture_default_str()
      ->check(CLI::IsMember(texts_of<data::Learn>()));
  command->add_option("--seq-len", arguments->seq_len, "Mark what is cut off behind so many tokens")
      ->check(whole_number(1, "at least 1"));
  command->add_option("--rows", arguments->num_shown, "How many are shown")
      ->capture_default_str()
      ->check(whole_number(0, "0 or more"));
  command
      ->add_option("--max-documents", arguments->documents.max_documents,
                   "Read the first so many rows")
      ->check(whole_number(1, "at least 1"));
  command->add_flag("--tokens", arguments->tokens, "Mark where tokens end, by |");
  command->add_flag("--skip-bad-lines", arguments->documents.skip_bad_lines,
                    "Count broken rows instead of stopping at one");
  command->add_option("--svg", arguments->svg, "Draw the lengths into this file");
  const char* example =
      "Example:\n  tessera data show chats.jsonl --model org/model --seq-len 2048";
  data->footer(example);
  command->footer(example);
  command->callback([arguments, &exit_code] {
    try {
      show(*arguments);
    } catch (const UserError& error) {
      throw UserError(with_command_options(error.what()));
    }
    exit_code = 0;
  });
}

}  // namespace tessera::cli
