// SPDX-License-Identifier: Apache-2.0
// The search of a layer: few binaries that together serve every number of rows well. Each next one is the candidate of
// which most is expected over all numbers of rows, and it is measured where it may win. Every fate is stored as it is
// known. One thread at a time.
#pragma once

#include <string>

#include <tilewright/problem.h>

#include "tuner/measure/search.h"
#include "tuner/rows/rows.h"

namespace tilewright::tuner {

// `table`: every candidate that was measured, and what serves which step; empty if the search was cancelled before
// anything was measured. Throws as search() does.
TuneReport search_rows(SearchContext& context, const Problem& problem, const Device& device, const TunePolicy& policy,
                       const std::string& templates, RowTable& table);

}  // namespace tilewright::tuner
