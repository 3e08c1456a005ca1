#include "tessera/base/mapped_files.h"

#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <mutex>

#include "tessera/base/error.h"
#include "tessera/base/text.h"

namespace tessera {
namespace mapped_files {

/// Entries form a list that only grows, so that a signal handler can walk it at any time: one whose
/// file is no longer mapped is used again for the next.
struct Entry {
  std::string path;  ///< as an error says it
  std::atomic<const std::byte*> begin = nullptr;
  size_t size = 0;
  std::atomic<bool> lost = false;
  Entry* next = nullptr;
};

namespace {

std::atomic<Entry*> first_entry = nullptr;
std::mutex entries_mutex;
std::atomic<WhenCut> what_to_do = WhenCut::end;

Entry* entry_at(const std::byte* address) {
  for (auto* entry = first_entry.load(); entry != nullptr; entry = entry->next) {
    const auto* begin = entry->begin.load();
    if (begin != nullptr && address >= begin && address < begin + entry->size) return entry;
  }
  return nullptr;
}

/// Zeros from the page of `address` to the end of its mapping.
bool put_zeros(const Entry& entry, const std::byte* address) {
  const auto page = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
  const auto* begin = entry.begin.load();
  const size_t offset = static_cast<size_t>(address - begin) / page * page;
  void* wanted = const_cast<std::byte*>(begin + offset);
  return ::mmap(wanted, entry.size - offset, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1,
                0) == wanted;
}

/// Only what a signal handler may do.
void say(const char* text) {
  if (::write(STDERR_FILENO, text, std::strlen(text)) < 0) return;  // nobody listens
}

constexpr const char* kCut = ": was cut while it was read, or its disk fails; make it again";

void on_bus_error(int signal, siginfo_t* info, void*) {
  const int error = errno;
  auto* entry = entry_at(static_cast<const std::byte*>(info->si_addr));
  if (entry != nullptr && what_to_do == WhenCut::end) {
    say("tessera: ");
    say(entry->path.c_str());
    say(kCut);
    say("\n");
    ::_exit(kUserErrorExit);
  }
  if (entry != nullptr && put_zeros(*entry, static_cast<const std::byte*>(info->si_addr))) {
    entry->lost = true;
    errno = error;
    return;
  }
  ::signal(signal, SIG_DFL);  // the same instruction runs again, and ends the process
}

}  // namespace

Entry* add(const std::filesystem::path& path, const std::byte* begin, size_t size) {
  const std::lock_guard lock(entries_mutex);
  auto* entry = first_entry.load();
  while (entry != nullptr && (entry->begin != nullptr || entry->lost)) entry = entry->next;
  const bool is_new = entry == nullptr;
  if (is_new) entry = new Entry;  // for as long as the process: a handler may be looking at it
  entry->path = printable(path.string());
  entry->size = size;
  entry->begin = begin;
  if (!is_new) return entry;
  entry->next = first_entry;
  first_entry = entry;
  return entry;
}

void remove(Entry* entry) { entry->begin = nullptr; }

}  // namespace mapped_files

void watch_mapped_files(WhenCut when_cut) {
  mapped_files::what_to_do = when_cut;
  struct sigaction action = {};
  action.sa_sigaction = mapped_files::on_bus_error;
  action.sa_flags = SA_SIGINFO;
  if (::sigaction(SIGBUS, &action, nullptr) != 0) system_error("SIGBUS");
}

std::string lost_file() {
  const std::lock_guard lock(mapped_files::entries_mutex);
  for (auto* entry = mapped_files::first_entry.load(); entry != nullptr; entry = entry->next) {
    if (entry->lost) return entry->path;
  }
  return "";
}

void check_mapped_files() {
  const auto file = lost_file();
  if (!file.empty()) throw UserError(file + mapped_files::kCut);
}

}  // namespace tessera
