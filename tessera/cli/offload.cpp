// tessera offload: what drives do for runs that keep states there.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <memory>
#include <string>

#include "tessera/base/text.h"
#include "tessera/base/units.h"
#include "tessera/cli/bytes_option.h"
#include "tessera/cli/commands.h"
#include "tessera/cli/option_words.h"
#include "tessera/offload/tune.h"

namespace tessera::cli {
namespace {

struct TuneArguments {
  std::string folder, size = "1GB";
  bool any_file_system = false;
};

constexpr const char* kFooter =
    "Example:\n  tessera offload tune /nvme0/scratch\nLeaves nothing behind.";

void print(const offload::TuneResult& result) {
  for (const auto& note : result.notes) fmt::print("{}\n", printable(note));
  fmt::print("{}; GB/s, with checksums\n", result.way);
  fmt::print("{:>10} {:>11} {:>7} {:>7}\n", "block_size", "queue_depth", "read", "write");
  for (size_t i = 0; i < result.rows.size(); ++i) {
    const auto& row = result.rows[i];
    fmt::print("{:>10} {:>11} {:>7.2f} {:>7.2f}{}\n", format_bytes(row.block_bytes),
               row.queue_depth, row.read_gb, row.write_gb, i == result.best ? "  <- best" : "");
  }
}

}  // namespace

void add_offload(CLI::App& app, int& exit_code) {
  auto* offload = app.add_subcommand("offload", "What drives do for runs that keep states there");
  offload->require_subcommand(1);
  auto arguments = std::make_shared<TuneArguments>();
  auto* command = offload->add_subcommand(
      "tune", "Measure a folder's drive by block size and queue depth, as runs use it");
  offload->footer(kFooter);
  command->footer(kFooter);
  command->add_option("FOLDER", arguments->folder, "On the drive")->required();
  command
      ->add_option(
          "--size", arguments->size,
          "Written and read for each pair; beyond the drive's own cache, figures are those "
          "of long runs")
      ->capture_default_str();
  command->add_flag("--any-file-system", arguments->any_file_system,
                    "In memory or over a network, too");
  command->callback([arguments, &exit_code] {
    try {
      print(offload::tune(
          {.folder = arguments->folder,
           .bytes = static_cast<int64_t>(bytes_of(arguments->size, "offload tune: --size")),
           .any_file_system = arguments->any_file_system}));
    } catch (const UserError& error) {
      throw UserError(with_command_options(error.what()));
    }
    exit_code = 0;
  });
}

}  // namespace tessera::cli
