#include "tests/support/rank_server.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "tessera/base/error.h"

namespace tessera {
namespace {

constexpr size_t kMessageBytes = size_t{1} << 17;
constexpr size_t kFiles = 2;
int server = -1;  // the program's end of its socket

/// A message and the files that come with it.
class Letter {
 public:
  Letter() : data_(kMessageBytes, '\0') {
    part_ = {.iov_base = data_.data(), .iov_len = data_.size()};
    header_ = {.msg_iov = &part_,
               .msg_iovlen = 1,
               .msg_control = control_.data(),
               .msg_controllen = control_.size()};
  }
  Letter(const Letter&) = delete;
  Letter& operator=(const Letter&) = delete;

  void send(const std::string& text, const std::vector<int>& files) {
    if (text.size() > kMessageBytes) {
      errno = E2BIG;
      system_error("the environment of a test's rank");
    }
    part_ = {.iov_base = const_cast<char*>(text.data()), .iov_len = text.size()};
    header_.msg_controllen = CMSG_SPACE(files.size() * sizeof(int));
    auto* first = CMSG_FIRSTHDR(&header_);
    first->cmsg_level = SOL_SOCKET;
    first->cmsg_type = SCM_RIGHTS;
    first->cmsg_len = CMSG_LEN(files.size() * sizeof(int));
    std::memcpy(CMSG_DATA(first), files.data(), files.size() * sizeof(int));
    const auto sent = TEMP_FAILURE_RETRY(::sendmsg(server, &header_, MSG_NOSIGNAL));
    if (sent != static_cast<ssize_t>(text.size())) system_error("the server of a test's ranks");
  }

  /// False once the sender is gone.
  bool receive(int socket) {
    const auto got = TEMP_FAILURE_RETRY(::recvmsg(socket, &header_, 0));
    if (got <= 0 || (header_.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) != 0) return false;
    data_.resize(static_cast<size_t>(got));
    return true;
  }
  const std::string& text() const { return data_; }
  std::vector<int> files() {
    const auto* first = CMSG_FIRSTHDR(&header_);
    if (first == nullptr) return {};
    std::vector<int> files((first->cmsg_len - CMSG_LEN(0)) / sizeof(int));
    std::memcpy(files.data(), CMSG_DATA(first), files.size() * sizeof(int));
    return files;
  }

 private:
  std::string data_;
  alignas(cmsghdr) std::array<char, CMSG_SPACE(kFiles * sizeof(int))> control_ = {};
  iovec part_ = {};
  msghdr header_ = {};
};

/// Each text with its end, after how many there are.
std::string packed(const std::vector<std::string>& texts) {
  std::string all = std::to_string(texts.size()) + '\0';
  for (const auto& text : texts) all += text + '\0';
  return all;
}

std::vector<std::string> unpacked(const char*& at) {
  const auto next = [&at] {
    std::string text = at;
    at += text.size() + 1;
    return text;
  };
  std::vector<std::string> texts(std::stoul(next()));
  for (auto& text : texts) text = next();
  return texts;
}

int run_all(std::vector<std::string> arguments) {
  std::vector<char*> argv;
  for (auto& argument : arguments) argv.push_back(argument.data());
  argv.push_back(nullptr);
  int argc = static_cast<int>(arguments.size());
  ::testing::InitGoogleTest(&argc, argv.data());
  return RUN_ALL_TESTS();
}

void ends_with(pid_t parent) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent) ::_exit(127);
}

[[noreturn]] void run_process(Letter& letter) {
  const auto files = letter.files();
  const char* at = letter.text().data();
  auto arguments = unpacked(at);
  ::clearenv();
  for (const auto& variable : unpacked(at)) {
    const auto equals = variable.find('=');
    ::setenv(variable.substr(0, equals).c_str(), variable.substr(equals + 1).c_str(), 1);
  }
  ::dup2(files.at(0), STDOUT_FILENO);
  ::dup2(files.at(0), STDERR_FILENO);
  ::close(files.at(0));
  if (files.size() > 1) ::setenv(kListenFd, std::to_string(files[1]).c_str(), 1);
  const int status = run_all(std::move(arguments));
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  std::exit(status);  // sanitizers tell at the end
#endif
  std::fflush(nullptr);
  ::_exit(status);  // LibTorch has nothing to forget in a process that ends
}

/// Until the program ends.
[[noreturn]] void serve(int socket, pid_t program) {
  for (;;) {
    Letter letter;
    if (!letter.receive(socket)) ::_exit(0);
    // fork() with another parent. One thread, so none of its handlers has anything to do.
    const auto pid = static_cast<pid_t>(::syscall(SYS_clone, CLONE_PARENT | SIGCHLD, 0, 0, 0, 0));
    if (pid == 0) {
      ends_with(program);
      ::close(socket);
      run_process(letter);
    }
    if (::send(socket, &pid, sizeof(pid), MSG_NOSIGNAL) != sizeof(pid)) ::_exit(0);
    for (const int file : letter.files()) ::close(file);
  }
}

void start_server() {
  std::array<int, 2> ends = {};
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends.data()) != 0) {
    system_error("socketpair");
  }
  const pid_t program = ::getpid();
  const pid_t pid = ::fork();
  if (pid < 0) system_error("fork");
  if (pid == 0) {
    ends_with(program);
    ::close(ends[0]);
    serve(ends[1], program);
  }
  ::close(ends[1]);
  server = ends[0];
}

}  // namespace

pid_t start_rank_process(const RankProcess& process) {
  std::vector<int> files = {process.output_fd};
  if (process.listen_fd >= 0) files.push_back(process.listen_fd);
  Letter().send(packed(process.arguments) + packed(process.environment), files);
  pid_t pid = -1;
  if (TEMP_FAILURE_RETRY(::recv(server, &pid, sizeof(pid), 0)) != sizeof(pid) || pid < 0) {
    system_error("starting a rank of a test");
  }
  return pid;
}

int run_tests(int argc, char** argv) {
  start_server();
  return run_all({argv, argv + argc});
}

}  // namespace tessera
