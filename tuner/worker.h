// SPDX-License-Identifier: Apache-2.0
// Compiling in worker processes: a message each way per job over a socket.
//
//   message  = length (4 bytes, little-endian, at most 64 MiB) body
//   request  = "TWQ1" target nvrtc compiler_cache name entry text plan options headers
//   reply    = "TWA1" ok: 1 byte, then a Binary; or 0, then an error
//   A string is its length (4 bytes) and its bytes; a list is its count (4 bytes) and its items.
//
// Every length is checked against what is left of the message before anything is allocated.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>

#include <tilewright/kernel.h>

namespace tilewright::tuner {

std::string encode_request(const Source& source, const Arch& arch, const CompileOptions& options);
struct Request {
  Source source;
  std::string target;
  CompileOptions options;
};
std::optional<Request> decode_request(const std::string& body);  // nothing if malformed

std::string encode_reply(const Binary& binary);
std::string encode_reply(const std::exception& error);
// The binary, or throws the worker's error; Error (compile_failed) if malformed.
Binary decode_reply(const std::string& body, const Source& source, const Arch& arch);

// One worker process, used by one thread. Started at the first job and again after it died.
class Worker {
 public:
  Worker(std::string program, CompileOptions options) : program_(std::move(program)), options_(std::move(options)) {}
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;
  ~Worker() { stop(false); }

  // Throws what compile() would; Error (io) if the program cannot be started; Error (compile_failed) if it dies,
  // answers nonsense, or takes more than `seconds`: only this job is lost.
  Binary compile(const Source& source, const Arch& arch, double seconds = 120);
  pid_t pid() const { return pid_; }

 private:
  void start();
  void stop(bool kill);

  std::string program_;
  CompileOptions options_;
  pid_t pid_ = -1;
  int socket_ = -1;
};

}  // namespace tilewright::tuner
