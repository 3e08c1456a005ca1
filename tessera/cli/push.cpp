// tessera push: a folder to the Hugging Face Hub.
#include "tessera/hub/push.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <memory>
#include <string>

#include "tessera/base/error.h"
#include "tessera/base/text.h"
#include "tessera/cli/commands.h"
#include "tessera/report/amount_progress.h"

namespace tessera::cli {
namespace {

struct PushArguments {
  std::string folder, name, kind = "model", revision = "main";
  std::string message = hub::PushOptions{.settings = {}}.message;
  bool is_private = false;
};

void run_push(const PushArguments& arguments) {
  const auto kind =
      arguments.kind == "dataset" ? hub::RepositoryKind::dataset : hub::RepositoryKind::model;
  if (arguments.name.find('@') != std::string::npos)
    user_error("push: {}: expected org/name; a branch is set by --revision", arguments.name);
  if (!hub::parse_repository_name(arguments.name, kind))
    user_error("push: expected a name on the Hugging Face Hub, org/name, got '{}'", arguments.name);
  const auto name = hub::parse_repository_name(arguments.name + "@" + arguments.revision, kind);
  if (!name || hub::is_commit(arguments.revision))
    user_error("push: --revision: expected a branch, got '{}'", arguments.revision);
  hub::Pushed pushed;
  {
    report::AmountProgress progress(arguments.name);
    pushed = hub::push(
        {.folder = arguments.folder,
         .name = *name,
         .is_private = arguments.is_private,
         .message = arguments.message,
         .on_progress =
             [&](const hub::Progress& now) { progress.show(now.done_bytes, now.total_bytes); },
         .on_notice =
             [](const std::string& line) { fmt::print(stderr, "{}\n", printable(line)); }});
  }
  if (pushed.num_files == 0) {
    fmt::print("{} has all {} files already\n", arguments.name, pushed.num_unchanged);
    return;
  }
  fmt::print("pushed {} files to {}{}\n", pushed.num_files, printable(pushed.url),
             pushed.num_unchanged == 0
                 ? ""
                 : fmt::format("; {} were there already", pushed.num_unchanged));
}

}  // namespace

void add_push(CLI::App& app, int& exit_code) {
  auto arguments = std::make_shared<PushArguments>();
  auto* command = app.add_subcommand("push", "Upload a folder to the Hugging Face Hub");
  command->add_option("FOLDER", arguments->folder, "An export, an adapter or any other folder")
      ->required();
  command->add_option("NAME", arguments->name, "org/name; made if it is missing")->required();
  command->add_flag("--private", arguments->is_private, "Make it for its owners alone");
  command->add_option("--repo-type", arguments->kind, "What it is")
      ->capture_default_str()
      ->check(CLI::IsMember({"model", "dataset"}));
  command->add_option("--revision", arguments->revision, "Branch; made if it is missing")
      ->capture_default_str();
  command->add_option("--message", arguments->message, "Of the commit")->capture_default_str();
  command->footer("Example:\n  tessera push exported/ org/my-model --private");
  command->callback([arguments, &exit_code] {
    run_push(*arguments);
    exit_code = 0;
  });
}

}  // namespace tessera::cli
