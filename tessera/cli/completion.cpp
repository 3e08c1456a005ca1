// tessera completion: scripts that complete words for bash and zsh, made from the commands
// themselves and from the keys of job files.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <map>
#include <memory>

#include "tessera/base/error.h"
#include "tessera/cli/choices.h"
#include "tessera/cli/commands.h"
#include "tessera/config/fields.h"
#include "tessera/config/values.h"

namespace tessera::cli {
namespace {

struct Word {
  std::string text, meaning;
};

/// What may follow "tessera" or "tessera checkpoint verify".
struct Place {
  std::string words;
  std::vector<Word> commands, options;                      ///< or what the first argument may be
  std::vector<Word> keys;                                   ///< "--parallel.placement="
  std::map<std::string, std::vector<std::string>> choices;  ///< after "--to", "--to=" and such keys
};

void add_keys(Place& place) {
  for (const auto& section : config::sections()) {
    for (const auto& field : section.fields) {
      const auto key = "--" + field.key + "=";
      place.keys.push_back({key, field.meaning});
      auto choices = field.rule.choices;
      if (config::type_name(field) == "true/false") choices = {"true", "false"};
      if (!choices.empty()) place.choices[key] = choices;
    }
  }
}

void add_places(const CLI::App& app, const std::string& words, std::vector<Place>& places) {
  Place place{.words = words};
  for (const auto* option : app.get_options()) {
    if (option->get_group().empty()) continue;
    const auto choices = choices_of(*option);
    if (option->get_positional()) {
      for (const auto& choice : choices)
        place.commands.push_back({choice, option->get_description()});
      continue;
    }
    if (option->get_lnames().empty()) continue;
    const auto name = "--" + option->get_lnames().front();
    place.options.push_back({name, option->get_description()});
    if (!choices.empty()) place.choices[name] = place.choices[name + "="] = choices;
  }
  const auto commands = app.get_subcommands(nullptr);
  for (const auto* command : commands) {
    place.commands.push_back({command->get_name(), command->get_description()});
  }
  if (words == "tessera train") add_keys(place);
  places.push_back(std::move(place));
  for (const auto* command : commands) {
    add_places(*command, words + " " + command->get_name(), places);
  }
}

std::string texts(const std::vector<Word>& words) {
  std::string text;
  for (const auto& word : words) text += (text.empty() ? "" : " ") + word.text;
  return text;
}

/// 'tessera train'|'tessera launch'|..: where one word more leads to.
std::string known_places(const std::vector<Place>& places) {
  std::vector<std::string> quoted;
  for (const auto& place : places) quoted.push_back("'" + place.words + "'");
  return fmt::format("{}", fmt::join(quoted, "|"));
}

constexpr const char* kBash = R"(# bash completion of tessera, made by: tessera completion bash
_tessera() {{
  local current="${{COMP_WORDS[COMP_CWORD]}}" place=tessera key='' word names flags choices=''
  for word in "${{COMP_WORDS[@]:1:COMP_CWORD-1}}"; do
    case "$place $word" in
      'tessera launch tessera') place=tessera ;;
      {}) place="$place $word" ;;
    esac
  done
  # bash splits --key=value into three words.
  if [[ $current == = ]]; then
    key="${{COMP_WORDS[COMP_CWORD-1]}}=" current=''
  elif [[ ${{COMP_WORDS[COMP_CWORD-1]}} == = ]]; then
    key="${{COMP_WORDS[COMP_CWORD-2]}}="
  elif [[ $current != -* ]]; then
    key="${{COMP_WORDS[COMP_CWORD-1]}}"
  fi
  case "$place" in
{}  esac
  case "$place $key" in
{}  esac
  if [[ $key == *= || -n $choices ]]; then
    COMPREPLY=($(compgen -W "$choices" -- "$current"))
  elif [[ $current == -* ]]; then
    COMPREPLY=($(compgen -W "$flags" -- "$current"))
  else
    COMPREPLY=($(compgen -W "$names" -- "$current"))
  fi
  [[ ${{#COMPREPLY[@]}} != 1 || ${{COMPREPLY[0]}} != *= ]] || compopt -o nospace
}}
complete -o default -F _tessera tessera
)";

std::string bash_script(const std::vector<Place>& places) {
  std::string words, choices;
  for (const auto& place : places) {
    words += fmt::format("    '{}') names='{}' flags='{} {}' ;;\n", place.words,
                         texts(place.commands), texts(place.options), texts(place.keys));
    for (const auto& [key, values] : place.choices) {
      choices +=
          fmt::format("    '{} {}') choices='{}' ;;\n", place.words, key, fmt::join(values, " "));
    }
  }
  return fmt::format(kBash, known_places(places), words, choices);
}

constexpr const char* kZsh = R"(#compdef tessera
# zsh completion of tessera, made by: tessera completion zsh
_tessera() {{
  local place=tessera key='' word
  local -a names flags keys choices
  for word in "${{(@)words[2,CURRENT-1]}}"; do
    case "$place $word" in
      ('tessera launch tessera') place=tessera ;;
      ({}) place="$place $word" ;;
    esac
  done
  if [[ $PREFIX == -*=* ]]; then
    key="${{PREFIX%%=*}}="
    compset -P 1 '*='
  elif [[ $PREFIX != -* ]]; then
    key="${{words[CURRENT-1]}}"
  fi
  case "$place" in
{}  esac
  case "$place $key" in
{}  esac
  if (( $#choices )); then
    compadd -a choices
  elif [[ $key == *= ]]; then
    _files
  elif [[ $PREFIX == -* ]]; then
    _describe -o option flags
    _describe -o key keys -S ''
  elif (( $#names )); then
    _describe command names
  else
    _files
  fi
}}
if [[ $funcstack[1] == _tessera ]]; then _tessera "$@"; else compdef _tessera tessera; fi
)";

/// 'name:meaning' for each word, in the shell's quotes.
std::string zsh_words(const std::vector<Word>& words) {
  std::string text;
  for (const auto& word : words) {
    text += text.empty() ? "'" : " '";
    for (const char c : word.text + ":" + word.meaning) {
      text += c == '\'' ? std::string("'\\''") : std::string(1, c == '\n' ? ' ' : c);
    }
    text += "'";
  }
  return text;
}

std::string zsh_script(const std::vector<Place>& places) {
  std::string words, choices;
  for (const auto& place : places) {
    words += fmt::format("    ('{}')\n      names=({})\n      flags=({})\n      keys=({}) ;;\n",
                         place.words, zsh_words(place.commands), zsh_words(place.options),
                         zsh_words(place.keys));
    for (const auto& [key, values] : place.choices) {
      choices +=
          fmt::format("    ('{} {}') choices=({}) ;;\n", place.words, key, fmt::join(values, " "));
    }
  }
  return fmt::format(kZsh, known_places(places), words, choices);
}

}  // namespace

void add_completion(CLI::App& app, int& exit_code) {
  const auto shell = std::make_shared<std::string>();
  auto* command =
      app.add_subcommand("completion", "Print a script that completes words for bash or zsh");
  takes(command->add_option("SHELL", *shell), {"bash", "zsh"})->required();
  command->footer(
      "Examples:\n"
      "  source <(tessera completion bash)                    (in ~/.bashrc)\n"
      "  tessera completion zsh > \"${fpath[1]}/_tessera\"      (once)");
  command->callback([&app, shell, &exit_code] {
    std::vector<Place> places;
    add_places(app, "tessera", places);
    if (*shell == "bash") {
      fmt::print("{}", bash_script(places));
    } else if (*shell == "zsh") {
      fmt::print("{}", zsh_script(places));
    } else {
      user_error("completion: expected bash or zsh, got '{}'", *shell);
    }
    exit_code = 0;
  });
}

}  // namespace tessera::cli
