// SPDX-License-Identifier: Apache-2.0
// The Error that something is refused with; the test fails where it is not.
#pragma once

#include <tilewright/error.h>
#include <tilewright/problem.h>

#include <concepts>
#include <cstdlib>
#include <string>

#include "support/catch.h"

template <std::invocable Action>
tilewright::Error refusal(Action&& action) {
  try {
    action();
  } catch (const tilewright::Error& e) {
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

// It as one line, "k=100: a multiple of 64".
inline std::string refused(const std::string& text) {
  const tilewright::Error e = refusal(text);
  return e.field() + "=" + e.value() + ": " + e.allowed();
}
