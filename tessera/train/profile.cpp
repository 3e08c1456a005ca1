#include "tessera/train/profile.h"

#include <ATen/Context.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/profiler_kineto.h>

#include <algorithm>
#include <map>
#include <utility>

#include "tessera/base/error.h"

namespace tessera {
namespace kineto = torch::autograd::profiler;
namespace {

std::string time_text(double microseconds) {
  if (microseconds >= 1e6) return fmt::format("{:.3f}s", microseconds / 1e6);
  if (microseconds >= 1e3) return fmt::format("{:.3f}ms", microseconds / 1e3);
  return fmt::format("{:.3f}us", microseconds);
}

}  // namespace

Profile::Profile(const ProfileOptions& options, int rank) : options_(options), rank_(rank) {
  const torch::profiler::impl::ProfilerConfig config(torch::profiler::impl::ProfilerState::KINETO,
                                                     options.record_shapes, options.profile_memory,
                                                     /*with_stack=*/false, options.with_flops);
  std::set activities{torch::profiler::impl::ActivityType::CPU};
  if (at::hasCUDA()) activities.insert(torch::profiler::impl::ActivityType::CUDA);
  kineto::prepareProfiler(config, activities);
  kineto::enableProfiler(config, activities);
}

Profile::~Profile() {
  if (running_) kineto::disableProfiler();
}

void Profile::stop() {
  if (!std::exchange(running_, false)) return;
  result_ = kineto::disableProfiler();
  if (options_.output_trace_dir.empty()) return;
  std::filesystem::create_directories(options_.output_trace_dir);
  const auto path = options_.output_trace_dir / fmt::format("profile_{}.json", rank_);
  result_->save(path.string());
  if (!std::filesystem::exists(path)) {
    throw SystemError(fmt::format("{}: the trace could not be written", path.string()));
  }
}

std::vector<ProfiledOperator> Profile::key_averages() {
  stop();
  std::map<std::string, ProfiledOperator> by_name;
  std::map<uint64_t, std::vector<const kineto::KinetoEvent*>> by_thread;
  for (const auto& event : result_->events()) {
    if (event.deviceType() == c10::DeviceType::CPU && !event.isAsync()) {
      by_thread[event.startThreadId()].push_back(&event);
    }
  }
  for (auto& [thread, events] : by_thread) {
    std::ranges::sort(events, [](const auto* a, const auto* b) {
      return std::pair(a->startNs(), b->endNs()) < std::pair(b->startNs(), a->endNs());
    });
    std::vector<const kineto::KinetoEvent*> open;  // each inside of the one before it
    for (const auto* event : events) {
      while (!open.empty() && open.back()->endNs() <= event->startNs()) open.pop_back();
      const double microseconds = static_cast<double>(event->durationNs()) / 1e3;
      if (!open.empty()) by_name[open.back()->name()].self_cpu_time_total -= microseconds;
      auto& total = by_name[event->name()];
      total.name = event->name();
      ++total.count;
      total.self_cpu_time_total += microseconds;
      total.cpu_time_total += microseconds;
      open.push_back(event);
    }
  }
  std::vector<ProfiledOperator> operators;
  for (auto& [name, total] : by_name) operators.push_back(std::move(total));
  std::ranges::sort(operators, std::greater(), &ProfiledOperator::self_cpu_time_total);
  return operators;
}

std::string Profile::table(int64_t row_limit) {
  const auto operators = key_averages();
  double sum = 0;
  for (const auto& each : operators) sum += each.self_cpu_time_total;
  const auto share = [sum](double of) {
    return fmt::format("{:.2f}%", sum > 0 ? of / sum * 100 : 0);
  };
  const auto within = [](const std::string& name) {
    return name.size() <= 55 ? name : fmt::format("{:.52}...", name);
  };
  constexpr auto kRow = "{:>55}  {:>12}  {:>12}  {:>12}  {:>12}  {:>12}  {:>12}\n";
  auto text = fmt::format(kRow, "Name", "Self CPU %", "Self CPU", "CPU total %", "CPU total",
                          "CPU time avg", "# of Calls");
  for (int64_t i = 0; i < std::ssize(operators) && i != row_limit; ++i) {
    const auto& each = operators[static_cast<size_t>(i)];
    text +=
        fmt::format(kRow, within(each.name), share(each.self_cpu_time_total),
                    time_text(each.self_cpu_time_total), share(each.cpu_time_total),
                    time_text(each.cpu_time_total),
                    time_text(each.cpu_time_total / static_cast<double>(each.count)), each.count);
  }
  return text + fmt::format("Self CPU time total: {}\n", time_text(sum));
}

}  // namespace tessera
