// tessera generate, chat and evaluate: a stored model goes on with a text, answers, or is examined.
#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <csignal>
#include <memory>
#include <string>

#include "tessera/base/choices.h"
#include "tessera/base/error.h"
#include "tessera/base/texts.h"
#include "tessera/cli/commands.h"
#include "tessera/cli/output_file.h"
#include "tessera/cli/ranges.h"
#include "tessera/cli/stored_model.h"
#include "tessera/cli/worker_program.h"
#include "tessera/inference/request.h"
#include "tessera/inference/stored_shape.h"
#include "tessera/launch/launch.h"

namespace tessera::cli {
namespace {

using inference::Request;
using inference::Task;

struct AskArguments {
  Request request;
  std::string dtype, weights, backend, shape, learn;
  int64_t step = -1, num_ranks = 1;
};

/// Ranks are in the background, where a terminal must not be read: from now on standard input is a
/// pipe, which a process beside this one fills as long as there is somebody who reads it.
void read_terminal_for_ranks() {
  int ends[2];
  if (::pipe(ends) != 0) system_error("standard input: no pipe");
  const pid_t child = ::fork();
  if (child < 0) system_error("standard input: no process to read it");
  if (child > 0) {
    const bool replaced = ::dup2(ends[0], STDIN_FILENO) == STDIN_FILENO;
    ::close(ends[0]), ::close(ends[1]);
    if (!replaced) system_error("standard input: cannot be replaced");
    return;
  }
  ::close(ends[0]);
  ::signal(SIGINT, SIG_IGN);  // it is for the ranks
  char bytes[4096];
  for (ssize_t count = 1; count > 0;) {
    count = ::read(STDIN_FILENO, bytes, sizeof(bytes));
    for (ssize_t done = 0; done < count;) {
      const auto written = ::write(ends[1], bytes + done, static_cast<size_t>(count - done));
      if (written < 0) ::_exit(0);  // nobody reads it
      done += written;
    }
  }
  ::_exit(0);
}

int ask(AskArguments& arguments) {
  auto& request = arguments.request;
  request.model =
      chosen_checkpoint(model_folder(request.model, /*weights=*/true), arguments.step).string();
  if (!request.tokenizer.empty()) request.tokenizer = model_folder(request.tokenizer, false);
  request.dtype = value_named<FloatType>(arguments.dtype);
  request.weights = value_named<WeightFormat>(arguments.weights).value();
  request.backend = value_named<comm::BackendChoice>(arguments.backend).value();
  if (request.task == Task::evaluate) {
    request.shape = value_named<data::RowShape>(arguments.shape).value();
    request.learn = value_named<data::Learn>(arguments.learn).value();
    for (const auto& file : request.files) {
      if (std::filesystem::is_directory(file))
        user_error("{}: expected a file, got a folder; name its files", file);
      if (!std::filesystem::is_regular_file(file)) user_error("{}: no such file", file);
    }
    if (!request.output.empty()) check_output(request.output, "set --output");
  }
  request.interactive = request.task != Task::evaluate && ::isatty(STDIN_FILENO) == 1;
  if (request.task == Task::generate && request.prompt.empty() && request.interactive)
    user_error("generate: expected a text after the model, or on standard input");
  launch::LaunchOptions start{.output = launch::OutputMode::plain, .pass_listen_socket = true};
  start.command = {worker_path(), kAnswer, file_for_ranks(inference::to_bytes(request))};
  if (arguments.num_ranks == 1) become(start.command);
  start.num_processes = num_ranks(arguments.num_ranks);
  // Before ranks start.
  inference::stored_shape(
      checkpoint::open_training({.source = request.model, .with_optimizer = false}),
      start.num_processes);
  if (request.interactive) read_terminal_for_ranks();
  start.ranks_take_interrupts = request.interactive && request.task == Task::chat;
  return launch::launch(start);
}

void add_sampling_options(CLI::App& command, Request& request) {
  constexpr double kLeast = 1e-9, kMost = 1e9;
  command.add_option("--max-new-tokens", request.max_new_tokens, "At the most")
      ->capture_default_str()
      ->check(whole_number(1, "at least 1"));
  command.add_option("--temperature", request.temperature, "0: always the likeliest token")
      ->check(number(0, kMost, "0 or more"));
  command.add_option("--top-k", request.top_k, "Only the k likeliest tokens; 0: all")
      ->check(whole_number(0, "0 or more"));
  command.add_option("--top-p", request.top_p, "Only the likeliest that together reach p")
      ->check(number(kLeast, 1, "above 0 and at most 1"));
  command
      .add_option("--min-p", request.min_p,
                  "Only those at least p times as likely as the likeliest")
      ->check(number(0, 1, "0 to 1"));
  command.add_option("--repetition-penalty", request.repetition_penalty, "Above 1: repeat less")
      ->check(number(kLeast, kMost, "above 0"));
  command.add_option("--seed", request.seed, "Another one, another text")
      ->capture_default_str()
      ->check(whole_number(0, "0 or more"));
  command
      .add_option_function<std::string>(
          "--stop", [&](const std::string& word) { request.stop.push_back(word); },
          "A word that ends a text; may be repeated")
      ->check(CLI::Validator(
          [](const std::string& word) { return word.empty() ? "expected a word, got none" : ""; },
          ""))
      ->trigger_on_parse();
}

void add_evaluation_options(CLI::App& command, AskArguments& arguments) {
  auto& request = arguments.request;
  command
      .add_option("FILES", request.files,
                  "Rows of data sets, questions with choices, text or tokens")
      ->required();
  command.add_option("--chat-template", request.chat_template,
                     "A file, or one of the model's by name");
  command.add_option("--shape", arguments.shape, "What a row is; auto: by its keys")
      ->default_val("auto")
      ->check(CLI::IsMember(texts_of<data::RowShape>()));
  command.add_option("--learn", arguments.learn, "Which words of conversations count")
      ->default_val("assistant")
      ->check(CLI::IsMember(texts_of<data::Learn>()));
  command
      .add_option("--seq-len", request.seq_len,
                  "Tokens of a window; the model's positions unless given")
      ->check(whole_number(1, "at least 1"));
  command
      .add_option("--stride", request.stride,
                  "Tokens by which windows move on; half of one unless given")
      ->check(whole_number(1, "at least 1"));
  command.add_option("--max-rows", request.max_rows, "The first so many rows of each file")
      ->check(whole_number(1, "at least 1"));
  command.add_flag("--skip-bad-lines", request.skip_bad_lines,
                   "Count broken rows instead of stopping at one");
  command.add_flag("--json", request.json, "One JSON object instead of lines");
  command.add_option("--output", request.output, "Write that object into this file, too");
}

void add(CLI::App& app, Task task, const char* name, const char* what, const char* example,
         int& exit_code) {
  auto arguments = std::make_shared<AskArguments>();
  auto& request = arguments->request;
  request.task = task;
  auto* command = app.add_subcommand(name, what);
  command
      ->add_option("MODEL", request.model,
                   "Run, checkpoint, Hugging Face folder, or a name on its Hub")
      ->required();
  if (task == Task::generate) {
    command->add_option("TEXT", request.prompt, "What to go on with; standard input without it");
    command->add_flag("--echo", request.echo, "Show the text before what follows it");
  } else if (task == Task::evaluate) {
    add_evaluation_options(*command, *arguments);
  } else {
    command->add_option("--system", request.system, "System prompt");
    command->add_option("--chat-template", request.chat_template,
                        "A file, or one of the model's by name");
  }
  if (task != Task::evaluate) add_sampling_options(*command, request);
  command->add_option("--tokenizer", request.tokenizer,
                      "Folder, file or name on the Hub; the model's unless given");
  command->add_option("--dtype", arguments->dtype, "Of the weights; as stored unless given")
      ->check(CLI::IsMember(texts_of<FloatType>()));
  command
      ->add_option("--weights", arguments->weights,
                   "Linear layers in 4 or 8 bits, quantised as they are read")
      ->default_val("as_stored")
      ->check(CLI::IsMember(texts_of<WeightFormat>()));
  command->add_option("--backend", arguments->backend, "auto: GPUs if there are")
      ->default_val("auto")
      ->check(CLI::IsMember(texts_of<comm::BackendChoice>()));
  command
      ->add_option("-n,--num-ranks", arguments->num_ranks,
                   "Processes that divide the model (tensor parallelism); -1: one per two cores")
      ->capture_default_str()
      ->check(rank_count());
  command->add_option("--step", arguments->step, "Checkpoint of a run; the last unless given")
      ->check(whole_number(0, "0 or more"));
  if (task != Task::evaluate) {
    command->add_flag("--speed", request.speed, "Say on standard error how fast it was");
  }
  command->footer(example);
  command->callback([arguments, &exit_code] { exit_code = ask(*arguments); });
}

}  // namespace

void add_generate(CLI::App& app, int& exit_code) {
  add(app, Task::generate, "generate", "Go on with a text",
      "Example:\n  tessera generate runs/x \"Once upon a time\" --temperature 0.8", exit_code);
}

void add_evaluate(CLI::App& app, int& exit_code) {
  add(app, Task::evaluate, "evaluate", "Perplexity of texts, accuracy on questions with choices",
      "Example:\n  tessera evaluate runs/x held_out.jsonl questions.jsonl", exit_code);
}

void add_chat(CLI::App& app, int& exit_code) {
  add(app, Task::chat, "chat", "Talk to a model",
      "Example:\n  tessera chat runs/x --system \"Answer in one sentence.\"", exit_code);
}

}  // namespace tessera::cli
