// SPDX-License-Identifier: Apache-2.0
// The sentences that errors are.
#include <tilewright/error.h>

#include "support/catch.h"
#include "support/sentence.h"

using namespace tilewright;

namespace {

std::string message(const char* field, const char* value, const char* allowed) {
  return Error(ErrorCode::invalid_argument, field, value, allowed).what();
}

}  // namespace

TEST_CASE("an error is a sentence about its field and value", "[error]") {
  CHECK(message("k", "100", "must be a multiple of 32") == "k must be a multiple of 32 (got 100)");
  CHECK(message("c", "f16", "must be left out: y is exact") == "c must be left out (got f16): y is exact");
  CHECK(message("w", "q4", "must be one of q4_0 q4_1; did you mean q4_0?") ==
        "w must be one of q4_0 q4_1 (got q4); did you mean q4_0?");
  CHECK(message("x_from", "f16", "is not supported with groups; leave it out") ==
        "x_from=f16 is not supported with groups; leave it out");
  CHECK(message("file", "a/b", "cannot be opened: why") == "file a/b cannot be opened: why");
  CHECK(message("tensor name", "a", "occurs twice") == "tensor name a occurs twice");
  CHECK(message("m", "", "is required: tokens") == "m is required: tokens");
  CHECK(message("cuInit", "CUDA_ERROR", "failed: why (3)") == "cuInit failed (CUDA_ERROR): why (3)");
}

TEST_CASE("what is no sentence", "[error]") {
  CHECK_FALSE(is_sentence("k = 100: a multiple of 32"));
  CHECK_FALSE(is_sentence("c = f16: left out: y is exact"));
  CHECK_FALSE(is_sentence("k: a multiple of 32"));
  CHECK(is_sentence("k must be a multiple of 32 (got 100)"));
}
