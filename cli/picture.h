// SPDX-License-Identifier: Apache-2.0
// Pictures of a command's data. Python's tilewright.plot draws them, with matplotlib.
#pragma once

#include <string>

#include "cli/command.h"

namespace tilewright::cli {

// An SVG document. `option` asked for it, and is what errors name. Throws Error (library_missing) where no Python with
// matplotlib is found, or where it fails.
std::string svg_of(const char* option, const Json& data);

// Throws where write_picture() would for want of a Python: before work that takes long.
void need_pictures(const char* option, const std::string& path);

// The same to a file, or what its name's end says: .png is a PNG, .json the data, for which nothing is needed.
void write_picture(const char* option, const std::string& path, const Json& data);

}  // namespace tilewright::cli
