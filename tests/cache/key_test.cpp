// SPDX-License-Identifier: Apache-2.0
#include "cache/key.h"

#include <random>
#include <string>

#include "support/catch.h"

using namespace tilewright;

TEST_CASE("sha256 gives the digests of FIPS 180-4's examples") {
  CHECK(sha256_hex("") == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  CHECK(sha256_hex("abc") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  CHECK(sha256_hex("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq") ==
        "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  CHECK(sha256_hex("abcdefghbcdefghicdefghijdefghijkefghijklfghijklmghijklmnhijklmnoijklmnopjklmnopqklmnopqrlmnopqrs"
                   "mnopqrstnopqrstu") == "cf5b16a778af8380036ce59e7b0492370b249b11e8f07a51afac45037afee9d1");
  cache::Sha256 portable(cache::Sha256::Rounds::portable);
  portable.update("abc", 3);
  CHECK(portable.hex() == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  CHECK(sha256_hex(std::string(1000000, 'a')) == "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

TEST_CASE("sha256 does not depend on how the bytes are cut up, nor on who computes it") {
  std::mt19937 random(7);
  std::string text(1000, 'x');
  for (int trial = 0; trial < 100; ++trial) {
    text[random() % text.size()] = static_cast<char>(random());
    // The processor's instructions and the plain rounds agree.
    cache::Sha256 hash(trial % 2 ? cache::Sha256::Rounds::portable : cache::Sha256::Rounds::fastest);
    for (std::size_t at = 0; at < text.size();) {
      const std::size_t take = std::min<std::size_t>(text.size() - at, random() % 150);
      hash.update(text.data() + at, take);
      at += take;
    }
    CHECK(hash.hex() == sha256_hex(text));
  }
}

TEST_CASE("a key's transcript is readable and its hash unambiguous") {
  const Key key = Key().add("target", "sm_90a").add("threads", 256);
  CHECK(key.transcript() == "target=sm_90a\nthreads=256\n");
  CHECK(key.hash().size() == 64);
  CHECK(Key().add("a", "b=c").hash() != Key().add("a=b", "c").hash());
  CHECK(Key().add("a", "b=c").transcript() != Key().add("a=b", "c").transcript());
  CHECK(Key().add("a", "1\nb=2").transcript() != Key().add("a", "1").add("b", "2").transcript());
  CHECK(Key().add("ab", "c").hash() != Key().add("a", "bc").hash());
  CHECK(Key().add("a", "1").add("b", "2").hash() != Key().add("b", "2").add("a", "1").hash());
  CHECK(Key().hash() != Key().add("", "").hash());
}

TEST_CASE("any key survives its transcript") {
  std::mt19937 random(11);
  for (int trial = 0; trial < 300; ++trial) {
    Key key;
    const auto word = [&] {
      std::string s;
      for (unsigned i = random() % 12; i > 0; --i)
        s += static_cast<char>(random() % 3 ? random() % 256 : "=\\\nx\0"[random() % 5]);
      return s;
    };
    for (unsigned i = random() % 5; i > 0; --i) key.add(word(), std::string_view(word()));
    const auto back = cache::parse_transcript(key.transcript());
    REQUIRE(back);
    CHECK(back->fields() == key.fields());
    CHECK(back->hash() == key.hash());
  }
}

TEST_CASE("a text that is no transcript is refused") {
  for (const char* text : {"a", "a=b", "ab\nc=d\n", "a=\\\n", "a=\\x4\n", "a=\\xzz\n", "a=\\q41\n", "\n"}) {
    CAPTURE(text);
    CHECK_FALSE(cache::parse_transcript(text));
  }
  CHECK(cache::parse_transcript(""));
}
