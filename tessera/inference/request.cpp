#include "tessera/inference/request.h"

#include <nlohmann/json.hpp>

#include "tessera/base/file.h"

namespace tessera::inference {
namespace {

using nlohmann::json;

/// Calls `visit(key, field)` for each field: the one list of them.
template <typename Given, typename Visit>
void for_each_field(Given& request, const Visit& visit) {
  visit("task", request.task);
  visit("model", request.model);
  visit("other", request.other);
  visit("tokenizer", request.tokenizer);
  visit("chat_template", request.chat_template);
  visit("dtype", request.dtype);
  visit("weights", request.weights);
  visit("backend", request.backend);
  visit("prompt", request.prompt);
  visit("system", request.system);
  visit("echo", request.echo);
  visit("interactive", request.interactive);
  visit("speed", request.speed);
  visit("max_new_tokens", request.max_new_tokens);
  visit("seed", request.seed);
  visit("stop", request.stop);
  visit("repetition_penalty", request.repetition_penalty);
  visit("temperature", request.temperature);
  visit("top_p", request.top_p);
  visit("min_p", request.min_p);
  visit("top_k", request.top_k);
  visit("files", request.files);
  visit("shape", request.shape);
  visit("learn", request.learn);
  visit("seq_len", request.seq_len);
  visit("stride", request.stride);
  visit("max_rows", request.max_rows);
  visit("skip_bad_lines", request.skip_bad_lines);
  visit("json", request.json);
  visit("output", request.output);
  visit("model_card", request.model_card);
}

/// Texts as bytes: a path or a prompt may be no UTF-8.
json value_of(const std::string& text) { return json::binary({text.begin(), text.end()}); }

json value_of(const std::vector<std::string>& texts) {
  auto list = json::array();
  for (const auto& text : texts) list.push_back(value_of(text));
  return list;
}

template <typename Value>
json value_of(const Value& value) {
  return value;
}

template <typename Value>
json value_of(const std::optional<Value>& value) {
  return value ? value_of(*value) : json();
}

void take(const json& value, std::string& text) {
  const auto& bytes = value.get_binary();
  text.assign(bytes.begin(), bytes.end());
}

void take(const json& value, std::vector<std::string>& texts) {
  for (const auto& each : value) take(each, texts.emplace_back());
}

template <typename Value>
void take(const json& value, Value& result) {
  result = value.get<Value>();
}

template <typename Value>
void take(const json& value, std::optional<Value>& result) {
  if (!value.is_null()) take(value, result.emplace());
}

}  // namespace

std::string to_bytes(const Request& request) {
  auto fields = json::object();
  for_each_field(request,
                 [&](const char* key, const auto& field) { fields[key] = value_of(field); });
  std::string bytes;
  json::to_cbor(fields, bytes);
  return bytes;
}

Request read_request(const std::filesystem::path& path) {
  const auto fields = json::from_cbor(read_file(path));
  Request request;
  for_each_field(request, [&](const char* key, auto& field) { take(fields.at(key), field); });
  return request;
}

}  // namespace tessera::inference
