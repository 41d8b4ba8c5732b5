// SPDX-License-Identifier: Apache-2.0
// The Error that something is refused with; the test fails where it is not.
#pragma once

#include <tilewright/error.h>
#include <tilewright/problem.h>

#include <concepts>
#include <cstdlib>
#include <string>

#include "support/catch.h"
#include "support/sentence.h"

template <std::invocable Action>
tilewright::Error refusal(Action&& action) {
  try {
    action();
  } catch (const tilewright::Error& e) {
    INFO(e.what());
    CHECK(is_sentence(e.what()));
    return e;
  }
  FAIL("accepted");
  std::abort();
}

// The error with which a problem's text is refused.
inline tilewright::Error refusal(const std::string& text) {
  INFO(text);
  return refusal([&] { tilewright::Problem::parse(text); });
}

// Its message, "k must be a multiple of 64 (got 100)".
inline std::string refused(const std::string& text) { return refusal(text).what(); }
