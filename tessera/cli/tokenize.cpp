// tessera tokenize: text into a token file, one token a byte.
#include "tessera/data/tokenize.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <map>
#include <memory>
#include <string>

#include "tessera/base/units.h"
#include "tessera/cli/commands.h"

namespace tessera::cli {

void add_tokenize(CLI::App& app, int& exit_code) {
  auto* command = app.add_subcommand("tokenize", "Turn text into a token file (one token a byte)");
  const auto options = std::make_shared<data::TokenizeOptions>();
  command->add_option("INPUT", options->inputs, "Text files, and folders of them")->required();
  command->add_option("--out,-o", options->out, "Token file to write")->required();
  command->add_option("--dtype", options->type, "uint16 (default) or uint32")
      ->transform(CLI::Transformer(std::map<std::string, data::TokenType>{
          {"uint16", data::TokenType::uint16}, {"uint32", data::TokenType::uint32}}))
      ->type_name("TYPE");
  command
      ->add_option("--header", options->header,
                   "none (default) or llmc: llm.c's header of 1024 bytes")
      ->transform(CLI::Transformer(std::map<std::string, data::TokenHeader>{
          {"none", data::TokenHeader::none}, {"llmc", data::TokenHeader::llmc}}))
      ->type_name("HEADER");
  command
      ->add_option("--extensions", options->extensions,
                   "Of files taken from folders: .h,.cpp (default: all)")
      ->delimiter(',');
  command->callback([options, &exit_code] {
    const auto result = data::tokenize_bytes(*options);
    fmt::print("wrote {} tokens ({}, {}) of {} files to {}\n", result.num_tokens,
               data::name_of(options->type),
               format_bytes(result.num_tokens * data::token_bytes(options->type)), result.num_files,
               options->out.string());
    exit_code = 0;
  });
}

}  // namespace tessera::cli
