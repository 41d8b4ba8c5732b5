// SPDX-License-Identifier: Apache-2.0
// Compiling in worker processes: one request and one reply per job over a socket.
//
//   message  = length (4 bytes, little-endian, at most 64 MiB) body
//   request  = "TWQ3" target nvrtc compiler_cache name entry text plan options headers
//   reply    = "TWA1" 1 target entry plan resources image log seconds
//            | "TWA1" 0 is_compile_error code field value text options
//
// A string is its length and its bytes; a list is its count and its items; a header is its name and its text; a plan
// and resources are their fields in the order of their structs. Lengths, counts and numbers are 4 bytes, little-endian;
// TensorMapPlan::rows and ::inner are 8. `seconds` is decimal text. Every length is checked against what is left of the
// message before anything is allocated. Both ends are the same build, so there is one version of each message.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

#include <tilewright/error.h>
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
class Malformed : public Error {
  using Error::Error;
};
// The binary, or throws the worker's error; Malformed (compile_failed) if it is not a reply to this request.
Binary decode_reply(const std::string& body, const Source& source, const Arch& arch);

// One worker process, started at the first job and again after it died. Used by one thread, which must not end before
// the Worker: the process dies with the thread that started it.
class Worker {
 public:
  Worker(std::string program, CompileOptions options) : program_(std::move(program)), options_(std::move(options)) {}
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;
  ~Worker();  // within a second, whatever the process does

  // Throws what compile() would; Error (io) if the program cannot be started; Error (compile_failed) if it dies,
  // answers nonsense, or takes more than `seconds` from here to its last byte. Only this job is lost.
  Binary compile(const Source& source, const Arch& arch, double seconds = 120);
  pid_t pid() const { return pid_; }

 private:
  void start();
  void stop(std::chrono::milliseconds grace);

  std::string program_;
  CompileOptions options_;
  pid_t pid_ = -1;
  int socket_ = -1;
};

}  // namespace tilewright::tuner
