// tessera man: manual pages of the commands, made from what --help says.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cctype>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/base/text.h"
#include "tessera/cli/commands.h"
#include "tessera/cli/output_file.h"
#include "tessera/version.h"

namespace tessera::cli {
namespace {

namespace fs = std::filesystem;

/// Text as roff shows it: letter by letter.
std::string plain(std::string_view text) {
  std::string out;
  bool begins_line = true;
  for (const char c : text) {
    if (begins_line && (c == '.' || c == '\'')) out += "\\&";  // no request
    if (c == '\\') {
      out += "\\e";
    } else if (c == '-') {
      out += "\\-";  // not a hyphen, which copies as another sign
    } else {
      out += c;
    }
    begins_line = c == '\n';
  }
  return out;
}

/// What words --help of a command.
const CLI::Formatter& words_of(const CLI::App& app) {
  return dynamic_cast<const CLI::Formatter&>(*app.get_formatter());
}

std::string section(std::string_view name, const std::string& content) {
  return content.empty() ? "" : fmt::format(".SH {}\n{}", name, content);
}

std::string options_of(const CLI::App& app, bool positional) {
  const auto& words = words_of(app);
  std::string out;
  for (const auto* option : app.get_options()) {
    if (option->get_group().empty() || option->get_positional() != positional) continue;
    out += fmt::format(
        ".TP\n.B {}\n{}\n",
        plain(words.make_option_name(option, positional) + words.make_option_opts(option)),
        plain(words.make_option_desc(option)));
  }
  return out;
}

/// "tessera train [OPTIONS] JOB"
std::string usage_of(const CLI::App& app, const std::string& words) {
  const auto usage = words_of(app).make_usage(&app, words);
  return CLI::detail::trim_copy(usage.substr(usage.find(words)));
}

/// What --help ends with, line by line: "Examples:" and what stands indented below it are a section of
/// their own.
std::string footer_of(const CLI::App& app) {
  const auto lines = [](const std::string& text) {
    return text.empty() ? "" : fmt::format(".nf\n{}\n.fi\n", plain(text));
  };
  const auto footer = CLI::detail::trim_copy(app.get_footer());
  const auto begin = footer.find("Example");
  if (begin == std::string::npos) return section("NOTES", lines(footer));
  const auto first = std::min(footer.find('\n', begin), footer.size());
  const auto last = std::min(footer.find("\n\n", first), footer.size());
  const auto rest = CLI::detail::trim_copy(footer.substr(0, begin) + footer.substr(last));
  const auto examples = first == footer.size() ? "" : footer.substr(first + 1, last - first - 1);
  return section("EXAMPLES", lines(examples)) + section("NOTES", lines(rest));
}

std::string reference(const std::string& page) { return fmt::format(".BR {} (1)", plain(page)); }

/// The page of the command of these words ("tessera checkpoint verify"), below which `above` is.
std::string page_of(const CLI::App& app, const std::string& words, const std::string& above) {
  const auto name = CLI::detail::find_and_replace(words, " ", "-");
  std::string commands;
  std::vector<std::string> related;
  if (!above.empty()) related.push_back(reference(above));
  for (const auto* command : app.get_subcommands(nullptr)) {
    commands += fmt::format(".TP\n.B {}\n{}\n", plain(command->get_name()),
                            plain(command->get_description()));
    related.push_back(reference(name + "-" + command->get_name()));
  }
  auto title = name;
  std::ranges::transform(title, title.begin(),
                         [](unsigned char c) { return static_cast<char>(std::toupper(c)); });
  return fmt::format(".TH {} 1 \"\" \"Tessera {}\" \"Tessera\"\n", title, TESSERA_VERSION) +
         section("NAME", fmt::format("{} \\- {}\n", plain(name), plain(app.get_description()))) +
         section("SYNOPSIS", plain(usage_of(app, words)) + "\n") +
         section("ARGUMENTS", options_of(app, /*positional=*/true)) +
         section("COMMANDS", commands) + section("OPTIONS", options_of(app, /*positional=*/false)) +
         footer_of(app) + section("SEE ALSO", fmt::format("{}\n", fmt::join(related, ",\n")));
}

/// Writes the pages of a command and of those below it. Returns how many.
int write_pages(const CLI::App& app, const std::string& words, const std::string& above,
                const fs::path& folder) {
  const auto name = CLI::detail::find_and_replace(words, " ", "-");
  write_output(folder / (name + ".1"), page_of(app, words, above));
  int count = 1;
  for (const auto* command : app.get_subcommands(nullptr)) {
    count += write_pages(*command, words + " " + command->get_name(), name, folder);
  }
  return count;
}

}  // namespace

void add_man(CLI::App& app, int& exit_code) {
  const auto folder = std::make_shared<std::string>();
  auto* command = app.add_subcommand("man", "Write manual pages of all commands into a folder");
  command->add_option("FOLDER", *folder, "Where to write them; it is made if it is missing")
      ->required();
  command->footer(
      "Example:\n  tessera man man1                 (then: man -l man1/tessera-train.1)");
  command->callback([&app, folder, &exit_code] {
    if (const auto reason = why_not_writable(*folder); !reason.empty())
      user_error("man: {}: cannot be written: {}; give another folder", *folder, reason);
    const int count = write_pages(app, app.get_name(), "", *folder);
    fmt::print("wrote {} pages into {}\n", count, printable(*folder));
    exit_code = 0;
  });
}

}  // namespace tessera::cli
