#include "tessera/data/encoding_threads.h"

#include <optional>
#include <utility>

namespace tessera::data {

EncodingThreads::EncodingThreads(const text::Tokenizer* tokenizer, int num_threads)
    : tokenizer_(tokenizer) {
  for (int i = 0; i < num_threads; ++i) threads_.emplace_back([this] { run(); });
}

EncodingThreads::~EncodingThreads() {
  {
    const std::lock_guard lock(mutex_);
    waiting_.clear();
    ends_ = true;
  }
  changed_.notify_all();
}

std::future<EncodedPart> EncodingThreads::encode(TextPart part) {
  Task task([part = std::move(part)](text::Encoder* encoder) mutable {
    EncodedPart encoded{std::move(part), {}};
    if (encoder == nullptr) {
      for (const char byte : encoded.part.text) encoded.ids.push_back(static_cast<uint8_t>(byte));
    } else {
      encoder->append(encoded.part.text, encoded.ids,
                      {.add_special_tokens = false,
                       .find_special_tokens = false,
                       .continues_text = encoded.part.continues});
    }
    return encoded;
  });
  auto future = task.get_future();
  {
    const std::lock_guard lock(mutex_);
    waiting_.push_back(std::move(task));
  }
  changed_.notify_one();
  return future;
}

void EncodingThreads::run() {
  std::optional<text::Encoder> encoder;
  if (tokenizer_ != nullptr) encoder.emplace(*tokenizer_);
  while (true) {
    Task task;
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return ends_ || !waiting_.empty(); });
      if (waiting_.empty()) return;
      task = std::move(waiting_.front());
      waiting_.pop_front();
    }
    task(encoder ? &*encoder : nullptr);
  }
}

}  // namespace tessera::data
