#include "tessera/kernels/copy_queue.h"

#include <ATen/record_function.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <gtest/gtest.h>
#include <torch/types.h>

#include <string>
#include <vector>

namespace tessera::kernels {
namespace {

/// What a device's streams were asked for, in order. Stream 0 is current at first, 1, 2 .. come from the pool.
struct Streams {
  static Streams& here() {
    static Streams streams;
    return streams;
  }
  std::vector<std::string> asked;
  c10::StreamId current = 0, last_of_pool = 0;
};

std::string on(c10::StreamId stream) { return " on " + std::to_string(stream); }

/// A device whose tensors are nowhere: its streams alone.
struct LoggingGuard : c10::impl::DeviceGuardImplInterface {
  static constexpr auto kType = c10::DeviceType::PrivateUse1;
  static c10::Device only() { return {kType, 0}; }
  static c10::Stream stream(c10::StreamId id) {
    return c10::Stream(c10::Stream::UNSAFE, only(), id);
  }

  c10::DeviceType type() const override { return kType; }
  c10::Device exchangeDevice(c10::Device) const override { return only(); }
  c10::Device getDevice() const override { return only(); }
  void setDevice(c10::Device) const override {}
  void uncheckedSetDevice(c10::Device) const noexcept override {}
  c10::DeviceIndex deviceCount() const noexcept override { return 1; }
  c10::Stream getStream(c10::Device) const override { return stream(Streams::here().current); }
  c10::Stream getStreamFromGlobalPool(c10::Device, bool) const override {
    return stream(++Streams::here().last_of_pool);
  }
  c10::Stream exchangeStream(c10::Stream next) const override {
    return stream(std::exchange(Streams::here().current, next.id()));
  }
  void record(void** event, const c10::Stream& stream, c10::DeviceIndex,
              c10::EventFlag) const override {
    static int some;
    *event = &some;
    Streams::here().asked.push_back("record" + on(stream.id()));
  }
  void block(void*, const c10::Stream& stream) const override {
    Streams::here().asked.push_back("block" + on(stream.id()));
  }
  void synchronizeEvent(void*) const override { Streams::here().asked.push_back("host waits"); }
};
C10_REGISTER_GUARD_IMPL(PrivateUse1, LoggingGuard)

std::unique_ptr<at::ObserverContext> log_copy(const at::RecordFunction&) {
  Streams::here().asked.push_back("copy" + on(Streams::here().current));
  return nullptr;
}

struct CopyQueueTest : ::testing::Test {
  CopyQueueTest() { Streams::here() = {}; }
};

TEST_F(CopyQueueTest, CopiesOnItsOwnStreamBetweenEventsOfTheCurrentOne) {
  const auto queue = copy_queue(LoggingGuard::only());
  const auto other = copy_queue(LoggingGuard::only());
  const auto from = torch::arange(5), to = torch::zeros_like(from);
  const auto handle = at::addGlobalCallback(
      at::RecordFunctionCallback(log_copy).scopes({at::RecordScope::FUNCTION}));
  queue->start(to, from);
  at::removeCallback(handle);
  EXPECT_TRUE(torch::equal(to, from));
  queue->wait();
  other->wait();
  EXPECT_EQ(Streams::here().asked,
            (std::vector<std::string>{"record on 0", "block on 1", "copy on 1", "record on 1",
                                      "block on 0", "record on 2", "block on 0"}));
  EXPECT_EQ(Streams::here().current, 0);
}

TEST_F(CopyQueueTest, WhatFollowsACopyWaitsForItAlone) {
  const auto queue = copy_queue(LoggingGuard::only());
  const auto from = torch::arange(5), to = torch::zeros_like(from);
  queue->start(to, from);
  queue->after([] { Streams::here().asked.push_back("work" + on(Streams::here().current)); });
  queue->finish();
  EXPECT_EQ(Streams::here().asked,
            (std::vector<std::string>{"record on 0", "block on 1", "work on 1", "record on 1",
                                      "host waits"}));
}

}  // namespace
}  // namespace tessera::kernels
