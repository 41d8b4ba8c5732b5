// SPDX-License-Identifier: Apache-2.0
// Files that commands write where the user says.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace tilewright::cli {

// Throws Error (invalid_argument) if `path` is one of the files that are read, by whatever name; of a folder among
// them, if it lies in that.
void refuse_input(const char* option, const std::string& path, std::span<const std::string> read);

// A regular file is replaced whole, under its own name last; a pipe or device is written to.
void write_whole(const char* option, const std::string& path, std::string_view text);

}  // namespace tilewright::cli
