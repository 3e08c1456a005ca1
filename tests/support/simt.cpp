#include "tests/support/simt.h"

#include <sys/mman.h>
#include <ucontext.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <vector>

namespace tessera::simt {
namespace {

constexpr int kWarp = 32, kMaxThreads = 1024;
constexpr size_t kStackBytes = 64 << 10;

[[noreturn]] void fail(const char* what) {
  std::fprintf(stderr, "simt: %s\n", what);
  std::abort();
}

struct Fiber {
  enum class State { ready, at_block_barrier, at_warp_barrier, done };
  ucontext_t context;
  State state = State::done;
  uint64_t sent = 0;
};

/// One block at a time.
class Machine {
 public:
  void run(int64_t blocks, int threads, const std::function<void()>& body, int shared_bytes);
  void wait(Fiber::State at);
  uint64_t exchange(uint64_t sent, int mask);

  std::mt19937_64 order{1};
  Place here;
  int64_t launches = 0;
  std::vector<uint64_t> shared;

 private:
  static void start_fiber();
  void run_block();
  void release_if_complete(int first, int last, Fiber::State at);
  int live(int first, int last) const;

  std::vector<Fiber> fibers_ = std::vector<Fiber>(kMaxThreads);
  char* stacks_ = nullptr;
  ucontext_t scheduler_;
  const std::function<void()>* body_ = nullptr;
  int threads_ = 0, current_ = 0;
  std::vector<int> ready_;
};

Machine& machine() {
  static Machine made;
  return made;
}

void Machine::start_fiber() {
  auto& own = machine();
  (*own.body_)();
  own.fibers_[own.current_].state = Fiber::State::done;
  swapcontext(&own.fibers_[own.current_].context, &own.scheduler_);
}

void Machine::run(int64_t blocks, int threads, const std::function<void()>& body,
                  int shared_bytes) {
  if (body_ != nullptr) fail("a kernel started within a kernel");
  if (threads <= 0 || threads > kMaxThreads || threads % kWarp != 0) fail("a bad size of blocks");
  if (blocks <= 0 || blocks >= int64_t{1} << 31) fail("a bad number of blocks");
  if (stacks_ == nullptr) {
    stacks_ = static_cast<char*>(mmap(nullptr, kMaxThreads * kStackBytes, PROT_READ | PROT_WRITE,
                                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
    if (stacks_ == MAP_FAILED) fail("no memory for stacks");
  }
  ++launches;
  body_ = &body;
  threads_ = threads;
  here.block_dim.x = static_cast<unsigned>(threads);
  here.grid_dim.x = static_cast<unsigned>(blocks);
  std::vector<unsigned> of_blocks(static_cast<size_t>(blocks));
  for (unsigned i = 0; i < of_blocks.size(); ++i) of_blocks[i] = i;
  std::ranges::shuffle(of_blocks, order);
  for (const unsigned block : of_blocks) {
    here.block.x = block;
    shared.assign((static_cast<size_t>(shared_bytes) + 7) / 8, ~uint64_t{0});
    run_block();
  }
  body_ = nullptr;
}

void Machine::run_block() {
  ready_.clear();
  for (int i = 0; i < threads_; ++i) {
    auto& fiber = fibers_[i];
    fiber.state = Fiber::State::ready;
    getcontext(&fiber.context);
    fiber.context.uc_stack.ss_sp = stacks_ + static_cast<size_t>(i) * kStackBytes;
    fiber.context.uc_stack.ss_size = kStackBytes;
    fiber.context.uc_link = nullptr;
    makecontext(&fiber.context, &Machine::start_fiber, 0);
    ready_.push_back(i);
  }
  while (!ready_.empty()) {
    std::swap(ready_[order() % ready_.size()], ready_.back());
    current_ = ready_.back();
    ready_.pop_back();
    here.thread.x = static_cast<unsigned>(current_);
    swapcontext(&scheduler_, &fibers_[current_].context);
    // Those that wait for one which is done wait no longer.
    const int first = current_ / kWarp * kWarp;
    release_if_complete(first, first + kWarp, Fiber::State::at_warp_barrier);
    if (ready_.empty()) release_if_complete(0, threads_, Fiber::State::at_block_barrier);
  }
  if (live(0, threads_) > 0) fail("threads of a block wait at different barriers");
}

int Machine::live(int first, int last) const {
  return static_cast<int>(
      std::count_if(fibers_.begin() + first, fibers_.begin() + last,
                    [](const Fiber& fiber) { return fiber.state != Fiber::State::done; }));
}

void Machine::release_if_complete(int first, int last, Fiber::State at) {
  const auto waiting = std::count_if(fibers_.begin() + first, fibers_.begin() + last,
                                     [at](const Fiber& fiber) { return fiber.state == at; });
  if (waiting == 0 || waiting < live(first, last)) return;
  for (int i = first; i < last; ++i) {
    if (fibers_[i].state != at) continue;
    fibers_[i].state = Fiber::State::ready;
    ready_.push_back(i);
  }
}

void Machine::wait(Fiber::State at) {
  fibers_[current_].state = at;
  swapcontext(&fibers_[current_].context, &scheduler_);
}

uint64_t Machine::exchange(uint64_t sent, int mask) {
  const int from = current_ ^ mask;
  if (mask < 0 || mask >= kWarp) fail("a shuffle beyond the warp");
  fibers_[current_].sent = sent;
  wait(Fiber::State::at_warp_barrier);
  if (fibers_[from].state == Fiber::State::done) fail("a shuffle from a thread that has ended");
  const uint64_t got = fibers_[from].sent;
  wait(Fiber::State::at_warp_barrier);  // nobody sends again before all have read
  return got;
}

}  // namespace

const Place& place() { return machine().here; }
void run(int64_t blocks, int threads, const std::function<void()>& body, int shared_bytes) {
  machine().run(blocks, threads, body, shared_bytes);
}
void* shared_memory() { return machine().shared.data(); }
void set_order(uint64_t seed) { machine().order.seed(seed); }
int64_t launches() { return machine().launches; }
void wait_for_block() { machine().wait(Fiber::State::at_block_barrier); }
uint64_t exchange(uint64_t sent, int mask) { return machine().exchange(sent, mask); }

}  // namespace tessera::simt
