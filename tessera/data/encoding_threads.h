// Parts of texts become tokens on several threads.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <future>
#include <mutex>
#include <thread>
#include <vector>

#include "tessera/data/text_reader.h"

namespace tessera::data {

struct EncodedPart {
  TextPart part;
  std::vector<uint32_t> ids;
};

class EncodingThreads {
 public:
  /// `tokenizer` must outlive this; nullptr: one token a byte.
  EncodingThreads(const text::Tokenizer* tokenizer, int num_threads);
  ~EncodingThreads();
  EncodingThreads(const EncodingThreads&) = delete;
  EncodingThreads& operator=(const EncodingThreads&) = delete;

  /// What looks like a special token stays text. The future holds what encoding throws, too.
  std::future<EncodedPart> encode(TextPart part);

 private:
  using Task = std::packaged_task<EncodedPart(text::Encoder*)>;
  void run();

  const text::Tokenizer* tokenizer_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Task> waiting_;
  bool ends_ = false;
  std::vector<std::jthread> threads_;  // last: they use the rest
};

}  // namespace tessera::data
