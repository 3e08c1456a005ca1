// tessera tokenize: text into a token file.
#include "tessera/data/tokenize.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <memory>
#include <optional>
#include <string>

#include "tessera/base/machine.h"
#include "tessera/base/units.h"
#include "tessera/cli/commands.h"
#include "tessera/report/amount_progress.h"

namespace tessera::cli {
namespace {

/// The command's options as they were typed.
struct TokenizeArguments {
  data::TokenizeOptions options;
  std::string dtype = "auto", header = "none", end_of_text;
};

void tokenize(TokenizeArguments& arguments) {
  auto& options = arguments.options;
  if (arguments.dtype != "auto")
    options.dtype =
        arguments.dtype == "uint16" ? data::TokenDtype::uint16 : data::TokenDtype::uint32;
  if (arguments.header == "llmc") options.header = data::TokenHeader::llmc;
  if (arguments.header == "megatron") options.header = data::TokenHeader::megatron;
  if (!arguments.end_of_text.empty()) options.end_of_text = arguments.end_of_text;
  if (options.num_threads == 0) options.num_threads = static_cast<int>(this_machine().num_cores);
  std::optional<report::AmountProgress> line;
  options.on_progress = [&](int64_t earlier, int64_t done, int64_t all) {
    if (!line) line.emplace("tokenize", earlier);
    line->show(done, all);
  };
  const auto result = data::tokenize(options);
  line.reset();
  if (result.earlier_bytes > 0)
    fmt::print("went on behind {} of text, where an earlier run was interrupted\n",
               format_bytes(result.earlier_bytes));
  fmt::print("wrote {} tokens ({}, {}) from {} files to {}\n", result.num_tokens,
             data::name_of(result.type),
             format_bytes(result.num_tokens * data::token_bytes(result.type)), result.num_files,
             options.out.string());
  if (result.type == data::TokenType::uint32 && options.header == data::TokenHeader::none)
    fmt::print("the file does not say its type; to train on it, set data.token_dtype: uint32\n");
}

}  // namespace

void add_tokenize(CLI::App& app, int& exit_code) {
  auto* command = app.add_subcommand("tokenize", "Turn text into a token file");
  const auto arguments = std::make_shared<TokenizeArguments>();
  auto& options = arguments->options;
  options.num_threads = 0;
  command->add_option("INPUT", options.inputs, "Text files, and folders of them")->required();
  command->add_option("-o,--out", options.out, "Token file to write")->required();
  command->add_option("--tokenizer", options.tokenizer,
                      "Folder of a model, or its tokenizer.json, tokenizer.model, vocab.json, "
                      "vocab.txt; one token a byte unless given");
  command->add_option("--end-of-text", arguments->end_of_text,
                      "Token behind each text, or none; the tokenizer's eos_token unless given");
  command
      ->add_option("--dtype", arguments->dtype,
                   "Type of a token; auto unless given: uint16 where all ids fit, else uint32")
      ->check(CLI::IsMember({"auto", "uint16", "uint32"}));
  command
      ->add_option("--header", arguments->header,
                   "What tells of the tokens: none (nanoGPT) unless given, llmc: 1024 bytes before "
                   "them, megatron: an .idx beside them")
      ->check(CLI::IsMember({"none", "llmc", "megatron"}));
  command
      ->add_option("--threads", options.num_threads, "That encode; one for each core unless given")
      ->check(CLI::Range(1, 1024));
  command
      ->add_option("--extensions", options.extensions,
                   "Of files taken from folders (.h,.cpp); all unless given")
      ->delimiter(',');
  command->footer(
      "Interrupted, it goes on when it is called again.\n"
      "Examples:\n  tessera tokenize src --extensions .h,.cpp -o code.bin\n"
      "  tessera tokenize books --tokenizer models/Qwen2.5-0.5B -o books.bin");
  command->callback([arguments, &exit_code] {
    tokenize(*arguments);
    exit_code = 0;
  });
}

}  // namespace tessera::cli
