#include "tests/combinations/data.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <random>
#include <string>

#include "tessera/base/file.h"

namespace tessera::combinations {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

/// A sequence in which each token depends on the one before, so that there is something to learn.
void write_tokens(const fs::path& path, int64_t num_tokens) {
  std::mt19937_64 random(static_cast<uint64_t>(num_tokens));
  std::string bytes;
  uint16_t token = 0;
  for (int64_t i = 0; i < num_tokens; ++i) {
    token = static_cast<uint16_t>((token * 7 + random() % 5) % kLeastVocabulary);
    bytes.append(reinterpret_cast<const char*>(&token), sizeof(token));
  }
  write_file(path, bytes);
}

/// A token for each letter, as byte-level tokenizers write them, and two that stand around a message.
void write_tokenizer(const fs::path& path) {
  json vocabulary = json::object();
  for (char letter = 'a'; letter <= 'z'; ++letter) {
    vocabulary[std::string(1, letter)] = vocabulary.size();
  }
  for (const auto* blank : {"\u0120", "\u010a"}) vocabulary[blank] = vocabulary.size();
  json added = json::array();
  for (const auto* word : {"<|start|>", "<|end|>"}) {
    added.push_back({{"id", vocabulary.size() + added.size()},
                     {"content", word},
                     {"single_word", false},
                     {"lstrip", false},
                     {"rstrip", false},
                     {"normalized", false},
                     {"special", true}});
  }
  const json byte_level{{"type", "ByteLevel"},
                        {"add_prefix_space", false},
                        {"trim_offsets", true},
                        {"use_regex", false}};
  write_file(path,
             json{{"version", "1.0"},
                  {"truncation", nullptr},
                  {"padding", nullptr},
                  {"added_tokens", added},
                  {"normalizer", nullptr},
                  {"pre_tokenizer", byte_level},
                  {"post_processor", nullptr},
                  {"decoder", byte_level},
                  {"model", {{"type", "BPE"}, {"vocab", vocabulary}, {"merges", json::array()}}}}
                 .dump());
}

/// Questions of uneven length, some in two turns, whose answers begin as they do.
void write_chats(const fs::path& path, int num_chats) {
  std::mt19937_64 random(static_cast<uint64_t>(num_chats));
  std::string rows;
  for (int i = 0; i < num_chats; ++i) {
    json messages = json::array();
    for (uint64_t turn = 0; turn < 1 + random() % 2; ++turn) {
      std::string question;
      for (uint64_t letter = 0; letter < 1 + random() % 9; ++letter) {
        question += static_cast<char>('a' + random() % 26);
      }
      messages.push_back({{"role", "user"}, {"content", question}});
      messages.push_back({{"role", "assistant"}, {"content", question.substr(0, 3) + " yes"}});
    }
    rows += json{{"messages", messages}}.dump() + "\n";
  }
  write_file(path, rows);
}

/// Two answers to a question, of which the longer one is preferred.
void write_pairs(const fs::path& path, int num_pairs) {
  std::mt19937_64 random(static_cast<uint64_t>(num_pairs));
  std::string rows;
  for (int i = 0; i < num_pairs; ++i) {
    const std::string letter(1, static_cast<char>('a' + random() % 26));
    rows += json{{"prompt", letter + std::string(random() % 5, 'q') + " "},
                 {"chosen", "yes " + letter},
                 {"rejected", "no" + letter}}
                .dump() +
            "\n";
  }
  write_file(path, rows);
}

}  // namespace

void write_data(const fs::path& folder) {
  write_tokens(folder / "tokens.bin", 5000);
  write_tokens(folder / "more.bin", 1500);
  write_tokenizer(folder / "tokenizer.json");
  write_chats(folder / "chats.jsonl", 200);
  write_chats(folder / "more.jsonl", 70);
  write_pairs(folder / "pairs.jsonl", 160);
  write_pairs(folder / "more_pairs.jsonl", 60);
  write_file(folder / "chat.jinja",
             "{% for m in messages %}<|start|>{{ m.role }}\n{{ m.content }}<|end|>{% endfor %}");
}

void name_data(const fs::path& folder, Settings& job) {
  const auto quoted = [&](const char* name) {
    return fmt::format("'{}'", (folder / name).string());
  };
  const bool records = job["data.format"] == "records";
  const bool pairs = job.contains("preference.loss");
  const auto files = [&](const char* name, const char* more) {
    job["data.train"] = fmt::format("[{}, {}]", quoted(name), quoted(more));
  };
  if (!records) {
    files("tokens.bin", "more.bin");
  } else if (pairs) {
    files("pairs.jsonl", "more_pairs.jsonl");
  } else {
    files("chats.jsonl", "more.jsonl");
  }
  if (!records) return;
  job["data.tokenizer"] = quoted("tokenizer.json");
  job["data.chat_template"] = quoted("chat.jinja");
}

}  // namespace tessera::combinations
