#include "tessera/train/held_out.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/data/rows.h"
#include "tessera/generate/codec.h"
#include "tessera/train/generate.h"
#include "tessera/train/step.h"

namespace tessera::train {
namespace {

generate::Codec codec_of(const Run& run) { return {run.tokenizer, run.model->shape().vocab_size}; }

std::string decoded(const generate::Codec& codec, const std::vector<int64_t>& tokens) {
  generate::Decoder decoder(codec, /*skip_special_tokens=*/true);
  std::string text;
  for (const auto token : tokens) text += decoder.push(token);
  return text + decoder.finish();
}

}  // namespace

HeldOut::HeldOut(const Run& run) {
  const auto wanted = run.config.train.sample_answers;
  if (wanted == 0) return;
  const auto& rows = run.validation_loader->data();
  std::vector<int64_t> inputs(static_cast<size_t>(rows.seq_len())), targets(inputs.size());
  std::vector<data::DocumentRange> ranges;
  const auto learned = [](int64_t target) { return target != data::kIgnoredTarget; };
  for (int64_t row = 0; row < rows.size(); ++row) {
    ranges.clear();
    rows.read(row, inputs, targets, ranges);
    for (const auto& range : ranges) {
      if (std::ssize(documents_) == wanted) break;
      const auto first = targets.begin() + range.begin, last = targets.begin() + range.end;
      const auto from = std::find_if(first, last, learned);
      if (from == first || from == last) continue;  // nothing is given, or nothing is answered
      Document document{
          .prompt = {inputs.begin() + range.begin, inputs.begin() + (from - targets.begin()) + 1},
          .answer = {from, std::find_if_not(from, last, learned)}};
      // The first of a pair's two answers is the better one.
      if (!documents_.empty() && documents_.back().prompt == document.prompt) continue;
      documents_.push_back(std::move(document));
    }
  }
  if (documents_.empty()) {
    user_error(
        "sample_answers: the held-out rows have no prompts, which conversations and pairs of "
        "prompt and completion have; set it to 0");
  }
  const auto codec = codec_of(run);
  for (const auto& [prompt, answer] : documents_)
    unanswered_.push_back({.prompt = decoded(codec, prompt), .expected = decoded(codec, answer)});
}

std::vector<std::string> HeldOut::answers_of(Run& run) const {
  const auto codec = codec_of(run);
  std::vector<std::string> answers;
  for (const auto& [prompt, expected] : documents_) {
    auto ends = codec.end_tokens();
    for (const auto token : expected) {  // what ends a turn in the chat's template
      if (run.tokenizer->is_special(static_cast<uint32_t>(token))) ends.push_back(token);
    }
    constexpr int64_t kMore = 16, kMost = 256;
    std::vector<int64_t> answer;
    continue_tokens(run, prompt,
                    {.num_tokens = std::min(2 * std::ssize(expected) + kMore, kMost),
                     .temperature = 0,
                     .end_tokens = std::move(ends),
                     .on_token = [&](int64_t token) { answer.push_back(token); }});
    answers.push_back(decoded(codec, answer));
  }
  return answers;
}

void HeldOut::before(Run& run, report::RunSummary& summary, const Say& say) const {
  if (run.config.train.validate_on_start) {
    if (const auto found = validate(run)) {
      summary.validation_loss_on_start = found->loss;
      auto line = fmt::format("before the first step: validation loss {:.4f}", found->loss);
      for (const auto& figure : report::shown_figures(found->figures)) line += ", " + figure;
      say({line});
    }
  }
  if (documents_.empty()) return;
  say({"answering what is held out (train.sample_answers)"});
  summary.answers = unanswered_;
  const auto answers = answers_of(run);
  for (size_t i = 0; i < answers.size(); ++i) summary.answers[i].before = answers[i];
}

void HeldOut::after(Run& run, report::RunSummary& summary) const {
  if (summary.answers.empty()) summary.answers = unanswered_;
  const auto answers = answers_of(run);
  for (size_t i = 0; i < answers.size(); ++i) summary.answers[i].after = answers[i];
}

}  // namespace tessera::train
