// SPDX-License-Identifier: Apache-2.0
// Copying rows from one store to another, each verified on the way. What merge, import, export and repair share.
#pragma once

#include <functional>
#include <limits>

#include <tilewright/store.h>

#include "cache/layer.h"

namespace tilewright::cache {

struct TransferRules {
  bool binaries = true;   // otherwise they are refused
  bool imported = false;  // mark choices and measurements as somebody else's
  std::int64_t most_rows = std::numeric_limits<std::int64_t>::max();  // of each table; the rest is refused
  std::function<void()> step = [] {};  // called between transactions, with no lock held: renew deadlines
};
inline constexpr std::int64_t kImportRows = 100000;

// On a conflict a choice that was measured here wins over an imported one, then the faster one over the slower, and a
// measured one over one that is not. Equal measurements are kept once.
MergeReport transfer(Layer& from, Layer& to, const TransferRules& rules);

// Row ids of a table in the order of last use.
std::vector<std::int64_t> row_ids(Database& db, const char* sql);

}  // namespace tilewright::cache
