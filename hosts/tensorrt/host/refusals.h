// SPDX-License-Identifier: Apache-2.0
// Wrong fields, types and shapes, and damaged engines: the plugin must say what is wrong, and go on.
#pragma once

#include <string>

#include "hosts/tensorrt/host/standins.h"

namespace tilewright::tensorrt::host {

struct Counts {
  int passed = 0, failed = 0;
};

Counts refusals(const Library& library, Logger& logger, const std::string& target);

}  // namespace tilewright::tensorrt::host
