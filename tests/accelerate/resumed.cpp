// A checkpoint read by another number of processes than wrote it, as resumed.py does, too.
//
//     tessera launch -n 2 accelerate_resumed save FOLDER
//     tessera launch -n N accelerate_resumed load FOLDER FILE
#include <string_view>

#include "tessera/train/lr_scheduler.h"
#include "tests/accelerate/problem.h"

int main(int argc, char** argv) {
  using namespace problem;
  constexpr int64_t kSeen = 12;  // rows, before the checkpoint
  const bool is_new = argc == 3 && std::string_view(argv[1]) == "save";
  if (!is_new && (argc != 4 || std::string_view(argv[1]) != "load")) {
    fmt::print(stderr, "usage: accelerate_resumed save FOLDER | load FOLDER FILE\n");
    return 2;
  }
  Accelerator accelerator;
  Net net;
  torch::optim::Adam adam(net->parameters(), torch::optim::AdamOptions(0.05));
  tessera::lr_scheduler::LRScheduler decay(adam,
                                           tessera::lr_scheduler::ExponentialLR{.gamma = 0.9});
  auto [model, optimizer, scheduler, loader] =
      accelerator.prepare(net, adam, decay, make_loader(36, 2));
  const int64_t step_rows = 2 * accelerator.num_processes();
  if (!is_new) {
    accelerator.load_state(argv[2]);
    say(&accelerator, "loaded", weights(net), scheduler.get_last_lr(),
        optimizer.param_groups()[0].options().get_lr());
    loader = accelerator.skip_first_batches(loader, kSeen / step_rows);
  }
  Numbers losses;
  for (auto& [data, target] : loader) {
    if (is_new && std::ssize(losses) * step_rows == kSeen) {
      accelerator.save_state(argv[2]);
      break;
    }
    const auto loss = loss_of(model(data), target);
    accelerator.backward(loss);
    optimizer.step();
    scheduler.step();
    optimizer.zero_grad();
    losses.push_back(loss.item<double>());
  }
  if (is_new) return 0;
  say_all(accelerator, "losses", losses);
  say(&accelerator, "weights", weights(net), scheduler.get_last_lr());
  return write_lines(accelerator, argv[3]);
}
