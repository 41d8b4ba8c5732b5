// SPDX-License-Identifier: Apache-2.0
// The keys of binaries, choices and measurements. Each field has an incident behind it (a stale kernel, or a
// winner of another GPU), so none may be dropped. Usable from any thread.
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include <tilewright/arch.h>
#include <tilewright/kernel.h>
#include <tilewright/source.h>
#include <tilewright/store.h>
#include <tilewright/version.h>

namespace tilewright::tuner {

inline constexpr const char* kLibraryVersion = TILEWRIGHT_VERSION_STRING;

// The headers that a source can reach. Hashing the text of all of them takes longer than a cache may, and it is the
// same few headers every time, so what is known about one is kept.
class HeaderIndex {
 public:
  struct Known {
    SharedText text;                    // compared before the rest is believed
    std::string hash;                   // SHA-256 of text
    std::vector<std::string> includes;  // as written, resolved against the including header's folder
  };
  // (name, hash) of every header reachable from source.text, sorted by name. A header that is included but absent is
  // left to the compiler to report.
  std::vector<std::pair<std::string, std::string>> closure(const Source& source);

 private:
  std::shared_ptr<const Known> known(const Header& header);

  std::mutex mutex_;
  std::unordered_map<std::string, std::shared_ptr<const Known>> known_;
};

// Names in #include "..." directives, in order of appearance. Comments are not parsed: a commented-out directive only
// widens a key.
std::vector<std::string> included_names(std::string_view text);

Key binary_key(const Source& source, const Arch& arch, const std::string& compiler, HeaderIndex& headers);

// A choice holds for one model of GPU and one version of the library.
Key choice_key(const Device& device, std::string_view version = kLibraryVersion);
// The list of what serves which number of rows of a problem; the problem's own are 1 in the list's text.
Key rows_key(const Device& device);
// A measurement, or a failure, holds for one driver and compiler as well: either may cure what failed.
Key outcome_key(const Device& device, const std::string& compiler);
// The lists of what prewarm() compiled for a target.
Key prewarm_key(const Arch& arch);

}  // namespace tilewright::tuner
