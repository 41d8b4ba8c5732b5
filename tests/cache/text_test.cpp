// SPDX-License-Identifier: Apache-2.0
#include "cache/text.h"

#include <tilewright/text.h>

#include "support/catch.h"

using namespace tilewright;

TEST_CASE("printable text is valid UTF-8 without what moves the cursor or turns the writing") {
  for (const char* good : {"", "gemm x=f16 w=q4_0", "\xc3\xa4", "\xe2\x82\xac", "\xf0\x9f\x98\x80", "~"}) {
    CAPTURE(good);
    CHECK(is_printable(good));
    CHECK(printable(good) == good);
  }
  const std::pair<std::string, std::string> bad[] = {
      {"\x1b[31m", "\\x1b[31m"},
      {"a\rb", "a\\x0db"},
      {std::string("\0", 1), "\\x00"},
      {"\x7f", "\\x7f"},
      {"\xc2\x9b"
       "1m",
       "\\xc2\\x9b"
       "1m"},  // C1: begins a sequence, too
      {"\x9b", "\\x9b"},
      {"\xe2\x80\xae"
       "x",
       "\\xe2\\x80\\xae"
       "x"},  // right to left
      {"\xe2\x81\xa6", "\\xe2\\x81\\xa6"},
      {"\xc0\xaf", "\\xc0\\xaf"},           // overlong
      {"\xed\xa0\x80", "\\xed\\xa0\\x80"},  // a surrogate
      {"\xf5\x80\x80\x80", "\\xf5\\x80\\x80\\x80"},
      {"\xe2\x82", "\\xe2\\x82"},  // cut short
  };
  for (const auto& [text, shown] : bad) {
    CAPTURE(shown);
    CHECK_FALSE(is_printable(text));
    CHECK_FALSE(is_printable(text, true));
    CHECK(printable(text) == shown);
    CHECK(is_printable(printable(text)));
  }
  CHECK_FALSE(is_printable("a\n\tb"));
  CHECK(is_printable("a\n\tb", true));
  CHECK(printable("a\n\tb") == "a\n\tb");
}
