#include "tessera/launch/process.h"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>

#include "tessera/base/error.h"

namespace tessera::launch {
namespace {

bool is_executable_file(const std::string& path) {
  struct stat info {};
  return ::stat(path.c_str(), &info) == 0 && S_ISREG(info.st_mode) &&
         ::access(path.c_str(), X_OK) == 0;
}

std::vector<char*> pointers(const std::vector<std::string>& strings) {
  std::vector<char*> result;
  for (const auto& string : strings) result.push_back(const_cast<char*>(string.c_str()));
  result.push_back(nullptr);
  return result;
}

/// Runs in the child between fork and exec: makes only calls that are safe there (the parent may
/// have threads).
[[noreturn]] void become_program(const SpawnOptions& options, char* const* arguments,
                                 char* const* environment, pid_t parent, int error_fd) {
  ::setpgid(0, 0);
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent) ::_exit(127);  // it died before the line above took effect
  const bool wired = ::dup2(options.stdin_fd, 0) == 0 && ::dup2(options.stdout_fd, 1) == 1 &&
                     ::dup2(options.stderr_fd, 2) == 2;
  if (wired) {
    for (const int fd : options.inherited_fds) ::fcntl(fd, F_SETFD, 0);
    ::sigprocmask(SIG_SETMASK, &options.signal_mask, nullptr);
    ::execve(options.program.c_str(), arguments, environment);
  }
  const int error = errno;
  const auto written = ::write(error_fd, &error, sizeof error);
  ::_exit(written == sizeof error ? 126 : 127);
}

}  // namespace

std::string find_program(const std::string& name) {
  if (name.find('/') != std::string::npos) {
    if (is_executable_file(name)) return name;
    if (!std::filesystem::exists(name))
      user_error("launch: '{}' not found; give a program's path or name", name);
    user_error(
        "launch: '{}' is not an executable file; set its x bit (chmod +x) or name its interpreter",
        name);
  }
  const char* path = std::getenv("PATH");
  std::istringstream folders(path != nullptr ? path : "/usr/local/bin:/usr/bin:/bin");
  for (std::string folder; std::getline(folders, folder, ':');) {
    const std::string candidate = (folder.empty() ? "." : folder) + "/" + name;
    if (is_executable_file(candidate)) return candidate;
  }
  user_error("launch: '{}' not found in PATH; for a file of this folder write './{}'", name, name);
}

pid_t spawn(const SpawnOptions& options) {
  // All memory is taken before the fork.
  const auto arguments = pointers(options.arguments);
  const auto environment = pointers(options.environment);
  Pipe error_pipe = make_pipe();
  const pid_t parent = ::getpid();
  const pid_t child = ::fork();
  if (child < 0) system_error("launch: cannot start a process");
  if (child == 0)
    become_program(options, arguments.data(), environment.data(), parent, error_pipe.write.get());
  error_pipe.write.reset();
  int error = 0;
  ssize_t got = 0;
  do
    got = ::read(error_pipe.read.get(), &error,
                 sizeof error);  // ends when exec closes the other side
  while (got < 0 && errno == EINTR);
  if (got == static_cast<ssize_t>(sizeof error)) {
    ::waitpid(child, nullptr, 0);
    user_error("launch: cannot run '{}': {}{}", options.program, std::strerror(error),
               error == ENOEXEC ? "; does its first line name an interpreter (#!/bin/sh)?" : "");
  }
  return child;
}

Pipe make_pipe() {
  int fds[2];
  if (::pipe2(fds, O_CLOEXEC) != 0) system_error("launch: cannot make a pipe");
  return {FileDescriptor(fds[0]), FileDescriptor(fds[1])};
}

std::vector<ProcessEntry> list_processes() {
  std::vector<ProcessEntry> result;
  std::error_code ignored;  // a process may end while we read
  for (const auto& entry : std::filesystem::directory_iterator("/proc", ignored)) {
    const std::string name = entry.path().filename();
    if (name.find_first_not_of("0123456789") != std::string::npos) continue;
    std::ifstream file(entry.path() / "stat");
    std::string line;
    std::getline(file, line);
    const auto end_of_name =
        line.rfind(')');  // the name may hold anything, brackets and blanks included
    if (end_of_name == std::string::npos) continue;
    ProcessEntry process{static_cast<pid_t>(std::stol(name)), 0, 0, ' '};
    std::istringstream rest(line.substr(end_of_name + 1));
    if (rest >> process.state >> process.parent >> process.group) result.push_back(process);
  }
  return result;
}

std::vector<ProcessEntry> descendants(const std::set<pid_t>& excluded) {
  std::multimap<pid_t, ProcessEntry> children;
  for (const auto& process : list_processes()) children.emplace(process.parent, process);
  std::vector<ProcessEntry> result;
  std::vector<pid_t> pending{::getpid()};
  while (!pending.empty()) {
    const pid_t parent = pending.back();
    pending.pop_back();
    const auto [first, last] = children.equal_range(parent);
    for (auto child = first; child != last; ++child) {
      if (excluded.contains(child->second.pid)) continue;
      if (child->second.state != 'Z') result.push_back(child->second);
      pending.push_back(child->second.pid);
    }
  }
  return result;
}

}  // namespace tessera::launch
