// tessera export: a trained model as other programs load it.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <map>
#include <memory>
#include <string>

#include "tessera/base/error.h"
#include "tessera/base/text.h"
#include "tessera/checkpoint/formats/convert.h"
#include "tessera/cli/commands.h"
#include "tessera/cli/stored_model.h"

namespace tessera::cli {
namespace {

using checkpoint::GgmlType;

struct ExportArguments {
  checkpoint::ConvertOptions options;
  std::string to, type = "f16";
  int64_t step = -1;  // not given
};

void run_export(ExportArguments& arguments, bool has_type) {
  static const std::map<std::string, GgmlType> types = {{"f32", GgmlType::f32},
                                                        {"f16", GgmlType::f16},
                                                        {"bf16", GgmlType::bf16},
                                                        {"q8_0", GgmlType::q8_0},
                                                        {"q4_0", GgmlType::q4_0}};
  auto& options = arguments.options;
  options.from.source = chosen_checkpoint(options.from.source, arguments.step);
  options.to = arguments.to == "gguf" ? checkpoint::Target::gguf : checkpoint::Target::huggingface;
  if (has_type && options.to != checkpoint::Target::gguf)
    user_error("export: --type takes effect with --to gguf alone");
  options.type = types.at(arguments.type);
  options.on_gguf = [](const checkpoint::GgufExported& done) {
    fmt::print("read back: {} tensors, largest relative error {:.2g}{}\n", done.num_tensors,
               done.error, done.worst.empty() ? "" : " of " + done.worst);
  };
  convert(options);
  fmt::print("wrote {}\n", printable(options.destination.string()));
}

}  // namespace

void add_export(CLI::App& app, int& exit_code) {
  auto arguments = std::make_shared<ExportArguments>();
  auto* command = app.add_subcommand("export", "Write a trained model for other programs");
  command->add_option("SOURCE", arguments->options.from.source, "Run, checkpoint or stored model")
      ->required();
  command
      ->add_option("DESTINATION", arguments->options.destination, "What to write; must not exist")
      ->required();
  command->add_option("--to", arguments->to, "huggingface (a folder) or gguf (a file)")
      ->required()
      ->check(CLI::IsMember({"huggingface", "gguf"}));
  auto* type =
      command->add_option("--type", arguments->type, "Of a GGUF's matrices; f16 unless given")
          ->check(CLI::IsMember({"f32", "f16", "bf16", "q8_0", "q4_0"}));
  command->add_option("--step", arguments->step, "Checkpoint of a run; the last unless given")
      ->check(CLI::NonNegativeNumber);
  command->footer("Example:\n  tessera export runs/x x.gguf --to gguf --type q8_0");
  command->callback([arguments, type, &exit_code] {
    run_export(*arguments, type->count() > 0);
    exit_code = 0;
  });
}

}  // namespace tessera::cli
