#include "tessera/comm/roll_call.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <sstream>
#include <utility>

#include "tessera/comm/thread.h"

namespace tessera::comm {

/// What a rank says of itself.
struct Word {
  enum class State { goes_on, waits, late, lost } state = State::goes_on;
  int64_t beat = 0;  // counts how often it has said that it waits
  std::vector<int> ranks;
};

constexpr int kRepeats = 4;  // a rank that waits says so anew between any two of them

struct Heard {
  std::string first, last;  // words, since the first question
  int times = 0;

  /// It said that it waits, and has not repeated that.
  bool has_stopped() const { return times >= kRepeats && first == last; }
};

namespace {

using Clock = std::chrono::steady_clock;
using Milliseconds = std::chrono::milliseconds;
using Why = MissingPeers::Why;
constexpr auto kPatience = Milliseconds(1000);
constexpr auto kHangUp = Milliseconds(300);
constexpr auto kSilence = Milliseconds(2000);  // a store that lives answers within this

std::string key_of(int rank) { return fmt::format("roll_call/{}", rank); }

std::string name_of(const std::vector<int>& ranks) {
  return fmt::format("rank{} {}", ranks.size() == 1 ? "" : "s", fmt::join(ranks, ", "));
}

std::string to_text(const Word& word) {
  return fmt::format("{} {} {}", static_cast<int>(word.state), word.beat,
                     fmt::join(word.ranks, " "));
}

/// What a rank says in `text`; "" is that of a rank that has said nothing: it goes on.
Word word_from(const std::string& text) {
  Word word;
  std::istringstream words(text);
  int state = 0;
  words >> state >> word.beat;
  word.state = static_cast<Word::State>(state);
  for (int rank = 0; words >> rank;) word.ranks.push_back(rank);
  return word;
}

/// The ranks at the end of the chain that starts at `missing`, and whether a deadline was what
/// ended it.
struct Answer {
  std::set<int> ranks;
  bool late = false;
  std::set<int> asked;  // every rank of the chain
};

Answer follow(const MissingPeers& missing, int self, const std::map<int, Heard>& heard) {
  Answer answer{.ranks = {}, .late = missing.why() == Why::late, .asked = {}};
  std::vector<int> pending = missing.ranks();
  while (!pending.empty()) {
    const int rank = pending.back();
    pending.pop_back();
    if (rank == self || !answer.asked.insert(rank).second) continue;
    const auto found = heard.find(rank);
    const Word word = found == heard.end() ? Word{} : word_from(found->second.last);
    const bool stopped = word.state == Word::State::waits && found->second.has_stopped();
    if (word.state == Word::State::goes_on || stopped) {
      answer.ranks.insert(rank);
    } else {
      answer.late |= word.state == Word::State::late;
      pending.insert(pending.end(), word.ranks.begin(), word.ranks.end());
    }
  }
  return answer;
}

std::string host_name() {
  std::array<char, 256> name{};
  ::gethostname(name.data(), name.size() - 1);
  return name.data();
}

/// On which hosts the ranks are, as far as they have said so: " (rank 1 is on b)".
std::string hosts_of(const std::set<int>& ranks, const std::map<int, std::string>& hosts) {
  std::string text;
  for (const int rank : ranks) {
    const auto found = hosts.find(rank);
    text += fmt::format(
        "{}rank {} {}", text.empty() ? " (" : ", ", rank,
        found == hosts.end() ? "has never reached the store" : "is on " + found->second);
  }
  return text.empty() ? "" : text + ")";
}

std::string describe(const MissingPeers& missing, const Answer& answer, Milliseconds timeout) {
  if (answer.ranks.empty()) return missing.what();  // each waits for another
  const std::vector<int> ranks(answer.ranks.begin(), answer.ranks.end());
  const bool direct = std::ranges::any_of(
      missing.ranks(), [&](const int rank) { return answer.ranks.contains(rank); });
  std::string text;
  if (answer.late) {
    text = fmt::format("{} within {} s", did_not_come(ranks), timeout.count() / 1000.0);
  } else if (direct) {
    const bool one_of_several = ranks.size() == 1 && missing.ranks().size() > 1;
    text = (one_of_several ? name_of(ranks) + ": " : "") + missing.what();
  } else {
    text = fmt::format("{} was lost", name_of(ranks));
  }
  if (direct) return text;
  return fmt::format("{}; {} wait{} for it", text, name_of(missing.ranks()),
                     missing.ranks().size() == 1 ? "s" : "");
}

}  // namespace

/// Shared with the thread, which outlives the roll call if the store never answers it.
struct RollCall::Board {
  struct Wait {
    Clock::time_point since;
    ForWhom for_whom;
  };

  std::mutex mutex;
  std::condition_variable changed;
  bool stopping = false;
  bool ended = false;  // the thread, of itself or because the store is gone
  int self = 0;
  bool one_machine = true;
  Milliseconds patience = kPatience;
  std::map<int64_t, Wait> waits;
  int64_t num_waits = 0;  // ever begun
  std::optional<Word> given_up;
  std::set<int> wanted;  // ranks whose words somebody asks for
  std::map<int, Heard> heard;
  std::map<int, std::string> hosts;  // of wanted ranks that have said so
  int64_t num_rounds = 0;
  int64_t beat = 0;

  Milliseconds period() const { return std::max(patience / 4, Milliseconds(1)); }
  Word own_word();
};

/// What this rank has to say now. Under the mutex, which keeps the operations alive.
Word RollCall::Board::own_word() {
  if (given_up) return *given_up;
  std::set<int> ranks;
  for (const auto& [id, wait] : waits) {
    if (Clock::now() < wait.since + patience) continue;
    for (const int rank : wait.for_whom()) ranks.insert(rank);
  }
  if (ranks.empty()) return {};
  return {.state = Word::State::waits, .beat = ++beat, .ranks = {ranks.begin(), ranks.end()}};
}

std::string host_key(int rank) { return fmt::format("host/{}", rank); }

std::string did_not_come(const std::vector<int>& ranks) { return name_of(ranks) + " did not come"; }

RollCall::RollCall(const c10::intrusive_ptr<c10d::Store>& store, const RollCallOptions& options)
    : options_(options), board_(std::make_shared<Board>()) {
  board_->self = options.rank;
  board_->one_machine = options.one_machine;
  board_->patience = std::min(kPatience, options.timeout / 4);
  start_thread("roll call", [board = board_, store] { serve(board, store); }).detach();
}

RollCall::~RollCall() {
  std::unique_lock lock(board_->mutex);
  board_->stopping = true;
  board_->changed.notify_all();
  board_->changed.wait_for(lock, kSilence, [this] { return board_->ended; });
}

void RollCall::serve(const std::shared_ptr<Board>& board,
                     const c10::intrusive_ptr<c10d::Store>& shared_store) {
  std::unique_lock lock(board->mutex);
  try {
    std::string said = to_text({});
    lock.unlock();
    const auto store = shared_store->clone();  // nobody else's wait holds it up
    if (!board->one_machine) store->set(host_key(board->self), host_name());
    lock.lock();
    while (!board->stopping) {
      const auto text = to_text(board->own_word());
      const auto wanted = board->wanted;
      lock.unlock();
      if (text != said) store->set(key_of(board->self), text);
      said = text;
      std::map<int, std::string> words, hosts;
      for (const int rank : wanted) {
        words[rank] = store->check({key_of(rank)}) ? store->get_to_str(key_of(rank)) : to_text({});
        if (store->check({host_key(rank)})) hosts[rank] = store->get_to_str(host_key(rank));
      }
      lock.lock();
      for (const auto& [rank, word] : words) {
        auto& heard =
            board->heard.try_emplace(rank, Heard{.first = word, .last = {}}).first->second;
        heard.last = word;
        ++heard.times;
      }
      board->hosts.merge(hosts);
      ++board->num_rounds;
      board->changed.notify_all();
      board->changed.wait_for(lock, board->period());
    }
  } catch (const std::exception&) {  // the store is gone: what was heard must do
    if (!lock.owns_lock()) lock.lock();
  }
  board->ended = true;
  board->changed.notify_all();
}

std::string RollCall::explain(const MissingPeers& missing) {
  const bool late = missing.why() == Why::late;
  auto& board = *board_;
  std::unique_lock lock(board.mutex);
  if (!board.given_up) {
    board.given_up =
        Word{.state = late ? Word::State::late : Word::State::lost, .ranks = missing.ranks()};
  }
  // Who began to wait just now has not said so yet; who hung up said why before.
  const auto end = Clock::now() + (late ? board.patience * 3 / 2 : kHangUp);
  const int64_t enough_rounds = board.num_rounds + 2;
  while (Clock::now() < end) {
    const auto before = board.wanted.size();
    board.wanted.merge(follow(missing, options_.rank, board.heard).asked);
    if (board.wanted.size() != before) board.changed.notify_all();
    board.changed.wait_until(lock, end);
  }
  const bool answered = board.changed.wait_until(
      lock, end + kSilence, [&] { return board.ended || board.num_rounds >= enough_rounds; });
  auto answer = follow(missing, options_.rank, board.heard);
  if (!answered && options_.server && options_.server != options_.rank) {
    answer = {.ranks = {*options_.server}, .late = late, .asked = {}};
  }
  auto text = describe(missing, answer, options_.timeout);
  return options_.one_machine ? text : text + hosts_of(answer.ranks, board.hosts);
}

void RollCall::watch(const ForWhom& for_whom, const std::function<void()>& body) {
  auto& board = *board_;
  std::unique_lock lock(board.mutex);
  const int64_t id = board.num_waits++;
  board.waits.emplace(id, Board::Wait{.since = Clock::now(), .for_whom = for_whom});
  lock.unlock();
  const std::unique_ptr<Board, std::function<void(Board*)>> until_the_end(&board, [id](Board* of) {
    const std::lock_guard guard(of->mutex);
    of->waits.erase(id);
  });
  try {
    body();
  } catch (const MissingPeers& missing) {
    throw std::runtime_error(explain(missing));
  }
}

}  // namespace tessera::comm
