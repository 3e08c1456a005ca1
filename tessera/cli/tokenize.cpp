// tessera tokenize: text into a token file, one token a byte.
#include "tessera/data/tokenize.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <memory>
#include <string>

#include "tessera/base/units.h"
#include "tessera/cli/commands.h"

namespace tessera::cli {
namespace {

/// The command's options as they were typed.
struct TokenizeArguments {
  data::TokenizeOptions options;
  std::string dtype = "uint16", header = "none";
};

void tokenize(TokenizeArguments& arguments) {
  auto& options = arguments.options;
  options.type = arguments.dtype == "uint16" ? data::TokenType::uint16 : data::TokenType::uint32;
  options.header = arguments.header == "llmc" ? data::TokenHeader::llmc : data::TokenHeader::none;
  const auto result = data::tokenize_bytes(options);
  fmt::print("wrote {} tokens ({}, {}) from {} files to {}\n", result.num_tokens, arguments.dtype,
             format_bytes(result.num_tokens * data::token_bytes(options.type)), result.num_files,
             options.out.string());
}

}  // namespace

void add_tokenize(CLI::App& app, int& exit_code) {
  auto* command = app.add_subcommand("tokenize", "Turn text into a token file (one token a byte)");
  const auto arguments = std::make_shared<TokenizeArguments>();
  auto& options = arguments->options;
  command->add_option("INPUT", options.inputs, "Text files, and folders of them")->required();
  command->add_option("-o,--out", options.out, "Token file to write")->required();
  command->add_option("--dtype", arguments->dtype, "Type of a token, uint16 unless given")
      ->check(CLI::IsMember({"uint16", "uint32"}));
  command
      ->add_option("--header", arguments->header,
                   "llmc: begin with llm.c's 1024 bytes; none unless given")
      ->check(CLI::IsMember({"none", "llmc"}));
  command
      ->add_option("--extensions", options.extensions,
                   "Of files taken from folders (.h,.cpp); all unless given")
      ->delimiter(',');
  command->footer("Example:\n  tessera tokenize src --extensions .h,.cpp -o code.bin");
  command->callback([arguments, &exit_code] {
    tokenize(*arguments);
    exit_code = 0;
  });
}

}  // namespace tessera::cli
