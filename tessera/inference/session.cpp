#include "tessera/inference/session.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/inference/console.h"
#include "tessera/text/tokenizer.h"

namespace tessera::inference {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

/// How many tokens a text may have: beyond the positions it was made for a model writes nonsense,
/// unless its angles follow the length.
int64_t num_positions(const models::ModelShape& shape) {
  const auto& scaling = shape.rope_scaling;
  const bool grows = scaling && scaling->type == models::RopeScalingType::dynamic;
  return grows ? static_cast<int64_t>(static_cast<double>(shape.max_seq_len) * scaling->factor)
               : shape.max_seq_len;
}

/// The user's choice, else that of the job, else what lies beside the model; "": bytes are tokens.
std::string tokenizer_for(const Request& request, const StoredModel& stored) {
  if (!request.tokenizer.empty()) return request.tokenizer;
  if (const auto& of_job = stored.job.tokenizer; !of_job.empty()) {
    if (fs::exists(of_job)) return of_job;
    user_error("{}: its job names the tokenizer {}, which is not there; give one with --tokenizer",
               request.model, of_job);
  }
  for (const auto& folder : {stored.assets, fs::path(stored.job.model)}) {
    if (!folder.empty() && text::has_tokenizer(folder)) return folder.string();
  }
  return "";
}

std::string template_for(const Request& request, const StoredModel& stored) {
  return request.chat_template.empty() ? stored.job.chat_template : request.chat_template;
}

}  // namespace

std::string end_line(const Answer& answer) {
  return answer.positions == 0 ? ""
                               : fmt::format("ended at the model's {} positions", answer.positions);
}

std::string speed_line(const Answer& answer) {
  const auto count = answer.tokens.size();
  const auto rate =
      count > 1 && answer.seconds > 0 ? static_cast<double>(count - 1) / answer.seconds : 0.0;
  return fmt::format("prompt: {} tokens in {:.2f} s; {} tokens in {:.2f} s, {:.1f} a second",
                     answer.prompt_tokens, answer.prompt_seconds, count, answer.seconds, rate);
}

Session::Session(const Request& request, const mesh::DeviceMesh& mesh)
    : request_(request),
      stored_(load_model({.source = request.model}, request.dtype, mesh, request.weights)),
      settings_(settings_of(request, stored_.assets)) {
  write_note(mesh, stored_.note);
  write_note(mesh, settings_.note);
  const auto path = tokenizer_for(request, stored_);
  const bool chats = request.task == Task::chat;
  if (chats && path.empty()) {
    user_error("{}: has no tokenizer, which a chat needs; give a model's folder with --tokenizer",
               request.model);
  }
  std::shared_ptr<const text::Tokenizer> tokenizer;
  auto& ends = settings_.end_tokens;
  if (chats) {
    encoder().check_template();
    tokenizer = {std::shared_ptr<void>(), &encoder_->tokenizer()};
    if (const auto end = encoder_->end_of_turn()) ends.push_back(*end);
  } else if (!path.empty()) {
    tokenizer = std::make_shared<const text::Tokenizer>(text::load_tokenizer(path));
  }
  codec_.emplace(std::move(tokenizer), stored_.model->shape().vocab_size);
  std::ranges::copy(codec_->end_tokens(), std::back_inserter(ends));
}

std::vector<int64_t> Session::tokens_of(const std::string& text) const {
  return codec_->encode(text);
}

std::vector<int64_t> Session::plain_tokens_of(const std::string& text) const {
  return codec_->encode_plain(text);
}

const documents::DocumentEncoder& Session::encoder() {
  if (encoder_ != nullptr) return *encoder_;
  const auto path = tokenizer_for(request_, stored_);
  if (path.empty()) {
    user_error("{}: has no tokenizer, which rows of data sets need; give one with --tokenizer",
               request_.model);
  }
  encoder_ = std::make_unique<documents::DocumentEncoder>(
      documents::EncoderOptions{.tokenizer = path,
                                .chat_template = template_for(request_, stored_),
                                .learn = request_.learn});
  return *encoder_;
}

std::vector<int64_t> Session::tokens_of(const chat::Inputs& conversation) const {
  return encoder_->encode_prompt(conversation);
}

Answer Session::go_on(std::vector<int64_t> tokens,
                      const std::function<bool(const std::string&)>& show) {
  const auto& shape = stored_.model->shape();
  const int64_t positions = num_positions(shape), room = positions - std::ssize(tokens);
  if (tokens.empty()) user_error("the chat template wrote nothing for these messages");
  if (room < 1) {
    user_error("{} tokens, but the model has {} positions; say less", tokens.size(), positions);
  }
  if (const auto largest = std::ranges::max(tokens); largest >= shape.vocab_size) {
    user_error(
        "token {}, but the model has {} rows in its vocabulary: a tokenizer of another model?",
        largest, shape.vocab_size);
  }
  Answer answer{.prompt_tokens = std::ssize(tokens)};
  generate::Decoder decoder(*codec_, /*skip_special_tokens=*/true);
  generate::StopWords stop(request_.stop);
  const auto say = [&](const std::string& text) {
    answer.text += text;
    return text.empty() || show(text);
  };
  auto start = Clock::now();
  const auto on_token = [&](int64_t token) {
    return say(stop.push(decoder.push(token))) && !stop.found();
  };
  if (!cached_) cached_.emplace(*stored_.model);
  const auto next_logits = [&](std::span<const int64_t> text) {
    auto logits = (*cached_)(text);
    if (answer.prompt_seconds == 0)
      answer.prompt_seconds = seconds_since(start), start = Clock::now();
    return logits;
  };
  answer.tokens = generate::generate(next_logits, std::move(tokens),
                                     {.max_new_tokens = std::min(request_.max_new_tokens, room),
                                      .sampling = settings_.sampling,
                                      .end_tokens = settings_.end_tokens,
                                      .on_token = on_token});
  answer.seconds = seconds_since(start);
  if (request_.max_new_tokens > room && std::ssize(answer.tokens) == room) {
    answer.positions = positions;
  }
  if (!stop.found()) say(stop.push(decoder.finish()) + stop.finish());
  return answer;
}

}  // namespace tessera::inference
